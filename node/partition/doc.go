// Package partition is the storage engine of the partitions that a node owns:
// offsets, the tail in memory, the flush into segment files, checkpoints,
// sealing, replay after a start, and one way to read a log wherever its
// records are.
//
// The life of a batch here:
//
//	Admit     waits while the tails hold twice the memory budget
//	Append    under the partitions' locks: offsets stamped, WAL place reserved, tail extended
//	          (nothing is visible yet; the caller waits for the WAL)
//	Advance   the durable LSN passed the batch: the high watermark rises
//	flush     small batches merged, appended to <base>.log     (only what is durable)
//	check-    files synced, flushed offsets, group states and marks in one synced
//	point     batch of the local state; then the WAL's low-water mark may rise
//	seal      index and footer appended, <base>.seg; handed to OnSealed
//	evict     the local copy of what the archive confirmed goes; the log keeps its records
//	trim      the start of the log rises, and what lies wholly below it goes
//
// # Guarantees
//
// No offset is assigned twice (I3): next rises under the partition's lock,
// starts at what the segment files and the WAL prove, and a new generation
// starts where the assignment says. Nothing above the durable LSN is flushed,
// visible or checkpointed (I2). A partition whose files are damaged refuses
// reads and appends with the reason, and the others serve on; the log keeps what
// only it has of such a partition.
//
// A file goes only after the synced local state has forgotten it, and after the
// start, or the list of files, that readers look at: who holds a file finishes,
// who finds none looks again, in the archive or above the new start. A start
// never falls. An eviction takes nothing but sealed segments whose object in the
// archive was compared by checksum, one by one (I6); that the chain covers their
// range with other objects is enough to read there, not to delete here. Files
// that a crash leaves without a name are removed by the next start.
//
// A write that fails is done again over the valid prefix of its file when the
// disk lets it (a full disk heals by itself). A sync that fails takes the
// partition out of service until a restart (I5).
//
// # Locks and goroutines
//
// Partition.mu guards offsets and the tail and is never held across IO.
// Partition.files guards the set of segment files; holding it for reading
// keeps a file from being closed. Partition.flush serialises flush, seal, trim, eviction
// and checkpoint of one partition and is held across IO. Engine.checkpoints is held
// over a whole checkpoint; Engine.entries orders what checkpoints, seals, trims and
// deletions write of partitions into the local state. Order: checkpoints, flush,
// entries, files, room, mu; several partitions' mu in ascending id.
//
// An Engine runs Options.Flushers flush workers and one checkpoint loop; Close
// stops them, flushes and checkpoints what is left, and waits.
package partition
