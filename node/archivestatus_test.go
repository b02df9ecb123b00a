package node

import (
	"context"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// The archive's status while it is away and after: what waits is counted by topic
// and together, the outage has a beginning and a reason and goes, what is archived
// is counted where it went, and reads from the archive are counted in the cache.
func TestArchiveStatus(t *testing.T) {
	bucket := fault.New(mem.New("status", nil), fault.Options{})
	counted, err := objstore.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := newMemNode(t, func(o *Options) {
		o.Archive = objstore.Stack(bucket, objstore.StackOptions{Metrics: counted})
	})
	defer m.close()
	id := broker.PartitionID{Topic: createTopic(t, m.Node, "t", 2).ID, Partition: 1}
	createTopic(t, m.Node, "u", 1)
	createTopic(t, m.Node, "v", 1)
	status := func(req broker.ArchiveStatusRequest) (broker.ArchiveStatus, bool) {
		t.Helper()
		st, more, err := m.ArchiveStatus(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		return st, more
	}
	all := broker.ArchiveStatusRequest{Limit: 100}
	within(t, "the archive has what it needs", func() bool {
		st, _ := status(all)
		return st.AnsweredAt > 0 && st.RPOSeconds == 0
	})
	bucket.Down(errcode.Transient)
	before := time.Now()
	for range 3 {
		produce(t, m.Node, "t", broker.AckAccepted, broker.NewRecord{Partition: 1, Value: []byte("t")})
	}
	produce(t, m.Node, "u", broker.AckAccepted, broker.NewRecord{Value: []byte("u")})
	within(t, "the outage is noticed, and what waits gets older", func() bool {
		st, _ := status(all)
		return st.Outage != nil && st.RPOSeconds > 0 && st.Lag.Records == 4
	})
	st, more := status(all)
	if len(st.Topics) != 3 || more || st.Outage.LastError == "" || st.Outage.Since < before.UnixMilli() || st.Outage.Since > time.Now().UnixMilli() {
		t.Fatalf("%+v, outage %+v", st, st.Outage)
	}
	for i, want := range []int64{3, 1, 0} {
		if got := st.Topics[i].Lag; got.Records != want || (got.Bytes > 0) != (want > 0) || (got.Seconds > 0) != (want > 0) {
			t.Errorf("topic %d: %+v, want %d records", i, got, want)
		}
	}
	if page, more := status(broker.ArchiveStatusRequest{After: "t", Limit: 1}); !more || len(page.Topics) != 1 || page.Topics[0].Topic != "u" || page.Lag.Records != 4 {
		t.Errorf("a page: more %v, %+v", more, page)
	}
	one, _ := status(broker.ArchiveStatusRequest{Topic: "t"})
	if parts := one.Topics[0].Partitions; len(one.Topics) != 1 || len(parts) != 2 || parts[0].Lag.Records != 0 || parts[1].Lag.Records != 3 || parts[1].HighWatermark != 3 || parts[1].ArchivedOffset != 0 {
		t.Errorf("one topic: %+v", one.Topics)
	}
	if err := m.engine.Seal(m.engine.Get(id)); err != nil {
		t.Fatal(err)
	}
	bucket.Clear()
	within(t, "the outage is over, and what was sealed is archived", func() bool {
		st, _ := status(all)
		return st.Outage == nil && st.RPOSeconds == 0 && st.Lag.Records == 1
	})
	one, _ = status(broker.ArchiveStatusRequest{Topic: "t"})
	if p := one.Topics[0].Partitions[1]; p.ArchivedOffset != 3 || p.ArchivedBytes == 0 || p.Lag != (broker.ArchiveLag{}) {
		t.Errorf("archived: %+v", p)
	}
	var sum float64
	puts := map[string]int64{}
	for _, c := range one.Cost.Causes {
		sum += c.Dollars
		puts[c.Cause] = c.Requests["put"]
	}
	if d := one.Cost.Dollars; puts["segment"] < 1 || puts["wal"] < 1 || d <= 0 || d < 0.999*sum || d > 1.001*sum || one.Cost.SentBytes == 0 {
		t.Errorf("cost %+v", one.Cost)
	}
	if _, _, err := m.ArchiveStatus(context.Background(), broker.ArchiveStatusRequest{Topic: "none"}); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("no such topic: %v", err)
	}
	n := openNode(t, testOptions(t.TempDir(), nil))
	defer closeNode(t, n)
	if _, _, err := n.ArchiveStatus(context.Background(), all); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("no archive: %v", err)
	}
}

// What readers take from the archive is in the cache's numbers: first downloaded,
// then answered from disk.
func TestArchiveStatusCountsTheCache(t *testing.T) {
	c := newColdNode(t, 6)
	ask := func() broker.ArchiveCache {
		t.Helper()
		st, _, err := c.ArchiveStatus(context.Background(), broker.ArchiveStatusRequest{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		return st.Cache
	}
	if s := ask(); s.Hits+s.Misses != 0 || s.HitRatio != 0 || s.MaxBytes == 0 {
		t.Fatalf("before the first read: %+v", s)
	}
	if err := c.replay(0, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	first := ask()
	if first.Misses == 0 || first.Downloaded == 0 {
		t.Fatalf("after one read: %+v", first)
	}
	within(t, "reads are answered by the cache", func() bool {
		if err := c.replay(0, func(int64) {}); err != nil {
			t.Fatal(err)
		}
		s := ask()
		return s.Hits > first.Hits && s.HitRatio > 0 && s.Bytes > 0
	})
}
