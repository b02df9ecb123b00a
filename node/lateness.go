package node

import (
	"math"
	"runtime/metrics"
	"time"
)

// lateness measures how long goroutines that could run waited for a processor,
// between one call of read and the next. It is for one goroutine at a time.
type lateness struct {
	work   func() uint64 // rises with the work that others should yield to
	done   uint64
	sample [1]metrics.Sample
	before []uint64 // counts of the histogram
}

// quantileLate is which of the waits counts: of a hundred goroutines one waits
// as long or longer.
const quantileLate = 0.99

func newLateness(work func() uint64) *lateness {
	l := &lateness{work: work}
	l.sample[0].Name = "/sched/latencies:seconds"
	return l
}

// noWork is how late work is that there is not.
const noWork time.Duration = -1

// read returns the 99th percentile of the waits since the last call, or noWork
// when there was no work meanwhile that could have been late.
func (l *lateness) read() time.Duration {
	metrics.Read(l.sample[:])
	if l.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0 // a runtime without it: nothing is known to be late
	}
	h := l.sample[0].Value.Float64Histogram()
	late := latePart(h, l.before)
	l.before = append(l.before[:0], h.Counts...)
	if done := l.work(); done != l.done {
		l.done = done
		return late
	}
	return noWork
}

// latePart is the quantile of what a histogram has beyond the counts before.
func latePart(h *metrics.Float64Histogram, before []uint64) time.Duration {
	fresh := func(i int) uint64 {
		if i < len(before) {
			return h.Counts[i] - before[i]
		}
		return h.Counts[i]
	}
	total := uint64(0)
	for i := range h.Counts {
		total += fresh(i)
	}
	above := uint64(float64(total) * (1 - quantileLate))
	for i := len(h.Counts) - 1; i >= 0; i-- {
		n := fresh(i)
		if n <= above {
			above -= n
			continue
		}
		// The lower bound of the bucket: never more than it really was.
		return time.Duration(max(0, min(h.Buckets[i], math.MaxInt32)) * float64(time.Second))
	}
	return 0
}
