package partition

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	flushedBytes, flushErrors, sealed, checkpoints, checkpointErrors prometheus.Counter
	leftovers, passed, carried                                       prometheus.Counter
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
		leftovers:        counter("segment_leftovers_total", "Segment files that nothing named any more and that a start removed."),
		passed:           counter("damaged_reads_total", "Reads that met damage in a local segment file and went on in the archive, which has the same bytes."),
		checkpointErrors: counter("checkpoint_errors_total", "Checkpoints that failed."),
	}
}
