package ship

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	objects, bytes, errors, lost, states, exports prometheus.Counter
	seconds                                       prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, s *Shipper) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "ship", Name: name, Help: help})
	}
	gauge := func(name, help string, fn func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tidemark", Subsystem: "ship", Name: name, Help: help}, fn)
	}
	m := &metrics{
		objects: counter("objects_total", "Objects of shipped WAL."),
		bytes:   counter("bytes_total", "Bytes of those objects."),
		errors:  counter("errors_total", "Tries to ship or export that failed."),
		lost:    counter("lost_objects_total", "Objects that the archive acknowledged and did not have, or had with other bytes, when they were looked at again."),
		states:  counter("states_total", "State objects written."),
		exports: counter("exports_total", "Metadata exports written."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "tidemark", Subsystem: "ship", Name: "seconds",
			Help:    "Seconds from the start of a put to the confirmed fence check.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 14),
		}),
	}
	if r != nil {
		r.MustRegister(m.objects, m.bytes, m.errors, m.lost, m.states, m.exports, m.seconds,
			gauge("lag_frames", "Durable frames that are not shipped.", func() float64 {
				st := s.Status()
				return float64(st.Durable) - float64(min(st.Shipped, st.Durable))
			}),
			gauge("rpo_seconds", "Age of the oldest durable frame that is not shipped.", func() float64 { return s.Status().RPO.Seconds() }),
		)
	}
	return m
}
