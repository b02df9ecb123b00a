package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// registerMetrics exports what the node itself knows about its disk. It returns
// what takes them back.
func (n *Node) registerMetrics() (func(), error) {
	r := n.opts.Registerer
	if r == nil {
		return func() {}, nil
	}
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	waits := func(database string, read func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tidemark_database_waits_total", Help: "Writes of a database of the node that the disk did not take at once, by folder.",
			ConstLabels: prometheus.Labels{"database": database},
		}, func() float64 { return float64(read()) })
	}
	var done []prometheus.Collector
	undo := func() {
		for _, c := range done {
			r.Unregister(c)
		}
	}
	all := []prometheus.Collector{
		gauge("tidemark_disk_free_bytes", "Free bytes of the disk that the data directory is on.", func() float64 { return float64(n.disk.free.Load()) }),
		gauge("tidemark_disk_reserve_bytes", "Free bytes below which records are refused.", func() float64 { return float64(n.disk.limit.Load()) }),
		gauge("tidemark_partitions_refused", "Partitions that are out of service.", func() float64 { return float64(n.refused.partitions.Load()) }),
		gauge("tidemark_refused_log_bytes", "Bytes of the log from the oldest frame on that a partition out of service may need.", func() float64 { return float64(n.refused.bytes.Load()) }),
		gauge("tidemark_local_bytes", "Bytes of records on this node: segment files and what is in none yet.", func() float64 { t, _ := n.sums(); return float64(t.LocalBytes) }),
		gauge("tidemark_archived_bytes", "Bytes of segments in the archive, of the chains that this process has loaded.", func() float64 { _, b := n.sums(); return float64(b) }),
		gauge("tidemark_unarchived_bytes", "Bytes of records on this node that are in no archived segment yet.", func() float64 { t, _ := n.sums(); return float64(t.UnarchivedBytes) }),
		gauge("tidemark_unarchived_age_seconds", "Age of the oldest record that is in no archived segment yet, 0 = none.", func() float64 { t, _ := n.sums(); return n.ageOf(t.OldestUnarchived) }),
		gauge("tidemark_unflushed_age_seconds", "Age of the oldest record that is in no segment file yet, 0 = none.", func() float64 { t, _ := n.sums(); return n.ageOf(t.OldestUnflushed) }),
		gauge("tidemark_checkpoint_age_seconds", "Time since the last checkpoint while one is due, 0 = none is.", func() float64 { t, _ := n.sums(); return n.ageOf(t.Checkpointed) }),
		newHeld(n), newTrafficMetrics(n),
		waits("state", n.db.Waits), waits("raft", n.meta.DiskWaits),
	}
	if n.chains != nil {
		all = append(all,
			gauge("tidemark_chain_bytes", "Bytes of memory of the archive's chains that are loaded.", func() float64 { return float64(n.chains.resident()) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "tidemark_chain_loads_total", Help: "Chains read from the archive, also those that had been unloaded.",
			}, func() float64 { return float64(n.chains.loads.Load()) }))
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			undo()
			return nil, errcode.Wrap(errcode.Internal, err, "register the metrics of the node")
		}
		done = append(done, c)
	}
	return undo, nil
}
