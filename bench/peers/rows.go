package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/records"
)

// The rows, by name.
const (
	rowProduce    = "produce"
	rowBatch      = "batch"
	rowConsume    = "consume"
	rowConsume100 = "consume100"
	rowE2E        = "e2e"
)

// What every system is measured with.
const (
	recordBytes  = 1024
	batchRecords = 1000
	connections  = 64 // of produce and consume, unless options say others
	batchConns   = 8
	e2eConns     = 16
	e2eRate      = 200
	partitions   = 6 // of Tidemark's topic; a peer has one stream
	stalled      = 20 * time.Second
)

// leastRecords is so many that all connections taking 100 at a time leave something
// to measure behind the warm-up.
func (o *options) leastRecords() int { return 4 * o.connections * 100 }

// row is one scenario.
type row struct {
	name    string
	what    string
	figures []string // that are compared
	peer    func(ctx context.Context, p peer, o *options) (map[string]float64, error)
}

// rows are all scenarios.
func rows() []row {
	return []row{
		{rowProduce, fmt.Sprintf("a record a request, %d connections", connections), []string{perSecond}, measureProduce},
		{rowBatch, fmt.Sprintf("batches of %d, %d connections", batchRecords, batchConns), []string{perSecond}, measureBatch},
		{rowConsume, fmt.Sprintf("consume and ack, 1 at a time, %d connections", connections), []string{perSecond}, func(ctx context.Context, p peer, o *options) (map[string]float64, error) {
			return measureConsume(ctx, p, o, 1)
		}},
		{rowConsume100, fmt.Sprintf("consume and ack, 100 at a time, %d connections", connections), []string{perSecond}, func(ctx context.Context, p peer, o *options) (map[string]float64, error) {
			return measureConsume(ctx, p, o, 100)
		}},
		{rowE2E, fmt.Sprintf("produce to delivery, %d records/s, due to received", e2eRate), []string{p50, p99}, measureE2E},
	}
}

// The figures.
const (
	perSecond = "records/s"
	p50       = "p50 ms"
	p99       = "p99 ms"
)

func rowNames() []string {
	var out []string
	for _, r := range rows() {
		out = append(out, r.name)
	}
	return out
}

// corpus is the text of all records; zstd makes it four times smaller.
var corpus = sync.OnceValue(func() *records.Corpus { return records.NewCorpus(records.Text, 1) })

// trial is one measurement of a peer.
type trial struct {
	p      peer
	run    *records.Run
	ledger *records.Ledger
	base   time.Time
}

func newTrial(p peer) *trial {
	t := &trial{p: p, run: records.NewRun(corpus(), recordBytes, 1)}
	t.ledger = records.NewLedger(t.run)
	return t
}

// plan makes a plan in which each connection is a worker of the peer.
func (t *trial) plan(conns int, op func(w worker, src *records.Source) load.Op) load.Plan {
	return load.Plan{
		Connections: conns,
		Began:       func(now time.Time) { t.base = now },
		Open: func(ctx context.Context, i int) (load.Op, func(), error) {
			src, err := t.run.Source(i)
			if err != nil {
				return nil, nil, err
			}
			w, err := t.p.dial(ctx)
			if err != nil {
				return nil, nil, err
			}
			return op(w, src), w.close, nil
		},
	}
}

// single sends one record.
func (t *trial) single(w worker, src *records.Source) load.Op {
	return func(ctx context.Context, due time.Time) (load.Done, error) {
		seq := src.Seq()
		if err := w.send(ctx, src.Next(due.Sub(t.base))); err != nil {
			return load.Done{}, err
		}
		t.ledger.Accepted(src.Stream(), seq, 1)
		return load.Done{Records: 1, Bytes: recordBytes}, nil
	}
}

// many sends a batch.
func (t *trial) many(w worker, src *records.Source) load.Op {
	values := make([][]byte, batchRecords)
	return func(ctx context.Context, _ time.Time) (load.Done, error) {
		return t.sendMany(ctx, w, src, values)
	}
}

func (t *trial) sendMany(ctx context.Context, w worker, src *records.Source, values [][]byte) (load.Done, error) {
	seq := src.Seq()
	for i := range values {
		values[i] = src.Append(values[i][:0], 0)
	}
	if err := w.sendAll(ctx, values); err != nil {
		return load.Done{}, err
	}
	t.ledger.Accepted(src.Stream(), seq, len(values))
	return load.Done{Records: len(values), Bytes: int64(len(values)) * recordBytes}, nil
}

func measureProduce(ctx context.Context, p peer, o *options) (map[string]float64, error) {
	t := newTrial(p)
	return t.closed(ctx, o, t.plan(o.connections, t.single))
}

func measureBatch(ctx context.Context, p peer, o *options) (map[string]float64, error) {
	t := newTrial(p)
	return t.closed(ctx, o, t.plan(batchConns, t.many))
}

// closed runs a closed loop that produces, and counts what the peer has then.
func (t *trial) closed(ctx context.Context, o *options, plan load.Plan) (map[string]float64, error) {
	plan.Warmup, plan.Duration = o.duration/3, o.duration
	res, err := load.Run(ctx, plan)
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(t.base)
	accepted, _ := t.ledger.Counts()
	stored, err := t.p.stored(ctx)
	if err != nil {
		return nil, err
	}
	if accepted == 0 || uint64(stored) != accepted {
		return nil, fmt.Errorf("%d records were accepted, %d are stored", accepted, stored)
	}
	if res.Ops >= fewOps {
		return map[string]float64{perSecond: res.RecordsPerSecond()}, nil
	}
	// Each takes as long as the measurement: then by all of them, to the last answer.
	return map[string]float64{perSecond: float64(accepted) / elapsed.Seconds()}, nil
}

// fewOps is how many operations at least have to end in a measured time.
const fewOps = 50

// fill produces n records, in batches.
func (t *trial) fill(ctx context.Context, n int) error {
	w, err := t.p.dial(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	src, err := t.run.Source(0)
	if err != nil {
		return err
	}
	values := make([][]byte, batchRecords)
	for left := n; left > 0; left -= len(values) {
		values = values[:min(left, len(values))]
		if _, err := t.sendMany(ctx, w, src, values); err != nil {
			return err
		}
	}
	return nil
}

// measureConsume consumes a full stream; the first tenth warms.
func measureConsume(ctx context.Context, p peer, o *options, n int) (map[string]float64, error) {
	t := newTrial(p)
	if err := t.fill(ctx, o.records); err != nil {
		return nil, err
	}
	if _, err := t.drain(ctx, o.connections, n, o.records/10); err != nil {
		return nil, err
	}
	if _, seen := t.ledger.Counts(); int(seen) >= o.records {
		return nil, fmt.Errorf("the warm-up has taken all of %d records: give more -records", o.records)
	}
	res, err := t.drain(ctx, o.connections, n, o.records)
	if err != nil {
		return nil, err
	}
	return map[string]float64{perSecond: res.RecordsPerSecond()}, t.verified()
}

// verified is an error unless each accepted record was seen once, unchanged.
func (t *trial) verified() error {
	if v := t.ledger.Verdict(); !v.OK() {
		return fmt.Errorf("%s: %v", &v, v.Problems)
	}
	return nil
}

// drain consumes until so many records were seen.
func (t *trial) drain(ctx context.Context, conns, n, until int) (*load.Result, error) {
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	plan := t.plan(conns, func(w worker, _ *records.Source) load.Op {
		return func(ctx context.Context, _ time.Time) (load.Done, error) {
			for {
				_, seen := t.ledger.Counts()
				if int(seen) >= until {
					return load.Done{}, io.EOF
				}
				k, err := w.take(ctx, n, func(v []byte) { _, _ = t.ledger.Seen(v) }) // it is in the verdict
				if err != nil {
					return load.Done{}, err
				}
				if k > 0 {
					last.Store(time.Now().UnixNano())
					return load.Done{Records: k, Bytes: int64(k) * recordBytes}, nil
				}
				if time.Since(time.Unix(0, last.Load())) > stalled {
					return load.Done{}, fmt.Errorf("%d of %d records came, and no more within %v", seen, until, stalled)
				}
			}
		}
	})
	plan.Duration = time.Hour
	return load.Run(ctx, plan)
}

// measureE2E produces at a rate while one consumer follows.
func measureE2E(ctx context.Context, p peer, o *options) (map[string]float64, error) {
	t := newTrial(p)
	plan := t.plan(e2eConns, t.single)
	plan.Rate, plan.Warmup, plan.Duration = e2eRate, o.duration/3, o.duration
	rec := load.NewRecorder()
	w, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer w.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Bool
	var followed error
	var wg sync.WaitGroup
	began := plan.Began
	plan.Began = func(now time.Time) {
		began(now)
		wg.Go(func() {
			followed = w.follow(ctx, func(v []byte) bool {
				if s, err := t.ledger.Seen(v); err == nil && s.Due >= plan.Warmup && s.Due < plan.Warmup+plan.Duration {
					rec.Latency(0, time.Since(t.base)-s.Due)
				}
				accepted, seen := t.ledger.Counts()
				return !done.Load() || seen < accepted
			})
			if followed != nil {
				cancel(followed)
			}
		})
	}
	res, err := load.Run(ctx, plan)
	done.Store(true)
	if err == nil {
		err = t.arrived(ctx)
	}
	cancel(errArrived)
	wg.Wait()
	if err == nil && followed != nil && !errors.Is(context.Cause(ctx), errArrived) {
		err = followed
	}
	if err != nil {
		return nil, err
	}
	if !res.Held() {
		return nil, fmt.Errorf("the rate of %d records a second was not held: %.0f", e2eRate, res.OpsPerSecond())
	}
	h := rec.Histogram()
	return map[string]float64{p50: float64(h.ValueAtQuantile(50)) / 1e3, p99: float64(h.ValueAtQuantile(99)) / 1e3}, t.verified()
}

// errArrived ends a consumer that waits for more than there is.
var errArrived = errors.New("all records came")

// arrived waits until everything that was accepted was seen.
func (t *trial) arrived(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(stalled); ; {
		accepted, seen := t.ledger.Counts()
		if seen >= accepted {
			return nil
		}
		select {
		case now := <-tick.C:
			if now.After(end) {
				return fmt.Errorf("%d of %d records came within %v", seen, accepted, stalled)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
