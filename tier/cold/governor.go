package cold

import (
	"context"
	"sync"
	"time"
)

const (
	// tooLate is the scheduling latency above which cold work steps back: work
	// that somebody waits for right now stands in line behind it.
	tooLate = time.Millisecond
	// lookEvery is the time between two looks at the latency.
	lookEvery = 100 * time.Millisecond
	// leastRate is what cold work always gets, in bytes a second: a replay
	// beside a node that is busy all the time gets on.
	leastRate = 8 << 20
	// fullRate stands for no limit: more than a processor can verify.
	fullRate = 8 << 30
	// startRate is what readers begin with beside other work. It is doubled with
	// each look until work is late for the first time, so that the beginning of a
	// scan is not a tenth of a second in which it takes all there is.
	startRate = 64 << 20
	// restAfter without a reader makes what was learnt about more than that old.
	restAfter = time.Second
	// rateStep is added with each look that finds no lateness. From the least
	// rate to what a network carries takes seconds, to no limit a minute.
	rateStep = 16 << 20
)

// governor paces the readers of a cache by how late other work gets to run. The
// rate is halved when it is too late and grows by steps while it is not; without
// other work there is no limit. Readers
// pay for each chunk when they come to it; since they read ahead by a bounded
// amount, that paces downloads, writes to disk and whatever is done with the
// records as well.
type governor struct {
	latency func() time.Duration // since the call before; nil: nothing to yield to
	metrics *metrics

	mu struct {
		sync.Mutex
		rate   float64 // bytes a second
		credit float64 // bytes; below zero somebody waits for it
		at     time.Time
		looked time.Time
		used   float64 // bytes since then
		fast   bool    // work was not late yet since readers began
	}
}

func newGovernor(latency func() time.Duration) *governor {
	g := &governor{latency: latency}
	g.mu.rate = fullRate
	return g
}

// rate returns the bytes a second that cold work has now.
func (g *governor) rate() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.rate
}

// pay waits until n bytes may be read. It ends with ctx.
func (g *governor) pay(ctx context.Context, n int) error {
	if g.latency == nil {
		return nil
	}
	wait := g.charge(time.Now(), float64(n))
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		g.metrics.yielded.Add(wait.Seconds())
		return nil
	case <-ctx.Done():
		g.mu.Lock()
		g.mu.credit += float64(n) // who leaves does not make others wait
		g.mu.Unlock()
		return ctx.Err()
	}
}

// charge takes n bytes and returns how long to wait for them.
func (g *governor) charge(now time.Time, n float64) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look(now)
	g.mu.used += n
	if g.mu.rate >= fullRate {
		g.mu.credit, g.mu.at = 0, now
		return 0
	}
	if g.mu.at.IsZero() {
		g.mu.credit = ChunkSize // the first chunk is somebody's first byte
	} else {
		// What nobody used is not saved up: a burst is what hurts.
		g.mu.credit = min(g.mu.credit+now.Sub(g.mu.at).Seconds()*g.mu.rate, ChunkSize)
	}
	g.mu.at = now
	g.mu.credit -= n
	if g.mu.credit >= 0 {
		return 0
	}
	return time.Duration(-g.mu.credit / g.mu.rate * float64(time.Second))
}

// look sets the rate when it is time to. Locked.
func (g *governor) look(now time.Time) {
	since := now.Sub(g.mu.looked)
	if since < lookEvery {
		return
	}
	late := g.latency()
	switch first := g.mu.looked.IsZero(); {
	case late < 0:
		g.mu.rate, g.mu.fast = fullRate, true
	case first || late <= tooLate && since > restAfter:
		// What was before has nothing to do with these readers, and that nothing
		// was late without them says little.
		g.mu.fast = g.mu.fast || g.mu.rate > startRate
		g.mu.rate = min(g.mu.rate, startRate)
	case late > tooLate:
		// The half of what was really read: to halve a rate that nobody reaches
		// changes nothing.
		g.mu.rate = max(leastRate, min(g.mu.rate, g.mu.used/since.Seconds())/2)
		g.mu.fast = false
	case g.mu.fast:
		g.mu.rate = min(fullRate, 2*g.mu.rate)
	default:
		g.mu.rate = min(fullRate, g.mu.rate+rateStep*float64(since/lookEvery))
	}
	g.mu.looked, g.mu.used = now, 0
}
