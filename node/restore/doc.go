// Package restore rebuilds a node from the archive alone.
//
// It reads what the cluster left: the newest export of the metadata, each
// partition's chain, the newest state object of each incarnation, and the shipped
// WAL behind it. Segments are not downloaded: a restored node reads them through its
// cache. Only the records that no segment of the archive holds are written to disk,
// with their offsets and generations.
//
// All of that happens before the old cluster is touched, files included (stage.go):
// what does not read, does not fit together or finds no room on the disk ends the
// restore while the cluster that wrote the archive may still go on. Then it claims
// the next generation of the cluster, fences every incarnation that shipped, and
// looks once more. If it sees the same, what was written stands; if anything differs
// that it rests on, it is thrown away and made again, from what nobody adds to any
// more.
//
// # Guarantees
//
// The data directory appears at its name complete, or not at all: it is built
// beside it and renamed at the end. Nothing that exists is overwritten, in the
// archive neither. A failed read ends the restore; it is never taken for an
// absence. Every partition gets a generation above all that the archive knows
// and begins 2^32 offsets above what was found, with a gap in its chain, so
// that an offset which the lost node may have given out is never given out
// again. Positions are cut off at the records that are there.
//
// A cluster may write to the archive and delete from it while it is looked at:
// an object that a list named and that is gone when it is read makes the look
// begin again. A topic with a tombstone is not restored, whatever the export
// says, and an incarnation that the metadata calls retired is not read.
//
// Objects at a chain's end that do not read are passed when the rest of the
// bucket shows that nothing rests on them, and end the restore otherwise; see
// torn.go.
//
// # Goroutines and memory
//
// Shipped log is read and decoded ahead of the replay (ahead.go), numbered and
// held against the chains by one goroutine, in order, and written by several
// lanes, each partition by one of them (importers.go). Every lane's failure ends
// the restore, and all files are synced before the claim. In memory are at most
// eight objects that are read ahead, of 64 MiB together as stored, decoded, and two
// more whose records are being written; their memory is used again. To that come
// 256 MiB of batches that came early, and 256 MiB of records that wait to be written,
// of all partitions together, with 4 KiB for each partition.
//
// An interrupted restore is simply run again: it takes the generation after
// the one it had claimed.
package restore
