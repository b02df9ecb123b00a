package upload

import "github.com/prometheus/client_golang/prometheus"

// metrics are the uploader's numbers, for all partitions together: per
// partition they are in Status, because labels have to stay few.
type metrics struct {
	reg      prometheus.Registerer
	all      []prometheus.Collector
	segments prometheus.Counter
	bytes    prometheus.Counter
	failures *prometheus.CounterVec
}

func newMetrics(u *Uploader, reg prometheus.Registerer) *metrics {
	m := &metrics{
		reg:      reg,
		segments: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_archive_segments_total", Help: "Segments that were archived."}),
		bytes:    prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_archive_upload_bytes_total", Help: "Bytes of segment objects that the store took."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_archive_upload_failures_total", Help: "Tries that failed, by error code."}, []string{"code"}),
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			u.mu.Lock()
			defer u.mu.Unlock()
			return value()
		})
	}
	m.all = []prometheus.Collector{
		m.segments, m.bytes, m.failures,
		gauge("tidemark_archive_waiting_segments", "Sealed segments that are not archived yet.", func() float64 { return float64(u.mu.queued) }),
		gauge("tidemark_archive_waiting_bytes", "Bytes of those.", func() float64 { return float64(u.mu.bytes) }),
		gauge("tidemark_archive_failing_partitions", "Partitions whose last upload failed.", func() float64 {
			n := 0
			for _, p := range u.mu.parts {
				if p.err != nil {
					n++
				}
			}
			return float64(n)
		}),
	}
	if reg != nil {
		for _, c := range m.all {
			reg.MustRegister(c)
		}
	}
	return m
}

// close takes the metrics out of the registry, so that a node can be started
// again in one process.
func (m *metrics) close() {
	if m.reg == nil {
		return
	}
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
}
