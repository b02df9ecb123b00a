package bench

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// rounds is how many rounds a benchmark makes, the one that warms included. With
// -short it is only seen to work.
func rounds(n int) int {
	if testing.Short() {
		return 2
	}
	return n + 1
}

// sized is an amount of work, an eighth of it with -short.
func sized[T ~int | ~int64](full T) T {
	if testing.Short() {
		return full / 8
	}
	return full
}

// series collects one measurement of each round.
type series struct{ v []float64 }

func (s *series) add(x float64) { s.v = append(s.v, x) }

// report gives the median, and with spread also the lowest and highest value.
func (s *series) report(b *testing.B, unit string, spread bool) {
	b.Helper()
	v := slices.Sorted(slices.Values(s.v))
	b.ReportMetric(v[len(v)/2], unit)
	if spread {
		b.ReportMetric(v[0], unit+"-min")
		b.ReportMetric(v[len(v)-1], unit+"-max")
	}
}

func (s *series) median() float64 {
	v := slices.Sorted(slices.Values(s.v))
	return v[len(v)/2]
}

// counter is the value of a counter without labels.
func counter(b *testing.B, reg *prometheus.Registry, name string) float64 {
	b.Helper()
	all, err := reg.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	b.Fatalf("nothing counts %s", name)
	return 0
}
