package garbage

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	objects, bytes *prometheus.CounterVec
	errors         prometheus.Counter
	forgotten      prometheus.Counter
	turns          prometheus.Counter
}

func newMetrics(r prometheus.Registerer, c *Collector) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "tidemark", Subsystem: "garbage", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	m := &metrics{
		objects:   prometheus.NewCounterVec(prometheus.CounterOpts(opts("deleted_objects_total", "Objects deleted from the archive.")), []string{"cause"}),
		bytes:     prometheus.NewCounterVec(prometheus.CounterOpts(opts("deleted_bytes_total", "Bytes of those objects.")), []string{"cause"}),
		errors:    counter("errors_total", "Turns that ended with an error."),
		forgotten: counter("forgotten_total", "Segments that found the queue full; the sweep of orphans finds them."),
		turns:     counter("turns_total", "Turns of the collector."),
	}
	if r == nil {
		return m
	}
	for cause := range numCauses {
		m.objects.WithLabelValues(cause.String())
		m.bytes.WithLabelValues(cause.String())
	}
	gauge := func(name, help string, fn func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), fn)
	}
	waiting := func(pick func(*tally) int64) func() float64 {
		return func() float64 {
			now := c.opts.Now()
			c.mu.Lock()
			defer c.mu.Unlock()
			n := int64(0)
			for _, t := range c.talliesLocked(now) {
				n += pick(&t)
			}
			return float64(n)
		}
	}
	r.MustRegister(m.objects, m.bytes, m.errors, m.forgotten, m.turns,
		gauge("waiting_objects", "Objects that are known to go, now or after their grace.", waiting(func(t *tally) int64 { return t.waiting })),
		gauge("waiting_bytes", "Bytes of those objects.", waiting(func(t *tally) int64 { return t.bytes })),
		gauge("paused", "1 while something hinders every deletion.", func() float64 {
			if c.Paused() != "" {
				return 1
			}
			return 0
		}),
	)
	return m
}
