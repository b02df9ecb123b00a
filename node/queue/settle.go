package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Ack settles the record of a receipt handle. The answer to the consumer waits
// until the LSN is written. A handle whose lease is gone is Gone, a second ack
// of the same handle too.
func (e *Engine) Ack(topic broker.TopicID, group, receipt string) (lsn uint64, err error) {
	err = e.claim(topic, group, receipt, func(c *cursor, r *rec, h handle, _ int64) error {
		g := c.g
		g.scratch = appendSettle(g.scratch[:0], h.offset, h.offset+1)
		if lsn, err = g.stage(c, g.scratch); err != nil {
			return err
		}
		c.ack(r, h.offset)
		g.refresh(c)
		return nil
	})
	return lsn, err
}

// ack settles an offset; r is its record, nil when it is not tracked.
func (c *cursor) ack(r *rec, off int64) {
	if r != nil {
		c.lift(r)
		c.forget(r)
	}
	c.settle(off)
	c.g.e.metrics.acked.Inc()
}

// Nack gives the record of a receipt handle back: it is deliverable at once,
// or after delay. A delayed record takes no place among the leases (B82).
func (e *Engine) Nack(topic broker.TopicID, group, receipt string, delay time.Duration) (lsn uint64, err error) {
	if delay < 0 || delay > MaxDelay {
		return 0, errcode.New(errcode.InvalidArgument, "a delay of %v is not between 0 and %v", delay, MaxDelay)
	}
	err = e.claim(topic, group, receipt, func(c *cursor, r *rec, h handle, now int64) error {
		g := c.g
		var dueMS int64
		if delay > 0 {
			dueMS = (now + delay.Microseconds() + 999) / 1000 // never early
		}
		g.scratch = appendReturn(g.scratch[:0], h.offset, h.attempt, dueMS)
		if lsn, err = g.stage(c, g.scratch); err != nil {
			return err
		}
		if r == nil {
			r = c.track(h.offset)
		} else {
			c.lift(r)
		}
		r.attempt = h.attempt
		c.giveBack(r, dueMS*1000, now)
		e.metrics.nacked.Inc()
		g.refresh(c)
		return nil
	})
	return lsn, err
}

// Extend moves the end of a lease to d from now; 0 means a full visibility
// timeout. It never revives a lease that is gone, and never touches another's
// (B81). A lease that a restart made the engine forget, but whose handle is
// valid still, is taken up again. The new deadline is journaled, so that the
// handle outlives a restart as long as the lease would have.
func (e *Engine) Extend(topic broker.TopicID, group, receipt string, d time.Duration) (lsn uint64, err error) {
	if d < 0 || d > MaxLease {
		return 0, errcode.New(errcode.InvalidArgument, "a lease of %v is not between 0 and %v", d, MaxLease)
	}
	err = e.claim(topic, group, receipt, func(c *cursor, r *rec, h handle, now int64) error {
		g := c.g
		known := r != nil && r.state == leased
		if !known && c.inFlight >= c.maxInFlight {
			return errGoneExpired // there is no place to take it up again
		}
		deadline := now + d.Microseconds()
		if d == 0 {
			deadline = now + c.visibility
		}
		g.scratch = appendExtend(g.scratch[:0], h.offset, h.attempt, h.expiry, deadline)
		if lsn, err = g.stage(c, g.scratch); err != nil {
			return err
		}
		if r == nil {
			r = c.track(h.offset)
		} else {
			c.lift(r)
		}
		r.attempt, r.expiry = h.attempt, h.expiry
		c.lease(r, deadline, now)
		e.metrics.extended.Inc()
		g.refresh(c)
		return nil
	})
	return lsn, err
}

// claim runs fn under the group's lock for a receipt handle that is valid now.
func (e *Engine) claim(topic broker.TopicID, name, receipt string, fn func(c *cursor, r *rec, h handle, now int64) error) error {
	g, h, err := e.open(topic, name, receipt)
	if err != nil {
		return err
	}
	now := e.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.servesLocked(int(h.partition)); err != nil {
		return err
	}
	c := g.cursors[h.partition]
	r, err := c.check(h, now)
	if err != nil {
		return err
	}
	return fn(c, r, h, now)
}

// open reads a receipt handle and finds its group. The group is made if it is
// not there: that the handle verifies proves that it was, before a restart.
func (e *Engine) open(topic broker.TopicID, name, receipt string) (*group, handle, error) {
	if name == "" {
		name = broker.DefaultGroup
	}
	h, err := e.verify(topic, name, receipt)
	if err != nil {
		return nil, h, err
	}
	g, err := e.group(topic, name, true)
	return g, h, err
}

func (e *Engine) verify(topic broker.TopicID, name, receipt string) (handle, error) {
	h, err := e.signer.open(receipt, topic, name)
	if errcode.Is(err, errcode.Gone) {
		e.metrics.gone.Inc()
	}
	return h, err
}

// check says whether h holds its record now, and returns the record, nil when
// it is not tracked. Four cases:
//
//   - the lease is in memory: attempt and expiry must be its own, and its
//     deadline, which an extension may have moved, must not have passed;
//   - the record came back (nack, expiry): gone, for this attempt and earlier ones;
//   - the record is known from before a restart, or fresh again because of it:
//     valid until the deadline, since nobody has leased it since;
//   - the record is settled, or not there at all: gone.
func (c *cursor) check(h handle, now int64) (*rec, error) {
	r, deadline := c.recs[h.offset], h.expiry
	gone := errGoneExpired
	switch {
	case r != nil && r.state == leased:
		deadline = r.deadline
		if r.attempt == h.attempt && r.expiry == h.expiry && now < deadline {
			return r, nil
		}
	case r != nil && r.attempt == h.attempt:
		deadline = r.deadline
		if r.open && r.expiry == h.expiry && now < deadline {
			return r, nil
		}
	case r != nil:
		if r.attempt < h.attempt && now < deadline {
			return r, nil
		}
	case h.offset < c.committed || h.offset >= c.hw:
		gone = errGoneSettled
	default:
		if _, settled := c.settled.covering(h.offset); settled {
			gone = errGoneSettled
		} else if now < deadline {
			return nil, nil
		}
	}
	c.g.e.metrics.gone.Inc()
	return nil, gone
}

// AckMany settles the records of up to MaxBatch receipt handles of one group.
// errs holds one entry per handle, nil for those that were settled; lsn is the
// highest that was staged. Records of one partition are staged as one entry.
func (e *Engine) AckMany(topic broker.TopicID, name string, receipts []string) (errs []error, lsn uint64) {
	if name == "" {
		name = broker.DefaultGroup
	}
	errs = make([]error, len(receipts))
	if len(receipts) > MaxBatch {
		err := errcode.New(errcode.TooLarge, "%d receipt handles in one call, at most %d; send them in parts", len(receipts), MaxBatch)
		for i := range errs {
			errs[i] = err
		}
		return errs, 0
	}
	todo := make([]indexed, 0, len(receipts))
	for i, receipt := range receipts {
		h, err := e.verify(topic, name, receipt)
		if errs[i] = err; err == nil {
			todo = append(todo, indexed{h, i})
		}
	}
	if len(todo) == 0 {
		return errs, 0
	}
	g, err := e.group(topic, name, true)
	if err != nil {
		for _, x := range todo {
			errs[x.i] = err
		}
		return errs, 0
	}
	slices.SortFunc(todo, func(a, b indexed) int {
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset), cmp.Compare(a.i, b.i))
	})
	now := e.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(todo) > 0 {
		n := 1
		for n < len(todo) && todo[n].partition == todo[0].partition {
			n++
		}
		lsn = max(lsn, g.ackPartition(todo[:n], now, errs))
		todo = todo[n:]
	}
	return errs, lsn
}

// indexed is a receipt handle and its place in the request.
type indexed struct {
	handle
	i int
}

// ackPartition settles handles of one partition, which are sorted by offset,
// and sets the errors of those it cannot. It reuses the memory of hs.
func (g *group) ackPartition(hs []indexed, now int64, errs []error) uint64 {
	if err := g.servesLocked(int(hs[0].partition)); err != nil {
		for _, h := range hs {
			errs[h.i] = err
		}
		return 0
	}
	c := g.cursors[hs[0].partition]
	valid := hs[:0]
	for _, h := range hs {
		if _, err := c.check(h.handle, now); err != nil {
			errs[h.i] = err
		} else if n := len(valid); n > 0 && valid[n-1].offset == h.offset {
			errs[h.i] = errGoneSettled // named twice: the first one has it
		} else {
			valid = append(valid, h)
		}
	}
	if len(valid) == 0 {
		return 0
	}
	g.scratch = g.scratch[:0]
	for i := 0; i < len(valid); {
		from, to := valid[i].offset, valid[i].offset
		for ; i < len(valid) && valid[i].offset == to; i++ {
			to++
		}
		g.scratch = appendSettle(g.scratch, from, to)
	}
	lsn, err := g.stage(c, g.scratch)
	for _, h := range valid {
		if errs[h.i] = err; err == nil {
			c.ack(c.recs[h.offset], h.offset)
		}
	}
	g.refresh(c)
	return lsn
}

// Release gives back records that could not be handed to their consumer: they
// are deliverable at once, and the attempt does not count (B84). Leases that
// are gone meanwhile are left alone.
func (e *Engine) Release(deliveries ...Delivery) {
	for len(deliveries) > 0 {
		n := 1
		for n < len(deliveries) && deliveries[n].g == deliveries[0].g {
			n++
		}
		if g := deliveries[0].g; g != nil {
			// By name: the group may have been deleted, or detached and
			// attached again, since.
			if g, err := e.group(g.topic, g.name, false); err == nil {
				g.release(deliveries[:n])
			}
		}
		deliveries = deliveries[n:]
	}
}

// ReleaseHandle is Release for a caller that has only the receipt handle, for
// example another node.
func (e *Engine) ReleaseHandle(topic broker.TopicID, group, receipt string) error {
	g, h, err := e.open(topic, group, receipt)
	if err != nil {
		return err
	}
	g.release([]Delivery{{Partition: h.partition, Offset: h.offset, Attempt: h.attempt, expiry: h.expiry}})
	return nil
}

func (g *group) release(out []Delivery) {
	if len(out) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range out {
		c := g.cursor(out[i].Partition)
		if c == nil {
			continue
		}
		r := c.recs[out[i].Offset]
		if r == nil || r.state != leased || r.attempt != out[i].Attempt || r.expiry != out[i].expiry {
			continue
		}
		c.lift(r)
		r.attempt--
		c.giveBack(r, 0, 0)
		g.e.metrics.released.Inc()
		g.refresh(c)
	}
}
