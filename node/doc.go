// Package node is a Tidemark node: it opens the packages below it in the right
// order, connects them, and closes them in the reverse one.
//
//	lock, identity   the directory belongs to this process, this node, one incarnation
//	raftmeta         which topics exist and which partitions are assigned here
//	state            what the segment files and groups were at the last checkpoint
//	partition        segment files checked, damaged partitions refuse service
//	wal              replayed on top
//	queue            group positions, completed by the replayed group entries
//	chains, cold     the archive, read
//	upload, ship     the archive, written
//	garbage          what nothing needs there any more, deleted
//	retention        what is over its limits leaves disk and archive
//	scrub            what is stored, read again, and repaired from the other copy
//
// A [Node] answers the requests that the HTTP plane declares; it imports
// nothing of it.
//
// # Guarantees
//
// Open returns a node that serves everything that was acknowledged before the
// last stop, whatever ended it. It starts without the archive when that does
// not answer within Options.StartTimeout, and refuses to start on an archive
// that is somebody else's. A node that finds itself taken over stops serving
// for good ([Node.Fenced]). Close drains, checkpoints and ships.
package node
