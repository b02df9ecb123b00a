package report

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

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
		out.missed(&r.Missed)
	}
	return out
}

// missed adds what an open loop did not do, or not in time. All of it stands there in
// each run, zeros too, so that medians are over all runs.
func (r *Run) missed(m *load.Missed) {
	r.add("late", "requests", float64(m.Late))
	r.add("latest begin", "ms", m.Latest.Seconds()*1e3)
	other := m.AllRefused() - m.Refused[http.StatusTooManyRequests] - m.Refused[http.StatusServiceUnavailable]
	r.add("refused, 429", "requests", float64(m.Refused[http.StatusTooManyRequests]))
	r.add("refused, 503", "requests", float64(m.Refused[http.StatusServiceUnavailable]))
	r.add("refused, other", "requests", float64(other))
	r.add("longest Retry-After", "s", m.After.Seconds())
	r.add("timeouts", "requests", float64(m.Timeouts))
	r.add("broken connections", "requests", float64(m.Broken))
}

// Missed says in a sentence what an open loop did not do; "" when it did all.
func Missed(m *load.Missed) string {
	var parts []string
	if n := m.AllRefused(); n > 0 {
		var by []string
		for _, status := range slices.Sorted(maps.Keys(m.Refused)) {
			by = append(by, fmt.Sprintf("%d with status %d", m.Refused[status], status))
		}
		said := fmt.Sprintf("%d were refused (%s", n, strings.Join(by, ", "))
		if m.After > 0 {
			said += fmt.Sprintf("; Retry-After up to %v", m.After)
		}
		parts = append(parts, said+")")
	}
	if m.Timeouts > 0 {
		parts = append(parts, fmt.Sprintf("%d had no answer in time", m.Timeouts))
	}
	if m.Broken > 0 {
		parts = append(parts, fmt.Sprintf("%d had no answer because the connection broke", m.Broken))
	}
	if len(parts) == 0 {
		return ""
	}
	return "of the requests " + strings.Join(parts, ", ") + "; the last of these: " + m.LastError
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
