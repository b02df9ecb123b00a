package node

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/node/retention"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// readableFor is how long an answer of the archive counts: the shipper asks it
// every ten seconds when it has nothing to ship.
const readableFor = time.Minute

func (n *Node) openRetention() error {
	o := retention.Options{
		Logs: n.ownedLogs, Interval: n.opts.RetentionInterval,
		Disk: func() (free, reserve int64) { return n.disk.free.Load(), n.disk.limit.Load() },
		Now:  n.opts.Now, Elapsed: n.opts.Elapsed, Logger: n.opts.Logger, Registerer: n.opts.Registerer,
	}
	if n.chains != nil {
		o.Archive = retainedArchive{n}
		o.Shrink = n.cache.Shrink
		o.Discard = n.collector.Discard
	}
	var err error
	n.sweeper, err = retention.New(o)
	return err
}

// Trim raises the start of a partition's log to before, and returns where it
// begins then: higher when it did already, or when before lies in a gap. What the
// archive holds below follows. Code InvalidArgument, with both bounds, when
// before is no offset of the log.
func (n *Node) Trim(_ context.Context, name string, index uint32, before int64) (int64, error) {
	t, err := n.topic(name)
	if err != nil {
		return 0, err
	}
	p, err := t.partition(int64(index))
	if err != nil {
		return 0, err
	}
	// One that cannot be written now would make the caller wait for the disk.
	if err := n.db.Err(); err != nil {
		return 0, err
	}
	freed, err := n.engine.Trim(p, before)
	if err != nil {
		return 0, err
	}
	n.sweeper.Trimmed(freed)
	n.sweeper.Kick()
	n.opts.Logger.Info("log trimmed by request", "partition", p.ID.String(), "oldest", p.Oldest(), "bytes", freed.Bytes)
	return p.Oldest(), nil
}

// ownedLogs are the partitions that retention looks at; nil while nothing may,
// or can, be changed here.
func (n *Node) ownedLogs() []retention.Log {
	if n.refusal() != nil || n.db.Err() != nil {
		return nil // fenced: somebody else's now; or nothing could be made durable
	}
	all := n.engine.All()
	out := make([]retention.Log, 0, len(all))
	for _, p := range all {
		if p.Refused() == nil {
			out = append(out, ownedLog{n, p})
		}
	}
	return out
}

// ownedLog implements retention.Log.
type ownedLog struct {
	n *Node
	p *partition.Partition
}

func (l ownedLog) ID() broker.PartitionID { return l.p.ID }

func (l ownedLog) Limits() (retention.Limits, bool) {
	t, ok := l.n.meta.TopicByID(l.p.ID.Topic)
	return retention.Limits{
		AgeMS: t.RetentionMs, Bytes: t.RetentionBytes, LocalAgeMS: t.LocalRetentionMs, LocalBytes: t.LocalRetentionBytes,
		CreatedMS: t.CreatedMs,
	}, ok
}

func (l ownedLog) Local() partition.Local { return l.p.Local() }

func (l ownedLog) Trim(start int64) (partition.Freed, error) { return l.n.engine.Trim(l.p, start) }

func (l ownedLog) Doubts() [][3]int64 { return l.p.Doubts() }

func (l ownedLog) SetDoubts(d [][3]int64) { l.p.SetDoubts(d) }

func (l ownedLog) Evict(below int64) (partition.Freed, error) { return l.n.engine.Evict(l.p, below) }

func (l ownedLog) Followed(end int64, seq uint64, gap bool) {
	l.p.SetArchived(end, seq)
	if gap {
		l.n.uploader.Resume(l.p.ID) // what waits behind the gap can be published
	}
}

// retainedArchive implements retention.Archive.
type retainedArchive struct{ n *Node }

func (a retainedArchive) Readable() bool {
	st := a.n.shipper.Status()
	return st.LastError == "" && !st.Answered.IsZero() && a.n.opts.Now().Sub(st.Answered) < readableFor
}

func (a retainedArchive) Known(id broker.PartitionID) (retention.Chain, bool) {
	s, ok := a.n.chains.summary(id)
	return knownChain{a.n.chains, id, s}, ok
}

// knownChain implements retention.Chain: limits that nothing exceeds are judged
// by the summary, and the chain need not be in memory for that.
type knownChain struct {
	chains *chains
	id     broker.PartitionID
	as     manifest.Summary
}

func (c knownChain) Start() int64 { return c.as.Start }

func (c knownChain) End() int64 { return c.as.End }

func (c knownChain) Bytes() int64 { return c.as.Totals.Bytes }

func (c knownChain) Find(ctx context.Context, offset int64) (manifest.Location, error) {
	chain, err := c.chains.load(ctx, c.id)
	if err != nil {
		return manifest.Location{}, err
	}
	return chain.Find(ctx, offset)
}

func (a retainedArchive) Load(ctx context.Context, id broker.PartitionID) (retention.Chain, error) {
	c, err := a.n.chains.load(ctx, id)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (a retainedArchive) Own(ctx context.Context, id broker.PartitionID) (retention.OwnChain, error) {
	c, owner, err := a.n.chains.owned(ctx, id)
	if err != nil {
		return nil, err
	}
	return ownChain{c, owner}, nil
}

func (a retainedArchive) Skew(ctx context.Context) (time.Duration, error) {
	return objstore.Skew(ctx, a.n.opts.Archive, a.n.opts.Now)
}

// ownChain implements retention.OwnChain.
type ownChain struct {
	*manifest.Chain
	owner manifest.Owner
}

func (c ownChain) Trim(ctx context.Context, start int64) ([]manifest.Segment, error) {
	gone, err := c.Chain.Trim(ctx, c.owner, start)
	return gone, notAnswered(err, c.Chain)
}

func (c ownChain) Gap(ctx context.Context, g manifest.Gap) error {
	return notAnswered(c.Chain.Gap(ctx, c.owner, g), c.Chain)
}

func notAnswered(err error, c *manifest.Chain) error {
	if err == nil || errcode.Is(err, errcode.Conflict) || errcode.Is(err, errcode.Fenced) {
		return err
	}
	return unreachable(err, "append to the chain of partition %s", c.Partition())
}
