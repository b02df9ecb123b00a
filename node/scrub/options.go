package scrub

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Defaults of Options.
const (
	DefaultInterval = 14 * 24 * time.Hour
	DefaultMaxRate  = 32 << 20
)

// File is a sealed segment file of this node: what was written down of it when it
// was sealed. What the disk has may differ.
type File struct {
	segment.Info
	Path      string
	Confirmed bool // the archive had exactly these bytes once
}

// Partitions are what this node has on its disk.
type Partitions interface {
	// IDs returns every partition of this node, in any order.
	IDs() []broker.PartitionID
	// Files returns up to limit sealed segment files that begin at or above
	// from, ascending; none of a partition that is not here any more.
	Files(id broker.PartitionID, from int64, limit int) []File
	// Mend puts what fetch writes, exactly the sealed bytes, in the place of a
	// file, durably, and returns where the damaged one was kept. Conflict: the
	// segment is not this node's any more. Corrupt: fetch wrote something else.
	Mend(id broker.PartitionID, info *segment.Info, fetch func(w io.Writer) error) (kept string, err error)
	// SetAside takes a confirmed file out of the partition, so that its records
	// are read from the archive, and returns where it was kept.
	SetAside(id broker.PartitionID, info *segment.Info) (kept string, err error)
	// Refused says why a partition is out of service, nil when it serves.
	Refused(id broker.PartitionID) error
}

// Chain is the archive's list of one partition's segments, in the hands of its
// owner.
type Chain interface {
	Generation() uint32
	// Paged says whether the segment around offset is in a page of the chain,
	// where it cannot be replaced.
	Paged(offset int64) bool
	// Replace puts output in the place of input, durably. Conflict: the chain
	// does not name input any more.
	Replace(ctx context.Context, input, output manifest.Segment) error
}

// Archive is the object store and what the chains say of it.
type Archive interface {
	// Next returns the first segment that ends above from; ok is false when the
	// chain ends before.
	Next(ctx context.Context, id broker.PartitionID, from int64) (seg manifest.Segment, ok bool, err error)
	// Refresh reads what was appended to the chain since it was loaded.
	Refresh(ctx context.Context, id broker.PartitionID) error
	// Own returns the chain, loaded and fenced in this node's generation.
	Own(ctx context.Context, id broker.PartitionID) (Chain, error)
	// Bytes is the size of the chain's objects; ok is false when it is not
	// loaded yet. It does not block.
	Bytes(id broker.PartitionID) (n int64, ok bool)
}

// Options configures a Scrubber.
type Options struct {
	FS         vfs.FS     // required
	Path       string     // of the file that keeps the place; required
	Partitions Partitions // required
	Archive    Archive    // nil: there is none
	Store      objstore.Store

	// Interval is the time in which everything is read once; 0: only what is
	// asked for and what readers met.
	Interval time.Duration
	MaxRate  int64 // bytes a second while a segment is read; 0 = DefaultMaxRate
	// Busy says why files, and objects, are to be left alone now; "" = they are
	// not. It does not block.
	Busy func() (local, archive string)
	// Latency is how late other work ran since the last call; nil = never.
	Latency func() time.Duration
	// Discard takes an object that a chain does not name any more.
	Discard func(id broker.PartitionID, segs []manifest.Segment)
	// Mended is called after a file was repaired.
	Mended func(id broker.PartitionID)

	Poll       time.Duration // between two looks while something waits; 0 = 1 s
	Backoff    time.Duration // longest first pause after a read that failed; 0 = 5 s
	Now        func() time.Time
	Nonce      func() uint32
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() (Options, error) {
	if o.FS == nil || o.Path == "" || o.Partitions == nil || o.Archive != nil && o.Store == nil {
		return o, errcode.New(errcode.Internal, "scrub: FS, Path, Partitions and, with an archive, Store are required")
	}
	if o.Interval < 0 || o.MaxRate < 0 {
		return o, errcode.New(errcode.InvalidArgument, "scrub: interval %s or rate %d is negative", o.Interval, o.MaxRate)
	}
	if o.MaxRate == 0 {
		o.MaxRate = DefaultMaxRate
	}
	if o.Poll == 0 {
		o.Poll = time.Second
	}
	if o.Backoff == 0 {
		o.Backoff = 5 * time.Second
	}
	if o.Busy == nil {
		o.Busy = func() (string, string) { return "", "" }
	}
	if o.Latency == nil {
		o.Latency = func() time.Duration { return 0 }
	}
	if o.Discard == nil {
		o.Discard = func(broker.PartitionID, []manifest.Segment) {}
	}
	if o.Mended == nil {
		o.Mended = func(broker.PartitionID) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Nonce == nil {
		o.Nonce = randomNonce
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}
