package scrub

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

type metrics struct {
	reg                                        prometheus.Registerer
	all                                        []prometheus.Collector
	segments, bytes, damaged, repaired, unread *prometheus.CounterVec // by tier
}

func newMetrics(r prometheus.Registerer, s *Scrubber) (*metrics, error) {
	m := &metrics{reg: r}
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "scrub", Name: name, Help: help}, []string{"tier"})
		for t := range numTiers {
			c.WithLabelValues(t.String())
		}
		m.all = append(m.all, c)
		return c
	}
	m.segments = counter("segments_total", "Copies of segments that were read again and verified, by tier.")
	m.bytes = counter("bytes_total", "Bytes of those.")
	m.damaged = counter("damaged_total", "Copies of segments that were found damaged or missing.")
	m.repaired = counter("repaired_total", "Damaged copies that were repaired from the other one.")
	m.unread = counter("unread_total", "Copies that were passed over because the disk or the store did not answer; nothing is known of them.")
	gauge := func(name, help string, value func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tidemark", Subsystem: "scrub", Name: name, Help: help}, value))
	}
	gauge("damaged_copies", "Copies that are damaged now and could not be repaired.", func() float64 {
		_, _, n := s.findings.list()
		return float64(n)
	})
	gauge("round_age_seconds", "Time since everything was verified last, of the tier where that is longer ago; 0 until a round is complete.", func() float64 {
		r, oldest := s.Report(), int64(0)
		for _, x := range []int64{r.Local.Last.EndedAt, r.Archive.Last.EndedAt} {
			if x > 0 && (oldest == 0 || x < oldest) {
				oldest = x
			}
		}
		if oldest == 0 {
			return 0
		}
		return s.o.Now().Sub(time.UnixMilli(oldest)).Seconds()
	})
	if r == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			m.all = m.all[:i] // the rest is somebody else's
			m.close()
			return nil, errcode.Wrap(errcode.Internal, err, "register the scrubber's metrics")
		}
	}
	return m, nil
}

func (m *metrics) read(t tier, bytes int64) {
	m.segments.WithLabelValues(t.String()).Inc()
	m.bytes.WithLabelValues(t.String()).Add(float64(bytes))
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
