package scrub

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	// saveEvery is how long the place may be ahead of what the file says.
	saveEvery = 10 * time.Second
	// maxWait bounds a pause, so that a clock that is set does not hold a round up.
	maxWait = time.Minute
)

// Scrubber verifies and repairs what a node has stored.
type Scrubber struct {
	o        Options
	metrics  *metrics
	pace     *pace
	findings findings
	wake     chan struct{} // capacity 1: something was queued, look again

	// Only Run's goroutine uses these.
	walks  [numTiers]*walk // of the rounds
	asked  [numTiers]*walk // of what was asked for
	saved  time.Time
	failed bool // to save; told once

	mu struct {
		sync.Mutex
		tiers    [numTiers]broker.ScrubTier // as of the last step
		requests map[broker.PartitionID]struct{}
		waiting  map[broker.PartitionID]struct{} // what was asked for and is not done
		suspects []suspicion
		trusted  map[place]time.Time
	}
}

// New returns a Scrubber that does nothing until Run.
func New(o Options) (*Scrubber, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Scrubber{o: o, pace: newPace(o.MaxRate, o.Latency), wake: make(chan struct{}, 1)}
	s.findings.open = map[place]broker.ScrubFinding{}
	for t := range numTiers {
		s.walks[t] = &walk{tier: t}
		s.asked[t] = &walk{tier: t}
	}
	s.mu.requests = map[broker.PartitionID]struct{}{}
	s.mu.waiting = map[broker.PartitionID]struct{}{}
	s.mu.trusted = map[place]time.Time{}
	s.load()
	s.metrics, err = newMetrics(o.Registerer, s)
	return s, err
}

// Close takes the metrics out of the registry. Run has ended.
func (s *Scrubber) Close() { s.metrics.close() }

// Run verifies until ctx ends. It returns nil.
func (s *Scrubber) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		wait := s.turn(ctx)
		s.publish()
		s.save(false)
		if wait <= 0 {
			continue
		}
		timer.Reset(min(wait, maxWait))
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
	}
	s.save(true)
	return nil
}

func (s *Scrubber) kick() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// turn looks at one copy that is due, or says how long none is.
func (s *Scrubber) turn(ctx context.Context) (wait time.Duration) {
	busy := s.busy()
	x, ok, wait := s.nextSuspect(busy)
	if ok {
		s.lookAt(ctx, x)
		return 0
	}
	s.takeRequests()
	now := s.o.Now()
	for t := range numTiers {
		if w := s.asked[t]; len(w.only) > 0 {
			if d := s.until(w, now, busy); d > 0 {
				wait = min(wait, d)
				continue
			}
			if s.visit(ctx, w) {
				w.only = nil
			}
			return 0
		}
	}
	if s.o.Interval == 0 {
		return wait
	}
	for t := range numTiers {
		w := s.walks[t]
		if t == archived && s.o.Archive == nil {
			continue
		}
		if d := s.until(w, now, busy); d > 0 {
			wait = min(wait, d)
			continue
		}
		if w.round.StartedAt == 0 || w.round.EndedAt != 0 {
			w.begin(now, s.o.Interval)
		}
		if s.visit(ctx, w) {
			s.finish(w)
		}
		return 0
	}
	return wait
}

// until says how long a walk has to wait.
func (s *Scrubber) until(w *walk, now time.Time, busy [numTiers]string) time.Duration {
	if busy[w.tier] != "" {
		return s.o.Poll
	}
	d := w.due.Sub(now)
	if w.only == nil {
		d = min(d, s.o.Interval) // set back by more than that, the clock said something else then
	} else {
		d = min(d, maxBackoff)
	}
	return d
}

// finish ends a round; the next one begins when the interval of this one is over.
func (s *Scrubber) finish(w *walk) {
	w.round.EndedAt = s.o.Now().UnixMilli()
	s.findings.expire(w.tier, w.round.StartedAt)
	s.o.Logger.Info("every segment of a tier was verified", "tier", w.tier.String(), "segments", w.round.Segments, "bytes", w.round.Bytes,
		"damaged", w.round.Damaged, "repaired", w.round.Repaired, "unread", w.round.Unread)
	w.last, w.due, w.left = w.round, w.deadline, 0
	s.saved = time.Time{}
}

// busy says for each tier why it is left alone now.
func (s *Scrubber) busy() (b [numTiers]string) {
	b[local], b[archived] = s.o.Busy()
	return b
}

// Start has everything of some partitions verified now, without pauses. It does
// not wait for that. NotFound: there are none.
func (s *Scrubber) Start(topic string, ids []broker.PartitionID) error {
	if len(ids) == 0 {
		return errUnknownTopic(topic)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.mu.requests[id] = struct{}{}
		s.mu.waiting[id] = struct{}{}
	}
	s.kick()
	return nil
}

// takeRequests begins what was asked for once what was asked for before is done.
func (s *Scrubber) takeRequests() {
	if len(s.asked[local].only) > 0 || len(s.asked[archived].only) > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.requests) == 0 {
		return
	}
	for t := range numTiers {
		w := &walk{tier: t, only: map[broker.PartitionID]struct{}{}}
		for id := range s.mu.requests {
			w.only[id] = struct{}{}
		}
		s.asked[t] = w
	}
	clear(s.mu.requests)
}

// publish copies what Report shows.
func (s *Scrubber) publish() {
	busy := s.busy()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.waiting = maps.Clone(s.mu.requests)
	for t := range numTiers {
		maps.Copy(s.mu.waiting, s.asked[t].only)
		w := s.walks[t]
		x := broker.ScrubTier{Round: w.round, Last: w.last, LeftBytes: w.left, Paused: busy[t]}
		if !w.due.IsZero() {
			x.NextAt = w.due.UnixMilli()
		}
		s.mu.tiers[t] = x
	}
}

// Asked counts the partitions that were asked for and are not done.
func (s *Scrubber) Asked() map[broker.TopicID]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[broker.TopicID]int{}
	for id := range s.mu.waiting {
		out[id.Topic]++
	}
	return out
}

// Report says what was read and found. Asked is left to the caller, who knows the
// names of topics.
func (s *Scrubber) Report() broker.ScrubReport {
	r := broker.ScrubReport{IntervalMS: s.o.Interval.Milliseconds()}
	r.Findings, r.Repaired, r.Unrepaired = s.findings.list()
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Local, r.Archive = s.mu.tiers[local], s.mu.tiers[archived]
	return r
}

// Trouble says how many copies are damaged and could not be repaired, with one of
// them; nil when there are none.
func (s *Scrubber) Trouble() error {
	open, _, total := s.findings.list()
	if total == 0 {
		return nil
	}
	f := open[0]
	return fmt.Errorf("%d damaged copies of segments could not be repaired, the newest: %s%s, offsets %d to %d: %s; %s", total, f.File, f.Key, f.From, f.Next, f.What, f.Done)
}
