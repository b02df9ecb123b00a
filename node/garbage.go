package node

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/garbage"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// openCollector makes what deletes from the archive. It asks nothing yet.
func (n *Node) openCollector() (err error) {
	if n.opts.Archive == nil {
		return nil
	}
	window := n.opts.PITRWindow
	if window == 0 {
		window = garbage.DefaultWindow
	}
	n.collector, err = garbage.New(garbage.Options{
		Store: n.opts.Archive, Metadata: n.meta, Fence: archiveFence{n},
		Chain: func(ctx context.Context, id broker.PartitionID) (garbage.Chain, error) {
			chain, _, err := n.chains.owned(ctx, id)
			if err != nil {
				return nil, err
			}
			return chain, nil
		},
		// The merger is opened after the collector, which runs after both.
		InUse: func(_ broker.PartitionID, key string) bool { return n.merger != nil && n.merger.InUse(key) },
		Node:  n.opts.NodeID, Incarnation: uint64(n.id.Incarnation), ClusterGeneration: n.meta.State().Cluster().Generation,
		Grace: n.opts.GarbageGrace, Interval: n.opts.GarbageInterval, Window: window, OrphanInterval: n.opts.OrphanInterval,
		Logger: n.opts.Logger, Registerer: n.opts.Registerer,
	})
	return err
}

// archiveFence asks the shipper, which is opened after the collector.
type archiveFence struct{ n *Node }

// Confirm implements garbage.Fence.
func (f archiveFence) Confirm(ctx context.Context, store objstore.Store) error {
	if err := f.n.refusal(); err != nil {
		return err
	}
	return f.n.shipper.Confirm(ctx, store)
}

// Confirmed implements garbage.Fence.
func (f archiveFence) Confirmed() uint64 { return f.n.shipper.Confirmed() }

// Garbage says what the archive holds that nothing needs any more, as far as it
// is known; it asks the archive nothing. NotFound without an archive.
func (n *Node) Garbage(context.Context) (broker.GarbageReport, error) {
	if n.collector == nil {
		return broker.GarbageReport{}, errNoArchive
	}
	return n.collector.Report(), nil
}

// CollectGarbage takes a turn of the collector now, also while it pauses after a
// failure, and reports what is left. The graces hold. What hinders it stands in
// the report, not in the error.
func (n *Node) CollectGarbage(ctx context.Context) (broker.GarbageReport, error) {
	if n.collector == nil {
		return broker.GarbageReport{}, errNoArchive
	}
	if err := n.refusal(); err != nil {
		return broker.GarbageReport{}, err
	}
	if _, err := n.collector.Turn(ctx); err != nil && ctx.Err() != nil {
		return broker.GarbageReport{}, err
	}
	return n.collector.Report(), nil
}

var errNoArchive = errcode.New(errcode.NotFound, "this node has no archive: there is nothing to collect; set --archive")
