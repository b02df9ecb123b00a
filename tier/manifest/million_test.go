package manifest

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	million     = 1_000_000
	millionSeq  = 20_000 // of the entry with the checkpoint
	millionOpen = 2 * time.Second
	millionHeap = 64 << 20
)

// storedPages are the pages of a large chain that are in the store; the others
// are only named, as they would be, and never read by these tests.
var storedPages = []int{0, 1, 77, 250, 251, 252, 400, 487}

// hugeChain puts the checkpoint of a chain of a million segments of ten records
// into a store, as publishing them one by one would have, with some of its pages.
func hugeChain(t testing.TB, f *faulty) {
	t.Helper()
	put := func(key string, stored []byte) {
		t.Helper()
		if err := f.Store.Put(context.Background(), key, bytes.NewReader(stored), int64(len(stored)), objstore.PutOptions{CreateOnly: true}); err != nil {
			t.Fatal(err)
		}
	}
	segs := func(from, to int64) (out []Segment) {
		for i := from; i < to; i++ {
			out = append(out, testSegment(10*i, 10*i+10, 1, uint32(i)))
		}
		return out
	}
	fence := Fence{ClusterGeneration: 1, Generation: 1, Incarnation: testOwner(1).Incarnation}
	cp := &Checkpoint{End: 10 * million, Fences: []Fence{fence}}
	const pages = million / PageSegments
	for p := range int64(pages) {
		first, end := p*PageSegments, (p+1)*PageSegments
		ref := PageRef{Base: 10 * first, Next: 10 * end, MaxTimestamp: 10_000 * end, MaxAppend: 10_000 * end, SHA256: Hash{1, byte(p), byte(p >> 8)}}
		one := testSegment(0, 10, 1, 0)
		ref.Totals = Totals{Segments: PageSegments, Records: 10 * PageSegments, Bytes: one.Bytes * PageSegments}
		if slices.Contains(storedPages, int(p)) {
			stored, real, err := EncodePage(&Page{Partition: testPID, Segments: segs(first, end)})
			if err != nil {
				t.Fatal(err)
			}
			ref.SHA256 = real.SHA256
			if ref != real {
				t.Fatalf("page %d is %+v, the test says %+v", p, real, ref)
			}
			put(PageKey(testPID, ref.Base, ref.SHA256), stored)
		}
		cp.Pages = append(cp.Pages, ref)
		cp.Totals = Totals{cp.Totals.Segments + ref.Totals.Segments, cp.Totals.Records + ref.Totals.Records, cp.Totals.Bytes + ref.Totals.Bytes}
	}
	for _, x := range segs(pages*PageSegments, million) {
		cp.Segments = append(cp.Segments, x)
		cp.Totals = cp.Totals.plus(x)
	}
	add := testSegment(10*million, 10*million+10, 1, million)
	e := &Entry{Partition: testPID, Seq: millionSeq, Owner: testOwner(1), Nonce: 1, TimeMS: 1, Previous: Hash{9}, Checkpoint: millionSeq,
		Ops: []Op{{Checkpoint: cp}, {Add: &add}}}
	obj, err := encode(e.wire())
	if err != nil {
		t.Fatal(err)
	}
	put(EntryKey(testPID, millionSeq), obj.stored)
}

// heap returns the bytes that live on the heap.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools kept goes with the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A chain of a million segments opens within the bound with a handful of reads,
// answers by offset and by time from pages that are read when they are needed, a
// few of which stay in memory, and takes further segments and trims. A time later
// than all records costs no read (B125).
func TestMillionSegments(t *testing.T) {
	ctx := context.Background()
	f := newFaulty()
	hugeChain(t, f)
	before := heap()
	begin := time.Now()
	c := mustLoad(t, f, millionSeq)
	bound := millionOpen
	if os.Getenv("TIDEMARK_STRICT") == "" {
		bound *= 3 // a busy machine, the race detector
	}
	if took := time.Since(begin); took > bound {
		t.Errorf("the chain opened within %s, want %s", took, bound)
	} else {
		t.Logf("opened within %s", took)
	}
	if calls := f.take(); len(calls) > 3 {
		t.Errorf("%d reads to open the chain", len(calls))
	}
	if c.Len() != million+1 || c.End() != 10*million+10 {
		t.Fatalf("%d segments to %d", c.Len(), c.End())
	}
	for round := range 3 {
		for _, p := range storedPages {
			first := int64(p) * PageSegments
			for _, o := range []int64{10 * first, 10*first + 5_555, 10*(first+PageSegments) - 1} {
				l, err := c.Find(ctx, o)
				if err != nil || l.Kind != InSegment || l.Segment.Base != o/10*10 {
					t.Fatalf("offset %d: %+v %v", o, l, err)
				}
				if l, err = c.FindTime(ctx, 0, 1000*o+1); err != nil || l.Segment.Base != o/10*10 {
					t.Fatalf("time of offset %d: %+v %v", o, l, err)
				}
			}
		}
		if reads := len(f.take()); reads > len(storedPages) {
			t.Errorf("round %d: %d reads for %d pages", round, reads, len(storedPages))
		}
	}
	for _, o := range []int64{10*million - 1, 10*million + 9} {
		if l, err := c.Find(ctx, o); err != nil || l.Segment.Base != o/10*10 {
			t.Errorf("offset %d: %+v %v", o, l, err)
		}
	}
	if l, err := c.FindTime(ctx, 0, 1000*(10*million+10)+1); err != nil || l.Kind != Beyond {
		t.Errorf("a time after all: %+v %v", l, err)
	}
	if calls := f.take(); len(calls) != 0 {
		t.Errorf("lookups at the end and after it read %q", calls)
	}
	for i := int64(million + 1); i < million+600; i++ {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
	}
	if used := int64(heap()) - int64(before); used > millionHeap {
		t.Errorf("the chain keeps %d bytes, the bound is %d", used, millionHeap)
	}
	dropped, err := c.Trim(ctx, testOwner(1), 10*PageSegments+5)
	if err != nil || len(dropped) != PageSegments || c.Start() != 10*PageSegments+5 {
		t.Errorf("trim: %d dropped, start %d: %v", len(dropped), c.Start(), err)
	}
	d := mustLoad(t, f, c.Seq())
	if d.Len() != c.Len() || d.Start() != c.Start() || d.Totals() != c.Totals() {
		t.Errorf("read again: %d segments from %d, want %d from %d", d.Len(), d.Start(), c.Len(), c.Start())
	}
	runtime.KeepAlive(c)
}

// Publishing on a chain of a million segments costs at most twice what it costs on
// one that is empty in the beginning: over whole periods of checkpoints, in turns,
// by the median of the rounds. The machine may be busy, so the test is generous;
// TIDEMARK_STRICT=1 asks for the target itself.
func TestPublishOnAMillion(t *testing.T) {
	bound := 4.0
	if os.Getenv("TIDEMARK_STRICT") != "" {
		bound = 2
	}
	rounds := 5
	if testing.Short() {
		rounds = 3
	}
	huge, small := newFaulty(), newFaulty()
	hugeChain(t, huge)
	long, short := mustLoad(t, huge.Store, millionSeq), mustLoad(t, small.Store, 0)
	mustFence(t, short, 1, FenceParams{})
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	publish := func(c *Chain) time.Duration {
		begin := time.Now()
		for range 2 * checkpointAge {
			at := c.End()
			mustAdd(t, c, 1, testSegment(at, at+10, 1, uint32(at)))
		}
		return time.Since(begin)
	}
	var ratios []float64
	for range rounds {
		s, l := publish(short), publish(long)
		ratios = append(ratios, float64(l)/float64(s))
	}
	slices.Sort(ratios)
	t.Logf("a million / empty: %.2f (%.2f to %.2f)", ratios[rounds/2], ratios[0], ratios[rounds-1])
	if ratios[rounds/2] > bound {
		t.Errorf("publishing on a million segments costs %.2f times as much as on an empty chain, want at most %.1f", ratios[rounds/2], bound)
	}
}

// Chains that share a cache of pages keep no more of them than its bound, and each
// finds its own; the page used last stays.
func TestSharedPages(t *testing.T) {
	ctx := context.Background()
	pages := NewPages(4)
	f := newFaulty()
	hugeChain(t, f)
	for range 3 { // as three partitions would
		c, err := Load(ctx, f, testPID, millionSeq, WithPages(pages))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range storedPages {
			o := int64(p)*PageSegments*10 + 7
			if l, err := c.Find(ctx, o); err != nil || l.Segment.Base != o/10*10 {
				t.Fatalf("offset %d: %+v %v", o, l, err)
			}
			if n := pages.Len(); n > 4 {
				t.Fatalf("%d pages are kept, the bound is 4", n)
			}
		}
		f.take()
		if _, err := c.Find(ctx, int64(storedPages[len(storedPages)-1])*PageSegments*10); err != nil || len(f.take()) != 0 {
			t.Errorf("the page used last was read again: %v", err)
		}
	}
}
