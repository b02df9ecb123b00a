// Package scrub reads again what a node has stored and nobody reads: every sealed
// segment file on its disk, and every segment object that its chains name, each
// once in an interval. A copy that does not verify any more is repaired from the
// other one while that is still good.
//
// # What is verified
//
//	local    length; footer, index and every batch; the SHA-256 of the whole file
//	         against what was written down when it was sealed
//	archive  the same of the object, read in ranges of 8 MiB; offsets, records, lengths
//	         and the SHA-256 of the data against the chain's entry
//
// Nothing is called damaged on one look: what does not verify is read once more. A
// file that cannot be opened for want of descriptors, and a store that does not
// answer, say nothing about the bytes: the segment is tried again with growing
// pauses, and passed over after a few tries until the next round.
//
// # What is repaired
//
// A local file is fetched out of the archive, if the chain names an object of
// exactly its bytes: under another name, synced, renamed into its place; the
// damaged file is kept beside it. Where the archive has its records in another
// shape, merged, and had confirmed the file before, the file is set aside and
// the records are read there. A missing object is put again under its own key. A
// damaged one stays where it is; the local file goes up under a new key, is read
// back whole, and takes its place in the chain; the old object is left to the
// collector of garbage. When both copies are bad, or there is only one, nothing is
// changed: the finding says where, which offsets, and what to do. It stays open
// over restarts until a later look finds the copy good or gone.
//
// # Pace and order
//
// Each tier has a walk over partitions by id and segments by offset, whose place
// is written to a small file; a lost one only begins the round again. Pauses
// between segments spread a round over the interval by bytes. A segment itself is
// read at Options.MaxRate at most, which is halved while other work runs late. A
// walk waits while Options.Busy says that its tier must be left alone. What was
// asked for, and what a reader met, goes first and does not wait for its turn.
//
// # Goroutines
//
// [Scrubber.Run] is the one goroutine; everything is read by it, one segment at a
// time, so memory is bounded by two ranges of an object. The other methods may be
// called from any goroutine and do not block.
package scrub
