package cold

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// Without work there is no limit. Readers that begin beside work get a start rate,
// which doubles until work is late. Then the rate is halved with each look, from
// what is really read down to the least rate and no further; when work is not late
// any more, the rate grows by a step a look, and while nobody reads not at all.
func TestGovernorRate(t *testing.T) {
	late := time.Duration(-1)
	g := newGovernor(func() time.Duration { return late })
	now := time.Unix(1000, 0)
	read := func(bytes float64) { g.charge(now, bytes); now = now.Add(lookEvery) }
	read(100 << 20)
	read(100 << 20)
	if g.mu.rate != fullRate {
		t.Fatalf("rate %.0f without work", g.mu.rate)
	}
	late = tooLate // the bound is not beyond it
	now = now.Add(2 * restAfter)
	for want := float64(startRate); want <= fullRate; want *= 2 {
		read(100 << 20)
		if g.mu.rate != want {
			t.Fatalf("rate %.0f beside work that is not late, want %.0f", g.mu.rate, want)
		}
	}
	late = tooLate + 1
	read(100 << 20) // of 1000 MiB a second
	if g.mu.rate != 500<<20 {
		t.Fatalf("rate %.0f after the first lateness, want the half of what was read", g.mu.rate)
	}
	for want := 250.0; want > 8; want /= 2 {
		read(100 << 20)
		if want >= 8 && g.mu.rate != want*(1<<20) {
			t.Fatalf("rate %.0f, want %.0f MiB a second", g.mu.rate, want)
		}
	}
	for range 10 {
		read(100 << 20)
	}
	if g.mu.rate != leastRate {
		t.Fatalf("rate %.0f, want the least, %d", g.mu.rate, leastRate)
	}
	late = 0
	for i := range 10 {
		read(0)
		if want := float64(leastRate + (i+1)*rateStep); g.mu.rate != want {
			t.Fatalf("rate %.0f after %d looks without lateness, want %.0f", g.mu.rate, i+1, want)
		}
	}
	now = now.Add(2 * time.Minute)
	read(0)
	if g.mu.rate != startRate {
		t.Fatalf("rate %.0f two minutes later beside work, want %d", g.mu.rate, startRate)
	}
	late = tooLate + 1
	for range 10 {
		read(0)
	}
	late = 0
	now = now.Add(2 * time.Minute)
	read(0)
	if g.mu.rate != leastRate {
		t.Fatalf("rate %.0f beside work that was late, want the least", g.mu.rate)
	}
	read(0)
	if g.mu.rate != leastRate+rateStep {
		t.Fatalf("rate %.0f after one look, want a step more than the least", g.mu.rate)
	}
	late = -1
	read(0)
	if g.mu.rate != fullRate {
		t.Fatalf("rate %.0f when the work is done", g.mu.rate)
	}
}

// Readers beside work that runs late all the time get the least rate together,
// and get to the end; without work they do not wait at all; one that leaves
// does not wait. The clock is the test's.
func TestGovernedReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore()
		var segs []manifest.Segment
		var total int64
		for i := range int64(4) {
			s, _ := archived(t, st, 1000*i, repeat(20, ChunkSize-1000)...)
			segs = append(segs, s)
			total += s.Bytes
		}
		var mu sync.Mutex
		late := time.Duration(-1)
		set := func(d time.Duration) { mu.Lock(); late = d; mu.Unlock() }
		c := open(t, crash.NewFS(), st, func(c *Config) {
			c.Latency = func() time.Duration { mu.Lock(); defer mu.Unlock(); return late }
		})
		all := func() time.Duration {
			begin := time.Now()
			var wg sync.WaitGroup
			for _, s := range segs {
				wg.Go(func() {
					if got, err := scan(t, c, s, s.Base); err != nil || int64(len(got)) != s.Records {
						t.Errorf("%d batches: %v", len(got), err)
					}
				})
			}
			wg.Wait()
			return time.Since(begin)
		}
		if took := all(); took != 0 {
			t.Errorf("%s for readers that nobody is late for", took)
		}
		set(time.Second)
		for looks := 0; c.governor.rate() > leastRate; looks++ {
			if looks > 20 {
				t.Fatalf("the rate is %.0f after %d looks at work that runs late", c.governor.rate(), looks)
			}
			time.Sleep(lookEvery) // of the test's clock
			all()
		}
		took := all()
		least := time.Duration(float64(total) / leastRate * float64(time.Second))
		if took < least*8/10 || took > least*12/10 {
			t.Errorf("%s for %d bytes beside work that runs late, want about %s", took, total, least)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if err := c.governor.pay(ctx, 64<<20); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a reader that left: %v", err)
		}
		begin := time.Now()
		if err := c.governor.pay(context.Background(), ChunkSize); err != nil || time.Since(begin) > 2*time.Second*ChunkSize/leastRate {
			t.Errorf("after one that left: %s, %v", time.Since(begin), err)
		}
		set(-1)
		time.Sleep(2 * time.Minute)
		if took := all(); took != 0 {
			t.Errorf("%s for readers after the work", took)
		}
		// Beside work that is not late, what doubles from the start rate.
		set(0)
		time.Sleep(2 * time.Minute)
		if took := all(); took < 300*time.Millisecond || took > 800*time.Millisecond {
			t.Errorf("%s for %d bytes that begin beside work", took, total)
		}
	})
}
