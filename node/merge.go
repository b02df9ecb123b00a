package node

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/merge"
)

// retained is the part of what retention leaves that one merged segment may hold,
// in time and in bytes: segments leave the archive whole, so records may stay that
// much longer.
const retained = 8

// openMerger makes what merges small archived segments. It asks nothing yet.
func (n *Node) openMerger() (err error) {
	if n.opts.Archive == nil || n.opts.MergeInterval < 0 {
		return nil
	}
	n.merger, err = merge.New(merge.Options{
		FS: n.opts.FS, Dir: n.path("merge"), Store: n.opts.Archive,
		Partitions: n.mergeable,
		Chain:      n.mergedChain,
		Copy: func(id broker.PartitionID, base, next int64) merge.Copy {
			p := n.engine.Get(id)
			if p == nil {
				return merge.Copy{}
			}
			c := p.Copy(base, next)
			return merge.Copy{Path: c.Path, Settled: c.Settled}
		},
		Limits: func(id broker.PartitionID) merge.Limits {
			t, ok := n.meta.TopicByID(id.Topic)
			if !ok {
				return merge.Limits{}
			}
			return merge.Limits{Bytes: part(t.RetentionBytes), SpanMS: part(t.RetentionMs)}
		},
		Hindrance: n.mergeHindrance,
		Discard:   n.collector.Discard,
		Interval:  n.opts.MergeInterval, MinSegments: n.opts.MergeMinSegments,
		Now: n.opts.Now, Logger: n.opts.Logger, Registerer: n.opts.Registerer,
	})
	return err
}

// part is what one segment may hold of a limit of retention; 0 = any, as there.
func part(limit int64) int64 {
	if limit <= 0 {
		return 0
	}
	return max(1, limit/retained)
}

// mergeable lists the partitions whose chain this node has read and fenced, for
// an upload as a rule: one that gets no segments gets no more of them either.
func (n *Node) mergeable() (ids []broker.PartitionID) {
	if n.refusal() != nil {
		return nil
	}
	for _, p := range n.engine.All() {
		if p.Refused() == nil && n.mergedChain(p.ID) != nil {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

func (n *Node) mergedChain(id broker.PartitionID) merge.Chain {
	chain, owner, ok := n.chains.fenced(id)
	if !ok || n.refusal() != nil {
		return nil
	}
	return &merge.Bound{Chain: chain, Owner: owner}
}

// mergeHindrance says why nothing is merged now: it is the last thing that the
// archive and the disk are needed for.
func (n *Node) mergeHindrance(bytes int64) string {
	for _, ask := range []func() error{
		n.refusal, n.log.Err, n.db.Err, n.uploader.Trouble, func() error { return n.disk.room(bytes) },
	} {
		if err := ask(); err != nil {
			return err.Error()
		}
	}
	if !(retainedArchive{n}).Readable() {
		return "the archive has not answered lately"
	}
	return ""
}
