package scenario

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/bench/report"
)

// defaultE2ERate is how many records a second are sent when nothing is said.
const defaultE2ERate = 200

// E2E measures from the moment at which a record was due to be produced to the
// moment at which a consumer that was waiting has it.
func E2E(ctx context.Context, o Options) (*report.Report, error) {
	if o.Rate == 0 {
		o.Rate = defaultE2ERate
	}
	b, err := start("e2e", o)
	if err != nil {
		return nil, err
	}
	b.timed()
	b.rep.Set("rate", fmt.Sprintf("%g records/s", o.Rate))
	b.rep.Set("consumers", fmt.Sprintf("%d, each waiting for one record and acking it", o.Readers))
	return b.finish(b.e2e(ctx))
}

func (b *bench) e2e(ctx context.Context) error {
	for i := range b.Runs {
		err := b.try(ctx, func(t *trial) error {
			d := &delivery{t: t, rec: load.NewRecorder()}
			res, err := d.run(ctx, b.plan(fmt.Sprintf("e2e %d of %d", i+1, b.Runs), b.Rate))
			if err != nil {
				return err
			}
			sent := b.rep.Measure("produce, due to answered", report.Loop(res))
			sent.Runs = append(sent.Runs, report.Of(res))
			run := report.Run{}
			_, n, bytes := d.rec.Totals()
			run.Add("records", "records/s", float64(n)/res.Elapsed.Seconds())
			run.Add("bytes", "MB/s", float64(bytes)/1e6/res.Elapsed.Seconds())
			run.Latencies(d.rec.Histogram())
			got := b.rep.Measure("produce to delivery, due to received", report.Loop(res))
			got.Runs = append(got.Runs, run)
			b.noteMissed("e2e", i+1, res)
			if d.refused.Load() > 0 {
				b.rep.Notes = append(b.rep.Notes, fmt.Sprintf("e2e, run %d: %d consumes were refused, and sent again", i+1, d.refused.Load()))
			}
			if !res.Held() {
				b.rep.Notes = append(b.rep.Notes, fmt.Sprintf("run %s: the rate was not held (%.0f of %g a second)", strconv.Itoa(i+1), res.OpsPerSecond(), b.Rate))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// delivery is producers and consumers of one trial.
type delivery struct {
	t        *trial
	rec      *load.Recorder
	warm     time.Duration // since the trial began
	end      time.Duration
	last     atomic.Int64 // when a record came last
	produced atomic.Bool  // all of it
	refused  atomic.Int64 // consumes and acks
}

// run produces by the plan while consumers wait, until they have everything.
func (d *delivery) run(ctx context.Context, p load.Plan) (*load.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.warm, d.end = p.Warmup, p.Warmup+p.Duration
	var wg sync.WaitGroup
	p.Began = func(now time.Time) { // consumers need to know when it was
		d.last.Store(now.UnixNano())
		for i := range d.t.b.Readers {
			wg.Go(func() {
				if err := d.consumer(ctx, i); err != nil {
					cancel(err)
				}
			})
		}
	}
	res, err := d.t.produce(ctx, p, d.t.single)
	d.produced.Store(true)
	d.last.Store(time.Now().UnixNano())
	if err == nil {
		err = d.t.nothing(res)
	}
	if err != nil {
		cancel(err)
	}
	wg.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return res, err
}

// consumer takes records until all that were accepted have come.
func (d *delivery) consumer(ctx context.Context, lane int) error {
	c, err := d.t.b.Target.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	// Short enough to see soon that everything came, and long against the rate.
	k := d.t.taker(c, 1, "1s")
	k.bear = func(err error) bool { return d.bear(ctx, err) }
	for {
		accepted, seen := d.t.ledger.Counts()
		if d.produced.Load() && seen >= accepted {
			return nil
		}
		n, err := k.take(func(s records.Stamp) {
			if s.Due >= d.warm && s.Due < d.end {
				d.rec.Latency(lane, time.Since(d.t.base)-s.Due)
				d.rec.Done(lane, load.Done{Records: 1, Bytes: int64(d.t.b.Size)})
			}
		})
		if err != nil {
			if d.bear(ctx, err) {
				continue
			}
			return err
		}
		if n > 0 {
			d.last.Store(time.Now().UnixNano())
		} else if d.produced.Load() && time.Since(time.Unix(0, d.last.Load())) > stalled {
			return fmt.Errorf("%d of %d records came, and no more within %v: the others are lost", seen, accepted, stalled)
		}
	}
}

// bear waits after a refusal, and reports whether to go on: not when no record has come
// for too long.
func (d *delivery) bear(ctx context.Context, err error) bool {
	if !bear(ctx, err, time.Unix(0, d.last.Load())) {
		return false
	}
	d.refused.Add(1)
	return true
}
