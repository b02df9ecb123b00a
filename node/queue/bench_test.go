package queue

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// benchEngine serves n partitions with more records than a benchmark takes.
func benchEngine(b *testing.B, n int) *Engine {
	e := New(Options{Secret: []byte("bench")})
	b.Cleanup(e.Close)
	for p := range n {
		id := broker.PartitionID{Topic: 1, Partition: uint32(p)}
		if err := e.Attach(id, PartitionConfig{HighWatermark: 1 << 40}, nil); err != nil {
			b.Fatal(err)
		}
	}
	return e
}

func pair(b *testing.B, e *Engine, ctx context.Context) {
	ds, err := e.Reserve(ctx, Request{Topic: 1, Partition: AnyPartition})
	if err != nil || len(ds) != 1 {
		b.Fatal(len(ds), err)
	}
	if _, err := e.Ack(1, "", ds[0].Handle); err != nil {
		b.Fatal(err)
	}
}

// One consumer: a reserve and an ack per operation.
func BenchmarkReserveAck(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("partitions=%d", n), func(b *testing.B) {
			e := benchEngine(b, n)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				pair(b, e, ctx)
			}
		})
	}
}

// 64 goroutines on one group: what the group's lock costs.
func BenchmarkReserveAck64(b *testing.B) {
	e := benchEngine(b, 6)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range 64 {
		n := b.N / 64
		if i < b.N%64 {
			n++
		}
		wg.Go(func() {
			for range n {
				pair(b, e, context.Background())
			}
		})
	}
	wg.Wait()
}

// Batches of 100, as a batch consume and a batch ack do; per record.
func BenchmarkReserveAckMany(b *testing.B) {
	e := benchEngine(b, 6)
	ctx := context.Background()
	handles := make([]string, 0, 100)
	b.ReportAllocs()
	for i := 0; i < b.N; i += 100 {
		ds, err := e.Reserve(ctx, Request{Topic: 1, Partition: AnyPartition, Max: 100})
		if err != nil {
			b.Fatal(err)
		}
		handles = handles[:0]
		for _, d := range ds {
			handles = append(handles, d.Handle)
		}
		errs, _ := e.AckMany(1, "", handles)
		for _, err := range errs {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

// A cursor with 50,000 single-record holes: acks land between them.
func BenchmarkReserveAckHoles(b *testing.B) {
	e := New(Options{Secret: []byte("bench")})
	b.Cleanup(e.Close)
	const holes = 50_000
	s := State{Group: broker.DefaultGroup}
	for i := range int64(holes) {
		s.Ranges = append(s.Ranges, [2]int64{2*i + 1, 2*i + 2})
	}
	id := broker.PartitionID{Topic: 1}
	if err := e.Attach(id, PartitionConfig{HighWatermark: 1 << 40, MaxInFlight: 2 * holes}, []State{s}); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	ds, err := e.Reserve(ctx, Request{Topic: 1, Partition: 0, Max: MaxReserve}) // these stay leased: the holes
	if err != nil || len(ds) != MaxReserve {
		b.Fatal(len(ds), err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		pair(b, e, ctx)
	}
}

// A commit becoming visible to a group that nobody reads.
func BenchmarkAdvance(b *testing.B) {
	e := New(Options{})
	b.Cleanup(e.Close)
	id := broker.PartitionID{Topic: 1}
	if err := e.Attach(id, PartitionConfig{}, []State{{Group: broker.DefaultGroup}}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var hw int64
	for b.Loop() {
		hw++
		e.Advance(id, hw)
	}
}

// A commit handed to a parked consumer, which acks and parks again.
func BenchmarkHandOver(b *testing.B) {
	e := New(Options{Secret: []byte("bench")})
	b.Cleanup(e.Close)
	id := broker.PartitionID{Topic: 1}
	if err := e.Attach(id, PartitionConfig{}, []State{{Group: broker.DefaultGroup}}); err != nil {
		b.Fatal(err)
	}
	next := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			ds, err := e.Reserve(ctx, Request{Topic: 1, Partition: AnyPartition, Wait: time.Minute})
			if err != nil {
				return
			}
			if _, err := e.Ack(1, "", ds[0].Handle); err != nil {
				b.Error(err)
			}
			next <- struct{}{}
		}
	})
	b.ReportAllocs()
	b.ResetTimer()
	for hw := range int64(b.N) {
		e.Advance(id, hw+1)
		<-next
	}
	b.StopTimer()
	cancel()
	wg.Wait()
}
