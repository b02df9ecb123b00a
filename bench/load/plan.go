package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Done is what an operation has done.
type Done struct {
	Records int
	Bytes   int64
}

// Op does one operation, which was due at a time that may be past. io.EOF says
// that there is nothing more to do: its connection ends.
type Op func(ctx context.Context, due time.Time) (Done, error)

// Plan is how an operation is run.
type Plan struct {
	Connections int
	Rate        float64       // operations a second, together; 0: closed loop
	Warmup      time.Duration // not measured
	Duration    time.Duration // measured
	Grace       time.Duration // for what was due when the time is over; 0: as long as Duration, 1 to 30 s

	Silence time.Duration // open loop: a run in which nothing is answered for so long ends; 0: never

	// Open returns the operation of a connection and what closes it.
	Open func(ctx context.Context, connection int) (Op, func(), error)
	// Progress hears how much of the time is over; may be nil.
	Progress func(done, total time.Duration)
	// Began hears when the run begins, before any operation does; may be nil.
	Began func(start time.Time)
}

// MaxConnections bounds a plan.
const MaxConnections = 10_000

func (p *Plan) check() error {
	var errs []error
	if p.Connections < 1 || p.Connections > MaxConnections {
		errs = append(errs, fmt.Errorf("%d connections: there can be 1 to %d", p.Connections, MaxConnections))
	}
	if p.Rate < 0 || p.Rate > 1e7 {
		errs = append(errs, fmt.Errorf("a rate of %g operations a second: it can be 0 to 10 million", p.Rate))
	}
	if p.Duration <= 0 || p.Warmup < 0 {
		errs = append(errs, fmt.Errorf("a duration of %v after %v of warm-up: the first has to be above 0, the second not below", p.Duration, p.Warmup))
	}
	return errors.Join(errs...)
}

func (p *Plan) grace() time.Duration {
	if p.Grace > 0 {
		return p.Grace
	}
	return min(max(p.Duration, time.Second), 30*time.Second)
}

// Result is what was measured. Latency is of operations that were due (open loop)
// or began (closed loop) in the measured time; Ops, Records and Bytes are of those
// that ended in it. Operations that were refused are in none of them, those whose time
// for an answer was over in Latency alone.
type Result struct {
	Rate    float64       // that was asked for; 0: closed loop
	Elapsed time.Duration // measured time
	Ops     int64
	Records int64
	Bytes   int64
	Unsent  int64                   // due, and not begun at the end of the grace
	Latency *hdrhistogram.Histogram // in us
	Course  []Point
	Missed  Missed // of the open loop
}

// RecordsPerSecond is the rate at which records ended.
func (r *Result) RecordsPerSecond() float64 { return float64(r.Records) / r.Elapsed.Seconds() }

// OpsPerSecond is the rate at which operations ended.
func (r *Result) OpsPerSecond() float64 { return float64(r.Ops) / r.Elapsed.Seconds() }

// Held says whether the rate of the open loop was kept, but for two per cent.
func (r *Result) Held() bool {
	return r.Rate == 0 || r.Unsent == 0 && r.OpsPerSecond() >= 0.98*r.Rate-2/r.Elapsed.Seconds()
}
