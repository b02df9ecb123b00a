package node

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/racing"
)

// One record, as the HTTP plane produces it: with the server's one context.
// What stays in the tail is counted as well: 3 in all when this is written; a
// context with a timer would be 5 more.
const produceAllocs = 6

// A produce of one record allocates no context, timer or buffer of its own.
func TestProduceAllocations(t *testing.T) {
	n := openNode(t, testOptions(t.TempDir(), nil))
	defer closeNode(t, n)
	createTopic(t, n, "t", 1)
	ctx, cancel := context.WithCancel(context.Background()) // the server's
	defer cancel()
	records := []broker.NewRecord{{Partition: -1, Key: []byte("key"), Value: make([]byte, 256)}}
	one := func() {
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: records, Ack: broker.AckCommitted}); err != nil {
			t.Fatal(err)
		}
	}
	one()
	got := testing.AllocsPerRun(300, one)
	t.Logf("%.1f allocations a record", got)
	if got > produceAllocs && !racing.Enabled {
		t.Errorf("%.1f allocations a record, at most %d", got, produceAllocs)
	}
}

// Per produce of 1,000 records of 1 KiB: what the tail keeps, five batches, what the
// answer is made of, and of the flush behind it. 11 in all when this is written.
const batchAllocs = 16

// Proves that a batch allocates by its stored batches, not by its records: by the
// thousand records hardly more often than a produce of one, whether one partition
// takes them or all.
func TestBatchAllocations(t *testing.T) {
	n := openNode(t, testOptions(t.TempDir(), nil))
	defer closeNode(t, n)
	createTopic(t, n, "t", 3)
	ctx, cancel := context.WithCancel(context.Background()) // the server's
	defer cancel()
	records := make([]broker.NewRecord, 1000)
	for _, partition := range []int32{-1, 3} {
		for i := range records {
			records[i] = broker.NewRecord{Partition: partition, Value: bytes.Repeat([]byte("some text "), 100)}
			if partition == 3 {
				records[i].Partition = int32(i % 3)
			}
		}
		batch := func() {
			if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: records, Ack: broker.AckAccepted}); err != nil {
				t.Fatal(err)
			}
		}
		batch()
		got := testing.AllocsPerRun(30, batch)
		t.Logf("%.1f allocations a batch", got)
		if got > batchAllocs && !racing.Enabled {
			t.Errorf("%.1f allocations a batch of %d records, at most %d", got, len(records), batchAllocs)
		}
	}
}

// Calls with one parent share a context; it ends with the parent, and with the
// node. A parent that comes once gets its own, and a wait of its own too.
func TestDeadlinesAreShared(t *testing.T) {
	var n Node
	var stop context.CancelFunc
	n.base, stop = context.WithCancel(context.Background())
	defer stop()
	server, shutdown := context.WithCancel(context.Background())
	defer shutdown()
	get := func(parent context.Context, wait time.Duration) context.Context {
		ctx, cancel := n.deadline(parent, wait)
		t.Cleanup(cancel)
		return ctx
	}
	first := get(server, 0)
	if get(server, 0) == first {
		t.Error("a context for one call is shared")
	}
	shared := get(server, defaultWait)
	for range 3 {
		request, cancel := context.WithCancel(server) // each once
		if get(request, 0) == shared {
			t.Error("a request's context is the server's")
		}
		cancel()
		if get(server, 0) != shared {
			t.Error("the server's context is not shared")
		}
	}
	if own := get(server, time.Second); own == shared {
		t.Error("a short wait is shared")
	} else if d, _ := own.Deadline(); time.Until(d) > time.Second {
		t.Errorf("a wait of 1 s ends in %s", time.Until(d))
	}
	if get(context.Background(), 0) != get(context.TODO(), 0) {
		t.Error("contexts that never end are not shared")
	}
	get(server, 0)
	again := get(server, 0)
	shutdown()
	<-again.Done() // with its parent
	plain := get(context.Background(), 0)
	stop()
	<-plain.Done() // with the node
	other, cancel := context.WithCancel(context.Background())
	defer cancel()
	get(other, 0)
	<-get(other, 0).Done()
}

// A batch is spread over partitions by name, key and turn; each partition's
// part is one run of offsets in order, split into batches, and what cannot be
// placed refuses all of it with the record's number.
func TestPlacement(t *testing.T) {
	n := openNode(t, testOptions(t.TempDir(), nil))
	defer closeNode(t, n)
	createTopic(t, n, "t", 3)
	var records []broker.NewRecord
	want := map[uint32]int{}
	for i := range 300 {
		r := broker.NewRecord{Partition: -1, Value: make([]byte, 8<<10)}
		switch i % 3 {
		case 0:
			r.Partition = int32(i / 3 % 3)
			want[uint32(r.Partition)]++
		case 1:
			r.Key = []byte{byte(i), byte(i >> 8)}
			want[broker.PartitionForKey(r.Key, 3)]++
		}
		for j := range r.Value {
			r.Value[j] = byte(i * (j + 7) >> 3)
		}
		records = append(records, r)
	}
	got := produce(t, n, "t", broker.AckCommitted, records...)
	sum := 0
	for _, p := range got.Placements {
		if p.FirstOffset != 0 || p.LastOffset != int64(p.Count)-1 || p.Count < want[p.Partition] {
			t.Errorf("placement %+v, at least %d are placed there", p, want[p.Partition])
		}
		sum += p.Count
		if r := readAll(t, n, "t", p.Partition); len(r) != p.Count {
			t.Errorf("partition %d has %d records, %d were placed", p.Partition, len(r), p.Count)
		}
	}
	if sum != len(records) {
		t.Errorf("%d placed of %d", sum, len(records))
	}
	// Keyless records of a batch stay together, those of calls take turns.
	seen := map[uint32]bool{}
	for range 3 {
		two := produce(t, n, "t", broker.AckAccepted, broker.NewRecord{Partition: -1}, broker.NewRecord{Partition: -1})
		if len(two.Placements) != 1 || two.Placements[0].Count != 2 {
			t.Errorf("keyless records of one call: %+v", two.Placements)
		}
		seen[two.Placements[0].Partition] = true
	}
	if len(seen) != 3 {
		t.Errorf("three calls use partitions %v", seen)
	}
	count := func() (sum int64) {
		for _, p := range n.engine.All() {
			sum += p.HighWatermark()
		}
		return sum
	}
	before := count()
	_, err := n.Produce(context.Background(), broker.ProduceRequest{Topic: "t", Records: []broker.NewRecord{{Partition: 0}, {Partition: 3}}})
	if !errcode.Is(err, errcode.NotFound) || err.Error()[:len("message 1: ")] != "message 1: " {
		t.Errorf("a partition that is not there: %v", err)
	}
	if after := count(); after != before {
		t.Errorf("%d records of a refused batch are there", after-before)
	}
}

// A lone producer of single records, its syncs included.
func BenchmarkProduceOne(b *testing.B) {
	o := testOptions(b.TempDir(), nil)
	o.SegmentBytes, o.FlushBytes, o.WALFileSize = 0, 0, 0
	n := openNode(b, o)
	defer closeNode(b, n)
	createTopic(b, n, "t", 6)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	records := []broker.NewRecord{{Partition: -1, Value: make([]byte, 1024)}}
	for name, parallel := range map[string]int{"1": 1, "64": 32} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(1024)
			one := func() {
				if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: records}); err != nil {
					b.Error(err)
				}
			}
			if parallel == 1 {
				for b.Loop() {
					one()
				}
				return
			}
			b.SetParallelism(parallel)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					one()
				}
			})
		})
	}
}
