// Package child runs a server of a benchmark as a process of its own: a broker or
// a reference program, which print one line of JSON with their address when they
// are ready.
//
// A child is ended by its process id, and dies with the program that started it,
// however that ends. The last kilobytes of its standard error are kept for the
// message of a failure. Two goroutines run for each child; Stop returns after they
// have ended.
package child
