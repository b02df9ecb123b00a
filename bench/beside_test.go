package bench

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/objstore/file"
)

const (
	besideRounds   = 9
	besideReaders  = 4
	besideWorkers  = 32
	besideRate     = 1500 // records a second, together
	besideFor      = 3 * time.Second
	besideArchived = 192 << 20
)

// BenchmarkBesideCold is a node whose producers and consumers go on while four
// readers replay archived records that no cache has. In each round, in turns,
// records are produced at a fixed rate, each answered when it is durable, then
// consumed and acked: once alone and once beside the readers. Times count from
// when a record was due, so a stall delays all that were due in it. It reports
// the ratios of the 99th percentiles, and what the readers got.
func BenchmarkBesideCold(b *testing.B) {
	n := besideNode(b)
	defer func() {
		if err := n.Close(); err != nil {
			b.Error(err)
		}
	}()
	var alone, beside, produceX, consumeX, coldRate series
	for b.Loop() {
		for round := range besideRounds + 1 {
			pa, ca := hotWork(b, n)
			readers, stop := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			var mu sync.Mutex
			var bytes int64
			for range besideReaders {
				wg.Go(func() {
					got := replayUntil(b, n, readers)
					mu.Lock()
					bytes += got
					mu.Unlock()
				})
			}
			begin := time.Now()
			pb, cb := hotWork(b, n)
			took := time.Since(begin).Seconds()
			stop()
			wg.Wait()
			if round == 0 {
				continue // warms
			}
			alone.add(pa.Seconds() * 1e3)
			beside.add(pb.Seconds() * 1e3)
			produceX.add(pb.Seconds() / pa.Seconds())
			consumeX.add(cb.Seconds() / ca.Seconds())
			coldRate.add(float64(bytes) / 1e6 / took)
		}
	}
	alone.report(b, "alone-p99-ms", false)
	beside.report(b, "beside-p99-ms", false)
	produceX.report(b, "produce-p99-x", true)
	consumeX.report(b, "consume-p99-x", true)
	coldRate.report(b, "replayed-MB/s", false)
}

// besideNode is a node with an archived topic "cold", of which nothing is left on
// its disk, and an empty topic "hot".
func besideNode(b *testing.B) *node.Node {
	b.Helper()
	ctx := context.Background()
	dir := b.TempDir()
	st, err := file.Open(filepath.Join(dir, "bucket"), file.Options{})
	if err != nil {
		b.Fatal(err)
	}
	o := node.Options{
		Dir: filepath.Join(dir, "data"), NodeID: "node-1", RaftAddr: "127.0.0.1:0", Archive: st,
		SegmentBytes: 16 << 20, SealAge: time.Second, SealMinBytes: 1, CacheBytes: 8 << 20, DiskReserve: 1,
	}
	n, err := node.Open(ctx, o)
	if err != nil {
		b.Fatal(err)
	}
	one := uint32(1)
	for _, name := range []string{"cold", "hot"} {
		if _, err := n.CreateTopic(ctx, broker.TopicSpec{Name: name, Partitions: &one}); err != nil {
			b.Fatal(err)
		}
	}
	noise := rand.NewChaCha8([32]byte{3})
	var recs []broker.NewRecord
	for range 64 {
		v := make([]byte, 8<<10)
		_, _ = noise.Read(v[:6<<10])
		recs = append(recs, broker.NewRecord{Partition: 0, Value: v})
	}
	last := broker.AckAccepted
	for done := 0; done < besideArchived; done += 64 * 8 << 10 {
		if done+64*8<<10 >= besideArchived {
			last = broker.AckArchived
		}
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "cold", Records: recs, Ack: last}); err != nil {
			b.Fatal(err)
		}
	}
	segments := func(root string) []string {
		out, err := filepath.Glob(root)
		if err != nil {
			b.Fatal(err)
		}
		return out
	}
	// Sealed by age, all of it: then the bucket has every record as a segment.
	local := filepath.Join(o.Dir, "topics", "*", "*", "*.seg")
	bucket := filepath.Join(dir, "bucket", "t", "*", "*", "s", "*")
	for deadline := time.Now().Add(time.Minute); len(segments(local)) == 0 || len(segments(bucket)) < len(segments(local)); <-time.After(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("%d segments on disk, %d in the bucket", len(segments(local)), len(segments(bucket)))
		}
	}
	if err := n.Close(); err != nil {
		b.Fatal(err)
	}
	for _, path := range segments(local) {
		if err := os.Remove(path); err != nil {
			b.Fatal(err)
		}
	}
	if n, err = node.Open(ctx, o); err != nil {
		b.Fatal(err)
	}
	return n
}

// replayUntil replays the topic again and again until ctx ends, and returns the
// bytes of the values.
func replayUntil(b *testing.B, n *node.Node, ctx context.Context) (bytes int64) {
	for ctx.Err() == nil {
		r, err := n.ReadLog(ctx, broker.ReadRequest{Topic: "cold", From: -1, To: -1})
		if err != nil {
			b.Error(err)
			return bytes
		}
		for {
			recs, err := r.Next(ctx)
			if err != nil {
				if !errors.Is(err, io.EOF) && ctx.Err() == nil {
					b.Error(err)
					_ = r.Close()
					return bytes
				}
				break
			}
			for i := range recs {
				bytes += int64(len(recs[i].Value))
			}
		}
		if err := r.Close(); err != nil {
			b.Error(err)
		}
	}
	return bytes
}

// hotWork produces, consumes and acks records at the rate and returns the 99th
// percentiles.
func hotWork(b *testing.B, n *node.Node) (produce, consume time.Duration) {
	ctx := context.Background()
	noise := make([]byte, 1<<20) // values are windows of it, so that no batch gets smaller
	_, _ = rand.NewChaCha8([32]byte{4}).Read(noise)
	var mu sync.Mutex
	var produced, consumed []time.Duration
	begin := time.Now()
	var wg sync.WaitGroup
	const every = time.Second * besideWorkers / besideRate
	for w := range besideWorkers {
		wg.Go(func() {
			var p, c []time.Duration
			for due := begin.Add(every * time.Duration(w) / besideWorkers); due.Sub(begin) < besideFor; due = due.Add(every) {
				<-time.After(time.Until(due))
				at := rand.IntN(len(noise) - recordBytes)
				value := noise[at : at+recordBytes]
				if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "hot", Records: []broker.NewRecord{{Partition: 0, Value: value}}}); err != nil {
					b.Error(err)
					return
				}
				p = append(p, time.Since(due))
				asked := time.Now()
				got, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "hot", Partition: -1, Max: 1, Wait: time.Second})
				if err != nil || len(got) != 1 {
					b.Errorf("%d records: %v", len(got), err)
					return
				}
				c = append(c, time.Since(asked))
				if errs, err := n.Settle(ctx, broker.SettleRequest{Topic: "hot", Action: broker.SettleAck, Handles: []string{got[0].Handle}}); err != nil || errors.Join(errs...) != nil {
					b.Error(errs, err)
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			produced, consumed = append(produced, p...), append(consumed, c...)
		})
	}
	wg.Wait()
	p99 := func(all []time.Duration) time.Duration {
		slices.Sort(all)
		return all[len(all)*99/100]
	}
	if len(produced) == 0 {
		b.Fatal("nothing was produced")
	}
	return p99(produced), p99(consumed)
}
