package cold

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	reg                               prometheus.Registerer
	all                               []prometheus.Collector
	hits, misses, shared, bytes       *tally
	unkept, retries, corrupt, yielded prometheus.Counter
}

// tally is a counter that can be read.
type tally struct {
	prometheus.Counter
	n atomic.Int64
}

// Inc implements prometheus.Counter.
func (t *tally) Inc() { t.Add(1) }

// Add implements prometheus.Counter. It counts whole numbers.
func (t *tally) Add(v float64) {
	t.n.Add(int64(v))
	t.Counter.Add(v)
}

func newMetrics(c *Cache, reg prometheus.Registerer) *metrics {
	m := &metrics{reg: reg}
	counter := func(name, help string) *tally {
		x := prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cold_" + name, Help: help})
		m.all = append(m.all, x)
		return &tally{Counter: x}
	}
	m.hits = counter("chunk_hits_total", "Chunks that were read from the cache on disk.")
	m.misses = counter("chunk_misses_total", "Chunks that were downloaded.")
	m.shared = counter("chunk_shared_total", "Chunks that a reader took from a download of another one.")
	m.unkept = counter("chunk_unkept_total", "Downloaded chunks that were not kept, because the disk was full, failing or slow.")
	m.retries = counter("retries_total", "Requests whose answer failed or was short.")
	m.corrupt = counter("corrupt_total", "Batches, indexes and footers that did not verify.")
	m.yielded = counter("yielded_seconds_total", "Time that readers waited because other work ran late.")
	m.bytes = counter("download_bytes_total", "Bytes that were downloaded.")
	for _, g := range []struct {
		name, help string
		value      func() float64
	}{
		{"cache_bytes", "Bytes of chunk files.", func() float64 { _, n := c.disk.usage(); return float64(n) }},
		{"rate_bytes", "Bytes a second that readers may read now, beside other work.", func() float64 { return c.governor.rate() }},
		{"ahead_bytes", "Bytes of read-ahead that readers hold.", func() float64 { return float64(c.ahead.Load()) }},
	} {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemark_cold_" + g.name, Help: g.help}, g.value))
	}
	if reg != nil {
		for _, x := range m.all {
			reg.MustRegister(x)
		}
	}
	return m
}

func (m *metrics) close() {
	if m.reg == nil {
		return
	}
	for _, x := range m.all {
		m.reg.Unregister(x)
	}
}
