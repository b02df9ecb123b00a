package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/bench/ref/internal/reflog"
)

// Bounds of a run.
const (
	pageSize    = 4 << 10
	maxBlock    = 64 << 20
	maxDuration = 10 * time.Minute
	maxSamples  = 8 << 20 // latencies kept; ten minutes of 0.1 ms appends are 6 million
)

type options struct {
	file     string
	size     int64 // bytes of the ring
	block    int64 // bytes per append
	warmup   time.Duration
	duration time.Duration
}

// validate reports everything that is wrong with the options at once.
func (o options) validate() error {
	var errs []error
	if o.file == "" {
		errs = append(errs, errors.New("-file is missing: name a file on the disk to measure"))
	}
	if o.block < pageSize || o.block > maxBlock || o.block%pageSize != 0 {
		errs = append(errs, fmt.Errorf("-block %d: it must be a multiple of %d up to %d", o.block, pageSize, maxBlock))
	}
	if o.size < o.block {
		errs = append(errs, fmt.Errorf("-size %d: the ring must hold at least one block of %d", o.size, o.block))
	}
	if o.duration <= 0 || o.duration > maxDuration || o.warmup < 0 || o.warmup > maxDuration {
		errs = append(errs, fmt.Errorf("-seconds and -warmup must be positive and at most %v", maxDuration))
	}
	return errors.Join(errs...)
}

// result is what appendref prints. Times are milliseconds.
type result struct {
	Block     int64   `json:"block"`
	Appends   int     `json:"appends"`
	Seconds   float64 `json:"seconds"`
	MBPerSec  float64 `json:"mb_per_s"`
	Mean      float64 `json:"mean_ms"`
	P50       float64 `json:"p50_ms"`
	P90       float64 `json:"p90_ms"`
	P99       float64 `json:"p99_ms"`
	P999      float64 `json:"p999_ms"`
	Max       float64 `json:"max_ms"`
	Truncated bool    `json:"truncated,omitempty"` // the run ended early, at its bound of samples
}

// measure runs the warm-up and then the measured appends.
func measure(o options) (result, error) {
	f, err := reflog.Prepare(o.file, o.size)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = f.Close() }() // each append was synced
	block := make([]byte, o.block)
	if _, err := rand.Read(block); err != nil {
		return result{}, fmt.Errorf("fill block: %w", err)
	}
	ring := &appender{f: f, size: o.size, block: block}
	if _, err := ring.run(o.warmup); err != nil {
		return result{}, err
	}
	start := time.Now()
	samples, err := ring.run(o.duration)
	if err != nil {
		return result{}, err
	}
	return summarize(o.block, samples, time.Since(start)), nil
}

// appender writes blocks one after the other around a ring.
type appender struct {
	f     *os.File
	size  int64
	block []byte
	pos   int64
}

// run appends for d and returns the time of each append with its sync.
func (a *appender) run(d time.Duration) ([]time.Duration, error) {
	var samples []time.Duration
	for begin := time.Now(); time.Since(begin) < d && len(samples) < maxSamples; {
		if a.pos+int64(len(a.block)) > a.size {
			a.pos = 0
		}
		start := time.Now()
		if _, err := a.f.WriteAt(a.block, a.pos); err != nil {
			return nil, fmt.Errorf("append at %d: %w", a.pos, err)
		}
		if err := reflog.Datasync(a.f); err != nil {
			return nil, fmt.Errorf("sync at %d: %w", a.pos, err)
		}
		samples = append(samples, time.Since(start))
		a.pos += int64(len(a.block))
	}
	return samples, nil
}

// summarize turns samples, which it sorts, into a result.
func summarize(block int64, samples []time.Duration, elapsed time.Duration) result {
	res := result{
		Block: block, Appends: len(samples), Seconds: round(elapsed.Seconds(), 3),
		Truncated: len(samples) == maxSamples,
	}
	if len(samples) == 0 {
		return res
	}
	slices.Sort(samples)
	var sum time.Duration
	for _, s := range samples {
		sum += s
	}
	res.MBPerSec = round(float64(block)*float64(len(samples))/elapsed.Seconds()/1e6, 1)
	res.Mean = millis(sum / time.Duration(len(samples)))
	res.P50 = millis(quantile(samples, 0.50))
	res.P90 = millis(quantile(samples, 0.90))
	res.P99 = millis(quantile(samples, 0.99))
	res.P999 = millis(quantile(samples, 0.999))
	res.Max = millis(samples[len(samples)-1])
	return res
}

// quantile returns the smallest sample that at least a share q of all samples
// does not exceed. The samples are sorted and not empty.
func quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(0, i)]
}

func millis(d time.Duration) float64 { return round(float64(d)/float64(time.Millisecond), 4) }

func round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}
