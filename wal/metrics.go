package wal

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// metrics are what an operator watches: how long an fsync takes and how much
// it carries.
type metrics struct {
	reg        prometheus.Registerer
	all        []prometheus.Collector
	syncs      prometheus.Histogram
	frames     prometheus.Histogram
	groupBytes prometheus.Counter
	stalls     prometheus.Counter
	recycled   prometheus.Counter
	syncCount  atomic.Uint64
}

// newMetrics gives l its metrics and registers them with reg, if there is one.
func newMetrics(reg prometheus.Registerer, l *Log) error {
	m := &metrics{
		reg: reg,
		syncs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tidemark_wal_fsync_seconds", Help: "Duration of an fdatasync of the write-ahead log.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15),
		}),
		frames: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tidemark_wal_group_frames", Help: "Frames in one written group.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 12),
		}),
		groupBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_wal_bytes_total", Help: "Bytes of groups written, without padding.",
		}),
		stalls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_wal_stalls_total", Help: "How often a write failed and appends were refused until a retry succeeded.",
		}),
		recycled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_wal_recycled_files_total", Help: "Files that no reader needed any more.",
		}),
	}
	gauge := func(name, help string, f func(Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return f(l.Stats()) })
	}
	m.all = []prometheus.Collector{
		m.syncs, m.frames, m.groupBytes, m.stalls, m.recycled,
		gauge("tidemark_wal_files", "Log files.", func(s Stats) float64 { return float64(s.Files) }),
		gauge("tidemark_wal_file_bytes", "Size of the log files.", func(s Stats) float64 { return float64(s.Bytes) }),
		gauge("tidemark_wal_spare_files", "Prewritten files waiting for use.", func(s Stats) float64 { return float64(s.Spares) }),
		gauge("tidemark_wal_durable_lsn", "Highest fsynced LSN.", func(s Stats) float64 { return float64(s.Durable) }),
		gauge("tidemark_wal_oldest_lsn", "LSN of the oldest frame on disk.", func(s Stats) float64 { return float64(s.Oldest) }),
	}
	l.metrics = m // a scrape may come as soon as the first is registered
	if reg == nil {
		return nil
	}
	for i, c := range m.all {
		if err := reg.Register(c); err != nil {
			m.all = m.all[:i] // the rest may be somebody else's
			m.unregister()
			return errcode.Wrap(errcode.InvalidArgument, err, "wal: register metrics")
		}
	}
	return nil
}

func (m *metrics) unregister() {
	if m.reg == nil {
		return
	}
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
}

func (m *metrics) group(bytes, frames int) {
	m.groupBytes.Add(float64(bytes))
	m.frames.Observe(float64(frames))
}

func (m *metrics) sync(d time.Duration) {
	m.syncCount.Add(1)
	m.syncs.Observe(d.Seconds())
}

// Stats is a snapshot of the log's state.
type Stats struct {
	Files      int   // log files, the current one included
	Bytes      int64 // their size on disk
	Spares     int   // prewritten files waiting for use
	SpareBytes int64
	Oldest     uint64 // LSN of the oldest frame on disk
	Next       uint64 // LSN of the next frame
	Written    uint64
	Durable    uint64
	LowWater   uint64 // lowest hold, 0 = nobody holds
	LastMark   uint64 // LSN of the last mark, 0 = none since Open
	Syncs      uint64 // fdatasyncs of log files since Open
}

// Stats returns a snapshot; the fields are read one after the other, so they
// may be a moment apart.
func (l *Log) Stats() Stats {
	var s Stats
	l.mu.Lock()
	s.Next, s.LastMark = l.mu.next, l.mu.markLSN
	s.Written, s.Durable = l.written.Load(), l.durable.Load()
	l.mu.Unlock()

	l.files.mu.Lock()
	defer l.files.mu.Unlock()
	s.Files, s.Bytes, s.Spares = len(l.files.mu.list), l.files.bytes(), len(l.files.mu.spares)
	for _, sp := range l.files.mu.spares {
		s.SpareBytes += sp.size
	}
	if s.Files > 0 {
		s.Oldest = l.files.mu.list[0].first
	}
	s.LowWater = l.files.lowest()
	s.Syncs = l.metrics.syncCount.Load()
	return s
}
