package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Topics that come and go leave no time series behind: their number is the same
// when all are deleted, and bounded however many there are (B240, I12).
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
	if now := series(); now != before {
		t.Fatalf("%d series, there were %d", now, before)
	}
	// With a place for each, one more has series; without, it shares them.
	const each = 6 // two kinds of traffic by records and bytes, the lag of one group by records and seconds
	for i := range namedTopics + 3 {
		createTopic(t, m.Node, fmt.Sprint("many", i), 1)
		now := series() - before
		if want := min(i+1, namedTopics) * each; now != want && now != want+2 { // the lag of _other is there with its first topic
			t.Fatalf("%d more series with %d topics, want %d", now, i+1, want)
		}
	}
	for i := range namedTopics + 3 {
		if err := m.DeleteTopic(context.Background(), fmt.Sprint("many", i), true); err != nil {
			t.Fatal(err)
		}
	}
	if now := series(); now != before {
		t.Fatalf("%d series when all are gone, there were %d", now, before)
	}
}

// A topic that is deleted while producers are at it leaves no series behind, and
// those that come late bring none back: no label of any series ever holds a
// topic's name or id, and their number is what it was (B244, I12).
func TestNoSeriesOfADeletedTopic(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMemNode(t, func(o *Options) { o.Registerer = reg })
	defer m.close()
	ctx := context.Background()
	look := func(of []string) (n int) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				n++
				for _, l := range s.GetLabel() {
					if slices.Contains(of, l.GetValue()) {
						t.Errorf("%s has a series with %s=%q", f.GetName(), l.GetName(), l.GetValue())
					}
				}
			}
		}
		return n
	}
	doom := func(name string) []string {
		t.Helper()
		info := createTopic(t, m.Node, name, 2)
		var late sync.WaitGroup
		begun := make(chan struct{}, 8)
		for range 4 {
			late.Go(func() {
				defer func() { begun <- struct{}{} }()
				for n := 0; ; n++ {
					_, err := m.Produce(ctx, broker.ProduceRequest{Topic: name, Ack: broker.AckCommitted, Records: numbered(1, 1)})
					if err != nil { // it is gone: one more try, as a client that was not told makes it
						_, _ = m.Produce(ctx, broker.ProduceRequest{Topic: name, Ack: broker.AckCommitted, Records: numbered(1, 1)})
						return
					}
					_, _ = m.Consume(ctx, broker.ConsumeRequest{Topic: name, Partition: -1, Max: 1})
					if n == 0 {
						begun <- struct{}{}
					}
				}
			})
		}
		for range 4 {
			<-begun
		}
		if err := m.DeleteTopic(ctx, name, true); err != nil {
			t.Fatal(err)
		}
		late.Wait()
		return []string{name, info.ID.String(), info.ID.String() + "/0", info.ID.String() + "/1"}
	}
	names := doom("first")
	before := look(names)
	for i := range 5 {
		names = append(names, doom(fmt.Sprint("t", i))...)
	}
	if now := look(names); now != before {
		t.Fatalf("%d series, there were %d", now, before)
	}
}
