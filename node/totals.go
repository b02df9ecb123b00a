package node

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/node/partition"
)

// totalsFor is how long the sums of all partitions count: one scrape asks for
// several of them.
const totalsFor = time.Second

// totals keeps the sums of all partitions for a moment.
type totals struct {
	mu       sync.Mutex
	at       time.Time
	engine   partition.Totals
	archived int64 // bytes of objects in the chains that were loaded once
}

// sums adds all partitions up, at most once a second.
func (n *Node) sums() (partition.Totals, int64) {
	n.totals.mu.Lock()
	defer n.totals.mu.Unlock()
	t := &n.totals
	if t.at.IsZero() || time.Since(t.at) >= totalsFor {
		t.at, t.engine, t.archived = time.Now(), n.engine.Totals(), 0
		if n.chains != nil {
			for _, p := range n.engine.All() {
				c, _ := n.chains.summary(p.ID)
				t.archived += c.Totals.Bytes
			}
		}
	}
	return t.engine, t.archived
}

// ageOf is how long ago a time in ms is, in seconds; 0 = no time.
func (n *Node) ageOf(ms int64) float64 {
	if ms == 0 {
		return 0
	}
	return max(0, n.opts.Now().Sub(time.UnixMilli(ms)).Seconds())
}

// held exports what keeps the log from giving its files back.
type held struct {
	n    *Node
	desc *prometheus.Desc
}

func newHeld(n *Node) held {
	return held{n, prometheus.NewDesc("tidemark_wal_held_bytes", "Bytes of log files that a reader of the log still needs, by reader.", []string{"reader"}, nil)}
}

// Describe implements prometheus.Collector.
func (h held) Describe(ch chan<- *prometheus.Desc) { ch <- h.desc }

// Collect implements prometheus.Collector. The readers have fixed names.
func (h held) Collect(ch chan<- prometheus.Metric) {
	for reader, bytes := range h.n.log.Held() {
		ch <- prometheus.MustNewConstMetric(h.desc, prometheus.GaugeValue, float64(bytes), reader)
	}
}
