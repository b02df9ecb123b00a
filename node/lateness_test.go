package node

import (
	"math"
	"runtime/metrics"
	"testing"
	"time"
)

// The 99th percentile is that of the waits since the call before, rounded down
// to a bucket's bound.
func TestLatePart(t *testing.T) {
	h := &metrics.Float64Histogram{Buckets: []float64{math.Inf(-1), 0.0001, 0.001, 0.01, math.Inf(1)}, Counts: []uint64{1000, 500, 0, 0}}
	for _, c := range []struct {
		counts, before []uint64
		want           time.Duration
	}{
		{[]uint64{0, 0, 0, 0}, nil, 0},
		{[]uint64{100, 0, 0, 0}, nil, 0},
		{[]uint64{990, 0, 0, 10}, nil, 0}, // ten of a thousand are one per cent: not above it
		{[]uint64{989, 0, 0, 11}, nil, 10 * time.Millisecond},
		{[]uint64{1000, 0, 50, 0}, []uint64{1000, 0, 0, 0}, time.Millisecond},
		{[]uint64{1000, 50, 50, 50}, []uint64{1000, 0, 50, 50}, 100 * time.Microsecond},
		{[]uint64{0, 0, 0, 5}, []uint64{0, 0, 0, 5}, 0},
	} {
		h.Counts = c.counts
		if got := latePart(h, c.before); got != c.want {
			t.Errorf("%d since %d: %s, want %s", c.counts, c.before, got, c.want)
		}
	}
}

// Without work that could be late there is nothing to yield to, and the runtime has the
// histogram that this stands on.
func TestLateness(t *testing.T) {
	work := uint64(0)
	l := newLateness(func() uint64 { return work })
	if l.read() != noWork {
		t.Error("late without work")
	}
	if l.sample[0].Value.Kind() != metrics.KindFloat64Histogram || len(l.before) == 0 {
		t.Fatalf("the runtime measures no scheduling latencies: %v", l.sample[0].Value.Kind())
	}
	// Everything that waited until now counts as late once there was work.
	late := l.sample[0].Value.Float64Histogram()
	for i := range l.before {
		l.before[i] = 0
	}
	want := latePart(late, nil)
	work++
	if got := l.read(); got < want/2 {
		t.Errorf("%s late with work, want about %s", got, want)
	}
	if got := l.read(); got != noWork {
		t.Errorf("%s late without further work", got)
	}
}
