package queue

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Apply replays one journal entry of an attached partition: the operations
// that Stage was given, in the order of their LSNs, from any point at or below
// the LSN of the states that Attach was given. Entries that the states hold
// already change nothing in the end: settled stays settled, delivery counts
// only rise, and a seek or a delete that is replayed is followed by all that
// came after it. (What is not journaled can be lost on the way: the count of a
// lease that was open at the snapshot, when a seek before it is replayed.)
// Without seeks and deletes the order does not matter either.
//
// An entry is applied whole or, when it does not decode, not at all.
func (e *Engine) Apply(id broker.PartitionID, name string, ops []byte) error {
	if err := decodeOps(ops, func(op) error { return nil }); err != nil {
		return errcode.Wrap(errcode.Corrupt, err, "replay an entry of group %q on partition %v", name, id)
	}
	if _, err := e.group(id.Topic, name, true); err != nil {
		return err
	}
	p := e.partition(id)
	if p == nil {
		return errNotServed(id.Topic, int(id.Partition))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.find(name)
	if c == nil {
		return errcode.New(errcode.NotFound, "group %q of topic %v was deleted meanwhile", name, id.Topic)
	}
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	now := e.clock()
	err := decodeOps(ops, func(o op) error { c.apply(o, p.mu.cfg.Start, now); return nil })
	if c.serving {
		p.clamp(c)
	}
	p.settleHoles(c)
	g.refresh(c)
	return err
}

func (c *cursor) apply(o op, start, now int64) {
	c.deleted = o.kind == opDelete
	switch o.kind {
	case opSettle, opSkip:
		c.settleRange(o.from, o.to)
	case opReturn:
		c.applyReturn(o, now)
	case opExtend:
		c.applyExtend(o)
	case opSeek:
		c.reset(o.from)
	case opCut:
		c.clampTo(o.from)
	case opDelete:
		// The name starts over from here on; what is journaled for it later
		// belongs to a new group.
		c.reset(start)
	}
}

// unsettled returns the record of an offset that is to be delivered, tracked
// if need be; nil when the offset is settled.
func (c *cursor) unsettled(off int64) *rec {
	if r := c.recs[off]; r != nil {
		return r
	}
	if off < c.committed {
		return nil
	}
	if _, ok := c.settled.covering(off); ok {
		return nil
	}
	r := c.track(off)
	r.state = ready
	c.ready.push(r)
	return r
}

// applyReturn puts a record back as it was when the entry was written, unless
// a later delivery of it is known.
func (c *cursor) applyReturn(o op, now int64) {
	r := c.unsettled(o.from)
	if r == nil || r.attempt > o.attempts || r.state == leased && r.attempt == o.attempts {
		return
	}
	c.lift(r)
	r.attempt = o.attempts
	c.giveBack(r, dueTime(o.dueMS, now), now)
}

// dueTime returns a stored due time in microseconds. One that no nack can have
// asked for, for example because the clock was wrong then, is brought down to
// the longest delay: bytes must not hide a record for ever.
func dueTime(ms, now int64) int64 {
	latest := now + MaxDelay.Microseconds()
	if ms > latest/1000 {
		return latest
	}
	return ms * 1000
}

// applyExtend notes until when the handle of a lease is valid. The lease
// itself did not survive: its record is deliverable.
func (c *cursor) applyExtend(o op) {
	r := c.unsettled(o.from)
	switch {
	case r == nil || r.state == leased || r.attempt > o.attempts:
		return
	case r.attempt == o.attempts && !r.open: // given back after the extension
		return
	}
	c.lift(r)
	r.attempt, r.expiry, r.deadline = o.attempts, o.expiry, o.deadline
	c.giveBack(r, 0, 0)
	r.open = true
}

// restore fills a new cursor from a state. Every unsettled record is
// deliverable at once, unless its delay has not ended. Offsets that the state
// gives twice, which an encoded state cannot, keep their first meaning.
func (c *cursor) restore(s *State, now int64) {
	c.reset(max(s.Committed, 0))
	for _, r := range s.Ranges {
		if r[0] < r[1] {
			c.settleRange(r[0], r[1])
		}
	}
	for _, x := range s.Returned {
		if r := c.unsettled(x.Offset); r != nil {
			c.lift(r)
			r.attempt = x.Attempt
			c.giveBack(r, dueTime(x.DueMS, now), now)
		}
	}
	for _, x := range s.Leased {
		if r := c.unsettled(x.Offset); r != nil && r.attempt < x.Attempt {
			c.lift(r)
			r.attempt, r.expiry, r.deadline = x.Attempt, x.Expiry, x.Deadline
			c.giveBack(r, 0, 0)
			r.open = true
		}
	}
}
