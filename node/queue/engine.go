package queue

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Engine holds the groups of every topic a node serves partitions of. All
// methods may be called concurrently.
type Engine struct {
	opt     Options
	signer  *signer
	alarm   *alarm
	metrics *metrics
	waiters sync.Pool
	parked  atomic.Int64

	start  time.Time // of the process, with a monotonic reading
	origin int64     // start in microseconds since the Unix epoch

	// Locks are taken in this order: mu, partition.mu, group.mu, alarm.mu.
	// Two groups' locks are held together only by Snapshot, in name order.
	mu struct {
		sync.RWMutex
		closed bool
		topics map[broker.TopicID]*topic
	}
}

// topic is what the engine knows of a topic; guarded by Engine.mu.
type topic struct {
	partitions map[uint32]*partition
	groups     map[string]*group
}

// New returns an engine that serves nothing yet. It starts one goroutine,
// which Close stops.
func New(opt Options) *Engine {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.MaxWaiters == 0 {
		opt.MaxWaiters = DefaultMaxWaiters
	}
	if opt.MaxRanges == 0 {
		opt.MaxRanges = MaxRanges
	}
	if opt.MaxTracked == 0 {
		opt.MaxTracked = MaxTracked
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if len(opt.Secret) == 0 {
		opt.Secret = []byte(rand.Text())
	}
	e := &Engine{opt: opt, signer: newSigner(opt.Secret), start: opt.Now()}
	e.origin = e.start.UnixMicro()
	e.mu.topics = make(map[broker.TopicID]*topic)
	e.metrics = newMetrics(e)
	e.alarm = newAlarm(e.clock)
	go e.alarm.run()
	return e
}

// Close sends every waiting call away with Closed, refuses new ones, and
// returns when the engine's goroutine has ended. A second call does nothing.
func (e *Engine) Close() {
	e.mu.Lock()
	if e.mu.closed {
		e.mu.Unlock()
		return
	}
	e.mu.closed = true
	for _, t := range e.mu.topics {
		for _, g := range t.groups {
			g.close(errClosed)
		}
	}
	e.mu.topics = nil
	e.mu.Unlock()
	e.alarm.close()
	e.metrics.unregister()
}

// clock returns the time in microseconds since the Unix epoch. It is wall time
// as of the engine's start plus what has passed since by the monotonic clock:
// a step of the wall clock neither ends leases nor makes them last.
func (e *Engine) clock() int64 {
	return e.origin + e.opt.Now().Sub(e.start).Microseconds()
}

// tickAt returns the last tick that is not after the time us.
func (e *Engine) tickAt(us int64) int64 { return max(us-e.origin, 0) / tickMicros }

// tickAfter returns the first tick that is not before the time us.
func (e *Engine) tickAfter(us int64) int64 {
	return (max(us-e.origin, 0) + tickMicros - 1) / tickMicros
}

// timeOf returns the time at which a tick begins.
func (e *Engine) timeOf(tick int64) int64 { return e.origin + tick*tickMicros }

// group returns a group of a topic, made at its first use if create is set.
func (e *Engine) group(id broker.TopicID, name string, create bool) (*group, error) {
	e.mu.RLock()
	t, closed := e.mu.topics[id], e.mu.closed
	var g *group
	if t != nil {
		g = t.groups[name]
	}
	e.mu.RUnlock()
	switch {
	case closed:
		return nil, errClosed
	case g != nil:
		return g, nil
	case t == nil:
		return nil, errNotServed(id, AnyPartition)
	case !create:
		return nil, errcode.New(errcode.NotFound, "topic %v has no group %q", id, name)
	}
	if err := broker.ValidateName("group", name); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return nil, errClosed
	}
	if t = e.mu.topics[id]; t == nil {
		return nil, errNotServed(id, AnyPartition)
	}
	return e.makeGroup(t, id, name)
}

// makeGroup returns the group, new if need be, with a cursor at the start of
// every partition that is served here. Engine.mu is held for writing.
func (e *Engine) makeGroup(t *topic, id broker.TopicID, name string) (*group, error) {
	if g := t.groups[name]; g != nil {
		return g, nil
	}
	if len(t.groups) >= MaxGroups {
		return nil, errcode.New(errcode.TooMany, "topic %v has %d groups, the most there can be; delete one that is not used", id, MaxGroups)
	}
	g := newGroup(e, id, name)
	t.groups[name] = g
	for _, p := range t.partitions {
		p.mu.Lock()
		p.join(g, nil)
		p.mu.Unlock()
	}
	return g, nil
}

// Reserve leases records of a group to the caller: up to Max that are there,
// from one partition or several, or the first that come within Wait. Nothing
// within Wait is an empty slice and no error. A group is made at its first
// use, at the start of every partition.
//
// When ctx ends while a record is being handed over, the record goes back at
// once and its attempt does not count.
func (e *Engine) Reserve(ctx context.Context, req Request) ([]Delivery, error) {
	if req.Group == "" {
		req.Group = broker.DefaultGroup
	}
	if req.Max == 0 {
		req.Max = 1
	}
	if req.Max < 0 || req.Max > MaxReserve || req.Partition < AnyPartition || req.Partition >= broker.MaxPartitions {
		return nil, errcode.New(errcode.InvalidArgument, "cannot reserve %d records of partition %d: at most %d, partitions 0 to %d, or %d for any",
			req.Max, req.Partition, MaxReserve, broker.MaxPartitions-1, AnyPartition)
	}
	if err := ctx.Err(); err != nil {
		return nil, errcode.Wrap(errcode.Canceled, err, "reserve records of topic %v", req.Topic)
	}
	g, err := e.group(req.Topic, req.Group, true)
	if err != nil {
		return nil, err
	}
	now := e.clock()
	g.mu.Lock()
	if err := g.servesLocked(req.Partition); err != nil {
		g.mu.Unlock()
		return nil, err
	}
	out := g.grab(req.Partition, req.Max, now)
	if len(out) == 0 && req.Wait > 0 {
		out, err = g.park(ctx, &req) // unlocks
	} else {
		g.mu.Unlock()
	}
	for i := range out {
		d := &out[i]
		d.Expiry = time.UnixMicro(d.expiry)
		d.Handle = e.signer.sign(handle{d.Partition, d.Offset, d.Attempt, d.expiry}, g.topic, g.name)
	}
	return out, err
}

// servesLocked returns why a call on this partition, or AnyPartition, cannot be
// served; nil when it can.
func (g *group) servesLocked(partition int) error {
	switch {
	case g.closed != nil:
		return g.closed
	case partition == AnyPartition && g.served == 0, partition != AnyPartition && g.cursor(uint32(partition)) == nil:
		return errNotServed(g.topic, partition)
	}
	return nil
}

// close sends every waiter away with err, and ends the group: calls that still
// hold it get err too.
func (g *group) close(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = err
	for _, c := range g.cursors {
		if c != nil {
			c.serving = false
			c.ring.unlink()
			sendAway(&c.pinned, err)
		}
	}
	sendAway(&g.anyone, err)
	g.cursors, g.served, g.free = nil, 0, nil
	g.wheel, g.armed = wheel{now: g.wheel.now}, never
	g.e.alarm.drop(&g.alarm)
}

// Groups returns the names of a topic's groups, sorted.
func (e *Engine) Groups(id broker.TopicID) []string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	t := e.mu.topics[id]
	if t == nil {
		return nil
	}
	names := make([]string, 0, len(t.groups))
	for name := range t.groups {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
