package garbage

import (
	"context"
	"fmt"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// maxHeaders bounds the headers of shipped WAL that one turn reads.
const maxHeaders = 256

// proof gathers that a restore would read nothing of an old incarnation that
// does not stand elsewhere: its records below the ends of chains, its groups in
// the heir's state. Each part stays true once it was seen, because the end of a
// chain and a generation only rise; so it goes on where it stopped.
type proof struct {
	state      bool   // the newest state object was read
	replayFrom uint64 // the first frame that a restore would read
	after      string // key of the last object whose records are covered
	complete   bool   // all of them are
	needed     map[broker.PartitionID]struct{}
	wait       *archive.Range // what stopped it: the chain has not passed this
	heir       uint64         // LSN of the own state object that was not enough
	heirHold   string         // what it lacks
}

// prove goes on with the proof. An empty hold and no more: it is complete.
func (c *Collector) prove(ctx context.Context, i *incarnation, budget *int) (more bool, hold string, err error) {
	if i.proof == nil {
		open, err := c.readOpen(ctx, i)
		if err != nil {
			return false, "", err
		}
		// Whoever took a later cluster generation fenced those before. In the same
		// one the metadata alone says that it is over.
		if own := open.ClusterGeneration == c.opts.ClusterGeneration; open.ClusterGeneration > c.opts.ClusterGeneration || own && !c.forbidden(c.opts.Metadata.State(), i) {
			return false, fmt.Sprintf("belongs to cluster generation %d, not to one before %d, and the metadata does not forbid it", open.ClusterGeneration, c.opts.ClusterGeneration), nil
		}
		i.proof = &proof{replayFrom: 1, needed: make(map[broker.PartitionID]struct{})}
	}
	p := i.proof
	st := c.opts.Metadata.State()
	for _, n := range st.Nodes() {
		if uint64(n.Incarnation) == i.inc {
			return false, "is the registered one of node " + n.ID, nil
		}
	}
	if hold, err := c.proveState(ctx, i, st); err != nil || hold != "" {
		return false, hold, err
	}
	if !p.complete {
		if more, hold, err := c.proveRecords(ctx, i, st, budget); err != nil || hold != "" || more {
			return more, hold, err
		}
	}
	hold, err = c.proveGroups(ctx, p, st)
	return false, hold, err
}

func (c *Collector) readOpen(ctx context.Context, i *incarnation) (archive.Open, error) {
	key := manifest.WALOpenKey(i.node, i.inc)
	data, err := ship.ReadSmall(ctx, c.opts.Store, key)
	if err != nil {
		return archive.Open{}, errcode.Wrap(errcode.ArchiveUnavailable, err, "read %s", key)
	}
	open, err := archive.DecodeOpen(data)
	if err == nil && (open.Node != i.node || open.Incarnation != i.inc) {
		err = errcode.New(errcode.Corrupt, "it says incarnation %016x of node %s", open.Incarnation, open.Node)
	}
	return open, errcode.Wrap(errcode.Corrupt, err, "read %s", key)
}

// proveState reads where a restore of the incarnation would begin.
func (c *Collector) proveState(ctx context.Context, i *incarnation, st *raftmeta.State) (hold string, err error) {
	p := i.proof
	if p.state || i.state == 0 {
		return "", nil
	}
	old, err := ship.ReadState(ctx, c.opts.Store, manifest.Key{Kind: manifest.KindState, Node: i.node, Incarnation: i.inc, First: i.state})
	if err != nil {
		return "", err
	}
	for k := range old.Partitions {
		if hold := c.need(st, p, old.Partitions[k].ID()); hold != "" {
			return hold, nil
		}
	}
	p.replayFrom, p.state = old.ReplayFrom, true
	return "", nil
}

// need notes a partition that the incarnation knew. One that the metadata does
// not know is not deleted: it may be this metadata that is old (I10).
func (c *Collector) need(st *raftmeta.State, p *proof, id broker.PartitionID) (hold string) {
	if deletedTopic(st, id.Topic) {
		return ""
	}
	if _, lives := st.TopicByID(id.Topic); !lives {
		return fmt.Sprintf("has records of topic %s, which the metadata does not know", id.Topic)
	}
	if _, ok := c.owned(st, id); !ok {
		return fmt.Sprintf("has records of partition %s, which is not this node's", id)
	}
	p.needed[id] = struct{}{}
	return ""
}

// proveRecords reads the headers of the objects that a restore would read.
func (c *Collector) proveRecords(ctx context.Context, i *incarnation, st *raftmeta.State, budget *int) (more bool, hold string, err error) {
	p := i.proof
	if p.wait != nil {
		// Nothing is listed or read again until the chain has moved.
		if hold, err := c.passed(ctx, st, p, *p.wait); err != nil || hold != "" {
			return false, hold, err
		}
		p.wait = nil
	}
	headers := 0
	for {
		if *budget--; *budget < 0 {
			return true, "", nil
		}
		page, err := c.opts.Store.List(ctx, manifest.WALPrefix(i.node, i.inc), p.after, 0)
		if err != nil {
			return false, "", errcode.Wrap(errcode.ArchiveUnavailable, err, "list the shipped log of incarnation %016x", i.inc)
		}
		for _, o := range page.Objects {
			k, err := manifest.ParseKey(o.Key)
			if err != nil || k.Kind != manifest.KindWAL || k.End <= p.replayFrom {
				p.after = o.Key
				continue
			}
			if headers++; headers > maxHeaders {
				return true, "", nil
			}
			w, err := c.readHeader(ctx, k)
			if err != nil {
				return false, "", err
			}
			for _, r := range w.Ranges {
				if hold, err := c.passed(ctx, st, p, r); err != nil || hold != "" {
					p.wait = &r
					return false, hold, err
				}
			}
			p.after = o.Key
		}
		if !page.More || len(page.Objects) == 0 {
			p.complete = true
			return false, "", nil
		}
	}
}

// passed says, by an empty hold, that the chain's end has passed a range of
// records, or that its topic is deleted.
func (c *Collector) passed(ctx context.Context, st *raftmeta.State, p *proof, r archive.Range) (hold string, err error) {
	if hold := c.need(st, p, r.Partition); hold != "" || deletedTopic(st, r.Partition.Topic) {
		return hold, nil
	}
	a, _ := c.owned(st, r.Partition)
	chain, err := c.opts.Chain(ctx, r.Partition)
	if err != nil {
		return "", errcode.Wrap(errcode.ArchiveUnavailable, err, "read the chain of partition %s", r.Partition)
	}
	if chain.Generation() != a.Generation {
		return fmt.Sprintf("waits for partition %s: another generation has fenced its chain", r.Partition), nil
	}
	if end := chain.End(); end < r.Next {
		return fmt.Sprintf("waits for partition %s: its records up to offset %d are in no segment yet (archived up to %d)", r.Partition, r.Next, end), nil
	}
	return "", nil
}

// readHeader reads the head of a shipped WAL object, no more.
func (c *Collector) readHeader(ctx context.Context, k manifest.Key) (*archive.WAL, error) {
	buf := make([]byte, 4<<10)
	read := func() error {
		n, err := c.opts.Store.GetRange(ctx, k.String(), buf, 0)
		buf = buf[:n]
		return errcode.Wrap(errcode.ArchiveUnavailable, err, "read the head of %s", k)
	}
	if err := read(); err != nil {
		return nil, err
	}
	size, err := archive.WALHeaderSize(buf)
	if err == nil && size > len(buf) {
		buf = make([]byte, size)
		if err := read(); err != nil {
			return nil, err
		}
	}
	var w *archive.WAL
	if err == nil {
		w, err = archive.DecodeWALHeader(buf)
	}
	if err == nil && (w.Incarnation != k.Incarnation || w.First != k.First || w.Next != k.End) {
		err = errcode.New(errcode.Corrupt, "it says frames %d to %d of incarnation %016x", w.First, w.Next-1, w.Incarnation)
	}
	return w, errcode.Wrap(errcode.Corrupt, err, "read the head of %s", k)
}

// proveGroups looks whether the newest state object of this incarnation has
// every partition that may have had groups in the old one: those it knew, and
// those that are older than this incarnation.
func (c *Collector) proveGroups(ctx context.Context, p *proof, st *raftmeta.State) (hold string, err error) {
	c.mu.Lock()
	newest := uint64(0)
	if s := c.mu.shipped.states; len(s) > 0 {
		newest = s[len(s)-1].a
	}
	c.mu.Unlock()
	switch {
	case newest == 0:
		return "waits for a state object of this incarnation", nil
	case newest == p.heir:
		return p.heirHold, nil
	}
	own, err := ship.ReadState(ctx, c.opts.Store, manifest.Key{Kind: manifest.KindState, Node: c.opts.Node, Incarnation: c.opts.Incarnation, First: newest})
	if err != nil {
		return "", err
	}
	have := make(map[broker.PartitionID]uint32, len(own.Partitions))
	for k := range own.Partitions {
		have[own.Partitions[k].ID()] = own.Partitions[k].Generation
	}
	missing := func(id broker.PartitionID) bool {
		a, ok := c.owned(st, id)
		return !ok || have[id] != a.Generation
	}
	for id := range p.needed {
		if !deletedTopic(st, id.Topic) && missing(id) {
			p.heir, p.heirHold = newest, "waits for a state object with partition "+id.String()
			return p.heirHold, nil
		}
	}
	for _, t := range st.Topics() {
		as, _ := st.Assignments(t.ID)
		for n, a := range as {
			id := broker.PartitionID{Topic: t.ID, Partition: uint32(n)}
			if a.Generation > 1 && missing(id) {
				p.heir, p.heirHold = newest, "waits for a state object with partition "+id.String()
				return p.heirHold, nil
			}
		}
	}
	return "", nil
}
