// Package wal is the node-wide write-ahead log: every durable write of a node
// goes into it first, for all partitions together, so that one fsync covers
// what arrived meanwhile.
//
// # Guarantees
//
//   - A frame gets its LSN when its place is reserved. LSNs rise by one and are
//     never reused for another frame once they are durable.
//   - [Log.WaitWritten] returns nil when the frame is in the file: it survives a
//     crash of the process. [Log.WaitDurable] returns nil when it is fsynced: it
//     survives loss of power.
//   - [Open] replays every durable frame, in LSN order, whole groups only, and
//     nothing that was not appended. A torn tail is cut; damage at or below what
//     is proven durable refuses to open and changes nothing on disk.
//   - What is replayed is durable by then, even if the process before died with
//     it only in the page cache.
//   - A failed fsync poisons the log for the life of the process. A failed write
//     does not: its bytes are kept and tried again at the same place.
//
// Frames that one caller reserves together ([Log.ReserveAll]) stand in one group and
// are all there or all absent after a crash.
//
// # Use
//
// Reserve a slot, usually under the lock that orders the records; fill its Body
// after the lock is released; call Done; wait. Between Reserve and Done a caller
// must not block on anything and must not reserve again: the group cannot be
// written before every slot in it is done.
//
//	slot, err := log.Reserve(wal.KindCommit, len(body))
//	if err != nil {
//		return err // nothing was reserved
//	}
//	copy(slot.Body, body)
//	slot.Done()
//	err = log.WaitDurable(ctx, slot.LSN)
//
// An error of a wait means that the frame may or may not be there after a restart.
//
// # Group commit
//
// There is no committer goroutine in the steady state. The first caller that waits while nobody
// syncs leads: it seals the staged group, writes and syncs it itself. Who comes meanwhile
// stages into the next group and waits on one channel that all of them share; the
// leader hands on to a new one when it finishes. A write may run during an fdatasync, which covers
// only what was written before it began. Groups of 32 KiB and more, and one block by itself
// that is synced at once, go around the page cache where the file system can (docs/adr/0010).
// A file that grows, because there was no prewritten spare, ends when there is one: until then
// each sync brings the file system's journal along.
//
// # Ownership and goroutines
//
// The directory belongs to the log alone. Three goroutines live from Open to
// Close: the keeper (marks, the interval sync, retries of a failed write), the
// janitor (recycling and prewriting of files) and, with OnPressure, the one that calls it.
// Finished leaders start short ones; Close waits for all. No timer runs while the log is idle
// and within its size.
//
// # Format
//
// docs/formats/wal.md, byte by byte, with the steps of recovery.
package wal
