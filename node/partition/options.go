package partition

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/wal"
)

// Defaults of Options.
const (
	DefaultFlushBytes         = 512 << 10
	DefaultSegmentBytes       = 64 << 20
	DefaultSealAge            = 10 * time.Minute
	DefaultSealAgeMax         = 12 * time.Hour
	DefaultSealMinBytes       = 1 << 20
	DefaultSealLogBytes       = 256 << 20
	DefaultMemoryBudget       = 256 << 20
	DefaultHotBytes           = 48 << 20
	DefaultCheckpointInterval = time.Second
	DefaultOpenFiles          = 512
)

// Groups captures the consumer groups of a partition for a checkpoint.
type Groups interface {
	// Snapshot returns the encoded state of every group of p by name, and the
	// highest LSN staged for any of them. It does not block.
	Snapshot(p broker.PartitionID) (states map[string][]byte, lsn uint64)
}

// Archive reads what is only in the object store.
type Archive interface {
	// Read returns whole, verified batches in offset order, beginning with
	// the one that holds from, or, when from lies in no batch, with the first
	// one after it; about maxBytes at most, at least one. They are lent: only
	// to be read, and only until release, which is not nil when there are any,
	// is called. What the reader wants next is read ahead, but nothing from
	// the offset local on, which is on this node. An empty answer means that
	// the archive holds nothing at or after from. Errors: ArchiveUnavailable,
	// Corrupt, and Gone below the archive's start.
	Read(ctx context.Context, p broker.PartitionID, from int64, maxBytes int, local int64) (batches [][]byte, release func(), err error)
	// Bounds returns the range of offsets of the archived batch around offset,
	// up to where the next one begins, without reading it; ok is false when no
	// archived segment holds the offset. Errors as for Read.
	Bounds(ctx context.Context, p broker.PartitionID, offset int64) (base, next int64, ok bool, err error)
	// FindTime returns the first archived offset at or above from whose
	// record's timestamp is at or after ms; ok is false when there is none.
	// Segments that begin at or above local are on this node and may be left out.
	FindTime(ctx context.Context, p broker.PartitionID, from, local, ms int64) (offset int64, ok bool, err error)
}

// Options configures an Engine. Zero values take the defaults above.
type Options struct {
	FS    vfs.FS    // required
	Dir   string    // holds <topic id>/<partition>/; required
	State *state.DB // required
	// Incarnation of the data directory; stands in the node's marks.
	Incarnation uint64
	Groups      Groups  // nil = there are none
	Archive     Archive // nil = nothing is archived
	// Compress says whether the flusher compresses merged batches of a topic;
	// nil = always.
	Compress func(broker.TopicID) bool

	FlushBytes   int64         // a tail of this size is flushed
	SegmentBytes int64         // a segment file is sealed before it exceeds this
	SealAge      time.Duration // a segment of SealMinBytes is sealed at this age
	SealAgeMax   time.Duration // any segment is sealed at this age
	SealMinBytes int64
	// SealLogBytes is how much of the shipped log each segment that is sealed
	// before its age must let the archive go of.
	SealLogBytes int64
	// ShippedFrom says, for each of some LSNs that ascend, how many bytes of the
	// shipped log at or behind it stand in the archive for no other reason than
	// that they may be needed. It does not block. nil = nothing is shipped.
	ShippedFrom func(lsns []uint64) []int64
	// HotBytes is how much of the tails stays in memory after it was flushed,
	// for readers that are close behind. More is not better: memory that is
	// used again is much cheaper than memory that is new, and what was evicted
	// comes from the page cache.
	HotBytes int64
	// MemoryBudget bounds the bytes of all tails: above it the largest are
	// flushed, and at twice the budget appends wait for that (Engine.Admit).
	MemoryBudget       int64
	Flushers           int // flush workers, by default for the half of the processors
	CheckpointInterval time.Duration
	OpenFiles          int // sealed segment files kept open

	// DiskOK says why nothing may be written to segment files now; nil error
	// means go on. It does not block. nil = always go on. The local state is
	// written nevertheless: it is small, and lets the log give files back.
	DiskOK func() error
	// OnVisible is called without locks after the high watermark of p rose;
	// calls for one partition may arrive out of order, the highest counts.
	OnVisible func(p broker.PartitionID, highWatermark int64)
	// OnSealed is called, in offset order, for each sealed segment whose copy in
	// the archive is not confirmed, at start too. path is the local file.
	OnSealed func(p broker.PartitionID, path string, s state.Sealed)
	// OnTrimmed is called after the start of p was raised to start, durably,
	// and before any file goes. Calls may arrive out of order, the highest counts.
	OnTrimmed func(p broker.PartitionID, start int64)
	// Dropping is called before the segment files of p below an offset go,
	// which are no longer needed. It returns the offset up to which they may:
	// lower than what was asked when somebody, an upload, still reads one of
	// them. It does not block. nil = they may go.
	Dropping func(p broker.PartitionID, below int64) int64
	// OnDamaged is called when a read met damage in the local file of the
	// segment of p that begins at base, and went on in the archive. It does not
	// block, and is called for each such read.
	OnDamaged func(p broker.PartitionID, base int64, err error)

	Now        func() time.Time
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.FlushBytes, DefaultFlushBytes)
	def(&o.SegmentBytes, DefaultSegmentBytes)
	def(&o.SealMinBytes, DefaultSealMinBytes)
	def(&o.SealLogBytes, DefaultSealLogBytes)
	def(&o.MemoryBudget, DefaultMemoryBudget)
	def(&o.HotBytes, min(DefaultHotBytes, o.MemoryBudget))
	def((*int64)(&o.SealAge), int64(DefaultSealAge))
	def((*int64)(&o.SealAgeMax), int64(DefaultSealAgeMax))
	def((*int64)(&o.CheckpointInterval), int64(DefaultCheckpointInterval))
	if o.Flushers == 0 {
		o.Flushers = max(1, runtime.GOMAXPROCS(0)/2)
	}
	if o.OpenFiles == 0 {
		o.OpenFiles = DefaultOpenFiles
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Compress == nil {
		o.Compress = func(broker.TopicID) bool { return true }
	}
	if o.DiskOK == nil {
		o.DiskOK = func() error { return nil }
	}
	if o.OnVisible == nil {
		o.OnVisible = func(broker.PartitionID, int64) {}
	}
	if o.OnTrimmed == nil {
		o.OnTrimmed = func(broker.PartitionID, int64) {}
	}
	if o.Dropping == nil {
		o.Dropping = func(_ broker.PartitionID, below int64) int64 { return below }
	}
	if o.OnDamaged == nil {
		o.OnDamaged = func(broker.PartitionID, int64, error) {}
	}
	if o.OnSealed == nil {
		o.OnSealed = func(broker.PartitionID, string, state.Sealed) {}
	}
	return o
}

// Log is what the engine needs of the WAL; *wal.Log is one.
type Log interface {
	Reserve(kind wal.Kind, n int) (wal.Slot, error)
	WaitDurable(ctx context.Context, lsn uint64) error
	Durable() uint64
	NextLSN() uint64
	DurableChanged() <-chan struct{}
	Hold(reader string, next uint64)
}
