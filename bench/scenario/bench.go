package scenario

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/bench/report"
)

// bench is a scenario under way.
type bench struct {
	Options
	rep    *report.Report
	corpus *records.Corpus
}

// start begins the report of a scenario.
func start(name string, o Options) (*bench, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	b := &bench{Options: o, corpus: records.NewCorpus(o.Kind, 1)}
	ratio, err := b.corpus.Ratio(o.Size, 64<<10)
	if err != nil {
		return nil, err
	}
	b.rep = &report.Report{Scenario: name, Started: time.Now().UTC(), Machine: report.ThisMachine()}
	b.rep.Set("record bytes", strconv.Itoa(o.Size))
	b.rep.Set("records of", string(o.Kind))
	b.rep.Set("zstd ratio of 64 KiB of them", fmt.Sprintf("%.2f", ratio))
	b.rep.Set("partitions", strconv.Itoa(o.Partitions))
	b.rep.Set("ack level", cmpOr(o.Ack, "the topic's (accepted)"))
	b.rep.Set("runs", strconv.Itoa(o.Runs))
	return b, nil
}

func cmpOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// timed notes the settings of scenarios that run for a time.
func (b *bench) timed() {
	b.rep.Set("connections", strconv.Itoa(b.Connections))
	b.rep.Set("warm-up", b.Warmup.String())
	b.rep.Set("measured for", b.Duration.String())
	b.rep.Set("timeout of an answer", b.timeout().String())
}

// finish ends the report. A failure stands in it and is the error.
func (b *bench) finish(err error) (*report.Report, error) {
	b.rep.Seconds = time.Since(b.rep.Started).Seconds()
	b.rep.Machine.LoadAfter = report.LoadAverage()
	if err == nil && b.rep.Check != nil && !b.rep.Check.OK() {
		err = fmt.Errorf("the broker did not give back what it accepted: %s", b.rep.Check)
	}
	if err != nil {
		b.rep.Failure = err.Error()
	}
	return b.rep, err
}

// trial is one run: a topic of its own, with records that are told from all others.
type trial struct {
	b      *bench
	topic  string
	run    *records.Run
	ledger *records.Ledger
	base   time.Time // when it began
}

// try makes a topic, lets work run, and compares what was accepted with what was
// seen. The topic is deleted afterwards.
func (b *bench) try(ctx context.Context, work func(t *trial) error) (err error) {
	var mark [4]byte
	_, _ = rand.Read(mark[:]) // never fails
	t := &trial{b: b, topic: fmt.Sprintf("bench-%x", mark), run: records.NewRun(b.corpus, b.Size, binary.BigEndian.Uint32(mark[:]))}
	t.ledger = records.NewLedger(t.run)
	if err := createTopic(ctx, b.Target, t.topic, b.Partitions, b.Size); err != nil {
		return err
	}
	if !b.Keep {
		defer func() {
			// Also when the run was interrupted, but not for long then.
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, deleteTopic(end, b.Target, t.topic))
		}()
	}
	if err := work(t); err != nil {
		return err
	}
	b.rep.Checked(t.ledger.Verdict())
	return nil
}

// plan is a load plan of the options at a rate.
func (b *bench) plan(stage string, rate float64) load.Plan {
	return load.Plan{
		Connections: b.Connections, Rate: rate, Warmup: b.Warmup, Duration: b.Duration, Silence: max(silences*b.timeout(), leastSilence),
		Progress: func(done, total time.Duration) { b.Progress(stage, done.Milliseconds(), total.Milliseconds()) },
	}
}

// rates measures with the closed loop, then with the open loop, each in several
// runs, as the options say.
func (b *bench) rates(ctx context.Context, once func(t *trial, p load.Plan) (*load.Result, error)) error {
	each := func(name string, rate float64) (*report.Measure, error) {
		var m *report.Measure
		for i := range b.Runs {
			err := b.try(ctx, func(t *trial) error {
				res, err := once(t, b.plan(fmt.Sprintf("%s %d of %d", name, i+1, b.Runs), rate))
				if err != nil {
					return err
				}
				m = b.rep.Measure(name, report.Loop(res))
				m.Runs = append(m.Runs, report.Of(res))
				b.noteMissed(name, i+1, res)
				if !res.Held() {
					b.rep.Notes = append(b.rep.Notes, fmt.Sprintf("%s, run %d: the rate was not held (%.0f of %.0f a second, %d never begun): its latencies are those of a queue that grows.", name, i+1, res.OpsPerSecond(), rate, res.Unsent))
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		return m, nil
	}
	rate := b.Rate
	if rate == 0 {
		m, err := each("highest rate", 0)
		if err != nil || b.Max {
			return err
		}
		highest, ok := m.Value("requests")
		if !ok {
			highest, _ = m.Value("records") // one in each
		}
		// Half of the highest rate, whole requests.
		if rate = math.Floor(highest / 2); rate < 1 {
			return nil
		}
	}
	_, err := each("set rate", rate)
	return err
}
