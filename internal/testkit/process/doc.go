// Package process runs a program as a child process for tests that need a real
// one: to kill it, to see its exit code, to give it a disk of its own.
//
// A child is ended by its process id and never by its name. It dies with the
// process that started it, however that ends, so that nothing is left behind.
// The last kilobytes of what it wrote are kept for the message of a failure.
//
// Two goroutines run for each child: one waits for its end, one reads its
// standard output. Kill, Stop and Wait return after both have ended.
package process
