// Package load runs an operation over and over and measures it honestly.
//
// In the open loop operations are due at fixed times, whether earlier ones have
// ended or not, and latency counts from when an operation was due. A server that
// stands still for a second delays all operations that were due in it, and all
// these delays are in the result (no coordinated omission). What was due and could
// not be begun in time is counted as unsent, with the latency it had at least. In
// the closed loop each connection begins its next operation when the last one has
// ended, which finds the highest rate; latencies are then service times, and say
// little about what callers see at a given rate.
//
// # Guarantees
//
// Memory does not depend on the length of a run: latencies are in histograms of
// fixed size (three digits, 1 us to 10 minutes), the course over time in at most
// [MaxPoints] points. Warm-up is not measured. The first error ends a closed
// loop: with operations that failed, its figures would be a lie. The open loop goes
// on after operations that were refused or got no answer, as producers do, and counts
// them ([Missed]); it ends with any other error, and when nothing is answered for the
// plan's Silence.
//
// # Goroutines
//
// One for each connection, one that says what is due in the open loop, and one
// that notes the course. [Run] returns after all of them have ended.
package load
