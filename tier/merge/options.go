package merge

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Defaults of Options.
const (
	DefaultInterval       = 5 * time.Minute
	DefaultMinSegments    = 8
	DefaultTargetBytes    = 64 << 20
	DefaultBytesPerSecond = 16 << 20
)

// Chain is a partition's chain in the hands of the owner that fenced it. *Bound
// implements it.
type Chain interface {
	Generation() uint32
	Start() int64
	Seq() uint64
	// Unpaged returns the segments that Replace takes. They are only read.
	Unpaged() []manifest.Segment
	// Replace as manifest.Chain.Replace.
	Replace(ctx context.Context, inputs []manifest.Segment, output manifest.Segment) error
}

// Bound is a chain together with the owner that appends to it.
type Bound struct {
	*manifest.Chain
	Owner manifest.Owner
}

// Generation returns the owner's generation.
func (b *Bound) Generation() uint32 { return b.Owner.Generation }

// Replace replaces segments as the owner.
func (b *Bound) Replace(ctx context.Context, inputs []manifest.Segment, output manifest.Segment) error {
	return b.Chain.Replace(ctx, b.Owner, inputs, output)
}

// Copy is what the node has of an archived segment on its disk.
type Copy struct {
	Path    string // of a file of exactly its offsets, "" = none
	Settled bool   // no local copy waits to be compared with the segment's object
}

// Limits are how much one segment may hold without keeping records that
// retention would drop.
type Limits struct {
	Bytes  int64 // 0 = any
	SpanMS int64 // between first and last append; 0 = any
}

// Options configures a Merger.
type Options struct {
	FS    vfs.FS
	Dir   string // the Merger's own: what is in it is removed
	Store objstore.Store
	// Partitions lists what this node owns and whose chain it has read and fenced
	// already: nothing is loaded to look for work.
	Partitions func() []broker.PartitionID
	// Chain returns such a chain, nil when it is not this node's any more.
	Chain func(id broker.PartitionID) Chain
	// Copy says what the node has of [base, next).
	Copy   func(id broker.PartitionID, base, next int64) Copy
	Limits func(id broker.PartitionID) Limits
	// Hindrance says why nothing may be merged now, "" = it may: the archive does
	// not answer, the disk is short, the node is fenced. It is asked before each
	// merge with the bytes that it would take of the disk.
	Hindrance func(bytes int64) string
	// Discard is told which segments a chain does not name any more.
	Discard func(id broker.PartitionID, segs []manifest.Segment)

	Interval       time.Duration // between two looks, 0 = 5 min
	MinSegments    int           // of a run, 0 = 8
	TargetBytes    int64         // of an output, 0 = 64 MiB
	BytesPerSecond int64         // read and sent, 0 = 16 MiB
	Timeout        time.Duration // of one merge, 0 = 10 min

	Now        func() time.Time
	Nonce      func() uint32 // nil: random
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Validate reports every bad option at once.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, errcode.New(errcode.InvalidArgument, "merge: "+format, args...))
		}
	}
	check(o.FS != nil && o.Dir != "" && o.Store != nil, "FS, Dir and Store are required")
	check(o.Partitions != nil && o.Chain != nil && o.Copy != nil && o.Discard != nil, "Partitions, Chain, Copy and Discard are required")
	check(o.Interval >= 0 && o.Timeout >= 0, "a time is negative: interval %s, timeout %s", o.Interval, o.Timeout)
	check(o.MinSegments == 0 || o.MinSegments >= 2 && o.MinSegments <= mostInputs, "a run of %d segments is not between 2 and %d", o.MinSegments, mostInputs)
	check(o.TargetBytes >= 0 && o.TargetBytes <= 1<<30, "size %d of an output is not between 1 byte and 1 GiB", o.TargetBytes)
	check(o.BytesPerSecond >= 0, "%d bytes per second are negative", o.BytesPerSecond)
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	setDefault(&o.Interval, DefaultInterval)
	setDefault(&o.MinSegments, DefaultMinSegments)
	setDefault(&o.TargetBytes, DefaultTargetBytes)
	setDefault(&o.BytesPerSecond, DefaultBytesPerSecond)
	setDefault(&o.Timeout, 10*time.Minute)
	if o.Limits == nil {
		o.Limits = func(broker.PartitionID) Limits { return Limits{} }
	}
	if o.Hindrance == nil {
		o.Hindrance = func(int64) string { return "" }
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
	o.Store = objstore.For(o.Store, objstore.CauseMerge)
	return o
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func randomNonce() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return binary.BigEndian.Uint32(b[:])
}
