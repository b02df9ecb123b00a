package garbage

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Defaults of Options.
const (
	DefaultGrace          = time.Hour
	DefaultInterval       = 5 * time.Minute
	DefaultWindow         = time.Hour
	DefaultOrphanInterval = 24 * time.Hour
)

// Metadata is the cluster's; *raftmeta.Meta is one.
type Metadata interface {
	// State returns what is known here, perhaps outdated.
	State() *raftmeta.State
	// Confirm returns the state behind a barrier of a confirmed leader.
	Confirm(ctx context.Context) (*raftmeta.State, error)
	PurgeTopic(ctx context.Context, id broker.TopicID) (raftmeta.Deleted, error)
	RetireIncarnation(ctx context.Context, node string, inc raftmeta.Incarnation) (raftmeta.Fenced, error)
}

// Fence says whether this incarnation may still change the archive;
// *ship.Shipper is one.
type Fence interface {
	// Confirm asks the archive now; nil means yes.
	Confirm(ctx context.Context, store objstore.Store) error
	// Confirmed returns the Raft index of the newest export that a fence check
	// confirmed: whoever takes over from now on knows it.
	Confirmed() uint64
}

// Chain is one partition's list of segments; *manifest.Chain is one.
type Chain interface {
	// Refresh reads what was appended since.
	Refresh(ctx context.Context) (bool, error)
	Generation() uint32
	End() int64
	// Segments returns the segments that hold offsets in [from, to).
	Segments(ctx context.Context, from, to int64) ([]manifest.Segment, error)
}

// Options configures a Collector.
type Options struct {
	Store    objstore.Store
	Metadata Metadata
	Fence    Fence
	// Chain returns a partition's chain, fenced by this node's generation.
	Chain func(ctx context.Context, id broker.PartitionID) (Chain, error)
	// InUse says whether an upload or a merge in flight needs an object that no
	// entry of its chain names yet. Nil: none does.
	InUse func(id broker.PartitionID, key string) bool
	// Pinned says whether a snapshot holds an object. Nil: none does.
	Pinned func(key string) bool

	Node              string
	Incarnation       uint64
	ClusterGeneration uint64

	Grace          time.Duration // between the end of an object's use and its deletion
	Interval       time.Duration // between two turns
	Window         time.Duration // how far back the log stays for a restore to a point in time; 0 = not at all
	OrphanInterval time.Duration // between two looks for orphans of one partition

	Now        func() time.Time // with a monotonic reading
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Validate reports every bad option at once.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, errcode.New(errcode.InvalidArgument, "garbage: "+format, args...))
		}
	}
	check(o.Store != nil && o.Metadata != nil && o.Fence != nil && o.Chain != nil, "Store, Metadata, Fence and Chain are required")
	check(o.Node != "" && o.Incarnation != 0 && o.ClusterGeneration != 0, "Node, Incarnation and ClusterGeneration are required")
	check(o.Grace >= 0 && o.Interval >= 0 && o.Window >= 0 && o.OrphanInterval >= 0, "a time is negative: grace %s, interval %s, window %s, orphan interval %s", o.Grace, o.Interval, o.Window, o.OrphanInterval)
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.OrphanInterval == 0 {
		o.OrphanInterval = DefaultOrphanInterval
	}
	if o.InUse == nil {
		o.InUse = func(broker.PartitionID, string) bool { return false }
	}
	if o.Pinned == nil {
		o.Pinned = func(string) bool { return false }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Store = objstore.For(o.Store, objstore.CauseGarbage)
	return o
}
