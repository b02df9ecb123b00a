package upload

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Uploader uploads the sealed segments of many partitions.
type Uploader struct {
	cfg     Config
	sender  sender
	metrics *metrics
	ctx     context.Context // of all work; ended by Close
	cancel  context.CancelFunc
	wake    chan struct{} // capacity 1: something changed, look again
	done    chan struct{} // closed when the dispatcher has ended
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		parts  map[broker.PartitionID]*partition
		ready  []*partition // with work to start, served in turn
		later  map[*partition]struct{}
		missed map[broker.PartitionID]struct{} // with a segment that was refused for want of room
		asking bool                            // a goroutine asks for these
		slots  int                             // free
		outage outage
		queued int
		bytes  int64
		closed bool
		idle   chan struct{} // not nil while Close waits; closed when nothing is left to do
	}
}

// New starts an Uploader.
func New(cfg Config) (*Uploader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	u := &Uploader{cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{})}
	u.sender = sender{fs: cfg.FS, store: cfg.Store, taken: func(bytes int64) { u.metrics.bytes.Add(float64(bytes)) }}
	if cfg.BytesPerSecond > 0 {
		u.sender.limit = rate.NewLimiter(rate.Limit(cfg.BytesPerSecond), int(max(rateStep, min(cfg.BytesPerSecond, 8<<20))))
	}
	u.mu.parts = make(map[broker.PartitionID]*partition)
	u.mu.later = make(map[*partition]struct{})
	u.mu.missed = make(map[broker.PartitionID]struct{})
	u.mu.slots = cfg.Concurrency
	u.metrics = newMetrics(u, cfg.Registry)
	u.ctx, u.cancel = context.WithCancel(objstore.WithCause(context.Background(), objstore.CauseSegment))
	go u.dispatch()
	return u, nil
}

// Enqueue adds a segment behind those of its partition. Conflict: it does not
// begin at or above the end of the last one. Overloaded: the queue is full, or
// was for an earlier segment of the partition; Hooks.Missed says when to come
// again. Closed after Close.
func (u *Uploader) Enqueue(pid broker.PartitionID, s Sealed) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.closed {
		return errcode.New(errcode.Closed, "the uploader is closed")
	}
	if _, missed := u.mu.missed[pid]; missed || u.mu.queued >= u.cfg.MaxQueued {
		// What follows may not overtake it: the chain would wait at the gap.
		if len(u.mu.missed) == 0 {
			u.cfg.Logger.Warn("too many segments wait for upload; others stay on disk and are queued when there is room", "bound", u.cfg.MaxQueued)
		}
		u.mu.missed[pid] = struct{}{}
		return errcode.New(errcode.Overloaded, "%d segments wait for upload, the bound is %d", u.mu.queued, u.cfg.MaxQueued)
	}
	p := u.mu.parts[pid]
	if p == nil {
		p = &partition{pid: pid}
		u.mu.parts[pid] = p
	}
	if n := len(p.items); n > 0 && s.Info.Base < p.items[n-1].sealed.Info.Next {
		return errcode.New(errcode.Conflict, "segment %s begins at offset %d, the last one in the queue of %s ends at %d", s.Path, s.Info.Base, pid, p.items[n-1].sealed.Info.Next)
	}
	it := &item{sealed: s}
	if s.Attempt != nil {
		it.attempt, it.fresh = *s.Attempt, true
	}
	p.items = append(p.items, it)
	p.bytes += s.Info.Bytes
	u.mu.queued++
	u.mu.bytes += s.Info.Bytes
	u.schedule(p)
	return nil
}

// Drop forgets a partition's queue: it moved away, was deleted, or its
// segments are enqueued anew. What is in flight ends unheard.
func (u *Uploader) Drop(pid broker.PartitionID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(pid)
}

func (u *Uploader) drop(pid broker.PartitionID) {
	delete(u.mu.missed, pid)
	p := u.mu.parts[pid]
	if p == nil {
		return
	}
	u.mu.queued -= len(p.items)
	u.mu.bytes -= p.bytes
	p.items, p.bytes, p.stopped = nil, 0, true
	delete(u.mu.parts, pid)
	delete(u.mu.later, p)
	u.kick()
}

// Skip forgets the segments at the head of a partition's queue that lie wholly
// below an offset: retention has passed them. One that is being uploaded, or that
// waits for its entry, stays, with all behind it. Skip returns the offset up to
// which no segment is needed any more: below, or where the first one that stays
// begins. A partition that stopped at a skipped segment goes on.
func (u *Uploader) Skip(pid broker.PartitionID, below int64) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.mu.parts[pid]
	if p == nil {
		return below
	}
	n := 0
	for n < len(p.items) && p.items[n].phase == waiting && p.items[n].sealed.Info.Next <= below {
		n++
	}
	if n > 0 {
		before := p.bytes
		p.pop(n)
		p.stopped = false
		delete(u.mu.later, p)
		u.mu.queued -= n
		u.mu.bytes -= before - p.bytes
		u.schedule(p)
		u.kick() // a Close may wait for these
	}
	if len(p.items) > 0 {
		return min(below, p.items[0].sealed.Info.Base)
	}
	if p.busy == 0 {
		delete(u.mu.parts, pid)
	}
	return below
}

// Resume lets a stopped partition, or one that waits, try again at once.
func (u *Uploader) Resume(pid broker.PartitionID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p := u.mu.parts[pid]; p != nil {
		p.stopped, p.failures, p.retryAt = false, 0, time.Time{}
		delete(u.mu.later, p)
		u.schedule(p)
	}
}

// Status returns what is known of a partition; false when it has nothing.
func (u *Uploader) Status(pid broker.PartitionID) (Status, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.mu.parts[pid]
	if p == nil {
		return Status{}, false
	}
	return p.status(), true
}

// Statuses returns every partition that has segments waiting or has failed.
func (u *Uploader) Statuses() []Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := make([]Status, 0, len(u.mu.parts))
	for _, p := range u.mu.parts {
		if len(p.items) > 0 || p.err != nil {
			out = append(out, p.status())
		}
	}
	return out
}

// Trouble says how many partitions failed in their last try, with the error of
// one of them; nil when there are none.
func (u *Uploader) Trouble() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var err error
	failing := 0
	for _, p := range u.mu.parts {
		if p.err != nil {
			failing, err = failing+1, p.err
		}
	}
	return errcode.Wrap(errcode.Unavailable, err, "segments of %d partitions wait, the last upload of one failed", failing)
}

// FailingSince is when the first of the partitions that are still failing began
// to; zero when none is.
func (u *Uploader) FailingSince() (since time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.mu.parts {
		if p.err != nil && !p.since.IsZero() && (since.IsZero() || p.since.Before(since)) {
			since = p.since
		}
	}
	return since
}

// Close takes no more segments, goes on until those of all partitions that are
// not stopped are archived or ctx ends, and waits for everything it started.
// The error, NotConfirmed, says how many are left; they are still on disk.
func (u *Uploader) Close(ctx context.Context) error {
	u.mu.Lock()
	if u.mu.closed {
		u.mu.Unlock()
		<-u.done
		return nil
	}
	u.mu.closed = true
	u.mu.idle = make(chan struct{})
	idle := u.mu.idle
	u.kick()
	u.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	u.cancel()
	<-u.done
	u.running.Wait()
	u.metrics.close()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.queued > 0 {
		return errcode.New(errcode.NotConfirmed, "%d segments of %d bytes were not archived before the end; they are uploaded after the next start", u.mu.queued, u.mu.bytes)
	}
	return nil
}

// schedule puts p into the ready list, or among those that wait. Locked.
func (u *Uploader) schedule(p *partition) {
	if it, publish := p.work(u.cfg.Concurrency); it == nil && !publish {
		return
	}
	if p.retryAt.After(u.cfg.Now()) {
		u.mu.later[p] = struct{}{}
	} else if !p.ready {
		p.ready = true
		u.mu.ready = append(u.mu.ready, p)
	}
	u.kick()
}

func (u *Uploader) kick() {
	select {
	case u.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// dispatch starts work until the uploader ends.
func (u *Uploader) dispatch() {
	defer close(u.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(u.start())
		select {
		case <-u.ctx.Done():
			return
		case <-u.wake:
		case <-timer.C:
		}
	}
}

// start starts what has a slot and returns how long nothing else is due.
func (u *Uploader) start() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ctx.Err() != nil {
		return time.Hour
	}
	now, next := u.cfg.Now(), time.Hour
	for p := range u.mu.later {
		if d := p.retryAt.Sub(now); d > 0 {
			next = min(next, d)
			continue
		}
		delete(u.mu.later, p)
		u.schedule(p)
	}
	free, wait := u.mu.outage.allows(u.mu.slots, u.cfg.Concurrency, now)
	if wait > 0 {
		next = min(next, wait)
	}
	for ; free > 0 && len(u.mu.ready) > 0; free-- {
		p := u.mu.ready[0]
		u.mu.ready = u.mu.ready[1:]
		p.ready = false
		it, publish := p.work(u.cfg.Concurrency)
		if it == nil && !publish || p.retryAt.After(now) {
			u.schedule(p)
			free++ // nothing was started
			continue
		}
		u.mu.slots--
		p.busy++
		if publish {
			p.commits = true
		} else {
			it.phase = uploading
		}
		u.running.Go(func() { u.run(p, it) })
		u.schedule(p) // behind the others, if it has more
	}
	if u.hasRoom() && !u.mu.asking {
		u.mu.asking = true
		u.running.Go(u.askForMissed)
	}
	u.checkIdle()
	return next
}

// hasRoom says that segments were refused and a quarter of the queue is free
// again. Locked.
func (u *Uploader) hasRoom() bool {
	return len(u.mu.missed) > 0 && !u.mu.closed && u.mu.queued <= u.cfg.MaxQueued-(u.cfg.MaxQueued+3)/4
}

// askForMissed has the refused segments enqueued again, partition by
// partition, until the queue is full.
func (u *Uploader) askForMissed() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, pid := range slices.Collect(maps.Keys(u.mu.missed)) {
		if !u.hasRoom() {
			break
		}
		u.mu.Unlock()
		u.cfg.Hooks.Missed(pid)
		u.mu.Lock()
	}
	u.mu.asking = false
	u.kick()
}

// Readmit ends the refusal of a partition's segments. From here on those that
// wait are enqueued, in order and before any newer one.
func (u *Uploader) Readmit(pid broker.PartitionID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.mu.missed, pid)
}

// checkIdle tells a waiting Close that nothing is left that could be done.
func (u *Uploader) checkIdle() {
	if u.mu.idle == nil || u.mu.slots != u.cfg.Concurrency {
		return
	}
	for _, p := range u.mu.parts {
		if len(p.items) > 0 && !p.stopped {
			return
		}
	}
	close(u.mu.idle)
	u.mu.idle = nil
}

// run does one piece of work: the upload of it, or the publication of what is
// uploaded when it is nil.
func (u *Uploader) run(p *partition, it *item) {
	ctx, cancel := context.WithTimeout(u.ctx, u.cfg.Timeout)
	defer cancel()
	var err error
	if it != nil {
		err = u.upload(ctx, p, it)
	} else {
		err = u.publish(ctx, p)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.slots++
	p.busy--
	if it == nil {
		p.commits = false
	} else if it.phase = uploaded; err != nil {
		it.phase = waiting
	}
	switch {
	case err == nil:
		if u.mu.outage.over() {
			u.resumeAll()
		}
	case unanswered(err):
		u.mu.outage.failed(&u.cfg, u.cfg.Now())
	}
	if err != nil && u.mu.parts[p.pid] == p {
		u.failed(p, err)
	}
	u.schedule(p)
	u.kick()
}

// failed makes p wait: full jitter below a limit that doubles. Locked.
func (u *Uploader) failed(p *partition, err error) {
	u.metrics.failures.WithLabelValues(errcode.Of(err).String()).Inc()
	if p.err == nil {
		p.since = u.cfg.Now()
	}
	p.err = err
	if p.stopped {
		return
	}
	// Several segments of one partition that fail together are one failure.
	if now := u.cfg.Now(); !p.retryAt.After(now) {
		limit := min(u.cfg.Backoff<<min(p.failures, 20), u.cfg.MaxBackoff)
		p.failures++
		p.retryAt = now.Add(rand.N(limit) + time.Millisecond)
	}
}
