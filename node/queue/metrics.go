package queue

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are of the node, not of a topic or a group: their number does not
// grow with what clients create. Each event has a counter of its own.
type metrics struct {
	delivered, redelivered, released prometheus.Counter
	acked, nacked, extended, gone    prometheus.Counter
	expired, skipped                 prometheus.Counter
	clamped, unstaged                prometheus.Counter

	reg prometheus.Registerer
	all []prometheus.Collector
}

func newMetrics(e *Engine) *metrics {
	m := &metrics{reg: e.opt.Registerer}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "queue", Name: name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	gauge := func(name, help string, f func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tidemark", Subsystem: "queue", Name: name, Help: help}, f))
	}
	m.delivered = counter("deliveries_total", "Records leased to a consumer, redeliveries included.")
	m.redelivered = counter("redeliveries_total", "Records leased that had been tracked before: nacked, expired, released, or leased before a restart.")
	m.released = counter("releases_total", "Leases taken back because the record did not reach its consumer.")
	m.acked = counter("acks_total", "Records settled by an ack.")
	m.nacked = counter("nacks_total", "Records given back by a nack.")
	m.extended = counter("extends_total", "Leases extended.")
	m.gone = counter("gone_total", "Settle calls refused because the lease was gone.")
	m.expired = counter("expirations_total", "Leases that ended without being settled.")
	m.skipped = counter("skipped_total", "Offsets settled without delivery because the log has no record there, per group.")
	m.clamped = counter("clamped_total", "Group positions that were ahead of the log and were set to its end.")
	m.unstaged = counter("unstaged_expirations_total", "Journal entries of expirations that the journal refused; delivery counts may be lost with a restart.")
	gauge("waiters", "Consume calls that wait for a record.", func() float64 { return float64(e.parked.Load()) })
	gauge("in_flight", "Records leased now.", func() float64 { return float64(e.inFlight()) })
	if m.reg != nil {
		for _, c := range m.all {
			if err := m.reg.Register(c); err != nil {
				e.opt.Logger.Warn("a metric of the queue is not exported; give each engine a registry of its own", "error", err)
			}
		}
	}
	return m
}

func (m *metrics) unregister() {
	if m.reg != nil {
		for _, c := range m.all {
			m.reg.Unregister(c)
		}
	}
}

// inFlight sums the leases of all groups; it is called for a scrape.
func (e *Engine) inFlight() (n int) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, t := range e.mu.topics {
		for _, g := range t.groups {
			g.mu.Lock()
			for _, c := range g.cursors {
				if c != nil {
					n += c.inFlight
				}
			}
			g.mu.Unlock()
		}
	}
	return n
}
