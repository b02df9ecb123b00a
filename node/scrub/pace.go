package scrub

import (
	"context"
	"time"
)

const (
	// late is the lateness of other work above which reading steps back.
	late = time.Millisecond
	// lookEvery is the time between two looks at it.
	lookEvery = 100 * time.Millisecond
	// leastShare is what is left of the rate beside a node that is always busy.
	leastShare = 1.0 / 32
	// step is how much is read between two payments.
	step = 1 << 20
)

// pace bounds how fast a segment is read, and yields: while other work runs late
// the rate is halved, and it comes back slowly. One goroutine uses it.
type pace struct {
	rate    float64 // bytes a second with nothing to yield to
	latency func() time.Duration

	share  float64 // of rate, now
	looked time.Time
	free   time.Time // when what was read so far is paid for
}

func newPace(rate int64, latency func() time.Duration) *pace {
	return &pace{rate: float64(rate), latency: latency, share: 1}
}

// spend waits until n bytes more may be read. It ends with ctx.
func (p *pace) spend(ctx context.Context, n int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now := time.Now()
	if now.Sub(p.looked) >= lookEvery {
		if p.latency() > late {
			p.share = max(leastShare, p.share/2)
		} else {
			p.share = min(1, p.share*1.2)
		}
		p.looked = now
	}
	if p.free.Before(now) {
		p.free = now // what nobody used is not saved up
	}
	wait := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(float64(n) / (p.rate * p.share) * float64(time.Second)))
	return sleep(ctx, wait)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
