// Package reload runs the re-reading of a configuration while a process works:
// at each signal once, whole or not at all, logged and counted.
//
// What is read and what may change is the caller's: its function either puts
// everything in place and says what changed, or leaves everything as it was and
// says why. The package gives it the signals one at a time, and the outside the
// outcome.
//
// [Reloader.Run] is the only goroutine, and the caller's. Signals that come
// while a reload runs are one more reload together.
package reload
