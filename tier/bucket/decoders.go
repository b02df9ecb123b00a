package bucket

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// maxObject bounds what is read into memory of one object. Decoders bound what
// they make of it.
const maxObject = 256 << 20

// Decoders read the objects of other packages. They check whatever they read,
// the content against the key among it, and fail with Corrupt or
// UnsupportedVersion. A nil one leaves its objects unread.
type Decoders struct {
	// WAL and State return values that print as JSON.
	WAL   func(key manifest.Key, stored []byte) (any, error)
	State func(key manifest.Key, stored []byte) (any, error)
	// Small reads a cluster claim, OPEN or FENCE; Export a metadata export.
	Small  func(key manifest.Key, stored []byte) error
	Export func(key manifest.Key, stored []byte) error
	// Frames calls fn for each frame of shipped WAL, in order, with a hash of
	// its kind and body.
	Frames func(key manifest.Key, stored []byte, fn func(lsn uint64, sum [32]byte)) error
	// Needs says which frames a restore needs that begins with a state object:
	// those from one LSN on, and at least up to another.
	Needs func(key manifest.Key, stored []byte) (from, upTo uint64, err error)
	// Retired says which incarnations a metadata export calls retired: no restore
	// reads what they shipped, and it is being deleted.
	Retired func(key manifest.Key, stored []byte) (func(node string, incarnation uint64) bool, error)
	// Batches calls fn, in the order of the log, for each batch of a partition
	// in shipped WAL. The batch is verified, and valid during the call.
	Batches func(key manifest.Key, stored []byte, partition broker.PartitionID, fn func(generation uint32, batch []byte) error) error
}

func isSmall(k manifest.KeyKind) bool {
	return k == manifest.KindCluster || k == manifest.KindWALOpen || k == manifest.KindWALFence
}
