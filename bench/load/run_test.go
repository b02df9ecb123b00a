package load

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opens makes every connection do op.
func opens(op Op) func(context.Context, int) (Op, func(), error) {
	return func(context.Context, int) (Op, func(), error) { return op, func() {}, nil }
}

// Proves that a server that stands still once delays all that was due meanwhile
// (no coordinated omission): of 1,000 operations a second, 300 were due in 300 ms.
// A generator that measures from when it sent would see one.
func TestOpenLoopCountsWhatWasDue(t *testing.T) {
	var n atomic.Int64
	res, err := Run(t.Context(), Plan{Connections: 1, Rate: 1000, Duration: time.Second, Open: opens(func(context.Context, time.Time) (Done, error) {
		if n.Add(1) == 100 {
			<-time.After(300 * time.Millisecond)
		}
		return Done{Records: 1, Bytes: 10}, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	slow := int64(0)
	for _, bar := range res.Latency.Distribution() {
		if bar.From >= 100_000 {
			slow += bar.Count
		}
	}
	if slow < 190 || res.Latency.TotalCount() != 1000 {
		t.Errorf("%d of %d operations took 100 ms and more, want about 200 of 1000", slow, res.Latency.TotalCount())
	}
	if res.Unsent != 0 || res.Records != res.Ops || res.Bytes != 10*res.Ops {
		t.Errorf("%+v", res)
	}
}

// Proves that a rate that cannot be held is said so, and that what could not be
// sent is in the latencies: each operation takes as long as five are apart.
func TestOpenLoopOverload(t *testing.T) {
	res, err := Run(t.Context(), Plan{Connections: 1, Rate: 100, Duration: 500 * time.Millisecond, Grace: 100 * time.Millisecond, Open: opens(func(ctx context.Context, _ time.Time) (Done, error) {
		<-time.After(50 * time.Millisecond)
		return Done{Records: 1}, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	if res.Held() || res.Unsent < 30 || res.Latency.TotalCount() != 50 {
		t.Errorf("held %v, %d unsent, %d latencies of 50 that were due", res.Held(), res.Unsent, res.Latency.TotalCount())
	}
}

// Proves that a rate that is held is called held, at its edge too.
func TestHeld(t *testing.T) {
	for _, c := range []struct {
		rate   float64
		ops    int64
		unsent int64
		held   bool
	}{
		{0, 1, 0, true}, {100, 1000, 0, true}, {100, 979, 0, true}, {100, 970, 0, false}, {100, 1000, 1, false}, {1, 8, 0, true}, {1, 7, 0, false},
	} {
		r := Result{Rate: c.rate, Ops: c.ops, Unsent: c.unsent, Elapsed: 10 * time.Second}
		if r.Held() != c.held {
			t.Errorf("%+v: held is %v", c, r.Held())
		}
	}
}

// Proves that the closed loop ends with its time, leaves out the warm-up, and
// ends early when there is nothing more to do, with the time it took.
func TestClosedLoop(t *testing.T) {
	var n atomic.Int64
	pause := func(context.Context, time.Time) (Done, error) {
		n.Add(1)
		<-time.After(2 * time.Millisecond)
		return Done{Records: 3}, nil
	}
	res, err := Run(t.Context(), Plan{Connections: 4, Warmup: 200 * time.Millisecond, Duration: 200 * time.Millisecond, Open: opens(pause)})
	if err != nil {
		t.Fatal(err)
	}
	if res.Ops == 0 || res.Ops >= n.Load() || res.Records != 3*res.Ops || res.Elapsed != 200*time.Millisecond || !res.Held() {
		t.Errorf("%d operations in all: %+v", n.Load(), res)
	}
	if p50 := res.Latency.ValueAtQuantile(50); p50 < 2000 {
		t.Errorf("p50 is %d us, and each took 2 ms", p50)
	}

	var left atomic.Int64
	left.Store(20)
	res, err = Run(t.Context(), Plan{Connections: 4, Duration: time.Hour, Open: opens(func(ctx context.Context, due time.Time) (Done, error) {
		if left.Add(-1) < 0 {
			return Done{}, io.EOF
		}
		return pause(ctx, due)
	})})
	if err != nil || res.Ops != 20 || res.Elapsed < 10*time.Millisecond || res.Elapsed > time.Minute {
		t.Errorf("%+v %v", res, err)
	}
}

// Proves that an error of an operation, of an opening or of the plan ends a run,
// in both loops, with everything closed.
func TestErrorsEnd(t *testing.T) {
	broken := errors.New("broken")
	for _, rate := range []float64{0, 500} {
		var n, open atomic.Int64
		p := Plan{Connections: 3, Rate: rate, Duration: time.Hour, Open: func(_ context.Context, i int) (Op, func(), error) {
			open.Add(1)
			return func(context.Context, time.Time) (Done, error) {
				if n.Add(1) == 20 {
					return Done{}, broken
				}
				<-time.After(time.Millisecond)
				return Done{}, nil
			}, func() { open.Add(-1) }, nil
		}}
		if _, err := Run(t.Context(), p); !errors.Is(err, broken) || open.Load() != 0 {
			t.Errorf("rate %g: %v, %d left open", rate, err, open.Load())
		}
		openOne := p.Open
		p.Open = func(ctx context.Context, i int) (Op, func(), error) {
			if i == 2 {
				return nil, nil, broken
			}
			return openOne(ctx, i)
		}
		if _, err := Run(t.Context(), p); !errors.Is(err, broken) || open.Load() != 0 {
			t.Errorf("rate %g: %v, %d left open", rate, err, open.Load())
		}
	}
	for _, p := range []Plan{
		{Connections: 0, Duration: 1}, {Connections: MaxConnections + 1, Duration: 1}, {Connections: 1}, {Connections: 1, Duration: 1, Warmup: -1},
		{Connections: 1, Duration: 1, Rate: -1}, {Connections: 1, Duration: 1, Rate: 1e8},
	} {
		if _, err := Run(t.Context(), p); err == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := Plan{Connections: 2, Rate: 10, Duration: time.Hour, Began: func(time.Time) { cancel() }, Open: opens(func(context.Context, time.Time) (Done, error) { return Done{}, nil })}
	if _, err := Run(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run: %v", err)
	}
}

// Proves that the course of a run keeps its bound however long it is, keeps its
// mean, and that latencies out of bounds are kept at them.
func TestCourseIsBounded(t *testing.T) {
	r := NewRecorder()
	const steps = 100_000
	for i := range steps {
		r.Done(i, Done{Records: 10})
		r.Latency(i, time.Millisecond)
		r.Note(time.Duration(i+1) * firstStep)
	}
	points := r.Course()
	if len(points) < MaxPoints/2-1 || len(points) > MaxPoints {
		t.Fatalf("%d points", len(points))
	}
	for _, p := range points {
		if p.Records < 99 || p.Records > 101 || p.P50 < 900*time.Microsecond {
			t.Fatalf("%+v", p)
		}
	}
	r.Latency(3, -time.Second)
	r.Latency(4, 24*time.Hour)
	if h := r.Histogram(); h.TotalCount() != steps+2 || h.Min() != 0 || h.Max() < longest.Microseconds() {
		t.Errorf("%d latencies from %d to %d us", h.TotalCount(), h.Min(), h.Max())
	}
}
