package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/objstore"
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
		for round := range rounds(besideRounds) {
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
	dir := b.TempDir()
	noise := rand.NewChaCha8([32]byte{3})
	var recs []broker.NewRecord
	for range 64 {
		v := make([]byte, 8<<10)
		_, _ = noise.Read(v[:6<<10])
		recs = append(recs, broker.NewRecord{Partition: 0, Value: v})
	}
	return archivedNode(b, fileStore(b), node.Options{Dir: filepath.Join(dir, "data")}, recs, sized(besideArchived))
}

// archivedNode is a node with a topic "cold" of the records again and again, bytes
// of values in all, that are in the store and not on the node's disk any more, and
// an empty topic "hot".
func archivedNode(b *testing.B, st objstore.Store, o node.Options, recs []broker.NewRecord, bytes int) *node.Node {
	b.Helper()
	ctx := context.Background()
	o.NodeID, o.RaftAddr, o.Archive = "node-1", "127.0.0.1:0", st
	o.SegmentBytes, o.SealAge, o.SealMinBytes, o.CacheBytes, o.DiskReserve = 16<<20, time.Second, 1, 8<<20, 1
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
	last, end := broker.AckAccepted, int64(0)
	for left := bytes; left > 0; {
		for _, r := range recs {
			left -= len(r.Value)
		}
		if left <= 0 {
			last = broker.AckArchived
		}
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "cold", Records: recs, Ack: last}); err != nil {
			b.Fatal(err)
		}
		end += int64(len(recs))
	}
	// Sealed by age, all of it: then the bucket has every record in a segment.
	deadline := time.Now().Add(time.Minute)
	for to := int64(0); to < end; {
		if _, to = archivedSegments(b, st); to < end && time.Now().After(deadline) {
			b.Fatalf("of %d records those from offset %d on are in no segment in the bucket", end, to)
		}
		<-time.After(50 * time.Millisecond)
	}
	if err := n.Close(); err != nil {
		b.Fatal(err)
	}
	local, err := filepath.Glob(filepath.Join(o.Dir, "topics", "*", "*", "*.seg"))
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range local {
		if err := os.Remove(path); err != nil {
			b.Fatal(err)
		}
	}
	if n, err = node.Open(ctx, o); err != nil {
		b.Fatal(err)
	}
	return n
}

// archivedSegments returns the bytes of all segments in the store, and up to which
// offset they go.
func archivedSegments(b *testing.B, st objstore.Store) (bytes, to int64) {
	b.Helper()
	page, err := st.List(context.Background(), "t/", "", 0)
	if err != nil || page.More {
		b.Fatalf("list the segments: more than a page is %v, %v", page.More, err)
	}
	for _, o := range page.Objects {
		_, name, ok := strings.Cut(o.Key, "/s/")
		if !ok {
			continue // of the chain
		}
		var base, next int64
		if _, err := fmt.Sscanf(name, "%d-%d-", &base, &next); err != nil {
			b.Fatalf("segment %s: %v", o.Key, err)
		}
		bytes, to = bytes+o.Size, max(to, next)
	}
	return bytes, to
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
			for due := begin.Add(every * time.Duration(w) / besideWorkers); due.Sub(begin) < sized(besideFor); due = due.Add(every) {
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
