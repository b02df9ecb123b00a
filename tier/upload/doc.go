// Package upload moves sealed segments into the archive: the object first, then
// its entry in the partition's chain, then the news that the local copy is no
// longer the only one.
//
// # Guarantees
//
// What Hooks.Archived reports is in the archive: the store took the object with
// its known SHA-256 and CRC-32C and returned its end as it was sent, and an entry
// of this owner, read back too, names it. Entries of
// one partition are committed strictly in offset order, so a failed upload
// holds back what follows it and never leaves a hole. A file whose bytes are
// not the sealed ones is not uploaded as good: its partition stops with an
// error that names the file, the others go on. Nothing is ever deleted.
//
// An attempt is an object key with a nonce of its own. A put that may have
// worked is tried again under the same key; an object that stands there already
// is read and compared before it counts. An object under any other key is never
// adopted, unless an entry of the chain names it.
//
// # Bounds
//
// At most Config.Concurrency segments are in flight on the node, and that many
// of one partition; the queue is bounded and refuses. A failure makes its
// partition wait with full jitter, doubling up to Config.MaxBackoff; the wait is
// shown in Status and never spins. A store that answers nobody is asked for one
// segment at a time, however many partitions wait. A backlog costs memory per segment, no
// goroutine and no open file.
//
// # Ownership and goroutines
//
// The node owns the chains and lends them through [Chains]. One goroutine
// dispatches, and one runs for each segment in flight; Close waits for all of
// them. Hooks are called without locks, in offset order for one partition, and
// must not call Close.
package upload
