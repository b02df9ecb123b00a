// Package state is a node's local state: what the WAL no longer has to tell.
//
// It is one Pebble database with its own log on. Per partition it keeps how
// far the segment files are known to be durable, which sealed segments exist,
// and each group's state with the LSN up to which that state is complete; for
// the node it keeps marks. Everything that describes one moment is written in
// one [Batch], and [Batch.Commit] returns after it is synced: a state and the
// LSN it stands for are never torn apart.
//
// The database never runs ahead of the log: callers put only what the durable
// LSN covers. It may lag behind; replay of the WAL makes up for that.
//
// Keys, one letter and big-endian ids:
//
//	P topic partition           partition entry, JSON
//	S topic partition base      sealed segment, JSON
//	G topic partition group     group state in the encoding of package queue
//	N                           node marks, JSON
//	V                           format version
package state
