package load

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// run is one execution of a plan.
type run struct {
	Plan
	rec    *Recorder
	start  time.Time
	warm   time.Time // the measurement begins
	end    time.Time
	due    chan time.Time // open loop: operations whose time has come
	unsent int64
	last   atomic.Int64 // nanoseconds from warm to the last operation's end

	missed  misses
	waiting atomic.Int64 // since the start, when the first operation began that was not answered since; 0: none did
}

// Run executes a plan. It ends early when every connection said io.EOF, with the
// time until then, and with the first error of any operation.
func Run(ctx context.Context, p Plan) (*Result, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{Plan: p, rec: NewRecorder(), due: make(chan time.Time, p.Connections)}
	ops, closers := make([]Op, p.Connections), make([]func(), 0, p.Connections)
	defer func() {
		for _, c := range closers {
			c()
		}
	}()
	for i := range ops {
		op, closer, err := p.Open(ctx, i)
		if err != nil {
			return nil, err
		}
		ops[i], closers = op, append(closers, closer)
	}
	r.begin()

	// Whoever says what is due must not block behind connections that have ended.
	work, over := context.WithCancel(ctx)
	var helpers, workers sync.WaitGroup
	for i, op := range ops {
		workers.Go(func() {
			if err := r.connection(work, i, op); err != nil && !errors.Is(err, io.EOF) {
				cancel(err)
			}
		})
	}
	if p.Rate > 0 {
		helpers.Go(func() { r.pace(work) })
	}
	helpers.Go(func() {
		if err := r.watch(work); err != nil {
			cancel(err)
		}
	})
	workers.Wait()
	finished := time.Now()
	over()
	helpers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return r.result(finished), nil
}

func (r *run) begin() {
	r.start = time.Now()
	r.warm = r.start.Add(r.Warmup)
	r.end = r.warm.Add(r.Duration)
	if r.Began != nil {
		r.Began(r.start)
	}
}

// connection does operations until the time is over.
func (r *run) connection(ctx context.Context, lane int, op Op) error {
	for {
		due, ok := r.next(ctx)
		if !ok {
			return nil
		}
		measured := !due.Before(r.warm)
		if r.Rate > 0 {
			begin := time.Now()
			r.begins(begin)
			if measured {
				r.missed.begun(begin.Sub(due))
			}
		}
		done, err := op(ctx, due)
		now := time.Now()
		var unanswered *UnansweredError
		if err != nil {
			if r.Rate == 0 || ctx.Err() != nil || !r.missed.note(err, measured) {
				return err
			}
			if !errors.As(err, &unanswered) {
				r.waiting.Store(0)
			} else if measured && unanswered.Timeout {
				r.rec.Latency(lane, now.Sub(due))
			}
			continue
		}
		if r.Rate > 0 {
			r.waiting.Store(0)
		}
		if measured {
			r.rec.Latency(lane, now.Sub(due))
		}
		if now.After(r.warm) && !now.After(r.end) {
			r.rec.Done(lane, done)
			storeMax(&r.last, int64(now.Sub(r.warm)))
		}
	}
}

// next waits for an operation that is due. In the closed loop it is due now.
func (r *run) next(ctx context.Context) (time.Time, bool) {
	if r.Rate > 0 {
		due, ok := <-r.due
		return due, ok
	}
	now := time.Now()
	return now, now.Before(r.end) && ctx.Err() == nil
}

// pace hands out what is due, in order, and closes the channel behind the last.
// Connections that are all busy make it late, which the times that it hands out do
// not show: they stay what they were.
func (r *run) pace(ctx context.Context) {
	defer close(r.due)
	gap := float64(time.Second) / r.Rate
	limit := time.NewTimer(time.Until(r.end.Add(r.grace())))
	defer limit.Stop()
	for k := 0; ; k++ {
		due := r.start.Add(time.Duration(float64(k) * gap))
		if !due.Before(r.end) {
			return
		}
		if !sleepUntil(ctx, due) {
			return
		}
		select {
		case r.due <- due:
		case <-ctx.Done():
			return
		case <-limit.C:
			r.giveUp(k, gap)
			return
		}
	}
}

// giveUp counts what is due from the k-th operation on and was never begun, with
// the latencies that they have by now.
func (r *run) giveUp(k int, gap float64) {
	now := time.Now()
	for ; ; k++ {
		due := r.start.Add(time.Duration(float64(k) * gap))
		if !due.Before(r.end) {
			return
		}
		if !due.Before(r.warm) {
			r.unsent++
			r.rec.Latency(k, now.Sub(due))
		}
	}
}

// watch notes the course of the run, says how far it is, and ends it with an error
// when nothing is answered.
func (r *run) watch(ctx context.Context) error {
	tick := time.NewTicker(firstStep)
	defer tick.Stop()
	total := r.Warmup + r.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if err := r.silent(now); err != nil {
				return err
			}
			if since := now.Sub(r.warm); since > 0 && since <= r.Duration+firstStep {
				r.rec.Note(min(since, r.Duration))
			}
			if r.Progress != nil {
				r.Progress(min(now.Sub(r.start), total), total)
			}
		}
	}
}

func (r *run) result(finished time.Time) *Result {
	out := &Result{Rate: r.Rate, Elapsed: r.Duration, Unsent: r.unsent, Latency: r.rec.Histogram(), Course: r.rec.Course(), Missed: r.missed.Missed}
	out.Ops, out.Records, out.Bytes = r.rec.Totals()
	if finished.Before(r.end) { // there was nothing more to do
		out.Elapsed = max(time.Duration(r.last.Load()), time.Nanosecond)
	}
	return out
}

func storeMax(to *atomic.Int64, v int64) {
	for {
		old := to.Load()
		if v <= old || to.CompareAndSwap(old, v) {
			return
		}
	}
}
