package node

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// gathered reads one sample of a registry; labels as name=value pairs.
func gathered(t *testing.T, reg prometheus.Gatherer, name string, labels ...string) (v float64, ok bool) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetName()+"="+l.GetValue())
			}
			if f.GetName() != name || strings.Join(have, " ") != strings.Join(labels, " ") {
				continue
			}
			switch {
			case m.GetCounter() != nil:
				return m.GetCounter().GetValue(), true
			case m.GetHistogram() != nil:
				return float64(m.GetHistogram().GetSampleCount()), true
			default:
				return m.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}

// What is produced is counted once by ack level and once by topic, what is
// leased by topic; a reader of the log counts for neither (B251). The lag of a
// group falls with its acks, and a deleted topic has no series (B240, B244).
func TestTrafficIsCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	start := time.Now()
	var later atomic.Int64 // nanoseconds
	m := newMemNode(t, func(o *Options) {
		o.Registerer, o.Now = reg, func() time.Time { return start.Add(time.Duration(later.Load())) }
	})
	defer m.close()
	want := func(v float64, name string, labels ...string) {
		t.Helper()
		if got, ok := gathered(t, reg, name, labels...); !ok || got != v {
			t.Errorf("%s%v is %v (%v), want %v", name, labels, got, ok, v)
		}
	}
	createTopic(t, m.Node, "orders", 1)
	record := broker.NewRecord{Partition: 0, Key: []byte("abc"), Value: []byte("1234567")}
	produce(t, m.Node, "orders", broker.AckAccepted, record, record)
	produce(t, m.Node, "orders", broker.AckCommitted, record)
	want(2, "tidemark_produced_records_total", "ack=accepted")
	want(20, "tidemark_produced_bytes_total", "ack=accepted")
	want(1, "tidemark_produced_records_total", "ack=committed")
	want(0, "tidemark_produced_records_total", "ack=archived")
	want(1, "tidemark_produce_seconds", "ack=accepted")
	want(3, "tidemark_topic_produced_records_total", "topic=orders")
	want(30, "tidemark_topic_produced_bytes_total", "topic=orders")
	want(0, "tidemark_topic_delivered_records_total", "topic=orders")
	want(0, "tidemark_topic_produced_records_total", "topic=_other")
	want(3, "tidemark_group_lag_records", "group=default", "topic=orders")
	later.Store(int64(90 * time.Second))
	if v, _ := gathered(t, reg, "tidemark_group_lag_seconds", "group=default", "topic=orders"); v < 89 || v > 91 {
		t.Errorf("the oldest record is %v seconds old, want 90", v)
	}
	if _, err := m.Produce(context.Background(), broker.ProduceRequest{Topic: "nobody", Records: numbered(1, 1)}); err == nil {
		t.Error("produced to no topic")
	}
	got := m.consume("orders", 2)
	want(2, "tidemark_topic_delivered_records_total", "topic=orders")
	want(20, "tidemark_topic_delivered_bytes_total", "topic=orders")
	m.settle("orders", broker.SettleAck, got...)
	want(1, "tidemark_group_lag_records", "group=default", "topic=orders")
	m.settle("orders", broker.SettleAck, m.consume("orders", 1)...)
	want(0, "tidemark_group_lag_records", "group=default", "topic=orders")
	want(0, "tidemark_group_lag_seconds", "group=default", "topic=orders")
	if err := m.DeleteTopic(context.Background(), "orders", true); err != nil {
		t.Fatal(err)
	}
	if _, ok := gathered(t, reg, "tidemark_topic_produced_records_total", "topic=orders"); ok {
		t.Error("a deleted topic has a series")
	}
	want(3, "tidemark_topic_produced_records_total", "topic=_other") // sums do not go back
}

// Beyond the topics that have series of their own all share one, and one that
// goes makes a place for one that comes.
func TestTrafficOfManyTopics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMemNode(t, func(o *Options) { o.Registerer = reg })
	defer m.close()
	for i := range namedTopics + 2 {
		createTopic(t, m.Node, fmt.Sprint("t", i), 1)
		produce(t, m.Node, fmt.Sprint("t", i), broker.AckAccepted, numbered(i+1, 1)...)
	}
	if v, _ := gathered(t, reg, "tidemark_topic_produced_records_total", "topic=_other"); v != 2 {
		t.Errorf("_other has %v records, want 2", v)
	}
	if v, _ := gathered(t, reg, "tidemark_group_lag_records", "group=_other", "topic=_other"); v != 2 {
		t.Errorf("_other has a lag of %v, want 2", v)
	}
	if err := m.DeleteTopic(context.Background(), "t0", true); err != nil {
		t.Fatal(err)
	}
	createTopic(t, m.Node, "late", 1)
	if _, ok := gathered(t, reg, "tidemark_topic_produced_records_total", "topic=late"); !ok {
		t.Error("a topic that came when a place was free has no series")
	}
}

// Buckets of the histogram of produces, at and around their bounds.
func TestProduceBuckets(t *testing.T) {
	for d, want := range map[time.Duration]int{
		-time.Second: 0, 0: 0, 127 * time.Microsecond: 0, 128 * time.Microsecond: 1, 255 * time.Microsecond: 1, 256 * time.Microsecond: 2,
		time.Second: 13, 8388607 * time.Microsecond: levelBuckets - 2, 8388608 * time.Microsecond: levelBuckets - 1, time.Hour: levelBuckets - 1,
	} {
		if got := bucketOf(d); got != want {
			t.Errorf("%v is in bucket %d, want %d", d, got, want)
		}
	}
}
