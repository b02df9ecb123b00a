package node

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// testChains is a node's chains over a bucket, in at most so many bytes.
func testChains(store objstore.Store, most int64) *chains {
	return &chains{
		whose: func() error { return nil }, wait: func(context.Context) error { return nil },
		store: store, cluster: 1, node: "n1", incarnation: 7, pages: manifest.NewPages(chainPages), most: most,
		assignment: func(broker.PartitionID) (raftmeta.Assignment, bool) {
			return raftmeta.Assignment{Owner: "n1", OwnerIncarnation: 7, Generation: 1}, true
		},
		hint: func(broker.PartitionID) uint64 { return 0 },
		m:    map[broker.PartitionID]*chainSlot{},
	}
}

func chainID(i int) broker.PartitionID { return broker.PartitionID{Topic: 1, Partition: uint32(i)} }

// archivedSegment lists records [base, base+1).
func archivedSegment(id broker.PartitionID, base int64) manifest.Segment {
	return manifest.Segment{
		Partition: id, Base: base, Next: base + 1, Records: 1, Bytes: 300, DataLength: 100, FooterPosition: 140, FooterLength: 160,
		FirstGeneration: 1, LastGeneration: 1, Generation: 1, Nonce: uint32(base), OriginTopic: 1,
	}
}

// archivePartitions fills the bucket with n partitions of per segments that are in no page.
func archivePartitions(t *testing.T, store objstore.Store, n, per int) {
	t.Helper()
	ctx := context.Background()
	owner := manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: 7, Node: "n1"}
	for i := range n {
		chain, err := manifest.Load(ctx, store, chainID(i), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := chain.Fence(ctx, owner, manifest.FenceParams{}); err != nil {
			t.Fatal(err)
		}
		segs := make([]manifest.Segment, per)
		for k := range segs {
			segs[k] = archivedSegment(chainID(i), int64(k))
		}
		if err := chain.Add(ctx, owner, segs...); err != nil {
			t.Fatal(err)
		}
	}
}

// loaded says whether the chain stands in memory by the count.
func (c *chains) loaded(id broker.PartitionID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m[id] != nil && c.m[id].place != nil
}

// However many partitions are read and written, the chains in memory stay within
// their bound, those that are used last; an unloaded one comes back as it was, and
// fenced without a new entry (I8, I12). The test says what a chain takes.
func TestLoadedChainsAreBounded(t *testing.T) {
	const n, per, most = 200, 400, 8 << 20
	store := mem.New("chains", nil)
	archivePartitions(t, store, n, per)
	calls := count.New(store)
	c := testChains(calls, most)
	ctx := context.Background()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	first, err := c.load(ctx, chainID(0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := c.load(ctx, chainID(i)); err != nil {
			t.Fatal(err)
		}
		if got := c.resident(); got > most {
			t.Fatalf("%d bytes of chains, %d are the most", got, most)
		}
	}
	loaded := c.order.Len()
	took := heap() - before
	t.Logf("%d partitions of %d segments: %d chains stay loaded in %.1f MiB of heap, %d bytes a chain by count, %d by heap",
		n, per, loaded, float64(took)/(1<<20), c.resident()/int64(loaded), took/int64(loaded))
	if loaded == n || loaded < n/10 || took > most*3/2 {
		t.Fatalf("%d of %d chains are loaded, in %d bytes", loaded, n, took)
	}
	if c.loaded(chainID(0)) || !c.loaded(chainID(n-1)) {
		t.Fatal("not the last used ones stayed")
	}
	// What retention, the scrubber and the metrics ask stays known, and costs nothing.
	calls.Reset()
	for i := range n {
		s, ok := c.summary(chainID(i))
		if !ok || s.Start != 0 || s.End != per || s.Seq != 2 || s.Totals.Segments != per || s.Totals.Bytes != 300*per {
			t.Fatalf("partition %d: %+v, %v", i, s, ok)
		}
		if got, _, ok := c.fenced(chainID(i)); ok {
			t.Fatalf("partition %d is fenced, with chain %v", i, got)
		}
	}
	if got := calls.Count("get"); got != 0 {
		t.Fatalf("%d GETs for numbers that are known", got)
	}
	// Who still has an unloaded one shares it with whoever asks next.
	again, _, err := c.owned(ctx, chainID(0))
	if err != nil || again != first {
		t.Fatalf("a second chain of one partition: %v", err)
	}
	runtime.KeepAlive(first)
	// One that nobody has comes back from the bucket: two entries, and none after.
	calls.Reset()
	back, owner, err := c.owned(ctx, chainID(1))
	if err != nil || back.Seq() != 2 || back.Len() != per || owner.Generation != 1 {
		t.Fatalf("seq %d, %d segments: %v", back.Seq(), back.Len(), err)
	}
	if get, rest := calls.Count("get"), calls.Count("put")+calls.Count("list")+calls.Count("head"); get > 3 || rest > 0 {
		t.Fatalf("an unloaded chain comes back with %d GETs and %d other requests", get, rest)
	}
	if got, _, ok := c.fenced(chainID(1)); !ok || got != back {
		t.Fatal("a chain that is loaded and fenced is not found")
	}
	c.forget(1)
	if c.resident() != 0 || c.order.Len() != 0 || len(c.m) != 0 {
		t.Fatalf("%d bytes, %d chains of a topic that is gone", c.resident(), c.order.Len())
	}
}

// Writers, readers and the collector of memory beside chains of which two or three
// fit: there is one chain of a partition at a time, so that each entry is put once
// and never meets another of its own owner, and nobody sees an end that falls (I3, I8).
func TestChainIsOneWhileItIsUnloadedAndUsed(t *testing.T) {
	const n, writers, appends = 12, 6, 60
	calls := count.New(mem.New("chains", nil))
	c := testChains(calls, 4<<10)
	var added [n]atomic.Int64 // appends of each partition
	var turn [n]sync.Mutex    // as the uploader, one for each partition
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	var work, around sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for range appends {
				if rng.IntN(3) == 0 {
					runtime.GC() // the unloaded ones that nobody has go
				}
				i := rng.IntN(n)
				turn[i].Lock()
				chain, owner, err := c.owned(ctx, chainID(i))
				if err == nil {
					err = chain.Add(ctx, owner, archivedSegment(chainID(i), added[i].Load()))
				}
				if err == nil {
					added[i].Add(1)
				}
				turn[i].Unlock()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for r := range 3 {
		around.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(r)))
			var seen [n]int64
			for ctx.Err() == nil {
				select {
				case <-done:
					return
				default:
				}
				i := rng.IntN(n)
				least := added[i].Load()
				chain, err := c.load(ctx, chainID(i))
				if err != nil {
					t.Error(err)
					return
				}
				s, ok := c.summary(chainID(i))
				if end := chain.End(); end < least || end < seen[i] || !ok || s.End < least {
					t.Errorf("partition %d ends at %d, by its summary at %d, before at %d and %d", i, end, s.End, seen[i], least)
				} else {
					seen[i] = end
				}
				c.fenced(chainID(i))
			}
		})
	}
	work.Wait()
	close(done)
	around.Wait()
	for i := range n { // by now at the latest they come and go: a machine may have had no time for a collection
		runtime.GC()
		if _, err := c.load(ctx, chainID(i)); err != nil {
			t.Fatal(err)
		}
	}
	fences := 0
	for i := range n {
		fresh, err := manifest.Load(context.Background(), calls, chainID(i), 0)
		if err != nil || fresh.End() != added[i].Load() {
			t.Fatalf("partition %d ends at %d, %d were appended: %v", i, fresh.End(), added[i].Load(), err)
		}
		if fresh.Seq() > 0 {
			fences++
		}
	}
	if got, want := calls.Count("put"), writers*appends+fences; got != want {
		t.Fatalf("%d PUTs for %d entries: two chains of one partition met", got, want)
	}
	if c.loads.Load() <= n {
		t.Fatal("nothing was unloaded")
	}
}

// An entry whose answer was lost is in the bucket and not in the chain. The chain
// may be unloaded then: the next that is loaded has the entry, and the call that
// is made again finds it (I8).
func TestChainUnloadedBehindALostAnswer(t *testing.T) {
	store := mem.New("chains", nil)
	bad := fault.New(store, fault.Options{})
	c := testChains(bad, 1) // one at a time
	id, ctx := chainID(0), context.Background()
	chain, owner, err := c.owned(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	lost := bad.Add(fault.Rule{Ops: []string{fault.Put}, Do: fault.LoseAnswer})
	deaf := bad.Add(fault.Rule{Ops: []string{fault.Get}, Do: fault.Fail})
	if err := chain.Add(short, owner, archivedSegment(id, 0)); err == nil || lost.Hits() == 0 || deaf.Hits() == 0 {
		t.Fatalf("the answer was not lost: %v", err)
	}
	if chain.End() != 0 {
		t.Fatal("the chain has an entry that nobody confirmed")
	}
	bad.Clear()
	chain = nil
	if _, err := c.load(ctx, chainID(1)); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	if c.loaded(id) {
		t.Fatal("the chain is loaded still")
	}
	chain, owner, err = c.owned(ctx, id)
	if err != nil || chain.End() != 1 {
		t.Fatalf("the chain ends at %d: %v", chain.End(), err)
	}
	for base := range int64(2) {
		if err := chain.Add(ctx, owner, archivedSegment(id, base)); err != nil {
			t.Fatal(err)
		}
	}
	if chain.Len() != 2 || chain.Seq() != 3 {
		t.Fatalf("%d segments in %d entries", chain.Len(), chain.Seq())
	}
}

// An entry that this process had read whole, and that does not read when its chain
// comes back, is damage: it is refused and never passed for a put that the store
// tore, whoever moved the chain last, loaded or not (I7, I8).
func TestUnloadedChainKnowsWhatWasRead(t *testing.T) {
	store := mem.New("chains", nil)
	c := testChains(store, 1)
	id, ctx := chainID(0), context.Background()
	chain, owner, err := c.owned(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.load(ctx, chainID(1)); err != nil { // unloads the first, which is used
		t.Fatal(err)
	}
	if err := chain.Add(ctx, owner, archivedSegment(id, 0)); err != nil {
		t.Fatal(err)
	}
	if s, ok := c.summary(id); !ok || s.Seq != 2 || s.End != 1 {
		t.Fatalf("the summary of a chain that is used says %+v", s)
	}
	runtime.KeepAlive(chain)
	chain = nil
	for range 3 {
		runtime.GC()
	}
	rot(t, store, manifest.EntryKey(id, 2))
	if chain, _, err = c.owned(ctx, id); err == nil || !errcode.Is(err, errcode.ArchiveUnavailable) && !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("a damaged entry was passed: %v, %v", chain, err)
	}
}

// rot replaces an object by half of it, behind the node's back.
func rot(t *testing.T, store *mem.Store, key string) {
	t.Helper()
	ctx := context.Background()
	data, _, err := objstore.ReadAll(ctx, store, key, 1<<20)
	if err == nil {
		err = store.Put(ctx, key, bytes.NewReader(data[:len(data)/2]), int64(len(data)/2), objstore.PutOptions{})
	}
	if err != nil {
		t.Fatalf("damage %s: %v", key, err)
	}
}
