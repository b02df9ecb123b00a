package raftmeta

import (
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// metrics are registered by Open and unregistered by Close.
type metrics struct {
	registerer prometheus.Registerer
	registered []prometheus.Collector

	proposals       *prometheus.CounterVec
	proposalSeconds prometheus.Histogram
	snapshots       *prometheus.CounterVec
	snapshotSeconds prometheus.Histogram
}

const metricPrefix = "tidemark_meta_"

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{
		registerer: r,
		proposals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "proposals_total",
			Help: "Changes of the metadata by op and result (ok, or the error's code)."}, []string{"op", "result"}),
		proposalSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricPrefix + "proposal_seconds",
			Help: "Time from a proposed change to its answer.", Buckets: prometheus.ExponentialBuckets(0.00025, 2, 14)}),
		snapshots: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "snapshots_total",
			Help: "Local metadata snapshots by result (ok, or the error's code)."}, []string{"result"}),
		snapshotSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricPrefix + "snapshot_seconds",
			Help: "Duration of a local metadata snapshot.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
	}
}

// register adds the counters and gauges that read m.
func (x *metrics) register(m *Meta) error {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help}, read)
	}
	all := []prometheus.Collector{x.proposals, x.proposalSeconds, x.snapshots, x.snapshotSeconds,
		gauge("changed_index", "Raft index of the last change of the metadata.", func() float64 { return float64(m.State().Index()) }),
		gauge("topics", "Topics that exist.", func() float64 { return float64(m.State().NumTopics()) }),
		gauge("partitions", "Partitions of all topics.", func() float64 { return float64(m.State().NumPartitions()) }),
		gauge("log_entries", "Entries in the Raft log on disk.", func() float64 { return float64(m.plane.store.entries()) }),
		gauge("snapshot_index", "Raft index of the newest local snapshot.", func() float64 { return float64(m.plane.snapshots.newest.Load()) }),
		gauge("leader", "1 while this node leads the metadata plane.", func() float64 {
			if m.plane.raft.State() == raft.Leader {
				return 1
			}
			return 0
		}),
	}
	if x.registerer == nil {
		return nil
	}
	for _, c := range all {
		if err := x.registerer.Register(c); err != nil {
			x.unregister()
			return errcode.Wrap(errcode.Internal, err, "register the metrics of the metadata plane")
		}
		x.registered = append(x.registered, c)
	}
	return nil
}

func (x *metrics) unregister() {
	for _, c := range x.registered {
		x.registerer.Unregister(c)
	}
	x.registered = nil
}

func (x *metrics) proposed(o op, err error, took time.Duration) {
	x.proposals.WithLabelValues(o.String(), result(err)).Inc()
	x.proposalSeconds.Observe(took.Seconds())
}

func (x *metrics) snapshotted(err error, took time.Duration) {
	x.snapshots.WithLabelValues(result(err)).Inc()
	x.snapshotSeconds.Observe(took.Seconds())
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	return errcode.Of(err).String()
}
