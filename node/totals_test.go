package node

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// series returns a metric's values by its only label, "" for none.
func series(t *testing.T, reg *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			label := ""
			if len(m.GetLabel()) > 0 {
				label = m.GetLabel()[0].GetValue()
			}
			out[label] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

// The numbers that an operator watches say what happens: with the archive away
// what is not archived, its age and the log that the archive keeps grow; when it
// is back they fall, and what is archived is counted. Requests have a price.
func TestNumbersOfStorage(t *testing.T) {
	reg := prometheus.NewRegistry()
	bucket := fault.New(mem.New("numbers", nil), fault.Options{})
	counted, err := objstore.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	m := newMemNode(t, func(o *Options) {
		o.Registerer = reg
		o.Archive = objstore.Stack(bucket, objstore.StackOptions{Metrics: counted})
	})
	id := broker.PartitionID{Topic: createTopic(t, m.Node, "t", 1).ID}
	bucket.Down(errcode.Transient)
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 100)...)
	get := func(name, label string) float64 { return series(t, reg, name)[label] }
	within(t, "what waits is counted in memory", func() bool {
		return get("tidemark_unarchived_bytes", "") > 0 && get("tidemark_unarchived_age_seconds", "") > 0 && get("tidemark_unflushed_age_seconds", "") > 0 && get("tidemark_local_bytes", "") > 0
	})
	if err := m.engine.Seal(m.engine.Get(id)); err != nil {
		t.Fatal(err)
	}
	within(t, "what waits is counted in a file", func() bool {
		return get("tidemark_unarchived_bytes", "") > 0 && get("tidemark_unarchived_age_seconds", "") > 0 && get("tidemark_unflushed_age_seconds", "") == 0 &&
			get("tidemark_wal_held_bytes", "ship") > 0 && get("tidemark_archived_bytes", "") == 0
	})
	bucket.Clear()
	within(t, "it is archived", func() bool {
		return get("tidemark_unarchived_bytes", "") == 0 && get("tidemark_unarchived_age_seconds", "") == 0 && get("tidemark_archived_bytes", "") > 0 && get("tidemark_checkpoint_age_seconds", "") < 60
	})
	if d := get("tidemark_objstore_request_dollars_total", "segment"); d < 0.000005 || d > 0.001 {
		t.Errorf("one segment costs %f $", d)
	}
	m.close()
}
