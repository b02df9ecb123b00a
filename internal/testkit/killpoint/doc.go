// Package killpoint has the tests that kill a node at a named point: before or
// after the n-th call of one kind on its files or its archive.
//
// The test binary runs itself as a child, which opens a node, or restores one,
// over a file system and a store that end the process with SIGKILL at the point.
// The child writes down what it asks for and what it was answered (file of
// answers), the parent reads that, opens the directory again without the killer,
// and holds one against the other. Nothing in the product knows of it.
//
// What a kill leaves in the page cache survives it: losses of power are the
// crash histories' (package crash).
package killpoint
