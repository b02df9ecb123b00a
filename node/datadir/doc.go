// Package datadir says whose a data directory is: which node and which
// incarnation of it, and that one process has it at a time.
//
//	LOCK            held by the process that has the directory open
//	identity.json   node id and incarnation; written before anything else
//	raft/           metadata (package raftmeta)
//	state/          local state (package node/state)
//	wal/            write-ahead log (package wal)
//	topics/         segment files (package node/partition)
//	cache/          chunks of archived segments (package tier/cold); may be deleted while nothing runs
package datadir
