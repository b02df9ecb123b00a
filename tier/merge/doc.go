// Package merge turns runs of small adjacent segments of the archive into larger
// ones: a partition with little traffic would else have thousands of tiny objects.
//
//	choose    a run, from what the chain lists
//	build     its batches one behind the other in a local file, every one verified
//	send      the file becomes an object under a key of its own, and is read back
//	replace   one chain entry puts the object in the place of exactly that run
//	discard   the objects of the run are garbage after a grace
//
// # Guarantees
//
// A merged segment has the batches of its inputs byte for byte, in order, and
// nothing else: each input's data has the SHA-256 that the chain names, or the
// merge is given up. Its index is new; offsets, generations and times stay. All of
// the object was read back and has the SHA-256 of the file before the chain names
// it, because its inputs go soon after. The chain changes in one step
// (manifest.Chain.Replace), which fails when a single input is not there any more,
// so a record is listed exactly once at any moment: before that step the inputs
// stand, behind it the output. What was built in vain is named by nothing and left
// to the sweep of orphans. Nothing is deleted here.
//
// A replace whose answer was lost is asked again until it is known how it ended,
// before anything else is merged in that partition; until then [Merger.InUse]
// keeps the output.
//
// # What is merged
//
// See [Choose]. A run never reaches over a gap, the start of a trimmed log or a
// segment whose local copy still waits to be compared with its object, and never
// into the pages of a long chain. Its output has at least four times the size of
// its largest input, so a record is copied at most log4(largest merged size / its
// first segment's size) times, however the segments come. An output spans no more
// time and no more bytes than Limits allow, because retention drops segments whole.
//
// # Bounds
//
// One merge at a time: a file of at most Options.TargetBytes in Options.Dir, 4 MiB
// of memory for reading, and the largest batch. Options.BytesPerSecond bounds what is
// read and what is sent, together. Local files are read before objects. Requests are
// of class background. The local file is not synced: what a crash leaves of it is
// removed at the next start, and a wrong byte fails against sums taken as it was written.
//
// # Goroutines
//
// [Merger.Run] is the only one. [Merger.InUse] may be called from any.
package merge
