package merge

import "github.com/prometheus/client_golang/prometheus"

// reason is why a partition, or all of them, was passed over.
type reason string

const (
	noRun     reason = "no_run"    // nothing adjacent, small and together large enough
	unsettled reason = "unsettled" // as noRun, and a local copy waits to be confirmed
	hindered  reason = "hindered"  // the node says that it is not the time
	conflict  reason = "conflict"  // the chain changed during the merge
	fenced    reason = "fenced"    // somebody else owns the partition
	damaged   reason = "damaged"   // an input cannot be read as the chain describes it
	archive   reason = "archive"   // the archive does not answer, or refuses
	disk      reason = "disk"      // the local file could not be written or read
)

type metrics struct {
	inputs, outputs, bytes prometheus.Counter
	skipped                *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "tidemark", Subsystem: "merge", Name: name, Help: help}
	}
	m := &metrics{
		inputs:  prometheus.NewCounter(opts("inputs_total", "Archived segments that were merged into others.")),
		outputs: prometheus.NewCounter(opts("outputs_total", "Segments that they became.")),
		bytes:   prometheus.NewCounter(opts("bytes_total", "Bytes of those.")),
		skipped: prometheus.NewCounterVec(opts("skipped_total", "Looks that merged nothing, by reason."), []string{"reason"}),
	}
	for _, r := range []reason{noRun, unsettled, hindered, conflict, fenced, damaged, archive, disk} {
		m.skipped.WithLabelValues(string(r))
	}
	if r != nil {
		r.MustRegister(m.inputs, m.outputs, m.bytes, m.skipped)
	}
	return m
}

func (m *metrics) skip(r reason) { m.skipped.WithLabelValues(string(r)).Inc() }
