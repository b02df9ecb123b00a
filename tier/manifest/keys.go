package manifest

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Prefixes of the archive, for listing. Every key begins with one of them.
const (
	PrefixCluster = "cluster/"
	PrefixMeta    = "meta/"
	PrefixTopics  = "t/"
	PrefixWAL     = "wal/"
	PrefixState   = "state/"
	PrefixSnap    = "snap/"
	PrefixDeleted = "x/"
)

// snapTime is the UTC time of a snapshot key: ISO 8601 basic format in lower
// case, because keys have no upper-case letters.
const snapTime = "20060102t150405z"

// ClusterKey returns the key of the object that claims a cluster generation.
func ClusterKey(generation uint64) string { return fmt.Sprintf("cluster/%020d", generation) }

// MetaKey returns the key of the metadata export at one Raft index.
func MetaKey(clusterGeneration, raftIndex uint64) string {
	return fmt.Sprintf("meta/%020d-%020d.json.zst", clusterGeneration, raftIndex)
}

// TopicPrefix returns the prefix of everything that one topic incarnation has.
func TopicPrefix(id broker.TopicID) string { return "t/" + id.String() + "/" }

// PartitionPrefix returns the prefix of everything that one partition has.
func PartitionPrefix(pid broker.PartitionID) string {
	return fmt.Sprintf("t/%s/%020d/", pid.Topic, pid.Partition)
}

// EntryKey returns the key of entry seq of a partition's chain.
func EntryKey(pid broker.PartitionID, seq uint64) string {
	return fmt.Sprintf("%sm/%020d.json.zst", PartitionPrefix(pid), seq)
}

// PageKey returns the key of a manifest page: the first offset that it lists
// and the first 4 bytes of the SHA-256 of its JSON.
func PageKey(pid broker.PartitionID, first int64, sum Hash) string {
	return fmt.Sprintf("%sp/%020d-%s.json.zst", PartitionPrefix(pid), first, hex.EncodeToString(sum[:4]))
}

// SegmentKey returns the key of a segment object. generation is the uploader's
// at the time of the attempt, nonce is random for each attempt, so that two
// attempts never meet under one key.
func SegmentKey(pid broker.PartitionID, base, next int64, generation, nonce uint32) string {
	return fmt.Sprintf("%ss/%020d-%020d-%08x-%08x.seg", PartitionPrefix(pid), base, next, generation, nonce)
}

// WALPrefix returns the prefix of what one incarnation of a node shipped.
func WALPrefix(node string, incarnation uint64) string {
	return fmt.Sprintf("wal/%s/%016x/", node, incarnation)
}

// WALOpenKey returns the key that an incarnation creates before it ships.
func WALOpenKey(node string, incarnation uint64) string { return WALPrefix(node, incarnation) + "OPEN" }

// WALFenceKey returns the key whose existence ends an incarnation's shipping.
func WALFenceKey(node string, incarnation uint64) string {
	return WALPrefix(node, incarnation) + "FENCE"
}

// WALKey returns the key of shipped WAL: LSNs first up to, not including, next.
func WALKey(node string, incarnation, first, next uint64) string {
	return fmt.Sprintf("%s%020d-%020d.ship", WALPrefix(node, incarnation), first, next)
}

// StatePrefix returns the prefix of one incarnation's state objects.
func StatePrefix(node string, incarnation uint64) string {
	return fmt.Sprintf("state/%s/%016x/", node, incarnation)
}

// StateKey returns the key of the state object at one LSN.
func StateKey(node string, incarnation, lsn uint64) string {
	return fmt.Sprintf("%s%020d.state.zst", StatePrefix(node, incarnation), lsn)
}

// SnapshotKey returns the key of a snapshot taken at t, to the second.
func SnapshotKey(t time.Time, nonce uint32) string {
	return fmt.Sprintf("snap/%s-%08x.json", t.UTC().Format(snapTime), nonce)
}

// TombstoneKey returns the key that says for ever that a topic was deleted.
func TombstoneKey(id broker.TopicID) string { return "x/" + id.String() }
