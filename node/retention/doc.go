// Package retention decides what of a node's logs may go, and makes it go: the
// start of a log by total retention, local copies of archived segments by local
// retention, and more of those when the disk runs short.
//
// # Rules
//
//	total     a log keeps records for retention_ms, and about retention_bytes of them
//	local     what the archive confirmed stays on disk for local_retention_ms, and
//	          about local_retention_bytes of a partition stay
//	pressure  below twice the reserve of free disk space the chunk cache shrinks, then
//	          confirmed local copies go, the oldest of all partitions first
//
// A limit of 0 is none. Only whole segments go, so a log may keep one more than
// its limit says; what is in no sealed segment goes as one, when all of it is over
// age. Bytes count once: the objects that the archive's chain names, and what is
// only local. Age counts from the broker's append time. Where that cannot be
// right, because it is unknown, lies in the future, before the topic's creation or
// before what it follows, or was taken while the clock was wrong, age counts from
// when the sweeper first saw the records.
//
// # Order
//
// The local start rises first, durably. Then the chain follows, by the owner that
// loaded and fenced it in this generation: a gap for what retention passed before
// it was uploaded, so that uploads go on behind it, and the new start. Then the
// objects that the chain no longer names are handed to Options.Discard. While the
// archive does not answer the local start stands and the chain follows later; a
// crash anywhere leaves a chain that is behind, and the next turn sees that.
//
// # Clock
//
// Nothing is trimmed, and nothing leaves by age, while the node's clock moved
// against its monotonic clock by more than 5 minutes since the last turn, or
// differs from the store's by more than that. It resumes when they agree; without
// a store to ask, when the clock has run evenly for an hour. After a start the
// store has to say first that the clock is right, or an hour to pass without its
// answer. What was appended since the clock was last known to be right, by the
// store or by an hour's even run, counts its age from the moment of resuming.
//
// # Goroutines and bounds
//
// A [Sweeper] is one goroutine, in Run. There is no timer per partition: a turn
// looks at every partition in memory, and works on the archive for at most one
// interval, going on in the next turn where it stopped. What is kept for a
// partition is a few numbers, and forgotten with it.
package retention
