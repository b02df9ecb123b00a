package report

import (
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/bench/records"
)

// Report is the result of one benchmark.
type Report struct {
	Scenario string           `json:"scenario"`
	Started  time.Time        `json:"started"`
	Seconds  float64          `json:"seconds"` // all of it, preparations included
	Program  string           `json:"program"` // version of the program that measured, with its commit
	Server   string           `json:"server"`  // what was measured, and its version where it says it
	Machine  Machine          `json:"machine"` // that measured
	Settings []Setting        `json:"settings"`
	Measures []*Measure       `json:"measures"`
	Check    *records.Verdict `json:"check,omitempty"` // over all runs; nil: nothing was verified
	Failure  string           `json:"failure,omitempty"`
	Notes    []string         `json:"notes,omitempty"`
}

// Setting is one thing that was asked for, or follows from it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Measure is one thing that was measured in several runs.
type Measure struct {
	Name string `json:"name"`
	Loop string `json:"loop"` // how: closed, open at its rate, or what else
	Runs []Run  `json:"runs"`
}

// Run is one of them.
type Run struct {
	Values []Value `json:"values"`
	Curve  []Step  `json:"latency_curve,omitempty"` // by percentile
	Course []Point `json:"course,omitempty"`        // over time
}

// Value is one figure.
type Value struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
}

// Step is a point of the distribution of latencies.
type Step struct {
	Percentile float64 `json:"percentile"`
	MS         float64 `json:"ms"`
}

// Point is a stretch of a run.
type Point struct {
	Seconds float64 `json:"seconds"` // its end, since the measurement began
	Records float64 `json:"records_per_second"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
}

// Summary is one figure over all runs.
type Summary struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Median  float64 `json:"median"`
	Lowest  float64 `json:"lowest"`
	Highest float64 `json:"highest"`
	Runs    int     `json:"runs"`
}

// Summaries returns the figures over all runs, in the order of the first run. A
// figure that some runs do not have is over those that have it.
func (m *Measure) Summaries() []Summary {
	var out []Summary
	for _, r := range m.Runs {
		for _, v := range r.Values {
			if !slices.ContainsFunc(out, func(s Summary) bool { return s.Name == v.Name }) {
				out = append(out, m.summary(v.Name, v.Unit))
			}
		}
	}
	return out
}

func (m *Measure) summary(name, unit string) Summary {
	var all []float64
	for _, r := range m.Runs {
		for _, v := range r.Values {
			if v.Name == name {
				all = append(all, v.Value)
			}
		}
	}
	slices.Sort(all)
	return Summary{Name: name, Unit: unit, Median: Median(all), Lowest: all[0], Highest: all[len(all)-1], Runs: len(all)}
}

// Median returns the median of values, the mean of the middle two when their
// number is even, and 0 of none.
func Median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	switch n := len(v); {
	case n == 0:
		return 0
	case n%2 == 1:
		return v[n/2]
	default:
		return (v[n/2-1] + v[n/2]) / 2
	}
}

// Value returns the median of a figure over all runs.
func (m *Measure) Value(name string) (float64, bool) {
	for _, s := range m.Summaries() {
		if s.Name == name {
			return s.Median, true
		}
	}
	return 0, false
}

// Measure returns the measure of a name, which it makes.
func (r *Report) Measure(name, loop string) *Measure {
	for _, m := range r.Measures {
		if m.Name == name {
			return m
		}
	}
	m := &Measure{Name: name, Loop: loop}
	r.Measures = append(r.Measures, m)
	return m
}

// Set notes a setting.
func (r *Report) Set(name, value string) { r.Settings = append(r.Settings, Setting{name, value}) }

// Checked adds the verdict of a run.
func (r *Report) Checked(v records.Verdict) {
	if r.Check == nil {
		r.Check = &records.Verdict{}
	}
	r.Check.Add(v)
}
