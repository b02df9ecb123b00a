package report

import (
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tidemark-mq/tidemark/bench/load"
)

// Of makes a run of a measurement.
func Of(r *load.Result) Run {
	out := Run{Course: course(r.Course)}
	out.add("records", "records/s", r.RecordsPerSecond())
	if r.Records != r.Ops {
		out.add("requests", "requests/s", r.OpsPerSecond())
	}
	out.add("bytes", "MB/s", float64(r.Bytes)/1e6/r.Elapsed.Seconds())
	out.Latencies(r.Latency)
	if r.Rate > 0 {
		out.add("unsent", "requests", float64(r.Unsent))
	}
	return out
}

// Loop says how a result was measured.
func Loop(r *load.Result) string {
	if r.Rate == 0 {
		return "closed loop"
	}
	return fmt.Sprintf("open loop, %.4g/s", r.Rate)
}

func (r *Run) add(name, unit string, value float64) {
	r.Values = append(r.Values, Value{name, unit, value})
}

// Add adds a figure.
func (r *Run) Add(name, unit string, value float64) { r.add(name, unit, value) }

// Latencies adds quantiles and the curve of a histogram of microseconds.
func (r *Run) Latencies(h *hdrhistogram.Histogram) {
	for _, q := range []float64{50, 90, 99, 99.9} {
		r.add(fmt.Sprintf("p%g", q), "ms", float64(h.ValueAtQuantile(q))/1e3)
	}
	r.add("max", "ms", float64(h.Max())/1e3)
	for _, q := range []float64{0, 10, 25, 50, 75, 90, 95, 97.5, 99, 99.5, 99.75, 99.9, 99.95, 99.99, 99.999, 100} {
		r.Curve = append(r.Curve, Step{q, float64(h.ValueAtQuantile(q)) / 1e3})
	}
}

func course(points []load.Point) []Point {
	out := make([]Point, len(points))
	for i, p := range points {
		out[i] = Point{p.At.Seconds(), p.Records, p.P50.Seconds() * 1e3, p.P99.Seconds() * 1e3}
	}
	return out
}
