// Package repair makes a data directory start again whose write-ahead log is
// damaged: frames that had been durable do not verify any more, or a file of
// the log is missing. It is the logic of `tidemark wal repair`.
//
// # What it does
//
// [Look] reads the log, the local state, the metadata and, when one is given,
// the archive, and returns a [Plan]: which frames are lost, which offsets of which
// partitions, and what survives. It changes nothing.
//
// [Run] carries the plan out, in one of two ways.
//
//   - Refill. The archive's shipped WAL has every frame that is missing. The
//     files that are hit are written anew, from what survives in them and from
//     the archive. Nothing is lost; incarnation, LSNs and offsets stay.
//   - Rebuild. Frames are lost for good. Every record that survives, in segment
//     files, in the log on either side of the damage, in the archive, keeps its
//     offset; a lost range of offsets becomes a batch without records, so that
//     the log of the partition stays contiguous. The directory gets a new
//     incarnation, because LSNs that were given out mean something else from now
//     on, and every partition a new generation that begins 2^32 offsets above
//     its end, because an offset that stood in a lost frame must not be given
//     out again (I3). The new log begins with the partitions' bases and carries
//     what the archive does not have yet.
//
// # Crash safety
//
// The directory is locked throughout. A refill replaces one file after the
// other by a complete one, each by a rename. A rebuild builds everything in the
// folder repair, where nothing else looks, says with the file READY that it is
// complete, and then only renames; a node does not start while READY stands.
// Killed anywhere, the same call ends the work. What was replaced is kept in
// wal/damaged-<time>.
//
// It runs no goroutines of its own between calls.
package repair
