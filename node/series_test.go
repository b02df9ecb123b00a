package node

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Topics that come and go leave no time series behind: their number is the same
// with none, with many, and when all are deleted (B240, I12).
func TestSeriesAreBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMemNode(t, func(o *Options) { o.Registerer = reg })
	defer m.close()
	series := func() (n int) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	life := func(name string) {
		createTopic(t, m.Node, name, 2)
		produce(t, m.Node, name, broker.AckAccepted, numbered(1, 2)...)
		m.settle(name, broker.SettleAck, m.consume(name, 2)...)
		if err := m.DeleteTopic(context.Background(), name, true); err != nil {
			t.Fatal(err)
		}
	}
	life("first") // what is counted by kind of operation has its series now
	before := series()
	if before < 20 {
		t.Fatalf("%d series: nothing is measured", before)
	}
	for i := range 30 {
		life(fmt.Sprint("t", i))
	}
	createTopic(t, m.Node, "stays", 8)
	if now := series(); now != before {
		t.Fatalf("%d series, there were %d", now, before)
	}
}
