package retention

import "github.com/prometheus/client_golang/prometheus"

// Causes of evictions and trims.
const (
	causeAge      = "age"
	causeSize     = "size"
	causePressure = "pressure"
)

type metrics struct {
	trimmedBytes, trimmedSegments *prometheus.CounterVec // by tier: local, archive
	evictedBytes, evictedSegments *prometheus.CounterVec // by cause
	errors                        prometheus.Counter
}

func newMetrics(r prometheus.Registerer, s *Sweeper) *metrics {
	vec := func(name, help, label string, values ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Name: name, Help: help}, []string{label})
		for _, value := range values {
			v.WithLabelValues(value)
		}
		return v
	}
	m := &metrics{
		trimmedBytes:    vec("trimmed_bytes_total", "Bytes that total retention removed: from local disk, and from the archive's chains.", "tier", "local", "archive"),
		trimmedSegments: vec("trimmed_segments_total", "Segments that total retention removed: from local disk, and from the archive's chains.", "tier", "local", "archive"),
		evictedBytes:    vec("evicted_bytes_total", "Bytes of archived segments that left the local disk.", "cause", causeAge, causeSize, causePressure),
		evictedSegments: vec("evicted_segments_total", "Archived segments that left the local disk.", "cause", causeAge, causeSize, causePressure),
		errors:          prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Name: "retention_errors_total", Help: "Steps of retention that failed; they are tried again."}),
	}
	paused := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tidemark", Name: "retention_paused", Help: "1 while nothing is trimmed because the clocks do not agree."}, func() float64 {
		if s.Paused() != "" {
			return 1
		}
		return 0
	})
	if r != nil {
		r.MustRegister(m.trimmedBytes, m.trimmedSegments, m.evictedBytes, m.evictedSegments, m.errors, paused)
	}
	return m
}

// evicted counts what left the local disk.
func (m *metrics) evicted(cause string, segments int, bytes int64) {
	m.evictedSegments.WithLabelValues(cause).Add(float64(segments))
	m.evictedBytes.WithLabelValues(cause).Add(float64(bytes))
}

// trimmed counts what total retention, or a trim by hand, took from a tier.
func (m *metrics) trimmed(tier string, segments int, bytes int64) {
	m.trimmedSegments.WithLabelValues(tier).Add(float64(segments))
	m.trimmedBytes.WithLabelValues(tier).Add(float64(bytes))
}
