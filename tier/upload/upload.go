package upload

import (
	"context"
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

// Sealed is a sealed segment on local disk.
type Sealed struct {
	Path        string
	Info        segment.Info
	OriginTopic broker.TopicID // topic in the footer; 0 = the partition's
	Attempt     *Attempt       // the last attempt that was recorded before a restart, nil for none
}

// Attempt is one try to upload a segment: it decides the object's key.
type Attempt struct {
	Generation uint32
	Nonce      uint32
}

// Chain is a partition's chain in the hands of the owner that fenced it.
// *Bound implements it.
type Chain interface {
	// Generation is the owner's; it becomes part of keys.
	Generation() uint32
	// End is where the next segment has to begin.
	End() int64
	// Find says what stands at an offset below End. It may read the store.
	Find(ctx context.Context, offset int64) (manifest.Location, error)
	// Add appends segments; durable on return. Errors as manifest.Chain.Add.
	Add(ctx context.Context, segs ...manifest.Segment) error
	// Seq is the last entry's.
	Seq() uint64
}

// Chains lends out chains.
type Chains interface {
	// Chain returns pid's chain after this node's generation has fenced it. It
	// is called for each segment and returns the same chain quickly once it is
	// loaded. Fenced: this node is not the owner any more.
	Chain(ctx context.Context, pid broker.PartitionID) (Chain, error)
}

// Bound is a chain together with the owner that appends to it.
type Bound struct {
	*manifest.Chain
	Owner manifest.Owner
}

// Generation returns the owner's generation.
func (b *Bound) Generation() uint32 { return b.Owner.Generation }

// Add appends segments as the owner.
func (b *Bound) Add(ctx context.Context, segs ...manifest.Segment) error {
	return b.Chain.Add(ctx, b.Owner, segs...)
}

// Hooks tell the node what happened. Nil ones are left out, but for Missed.
type Hooks struct {
	// Archived: the segment is in the archive under an entry up to seq.
	Archived func(pid broker.PartitionID, sealed Sealed, seg manifest.Segment, seq uint64)
	// Covered: the chain covers the segment's range with objects of another
	// shape or content, so the local copy was not confirmed by checksum.
	Covered func(pid broker.PartitionID, sealed Sealed, end int64)
	// Fenced: the partition belongs to somebody else; its queue is dropped.
	Fenced func(pid broker.PartitionID, err error)
	// Stopped: the segment cannot be uploaded as it is (its file is damaged
	// or gone, or it straddles the chain's end and has to be cut again). The
	// partition waits for Drop or Resume.
	Stopped func(pid broker.PartitionID, sealed Sealed, err error)
	// Missed: there is room again for what Enqueue refused. The node calls
	// Readmit and enqueues what the partition has, in order, with no newly
	// sealed segment in between; or it calls Drop.
	Missed func(pid broker.PartitionID)
	// Attempting is called before the first byte of an attempt. When it
	// returns nil the attempt is recorded, and comes back in Sealed.Attempt
	// after a restart. Nil: a restart uploads again under a new key.
	Attempting func(ctx context.Context, pid broker.PartitionID, sealed Sealed, a Attempt) error
}

// Config is what an Uploader needs.
type Config struct {
	FS       vfs.FS
	Store    objstore.Store
	Chains   Chains
	Hooks    Hooks
	Logger   *slog.Logger          // nil: discarded
	Registry prometheus.Registerer // nil: not registered

	Concurrency    int           // segments in flight, 0 = 4
	BytesPerSecond int64         // 0 = not limited
	MaxQueued      int           // segments, 0 = 65,536
	Timeout        time.Duration // of one put or publish, 0 = 5 min
	Backoff        time.Duration // longest first wait, 0 = 200 ms
	MaxBackoff     time.Duration // 0 = 30 s

	Now   func() time.Time // nil: time.Now
	Nonce func() uint32    // nil: random
}

// Validate reports every field that cannot be used, and sets defaults.
func (c *Config) Validate() error {
	if c.FS == nil || c.Store == nil || c.Chains == nil || c.Hooks.Missed == nil {
		return errcode.New(errcode.InvalidArgument, "upload: FS, Store, Chains and Hooks.Missed are needed")
	}
	if c.Concurrency < 0 || c.BytesPerSecond < 0 || c.MaxQueued < 0 || c.Timeout < 0 || c.Backoff < 0 || c.MaxBackoff < 0 {
		return errcode.New(errcode.InvalidArgument, "upload: negative bounds: concurrency %d, bytes per second %d, queued %d, timeout %s, backoff %s to %s",
			c.Concurrency, c.BytesPerSecond, c.MaxQueued, c.Timeout, c.Backoff, c.MaxBackoff)
	}
	setDefault(&c.Concurrency, 4)
	setDefault(&c.MaxQueued, 1<<16)
	setDefault(&c.Timeout, 5*time.Minute)
	setDefault(&c.Backoff, 200*time.Millisecond)
	setDefault(&c.MaxBackoff, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Nonce == nil {
		c.Nonce = randomNonce
	}
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// segmentOf is what the chain will say about s under that attempt.
func segmentOf(pid broker.PartitionID, s *Sealed, a Attempt) manifest.Segment {
	in := &s.Info
	origin := s.OriginTopic
	if origin == 0 {
		origin = pid.Topic
	}
	return manifest.Segment{
		Partition: pid, Base: in.Base, Next: in.Next, Records: in.Records, Bytes: in.Bytes,
		MinTimestamp: in.MinTimestamp, MaxTimestamp: in.MaxTimestamp, MinAppend: in.MinAppend, MaxAppend: in.MaxAppend,
		FirstGeneration: in.FirstGeneration, LastGeneration: in.LastGeneration,
		Generation: a.Generation, Nonce: a.Nonce, DataSHA256: in.DataSHA256,
		DataLength: in.DataLength, FooterPosition: in.FooterPosition, FooterLength: in.FooterLength, OriginTopic: origin,
	}
}
