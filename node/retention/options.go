package retention

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// DefaultInterval is the time between two turns.
const DefaultInterval = 10 * time.Second

// archiveTimeout bounds what one turn asks of the archive, however short the
// interval is: a trim whose answer is not waited for leaves objects that only the
// look for orphans finds.
const archiveTimeout = 10 * time.Second

// Log is a partition that this node owns.
type Log interface {
	ID() broker.PartitionID
	// Limits are the topic's; ok is false when it is being deleted.
	Limits() (l Limits, ok bool)
	// Local describes what is on this node. It does not block.
	Local() partition.Local
	// Trim raises the start, durably, and removes what lies below. At the
	// present start it finishes what an earlier call left.
	Trim(start int64) (partition.Freed, error)
	// Evict removes confirmed local copies below an offset.
	Evict(below int64) (partition.Freed, error)
	// Followed says that the archive's chain ends at end now, with entry seq,
	// and that gap is true when a gap was added: uploads behind it can go on.
	Followed(end int64, seq uint64, gap bool)
	// Doubts returns what SetDoubts kept, also before a restart: records from
	// [0] to [1] whose age counts from [2] (ms). It survives with the next
	// Trim, or within seconds.
	Doubts() [][3]int64
	SetDoubts(d [][3]int64)
}

// Chain is the archive's list of a partition's segments. *manifest.Chain is one
// for reading.
type Chain interface {
	Start() int64
	End() int64
	Bytes() int64
	// Find says what stands at an offset; it may read the store.
	Find(ctx context.Context, offset int64) (manifest.Location, error)
}

// OwnChain is a chain in the hands of the owner that fenced it in this
// generation, so that it is complete.
type OwnChain interface {
	Chain
	Seq() uint64
	Gaps() []manifest.Gap
	// Trim raises the start, in steps, and returns what is not listed any more.
	Trim(ctx context.Context, start int64) ([]manifest.Segment, error)
	Gap(ctx context.Context, g manifest.Gap) error
}

// Archive is the object store as retention needs it.
type Archive interface {
	// Readable says whether the archive answered a read lately: what is only
	// there can be read. It does not block.
	Readable() bool
	// Known returns the partition's chain if it was loaded once; it does not
	// block. Start, End and Bytes are in memory, Find may load it again.
	Known(id broker.PartitionID) (c Chain, ok bool)
	// Load loads it.
	Load(ctx context.Context, id broker.PartitionID) (Chain, error)
	// Own loads and fences it. Fenced: somebody else owns the partition.
	Own(ctx context.Context, id broker.PartitionID) (OwnChain, error)
	// Skew asks for the store's time: it returns the store's clock minus the
	// node's.
	Skew(ctx context.Context) (time.Duration, error)
}

// Options configures a Sweeper.
type Options struct {
	// Logs returns every partition that is served here; nil, not an empty
	// list, while none of them can be changed. Required; New calls it, before
	// anything is appended.
	Logs    func() []Log
	Archive Archive // nil = none
	// Disk returns the free bytes of the data directory's disk, and the
	// reserve below which produce is refused. Nil = there is always space.
	Disk func() (free, reserve int64)
	// Shrink makes the chunk cache smaller by about so many bytes and returns
	// by how many. Nil = there is none.
	Shrink func(bytes int64) int64
	// Discard takes the objects that a chain does not name any more. It does
	// not block. Nil = they stay.
	Discard func(id broker.PartitionID, segs []manifest.Segment)

	Interval time.Duration // 0 = DefaultInterval
	// Now is the wall clock, Elapsed a monotonic one. Nil = the system's.
	Now        func() time.Time
	Elapsed    func() time.Duration
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() (Options, error) {
	if o.Logs == nil {
		return o, errcode.New(errcode.Internal, "retention: Logs is required")
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Elapsed == nil {
		begin := time.Now()
		o.Elapsed = func() time.Duration { return time.Since(begin) }
	}
	if o.Disk == nil {
		o.Disk = func() (int64, int64) { return 1 << 62, 0 }
	}
	if o.Shrink == nil {
		o.Shrink = func(int64) int64 { return 0 }
	}
	if o.Discard == nil {
		o.Discard = func(broker.PartitionID, []manifest.Segment) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}
