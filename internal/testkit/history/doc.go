// Package history checks what clients of a broker were told against what the
// broker has, across kills, restarts and restores.
//
// Clients record every produce with the answer or its absence, every delivery,
// and every answered ack. After each restart a test hands over the complete log
// of every partition, and [History.Check] returns what must not be:
//
//   - a record that was answered and is not there, is elsewhere, or is there
//     twice; a record that was there and is no more;
//   - an offset that has had two contents, ever;
//   - records of one partition out of order: one that was sent after another
//     was answered stands behind it;
//   - a record that nobody sent, or whose bytes changed;
//   - a delivery of a record whose ack was answered before it was asked for;
//   - a record that a restore lost, back again.
//
// A kill loses nothing. A lost disk may lose what is younger than the bound
// that [Cut] names, and nothing that was answered as archived.
//
// Times are lengths since the history's beginning, of one monotonic clock. The
// package does no IO and starts no goroutines; a History is safe for
// concurrent use.
package history
