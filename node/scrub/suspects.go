package scrub

import (
	"context"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	// maxSuspects bounds what waits for a look of its own; beyond them the rounds
	// find what is damaged.
	maxSuspects = 256
	// trustFor is how long a copy that a look found good is not suspected again.
	trustFor = 10 * time.Minute
)

// suspicion is a copy that is looked at out of its turn.
type suspicion struct {
	place
	tries int // that failed because something did not answer
	due   time.Time
}

// Suspect has the file of the segment that begins at base looked at soon: a reader
// met damage in it.
func (s *Scrubber) Suspect(id broker.PartitionID, base int64) {
	at := place{local, id, base}
	s.mu.Lock()
	good, ok := s.mu.trusted[at]
	s.mu.Unlock()
	if ok && s.o.Now().Sub(good).Abs() < trustFor {
		return
	}
	s.suspect(at)
}

// suspect queues a look, unless the copy is known to be damaged: what could be
// done about it was done.
func (s *Scrubber) suspect(at place) {
	if !s.findings.has(at) {
		s.again(suspicion{place: at})
	}
}

// again queues a look, after a pause when earlier ones failed.
func (s *Scrubber) again(x suspicion) {
	if x.tries > 0 {
		x.due = s.o.Now().Add(s.pause(x.tries))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.suspects) >= maxSuspects || slices.ContainsFunc(s.mu.suspects, func(y suspicion) bool { return y.place == x.place }) {
		return
	}
	s.mu.suspects = append(s.mu.suspects, x)
	s.kick()
}

// nextSuspect takes the first suspicion that is due out of the queue; else it
// says how long none is.
func (s *Scrubber) nextSuspect(busy [numTiers]string) (x suspicion, ok bool, wait time.Duration) {
	now := s.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = time.Hour
	for i, y := range s.mu.suspects {
		if busy[y.tier] != "" {
			wait = min(wait, s.o.Poll)
		} else if d := y.due.Sub(now); d > 0 && d <= maxBackoff { // a clock that was set back does not hold it up
			wait = min(wait, d)
		} else {
			s.mu.suspects = slices.Delete(s.mu.suspects, i, i+1)
			return y, true, 0
		}
	}
	return x, false, wait
}

// lookAt looks at a suspected copy.
func (s *Scrubber) lookAt(ctx context.Context, x suspicion) {
	if x.tries == 0 && s.findings.has(x.place) {
		return // queued while it was being looked at
	}
	u, ok, err := s.copyAt(ctx, x.tier, x.id, x.base)
	if err == nil && (!ok || u.base() != x.base) {
		s.findings.clear(x.place) // evicted, trimmed or merged since
		return
	}
	v := verdict{err: err}
	if err == nil {
		v = s.check(ctx, &u)
	}
	if ctx.Err() != nil {
		return
	}
	again := v.err != nil
	if v.err == nil {
		s.metrics.read(x.tier, u.bytes())
		again = s.settle(ctx, &u, v).again
	}
	switch {
	case again:
		x.tries++
		s.again(x)
	case v.bad == "" && !v.gone:
		s.trust(x.place)
	}
}

// trust notes that a copy was found good.
func (s *Scrubber) trust(at place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.trusted) >= maxSuspects {
		clear(s.mu.trusted)
	}
	s.mu.trusted[at] = s.o.Now()
}
