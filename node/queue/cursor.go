package queue

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
)

// recState says where an unsettled record that was delivered at least once, or
// is known from a restart, stands.
type recState uint8

const (
	leased  recState = iota // handed out: in the wheel
	ready                   // deliverable: in the ready heap
	delayed                 // nacked with a delay: in the wheel
)

// rec is one tracked record of a cursor.
type rec struct {
	offset   int64
	expiry   int64 // identity of the lease, with attempt; microseconds
	deadline int64 // end of the lease, or due time of a delay; microseconds
	tick     int64 // deadline in the wheel's ticks, rounded up
	attempt  uint32
	place    int32 // in the ready heap
	state    recState
	level    uint8 // in the wheel
	slot     uint8
	// open: the lease of this attempt and expiry was lost with the process
	// that gave it, not given back, so its handle still settles until deadline.
	open  bool
	timer node[rec] // in the wheel
	c     *cursor
}

// cursor is a group's position on one partition. Offsets fall into:
//
//	below committed           settled
//	in settled                settled, ahead of an unsettled one
//	in recs                   leased, ready or delayed
//	else, at or above next    fresh: never delivered, as far as is known
//
// and nothing else: an offset below next that is unsettled is in recs. All
// fields are guarded by the group's lock.
type cursor struct {
	g           *group
	id          broker.PartitionID
	generation  uint32
	visibility  int64 // microseconds
	maxInFlight int
	serving     bool // hands out; false while a replay runs and after Detach

	hw        int64
	committed int64 // never in settled, never passes an unsettled offset
	next      int64 // at or above committed
	known     int64 // highest offset of recs that was at or above next when it came in
	settled   spans // all above committed
	recs      map[int64]*rec
	ready     readyHeap
	inFlight  int
	delayed   int
	lsn       uint64 // highest staged
	deleted   bool   // by a replay, and nothing was journaled since

	ring    node[cursor] // in the group's ring while deliverable
	pinned  list[waiter] // consume calls that want this partition only
	ops     []byte       // collected by a tick
	touched bool         // by the running tick
}

func newCursor(g *group, id broker.PartitionID, cfg *PartitionConfig) *cursor {
	c := &cursor{
		g: g, id: id, generation: cfg.Generation, serving: !cfg.Replay,
		hw: cfg.HighWatermark, known: -1, recs: make(map[int64]*rec),
	}
	c.ring.owner = c
	c.configure(cfg)
	return c
}

func (c *cursor) configure(cfg *PartitionConfig) {
	c.visibility, c.maxInFlight = cfg.VisibilityTimeout.Microseconds(), cfg.MaxInFlight
}

// fresh returns the lowest offset that was never delivered. It moves next over
// what is settled or tracked, which lies there only after a restart, a seek or
// a gap.
func (c *cursor) fresh() (int64, bool) {
	for c.next < c.hw {
		if c.next < c.settled.end() {
			if sp, ok := c.settled.covering(c.next); ok {
				c.next = sp.to
				continue
			}
		}
		if c.next <= c.known {
			if _, ok := c.recs[c.next]; ok {
				c.next++
				continue
			}
		}
		return c.next, true
	}
	return 0, false
}

// candidate returns what would be handed out now: a returned record or, when r
// is nil, the fresh offset off; the lowest of both first.
func (c *cursor) candidate() (r *rec, off int64, ok bool) {
	if !c.serving || c.inFlight >= c.maxInFlight {
		return nil, 0, false
	}
	off, ok = c.fresh()
	if ok && off != c.committed && len(c.recs) >= c.g.e.opt.MaxTracked {
		ok = false // fresh records wait while too many are tracked; returned ones go on
	}
	if r = c.ready.top(); r != nil && (!ok || r.offset < off) {
		off, ok = r.offset, true
	} else {
		r = nil
	}
	// With too many holes, only the lowest is handed out: whatever else is
	// acked would add to them, the hole's ack takes one away (B76).
	if ok && off != c.committed && c.settled.len() >= c.g.e.opt.MaxRanges {
		return nil, 0, false
	}
	return r, off, ok
}

func (c *cursor) deliverable() bool {
	_, _, ok := c.candidate()
	return ok
}

// take leases the lowest deliverable record, nil when there is none.
func (c *cursor) take(now int64) *rec {
	r, off, ok := c.candidate()
	switch {
	case !ok:
		return nil
	case r == nil:
		r = c.track(off)
		c.next = off + 1
	default:
		c.ready.remove(r)
		c.g.e.metrics.redelivered.Inc()
	}
	if r.attempt != ^uint32(0) {
		r.attempt++
	}
	r.expiry = now + c.visibility
	c.lease(r, r.expiry, now)
	c.g.e.metrics.delivered.Inc()
	return r
}

// track makes a record for an offset that has none; the caller gives it a state.
func (c *cursor) track(off int64) *rec {
	r := c.g.newRec()
	r.c, r.offset = c, off
	c.recs[off] = r
	if off >= c.next {
		c.known = max(c.known, off)
	}
	return r
}

// lease makes r, which is in no heap or wheel, a lease until deadline.
func (c *cursor) lease(r *rec, deadline, now int64) {
	r.state, r.open = leased, false
	c.inFlight++
	c.g.arm(r, deadline, now)
}

// lift takes r out of whatever its state has it in.
func (c *cursor) lift(r *rec) {
	switch r.state {
	case leased:
		c.inFlight--
		c.g.wheel.remove(r)
	case delayed:
		c.delayed--
		c.g.wheel.remove(r)
	case ready:
		c.ready.remove(r)
	}
}

// giveBack makes r, lifted before, deliverable, at once or at due (microseconds).
func (c *cursor) giveBack(r *rec, due, now int64) {
	r.open = false
	if due > now {
		r.state = delayed
		c.delayed++
		c.g.arm(r, due, now)
		return
	}
	r.state = ready
	c.ready.push(r)
}

// forget stops tracking r, which has been lifted.
func (c *cursor) forget(r *rec) {
	delete(c.recs, r.offset)
	c.g.freeRec(r)
}

// settle marks one offset, whose record is not tracked any more.
func (c *cursor) settle(off int64) {
	if off != c.committed {
		c.settled.add(off, off+1)
		return
	}
	c.commit(off + 1)
}

// commit moves the position up to at least `to`, and on over what is settled.
func (c *cursor) commit(to int64) {
	c.committed = to
	if c.settled.n > 0 {
		c.settled.cutBelow(to)
		if sp, ok := c.settled.first(); ok && sp.from == to {
			c.committed = sp.to
			c.settled.cutBelow(sp.to)
		}
	}
	c.next = max(c.next, c.committed)
}

// settleRange settles [from, to) whatever stands there, and returns how many
// offsets were unsettled. Leases inside lapse.
func (c *cursor) settleRange(from, to int64) int64 {
	if from = max(from, c.committed); from >= to {
		return 0
	}
	if to-from <= int64(len(c.recs)) {
		for off := from; off < to; off++ {
			if r := c.recs[off]; r != nil {
				c.lift(r)
				c.forget(r)
			}
		}
	} else {
		for off, r := range c.recs {
			if off >= from && off < to {
				c.lift(r)
				c.forget(r)
			}
		}
	}
	n := c.settled.add(from, to)
	if from == c.committed {
		c.commit(to)
	}
	return n
}

// reset forgets everything and stands at `to`, as if it had never been higher.
func (c *cursor) reset(to int64) {
	for _, r := range c.recs {
		c.lift(r)
		c.forget(r)
	}
	c.settled.clear()
	c.committed, c.next, c.known = to, to, -1
}

// clampTo forgets everything at or above end, and says whether there was any.
func (c *cursor) clampTo(end int64) bool {
	ahead := c.committed > end || c.settled.end() > end
	for off, r := range c.recs {
		if off >= end {
			ahead = true
			c.lift(r)
			c.forget(r)
		}
	}
	c.settled.cutFrom(end)
	c.committed = min(c.committed, end)
	c.next = min(c.next, end)
	return ahead
}

// blank says that the group was deleted here and has not been used again.
func (c *cursor) blank() bool {
	return c.deleted && len(c.recs) == 0 && c.pinned.n == 0 && c.g.anyone.n == 0
}

// lag counts the visible records that are not settled.
func (c *cursor) lag() int64 {
	if c.committed >= c.hw {
		return 0
	}
	return c.hw - c.committed - c.settled.below(c.hw)
}

// oldest returns the lowest visible offset that is not settled, -1 when all are.
func (c *cursor) oldest() int64 {
	if c.committed >= c.hw {
		return -1
	}
	return c.committed
}
