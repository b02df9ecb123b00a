package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-mq/tidemark/bench/load"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/bench/records"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Options say what is measured. All of them stand in the report.
type Options struct {
	Target      *rawhttp.Target
	Size        int // bytes of a record
	Kind        records.Kind
	Partitions  int
	Connections int
	Rate        float64 // operations a second: open loop alone; 0: by Max
	Max         bool    // the closed loop alone; else the open loop at half its rate follows it
	Warmup      time.Duration
	Duration    time.Duration // of each measurement
	Runs        int
	Timeout     time.Duration // for an answer to a produce; 0: a minute
	Ack         string        // "": the topic's level
	Keep        bool          // topics stay

	Batch   int   // records of a batch
	NDJSON  bool  // batches as NDJSON instead of frames
	Records int   // to consume, in each run
	Take    []int // records of one consume
	Readers int   // consumers of e2e

	Store  objstore.Store // the archive, for plain requests; nil: it cannot be reached
	Settle time.Duration  // how long records may take to be in the archive
	Prices Prices         // of archive-cost
	Load   float64        // of archive-cost: MB of records a second

	Displace int64 // bytes of newer records by which a node of others forgets

	// Restart starts the node anew with all that it has on disk, and returns where it
	// is; nil: the node is not ours.
	Restart func(ctx context.Context) (*rawhttp.Target, error)

	// Progress hears how far a stage is; may be nil.
	Progress func(stage string, done, total int64)
}

// Bounds of options.
const (
	MaxRuns    = 100
	MaxRecords = 1_000_000_000
	maxBatch   = 1000
	maxTake    = 100
	MaxTimeout = time.Minute
)

// An open loop ends when nothing at all was answered for so many timeouts, and for
// so long at least.
const (
	silences     = 3
	leastSilence = time.Second
)

// Check reports everything that is wrong with the options.
func (o *Options) Check() error {
	var errs []error
	within := func(name string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: %d is not within %d and %d", name, v, low, high))
		}
	}
	within("record size", o.Size, records.MinBytes, records.MaxBytes)
	within("partitions", o.Partitions, 1, 1024)
	within("connections", o.Connections, 1, load.MaxConnections)
	within("runs", o.Runs, 1, MaxRuns)
	within("batch", o.Batch, 1, maxBatch)
	within("records", o.Records, 100, MaxRecords)
	within("consumers", o.Readers, 1, 1000)
	for _, n := range o.Take {
		within("records of a consume", n, 1, maxTake)
		if most := 2 * o.Connections * n; o.Records < most {
			errs = append(errs, fmt.Errorf("records: %d are too few for %d connections that take %d at a time: give %d or more", o.Records, o.Connections, n, most))
		}
	}
	if o.Rate < 0 || o.Rate > 1e6 {
		errs = append(errs, fmt.Errorf("rate: %g is not within 0 and 1000000 a second", o.Rate))
	}
	if o.Duration < 10*time.Millisecond || o.Duration > 30*24*time.Hour || o.Warmup < 0 || o.Warmup > time.Hour {
		errs = append(errs, errors.New("times: a measurement lasts 10ms to 720h, its warm-up up to 1h"))
	}
	if o.Timeout != 0 && (o.Timeout < 10*time.Millisecond || o.Timeout > MaxTimeout) {
		errs = append(errs, fmt.Errorf("timeout: %v is not within 10ms and %v", o.Timeout, MaxTimeout))
	}
	if o.Settle < 0 || o.Settle > 24*time.Hour {
		errs = append(errs, fmt.Errorf("wait: %v is not within 0 and 24h", o.Settle))
	}
	if o.Displace < 0 || o.Displace > MaxDisplace {
		errs = append(errs, fmt.Errorf("displace: %d bytes are not within 0 and 1 TiB", o.Displace))
	}
	if o.Load < 0 || o.Load > MaxLoad {
		errs = append(errs, fmt.Errorf("load: %g MB/s is not within 0 and %d", o.Load, MaxLoad))
	}
	if err := o.Prices.check(); err != nil {
		errs = append(errs, err)
	}
	if o.NDJSON && o.Kind == records.Noise {
		errs = append(errs, errors.New("records of noise are no JSON, so they cannot be sent as NDJSON"))
	}
	switch o.Ack {
	case "", "accepted", "committed", "archived":
	default:
		errs = append(errs, fmt.Errorf("ack: there is no level %q, but accepted, committed and archived", o.Ack))
	}
	return errors.Join(errs...)
}

// ParseKind reads what records are made of: text or noise.
func ParseKind(name string) (records.Kind, error) { return records.ParseKind(name) }

// MaxRecordBytes bounds a record.
const MaxRecordBytes = records.MaxBytes

// timeout is how long a produce waits for its answer.
func (o *Options) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return MaxTimeout
}
