package load

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	errFull   = errors.New("full")
	errSlow   = errors.New("slow")
	errBroken = errors.New("broken")
)

// Proves that the open loop goes on after refusals, timeouts and broken connections,
// counts each kind, has the timeouts in its latencies and the others not, and does not
// call such a rate held; and that the closed loop ends with the first of them.
func TestMissed(t *testing.T) {
	var n atomic.Int64
	op := func(context.Context, time.Time) (Done, error) {
		switch n.Add(1) % 5 {
		case 1:
			return Done{}, &RefusedError{Status: 429, After: 2 * time.Second, Err: errFull}
		case 2:
			return Done{}, &RefusedError{Status: 503, After: time.Second, Err: errFull}
		case 3:
			return Done{}, &UnansweredError{Timeout: true, Err: errSlow}
		case 4:
			return Done{}, &UnansweredError{Err: errBroken}
		default:
			return Done{Records: 1}, nil
		}
	}
	res, err := Run(t.Context(), Plan{Connections: 2, Rate: 1000, Duration: 500 * time.Millisecond, Silence: time.Minute, Open: opens(op)})
	if err != nil {
		t.Fatal(err)
	}
	m := &res.Missed
	if m.Refused[429] != 100 || m.Refused[503] != 100 || m.AllRefused() != 200 || m.After != 2*time.Second || m.Timeouts != 100 || m.Broken != 100 || m.LastError == "" {
		t.Errorf("%+v", m)
	}
	if res.Latency.TotalCount() != 200 || res.Records != res.Ops || res.Ops > 100 || res.Held() {
		t.Errorf("%d latencies, %d operations, held is %v", res.Latency.TotalCount(), res.Ops, res.Held())
	}
	for _, want := range []error{errFull, errSlow, errBroken} {
		_, err := Run(t.Context(), Plan{Connections: 1, Duration: time.Hour, Open: opens(func(context.Context, time.Time) (Done, error) {
			if errors.Is(want, errFull) {
				return Done{}, &RefusedError{Status: 429, Err: want}
			}
			return Done{}, &UnansweredError{Err: want}
		})})
		if !errors.Is(err, want) {
			t.Errorf("the closed loop ends with %v", err)
		}
	}
}

// Proves that what fails in the warm-up is not counted.
func TestMissedInTheWarmup(t *testing.T) {
	begun := time.Time{}
	res, err := Run(t.Context(), Plan{
		Connections: 1, Rate: 500, Warmup: 100 * time.Millisecond, Duration: 100 * time.Millisecond,
		Began: func(now time.Time) { begun = now },
		Open: opens(func(_ context.Context, due time.Time) (Done, error) {
			if due.Before(begun.Add(100 * time.Millisecond)) {
				return Done{}, &RefusedError{Status: 429, Err: errFull}
			}
			return Done{Records: 1}, nil
		}),
	})
	if err != nil || res.Missed.AllRefused() != 0 || res.Latency.TotalCount() != 50 {
		t.Errorf("%+v, %v", res, err)
	}
}

// Proves that operations which begin late, because the one connection was busy, are
// counted with how late the latest was.
func TestLate(t *testing.T) {
	var n atomic.Int64
	res, err := Run(t.Context(), Plan{Connections: 1, Rate: 200, Duration: 500 * time.Millisecond, Open: opens(func(context.Context, time.Time) (Done, error) {
		if n.Add(1) == 10 {
			<-time.After(200 * time.Millisecond)
		}
		return Done{Records: 1}, nil
	})})
	if err != nil || res.Missed.Late < 30 || res.Missed.Latest < 100*time.Millisecond {
		t.Errorf("%d late, the latest by %v, %v", res.Missed.Late, res.Missed.Latest, err)
	}
}

// Proves that a run ends when nothing is answered for its bound, with the last error in
// its words, whether operations hang or fail at once; that a refusal is an answer; and
// that a run with an answer now and then goes on to its end.
func TestSilence(t *testing.T) {
	p := Plan{Connections: 2, Rate: 200, Duration: time.Hour, Silence: 300 * time.Millisecond}
	p.Open = opens(func(context.Context, time.Time) (Done, error) { return Done{}, &UnansweredError{Err: errBroken} })
	if _, err := Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "nothing was answered for 300ms: broken") {
		t.Errorf("all fail: %v", err)
	}
	p.Open = opens(func(ctx context.Context, _ time.Time) (Done, error) {
		<-ctx.Done()
		return Done{}, ctx.Err()
	})
	if _, err := Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "nothing was answered for 300ms") {
		t.Errorf("all hang: %v", err)
	}
	p.Duration, p.Silence = 1500*time.Millisecond, time.Second
	var n atomic.Int64
	for _, answer := range []error{nil, &RefusedError{Status: 429, Err: errFull}} {
		p.Open = opens(func(context.Context, time.Time) (Done, error) {
			if n.Add(1)%4 == 0 {
				return Done{Records: 1}, answer
			}
			return Done{}, &UnansweredError{Err: errBroken}
		})
		if res, err := Run(t.Context(), p); err != nil || res.Missed.Broken < 100 {
			t.Errorf("%v now and then: %+v, %v", answer, res, err)
		}
	}
}

// Proves that an error which is neither ends the open loop at once, also wrapped
// around nothing.
func TestOtherErrorsEnd(t *testing.T) {
	var n atomic.Int64
	_, err := Run(t.Context(), Plan{Connections: 1, Rate: 500, Duration: time.Hour, Open: opens(func(context.Context, time.Time) (Done, error) {
		if n.Add(1) == 5 {
			return Done{}, errFull
		}
		return Done{}, &RefusedError{Status: 503, Err: errSlow}
	})})
	if !errors.Is(err, errFull) || n.Load() != 5 {
		t.Errorf("%v after %d operations", err, n.Load())
	}
}
