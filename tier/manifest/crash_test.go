package manifest

import (
	"context"
	"fmt"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// step is one thing that an owner does; it is repeated until it succeeds.
type step func(c *Chain) error

// script fences, adds, trims, merges, and crosses checkpoints and pages.
func script() []step {
	ctx := context.Background()
	o := testOwner(1)
	steps := []step{func(c *Chain) error { _, err := c.Fence(ctx, o, FenceParams{}); return err }}
	for i := range int64(14) {
		steps = append(steps, func(c *Chain) error {
			// Each try uploads again under a key of its own, as after a restart.
			nonce := uint32(c.Seq())*1000 + uint32(i)
			err := c.Add(ctx, o, testSegment(10*i, 10*i+10, 1, nonce))
			if errcode.Is(err, errcode.Exists) && c.End() >= 10*i+10 {
				return nil // an earlier try came through
			}
			return err
		})
	}
	return append(steps,
		func(c *Chain) error { _, err := c.Trim(ctx, o, 35); return err },
		func(c *Chain) error { return c.Gap(ctx, o, Gap{From: 140, Next: 150, Reason: "retention"}) },
		func(c *Chain) error { return c.Add(ctx, o, testSegment(150, 160, 1, 77)) },
	)
}

// The process ends at each store call in turn, before or after the call took
// effect; a new one loads the chain and goes on. The result is always the same
// chain: nothing twice, nothing missing.
func TestCrashAtEachStep(t *testing.T) {
	want := run(t, newFaulty(), -1, good)
	total := want.calls
	if total < 20 {
		t.Fatalf("the script makes %d calls", total)
	}
	for at := range total {
		for _, how := range []outcome{failed, lost} {
			got := run(t, newFaulty(), at, how)
			if got.list != want.list {
				t.Errorf("crash at call %d (%d):\n%s\nwant\n%s", at, how, got.list, want.list)
			}
		}
	}
}

type result struct {
	calls int
	list  string
}

func run(t *testing.T, f *faulty, at int, how outcome) result {
	t.Helper()
	calls, down := 0, false
	f.decide = func(op, key string) outcome {
		calls++
		switch {
		case down:
			return failed // the process is gone: nothing more leaves it
		case calls-1 == at:
			down = true
			if op == "GET" {
				return failed
			}
			return how
		}
		return good
	}
	load := func() *Chain {
		for range 3 {
			c, err := Load(context.Background(), f, testPID, 0, WithRetry(1, 0), WithPageSegments(4))
			if err == nil {
				return c
			}
			down = false // the next process
		}
		t.Fatal("the chain does not load")
		return nil
	}
	c := load()
	for i, s := range script() {
		for try := 0; ; try++ {
			err := s(c)
			if err == nil {
				break
			}
			if try == 3 {
				t.Fatalf("step %d, crash at call %d: %v", i, at, err)
			}
			down = false
			c = load()
		}
	}
	f.mu.Lock()
	f.decide = nil // what is left reads the result
	f.mu.Unlock()
	c = load()
	segs, err := c.Segments(context.Background(), 0, c.End())
	if err != nil {
		t.Fatal(err)
	}
	c.Coverage(segs, func(a, b int64) { t.Errorf("hole %d-%d", a, b) }, func(a, b int64) { t.Errorf("overlap %d-%d", a, b) })
	list := fmt.Sprintf("start %d end %d %+v gaps %v", c.Start(), c.End(), c.Totals(), c.Gaps())
	for _, s := range segs {
		list += fmt.Sprintf("\n%d-%d", s.Base, s.Next)
	}
	return result{calls, list}
}
