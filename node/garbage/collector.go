package garbage

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

const (
	firstBackoff = time.Second // or the interval, when that is shorter
	maxBackoff   = time.Hour
	moreSoon     = time.Second // between turns while there is more to delete at once
)

// Collector deletes garbage from one archive. All methods are safe for
// concurrent use.
type Collector struct {
	opts    Options
	metrics *metrics
	turns   chan struct{} // capacity 1: holds a token while a turn runs

	// Of the turn.
	looked   time.Time // when the archive was listed last; zero: not yet
	snapAt   time.Time // when snapshots were looked for last
	pinned   string    // what holds everything; "" = nothing
	newest   uint64    // highest Raft index of an export of this cluster generation in the archive
	swept    time.Time // when uploads in parts were swept last
	index    uint64    // of the metadata that purges were taken from
	failures int       // in a row
	behind   map[manifest.KeyKind]*behind

	mu struct {
		sync.Mutex
		retired  retiredQueue
		purges   map[broker.TopicID]*purge
		shipped  shipped
		old      map[writer]*incarnation
		looks    map[broker.PartitionID]*orphanLook
		orphans  int // in all looks
		deleted  [numCauses]int64
		freed    [numCauses]int64
		paused   string
		retryAt  time.Time
		lastTurn time.Time
	}
}

// New returns a Collector; Run makes it work.
func New(o Options) (*Collector, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Collector{opts: o.withDefaults(), turns: make(chan struct{}, 1)}
	c.behind = make(map[manifest.KeyKind]*behind)
	c.mu.purges = make(map[broker.TopicID]*purge)
	c.mu.old = make(map[writer]*incarnation)
	c.mu.looks = make(map[broker.PartitionID]*orphanLook)
	c.metrics = newMetrics(o.Registerer, c)
	return c, nil
}

// Run takes turns until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	timer := time.NewTimer(c.opts.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		more := false
		if c.due() {
			more, _ = c.Turn(ctx) // the error is logged and shown
		}
		timer.Reset(c.pause(more))
	}
}

// pause returns how long Run waits for its next turn: an interval, less when
// there is more to do at once, or when the last turn failed and is to be tried
// again earlier. It looks at least once an interval, since a turn that was asked
// for ends the pause after a failure.
func (c *Collector) pause(more bool) time.Duration {
	if more {
		return min(moreSoon, c.opts.Interval)
	}
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if retry := c.mu.retryAt.Sub(now); retry > 0 {
		return min(retry, c.opts.Interval)
	}
	return c.opts.Interval
}

// due says whether no pause after a failure lasts.
func (c *Collector) due() bool {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return !now.Before(c.mu.retryAt)
}

// Turn does what is due now, bounded: more says that there is more of it. A turn
// that was asked for does not wait for the end of a pause. One that runs already
// is waited for, no longer than ctx.
func (c *Collector) Turn(ctx context.Context) (more bool, err error) {
	select {
	case c.turns <- struct{}{}:
	case <-ctx.Done():
		return false, errcode.Wrap(errcode.Canceled, ctx.Err(), "wait for a turn of the collector")
	}
	defer func() { <-c.turns }()
	more, err = c.turn(ctx)
	if ctx.Err() != nil {
		return false, err // the stop of the node is no failure
	}
	c.finish(err)
	return more && err == nil, err
}

// turn runs the parts in order. One that fails does not hinder the others,
// unless what it lacks is what all of them need.
func (c *Collector) turn(ctx context.Context) (more bool, err error) {
	if err := c.look(ctx); err != nil {
		return false, err
	}
	if c.pinned != "" {
		return false, errcode.New(errcode.PreconditionFailed, "%s", c.pinned)
	}
	var errs []error
	for _, part := range []func(context.Context) (bool, error){
		c.collectRetired, c.collectTopics, c.lookBehind, c.collectShipped, c.collectIncarnations, c.collectOrphans, c.sweepUploads,
	} {
		again, err := part(ctx)
		more = more || again
		if err != nil {
			errs = append(errs, err)
		}
		var h *hindrance
		if errors.As(err, &h) || ctx.Err() != nil {
			break
		}
	}
	return more, errors.Join(errs...)
}

// hindrance is an error that every deletion would meet.
type hindrance struct{ err error }

func (h *hindrance) Error() string { return h.err.Error() }

func (h *hindrance) Unwrap() error { return h.err }

// finish notes how a turn went; the first failure of a row is logged.
func (c *Collector) finish(err error) {
	now := c.opts.Now()
	c.metrics.turns.Inc()
	c.mu.Lock()
	was := c.mu.paused
	c.mu.lastTurn = now
	if err == nil {
		c.failures, c.mu.paused, c.mu.retryAt = 0, "", time.Time{}
	} else {
		limit := min(min(c.opts.Interval, firstBackoff)<<min(c.failures, 20), maxBackoff)
		c.failures++
		c.mu.paused, c.mu.retryAt = err.Error(), now.Add(limit/2+rand.N(limit/2))
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		c.metrics.errors.Inc()
		if was == "" {
			c.opts.Logger.Warn("nothing is deleted from the archive for now; it is tried again, what is kept costs storage only", "error", err)
		}
	case was != "":
		c.opts.Logger.Info("garbage is deleted from the archive again")
	}
}
