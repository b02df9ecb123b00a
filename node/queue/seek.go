package queue

import (
	"cmp"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Seek moves a group on one partition to an offset: everything below is
// settled, everything from there on is to be delivered. Leases lapse and their
// handles are gone. A target below the start of the log means its start; one
// above the high watermark is OutOfRange (B71). The answer waits until the LSN
// is durable.
func (e *Engine) Seek(id broker.PartitionID, name string, to int64) (lsn uint64, err error) {
	if name == "" {
		name = broker.DefaultGroup
	}
	if _, err := e.group(id.Topic, name, true); err != nil {
		return 0, err
	}
	p := e.partition(id)
	if p == nil {
		return 0, errNotServed(id.Topic, int(id.Partition))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.find(name)
	if c == nil {
		return 0, errcode.New(errcode.NotFound, "group %q of topic %v was deleted meanwhile", name, id.Topic)
	}
	hw, start := p.mu.cfg.HighWatermark, p.mu.cfg.Start
	if to > hw && to > start {
		return 0, errcode.New(errcode.OutOfRange, "cannot move group %q on partition %v to %d: its records end at %d; seek to at most that", name, id, to, hw).
			With("high_watermark", hw).With("oldest_offset", start)
	}
	to = max(to, start)
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	ops := appendSeek(g.scratch[:0], to)
	// What is leased is put down as returned: otherwise its handles, which
	// verify and have not expired, would settle records of the new pass.
	back := c.leasedFrom(to)
	for _, r := range back {
		ops = appendReturn(ops, r.Offset, r.Attempt, 0)
	}
	g.scratch = ops[:0]
	if lsn, err = g.stage(c, ops); err != nil {
		return 0, err
	}
	c.reset(to)
	now := e.clock()
	for _, r := range back {
		c.applyReturn(op{from: r.Offset, attempts: r.Attempt}, now)
	}
	p.settleHoles(c)
	g.refresh(c)
	return lsn, nil
}

// leasedFrom lists the leases at or above an offset, in order.
func (c *cursor) leasedFrom(to int64) []Returned {
	var out []Returned
	for _, r := range c.recs {
		if r.offset >= to && (r.state == leased || r.open) {
			out = append(out, Returned{Offset: r.offset, Attempt: r.attempt})
		}
	}
	slices.SortFunc(out, func(a, b Returned) int { return cmp.Compare(a.Offset, b.Offset) })
	return out
}

// Delete ends a group on all partitions that are served here: calls that wait
// are sent away with NotFound, leases are forgotten. The next use of the name
// begins at the start. The answer waits until the LSN is durable. When the
// journal refuses part of the way, the group stays, and begins at the start on
// those partitions that were done.
func (e *Engine) Delete(topic broker.TopicID, name string) (lsn uint64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return 0, errClosed
	}
	t := e.mu.topics[topic]
	if t == nil {
		return 0, errNotServed(topic, AnyPartition)
	}
	g := t.groups[name]
	if g == nil {
		return 0, errcode.New(errcode.NotFound, "topic %v has no group %q", topic, name)
	}
	for _, p := range t.partitions {
		n, err := p.restart(g)
		if err != nil {
			for _, p := range t.partitions {
				p.mu.Lock()
				p.each(func(*cursor) {}) // hands out what the new start made deliverable
				p.mu.Unlock()
			}
			return lsn, err
		}
		lsn = max(lsn, n)
	}
	t.remove(g)
	return lsn, nil
}

// restart journals that g is deleted on p, and sets its cursor to the start. It
// hands nothing out, since the group is about to go.
func (p *partition) restart(g *group) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	c := p.find(g.name)
	g.scratch = appendDelete(g.scratch[:0])
	lsn, err := g.stage(c, g.scratch)
	if err != nil {
		return 0, err
	}
	c.reset(p.mu.cfg.Start)
	p.settleHoles(c)
	return lsn, nil
}

// remove ends a group that has been deleted. Engine.mu is held for writing.
func (t *topic) remove(g *group) {
	for _, p := range t.partitions {
		p.mu.Lock()
		if i, ok := p.search(g.name); ok {
			g.mu.Lock()
			p.mu.lsn = max(p.mu.lsn, p.mu.cursors[i].lsn) // a snapshot shows the deletion
			g.mu.Unlock()
			p.mu.cursors = slices.Delete(p.mu.cursors, i, i+1)
		}
		p.mu.Unlock()
	}
	delete(t.groups, g.name)
	g.close(errcode.New(errcode.NotFound, "group %q of topic %v was deleted", g.name, g.topic))
}
