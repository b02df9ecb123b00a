package queue

import (
	"sync"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// maxFreeRecs bounds what a group keeps for reuse: the leases of one partition
// at its default bound.
const maxFreeRecs = DefaultMaxInFlight

// group is one group of one topic: its cursors, who waits, and the wheel that
// ends leases and delays. One lock guards all of it.
//
// Whenever the lock is free, nobody waits for something that is there: each
// change of a cursor ends in refresh, which hands out to waiters first and
// keeps what is left in the ring.
type group struct {
	e     *Engine
	topic broker.TopicID
	name  string

	mu      sync.Mutex
	closed  error     // why no call is served any more; nil while it is
	cursors []*cursor // by partition; nil = not served here
	served  int
	ring    list[cursor] // deliverable partitions, the longest not served first
	anyone  list[waiter] // consume calls that take from any partition, in arrival order
	arrival uint64       // of the last waiter
	wheel   wheel
	armed   int64 // tick at which the alarm calls tick, never when it does not
	alarm   alarmEntry
	free    []*rec
	scratch []byte // operations being staged
	fired   []*cursor
}

func newGroup(e *Engine, topic broker.TopicID, name string) *group {
	g := &group{e: e, topic: topic, name: name, armed: never}
	g.alarm = alarmEntry{g: g, place: -1}
	g.wheel.now = e.tickAt(e.clock())
	return g
}

func (g *group) cursor(partition uint32) *cursor {
	if int(partition) >= len(g.cursors) {
		return nil
	}
	return g.cursors[partition]
}

func (g *group) setCursor(partition uint32, c *cursor) {
	for int(partition) >= len(g.cursors) {
		g.cursors = append(g.cursors, nil)
	}
	g.cursors[partition] = c
}

// refresh is called after every change of c: it hands what is deliverable to
// those who wait, first come first served, and keeps the ring right.
func (g *group) refresh(c *cursor) {
	for c.deliverable() {
		w := g.firstWaiter(c)
		if w == nil {
			if c.ring.in == nil {
				g.ring.pushBack(&c.ring)
			}
			return
		}
		g.hand(w, c)
	}
	c.ring.unlink()
}

// firstWaiter returns who came first of those that can take from c.
func (g *group) firstWaiter(c *cursor) *waiter {
	a, p := g.anyone.front(), c.pinned.front()
	if a == nil || p != nil && p.arrival < a.arrival {
		return p
	}
	return a
}

// hand leases up to what w wants from c to it, and wakes it.
func (g *group) hand(w *waiter, c *cursor) {
	now := g.e.clock()
	for len(w.out) < w.max {
		r := c.take(now)
		if r == nil {
			break
		}
		w.out = append(w.out, g.delivery(r))
	}
	w.leave()
}

// grab leases up to max records to a caller that is there now, from one
// partition, or in turns from all that have something.
func (g *group) grab(partition, max int, now int64) []Delivery {
	if partition != AnyPartition {
		return g.grabFrom(g.cursors[partition], nil, max, now)
	}
	var out []Delivery
	// Each round empties a partition, which leaves the ring, or fills out.
	for c := g.ring.front(); c != nil && len(out) < max; c = g.ring.front() {
		out = g.grabFrom(c, out, max, now)
		if c.ring.in != nil { // it has more: the others come first now
			c.ring.unlink()
			g.ring.pushBack(&c.ring)
		}
	}
	return out
}

func (g *group) grabFrom(c *cursor, out []Delivery, max int, now int64) []Delivery {
	for len(out) < max {
		r := c.take(now)
		if r == nil {
			break
		}
		if out == nil {
			out = make([]Delivery, 0, min(max, 1+int(min(c.hw-c.committed, MaxReserve))))
		}
		out = append(out, g.delivery(r))
	}
	g.refresh(c)
	return out
}

// delivery describes the lease r; the handle is added outside the lock.
func (g *group) delivery(r *rec) Delivery {
	return Delivery{Partition: r.c.id.Partition, Offset: r.offset, Attempt: r.attempt, g: g, expiry: r.expiry}
}

// stage journals ops for c. Nothing may have been changed yet: when it fails,
// the operation has not happened.
func (g *group) stage(c *cursor, ops []byte) (uint64, error) {
	if g.e.opt.Journal == nil {
		return 0, nil
	}
	lsn, err := g.e.opt.Journal.Stage(c.id, c.generation, g.name, ops)
	if err != nil {
		return 0, err
	}
	c.lsn, c.deleted = max(c.lsn, lsn), false
	return lsn, nil
}

// arm puts r into the wheel, to fire at deadline or in the millisecond after
// it, and sees that the alarm rings.
func (g *group) arm(r *rec, deadline, now int64) {
	if g.wheel.n == 0 {
		// An empty wheel is not moved on by the alarm; a stale present would
		// only cost extra turns, and is brought up here where it is free.
		g.wheel.now = max(g.wheel.now, g.e.tickAt(now))
	}
	r.deadline, r.tick = deadline, g.e.tickAfter(deadline)
	g.wakeAt(g.wheel.add(r))
}

// wakeAt has the alarm call tick at the given tick, unless it will anyway.
func (g *group) wakeAt(tick int64) {
	if tick < g.armed {
		g.armed = tick
		g.e.alarm.set(&g.alarm, g.e.timeOf(tick))
	}
}

// tick ends the leases and delays that are due. Called by the alarm.
func (g *group) tick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = never
	g.wheel.advance(g.e.tickAt(g.e.clock()), g.fire)
	for _, c := range g.fired {
		if len(c.ops) > 0 {
			// Expiry is journaled so that delivery counts survive. It happens
			// whether the journal takes it or not: a lost entry costs a count.
			if _, err := g.stage(c, c.ops); err != nil {
				g.e.metrics.unstaged.Inc()
			}
			c.ops = c.ops[:0]
		}
		c.touched = false
		g.refresh(c)
	}
	clear(g.fired)
	g.fired = g.fired[:0]
	g.wakeAt(g.wheel.next())
}

// fire is called for a record whose lease or delay has ended; it is out of the
// wheel already.
func (g *group) fire(r *rec) {
	c := r.c
	switch r.state {
	case leased:
		c.inFlight--
		c.ops = appendReturn(c.ops, r.offset, r.attempt, 0)
		g.e.metrics.expired.Inc()
	case delayed:
		c.delayed--
	}
	c.giveBack(r, 0, 0)
	if !c.touched {
		c.touched = true
		g.fired = append(g.fired, c)
	}
}

func (g *group) newRec() *rec {
	if n := len(g.free); n > 0 {
		r := g.free[n-1]
		g.free = g.free[:n-1]
		return r
	}
	r := new(rec)
	r.timer.owner = r
	return r
}

func (g *group) freeRec(r *rec) {
	if len(g.free) == maxFreeRecs {
		return
	}
	*r = rec{}
	r.timer.owner = r
	g.free = append(g.free, r)
}
