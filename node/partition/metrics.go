package partition

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	flushedBytes, flushErrors, sealed, checkpoints, checkpointErrors prometheus.Counter
	leftovers, passed, carried                                       prometheus.Counter
	waits, waitSeconds                                               prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tidemark", Name: name, Help: help})
		if r != nil {
			r.MustRegister(c)
		}
		return c
	}
	return &metrics{
		flushedBytes:     counter("flushed_bytes_total", "Bytes of batches written to segment files."),
		flushErrors:      counter("flush_errors_total", "Flushes that failed; the log keeps the records."),
		sealed:           counter("segments_sealed_total", "Segments sealed."),
		checkpoints:      counter("checkpoints_total", "Checkpoints of the local state."),
		carried:          counter("carried_bytes_total", "Bytes of small tails written into the log once more, so that its oldest file could be reused."),
		waits:            counter("append_waits_total", "Appends that waited for the flush to make room in memory, or for their turn in the log."),
		waitSeconds:      counter("append_wait_seconds_total", "Time that appends waited for room or for their turn."),
		leftovers:        counter("segment_leftovers_total", "Segment files that nothing named any more and that a start removed."),
		passed:           counter("damaged_reads_total", "Reads that met damage in a local segment file and went on in the archive, which has the same bytes."),
		checkpointErrors: counter("checkpoint_errors_total", "Checkpoints that failed."),
	}
}

// watch exports what waits for room.
func (m *metrics) watch(r prometheus.Registerer, q *room) {
	if r != nil {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tidemark", Name: "append_waiting_bytes", Help: "Bytes of appends that wait for the flush to make room in memory.",
		}, func() float64 { _, bytes := q.waiting(); return float64(bytes) }))
	}
}
