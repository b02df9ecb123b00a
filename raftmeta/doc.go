// Package raftmeta is the metadata plane: which topics exist, who owns each of
// their partitions, which nodes and incarnations there are. Everything in it
// changes through Raft, one versioned command at a time, and is read from
// memory.
//
// # Guarantees
//
//   - A method that changes something returns nil only after the command is on
//     stable storage and applied. A crash right after loses nothing.
//   - An error of code not_confirmed means the command may have been applied:
//     read the state before trying again. Every other error means it was not.
//   - [Meta.State] is one consistent cut. It never blocks, takes no lock and
//     never changes after it was returned.
//   - What [Open] returns is complete: newest snapshot, the log after it and a
//     barrier have been applied before.
//   - A command or a snapshot that this build does not know stops the plane
//     ([Options].OnFatal) instead of being skipped: a node that skips is a node
//     that differs. A sync that failed stops it too; a restart recovers (I5).
//   - A write that the disk does not take (full, read-only, out of descriptors)
//     waits until it does. Changes are refused meanwhile ([Meta.Err]), and go on
//     by themselves (B155).
//   - State never shrinks by accident: a directory whose log or snapshots are
//     damaged, or do not reach back to each other, is refused with a message
//     unless what is left gives the whole state.
//
// # Directory
//
//	<dir>/log/        Pebble: Raft's log, term and vote; each write is synced
//	<dir>/snapshots/  the two newest snapshots, each an export of the state
//	<dir>/damaged/    snapshots that did not verify, kept for study
//
// The log is kept back to the older of the two snapshots, so either of them
// and the log give the whole state. A snapshot is taken when SnapshotThreshold
// entries have come since the last one (restarts included) and every
// SnapshotInterval when anything came at all.
//
// # Who owns what
//
// Raft's goroutines apply commands (type fsm, apply.go) to a private working
// copy of the state and publish a copy-on-write clone of it through an atomic
// pointer. One goroutine of this package takes snapshots (snapshotter.go); one
// short-lived goroutine per proposal waits for Raft, bounded by maxInFlight.
// [Meta.Close] ends and waits for all of them. The caller keeps two processes
// off one data directory; Pebble's own lock backs that up with an error.
//
// # Cluster of one
//
// Raft runs with its default timeouts. While the latest configuration is this
// one voter, a start asks itself for an election at once (elect in raft.go), so
// it leads within milliseconds, and no short timeout has to be undone when
// voters are added later. More voters, mutual TLS (newTransport) and forwarding
// to a leader (propose) have their places there.
//
// The export format is described in docs/formats/metadata.md.
package raftmeta
