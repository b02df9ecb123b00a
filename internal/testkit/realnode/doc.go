// Package realnode runs the tidemark binary for tests: a node as a process of
// its own, and the commands that work on its archive.
//
// Addresses are chosen by the kernel and read from the line that a node prints
// once it serves; nothing here knows a port. A node is ended by its process id
// and dies with the process that started it (package process).
package realnode
