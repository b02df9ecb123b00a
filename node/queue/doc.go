// Package queue is the group engine of a node: which records of a partition a
// group has settled, which are leased, which come back, and who waits for the
// next one. It knows offsets, not records: it has no files and no network,
// takes a clock and a [Journal], and gives out [Delivery] values that name a
// record for the caller to read.
//
// # Guarantees
//
//   - A group's position never passes an unsettled record (B67), and only
//     rises, except by a seek or a delete (B73).
//   - A record is leased to one consumer at a time; its receipt handle settles
//     it until the lease ends, also after a restart, unless the record is
//     leased anew before (B80, B81).
//   - A settled record is not delivered again to its group (I11), as far as
//     the journal entry of the settling survives: Ack, Nack and the like stage
//     one and return its LSN, and the caller answers when that LSN is written
//     or durable.
//   - Nothing at or above the high watermark is handed out, and acks for it
//     are refused, so that no new record is ever taken for a settled one (I2).
//   - Whoever waited longest is served first, unless it waits for another
//     partition (B86); a new record wakes at most one waiter.
//
// # Parts
//
//	Engine     the topics and partitions served here, the groups, one alarm
//	partition  what the log holds: start, high watermark, gaps; its cursors
//	group      one per topic and name: cursors, waiters, ring, wheel, one lock
//	cursor     one group's position on one partition
//
// A cursor keeps committed (everything below is settled), the settled ranges
// ahead of it (spans), next (the first never delivered offset), and a rec for
// each offset that was delivered and is not settled: leased, delayed or ready.
// A group keeps its deliverable partitions in a ring, so that a consume does
// not search, and its waiters in arrival order, one list for any partition and
// one per partition. Every change of a cursor ends in group.refresh, which
// matches the two.
//
// Leases and delays end by a hierarchical timing wheel. Each group has one,
// under the lock that it holds anyway, instead of all groups sharing one under
// a lock of its own: then ending a lease races with nothing, and groups do not
// meet. All wheels together are driven by one goroutine, the alarm, which
// sleeps while nothing is leased or delayed; there is no goroutine and no
// runtime timer per lease. Close ends it and waits for it.
//
// # Bounds
//
// Leases per group and partition (MaxInFlight); settled ranges ahead of a
// cursor (beyond MaxRanges only the lowest unsettled record is handed out,
// acks are always taken, B76); tracked records of a cursor (beyond MaxTracked
// nothing fresh is handed out); groups of a topic; waiting calls of a node.
//
// # Time
//
// Deadlines are microseconds since the Unix epoch, kept by the monotonic clock
// from the engine's start on. A lease ends at its deadline: a settle call is
// refused from then on, and the record is deliverable at most a millisecond
// later. Delays never end early.
//
// # Restart
//
// The owner attaches a partition with the states of the last [Engine.Snapshot],
// replays the journal from its LSN with [Engine.Apply], and calls
// [Engine.Serve]. Everything unsettled is deliverable then, except delays that
// have not ended; delivery counts survive for what came back by nack or expiry,
// or was leased at the snapshot. The formats of states, journal entries and
// receipt handles stand at [State.Append], in ops.go and in handle.go.
package queue
