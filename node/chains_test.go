package node

import (
	"context"
	"runtime"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// loadedChains is a node's chains over a bucket with n partitions, each of per
// segments in no page.
func loadedChains(t *testing.T, n, per int) (*chains, []broker.PartitionID) {
	t.Helper()
	ctx := context.Background()
	store := mem.New("chains", nil)
	c := &chains{
		store: store, cluster: 1, node: "n1", incarnation: 7, pages: manifest.NewPages(chainPages),
		assignment: func(broker.PartitionID) (raftmeta.Assignment, bool) {
			return raftmeta.Assignment{Owner: "n1", OwnerIncarnation: 7, Generation: 1}, true
		},
		hint: func(broker.PartitionID) uint64 { return 0 },
		m:    map[broker.PartitionID]*chainSlot{},
	}
	ids := make([]broker.PartitionID, n)
	for i := range ids {
		ids[i] = broker.PartitionID{Topic: 1, Partition: uint32(i)}
		chain, err := manifest.Load(ctx, store, ids[i], 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := chain.Fence(ctx, c.owner(1), manifest.FenceParams{}); err != nil {
			t.Fatal(err)
		}
		var segs []manifest.Segment
		for k := range int64(per) {
			segs = append(segs, manifest.Segment{
				Partition: ids[i], Base: k, Next: k + 1, Records: 1, Bytes: 300, DataLength: 100, FooterPosition: 140, FooterLength: 160,
				FirstGeneration: 1, LastGeneration: 1, Generation: 1, Nonce: uint32(k), OriginTopic: 1,
			})
		}
		if err := chain.Add(ctx, c.owner(1), segs...); err != nil {
			t.Fatal(err)
		}
	}
	return c, ids
}

// However many partitions are read and written, the chains in memory stay within
// their bound, those that are used last; an unloaded one comes back as it was, and
// fenced without a new entry (I8, I12). The test says what a chain takes.
func TestLoadedChainsAreBounded(t *testing.T) {
	const per = 500
	n := 3000
	if testing.Short() {
		n = 700
	}
	c, ids := loadedChains(t, n, per)
	ctx := context.Background()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	first, err := c.load(ctx, ids[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if _, err := c.load(ctx, id); err != nil {
			t.Fatal(err)
		}
		if c.bytes > chainMemory {
			t.Fatalf("%d bytes of chains, %d are the most", c.bytes, int64(chainMemory))
		}
	}
	loaded := c.order.Len()
	took := heap() - before
	t.Logf("%d partitions of %d segments: %d chains stay loaded in %.1f MiB of heap, %d bytes a chain by count, %d by heap",
		n, per, loaded, float64(took)/(1<<20), c.bytes/int64(loaded), took/int64(loaded))
	if loaded == n || loaded < n/20 || took > chainMemory*3/2 {
		t.Fatalf("%d of %d chains are loaded, in %d bytes", loaded, n, took)
	}
	if c.known(ids[0]) != nil || c.known(ids[n-1]) == nil {
		t.Fatal("not the last used ones stayed")
	}
	// Who still has an unloaded one shares it with whoever asks next.
	again, _, err := c.owned(ctx, ids[0])
	if err != nil || again != first {
		t.Fatalf("a second chain of one partition: %v", err)
	}
	runtime.KeepAlive(first)
	// One that nobody has comes back from the bucket.
	back, owner, err := c.owned(ctx, ids[1])
	if err != nil || back.Seq() != 2 || back.Len() != per || owner.Generation != 1 {
		t.Fatalf("seq %d, %d segments: %v", back.Seq(), back.Len(), err)
	}
	c.forget(1)
	if c.bytes != 0 || c.order.Len() != 0 || len(c.m) != 0 {
		t.Fatalf("%d bytes, %d chains of a topic that is gone", c.bytes, c.order.Len())
	}
}
