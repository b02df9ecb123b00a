package manifest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// count returns the calls by their first word.
func count(calls []string) map[string]int {
	n := make(map[string]int)
	for _, c := range calls {
		op, _, _ := strings.Cut(c, " ")
		n[op]++
	}
	return n
}

// Publishing costs one PUT and the GET that reads it back, and no LIST or HEAD; finding the end with a
// fresh hint costs two GETs, on a chain of one entry all that there is.
func TestRequestsPerPublish(t *testing.T) {
	f := newFaulty()
	c := mustLoad(t, f, 0)
	if got := count(f.take()); got["GET"] != 1 {
		t.Errorf("load of an empty chain: %v, want one GET", got)
	}
	mustFence(t, c, 1, FenceParams{})
	if got := count(f.take()); got["PUT"] != 1 || got["GET"] != 1 || len(got) != 2 {
		t.Errorf("fence: %v, want one PUT and one GET", got)
	}
	mustLoad(t, f, c.Seq())
	if got := count(f.take()); got["GET"] != 2 || len(got) != 1 {
		t.Errorf("load with a fresh hint: %v, want two GETs", got)
	}
	for i := range int64(600) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
		if got := count(f.take()); got["PUT"] != 1 || got["GET"] != 1 || len(got) != 2 {
			t.Fatalf("add %d: %v, want one PUT and one GET", i, got)
		}
	}
	l := loader{store: f, pid: testPID, have: map[uint64]loaded{}}
	if end, err := l.findEnd(context.Background(), c.Seq()); err != nil || end != c.Seq() {
		t.Fatalf("end %d: %v", end, err)
	}
	if got := count(f.take()); got["GET"] != 2 || len(got) != 1 {
		t.Errorf("the end with a fresh hint: %v, want two GETs", got)
	}
	mustLoad(t, f, c.Seq())
	if got := count(f.take()); got["GET"] > 2+checkpointAge || len(got) != 1 {
		t.Errorf("load with a fresh hint: %v", got)
	}
	mustLoad(t, f, 0)
	if got := count(f.take()); got["GET"] > 2*10+2+checkpointAge || len(got) != 1 {
		t.Errorf("load without a hint: %v", got)
	}
	// A short chain loads in a few reads: its checkpoints are frequent.
	f = newFaulty()
	c = mustLoad(t, f, 0)
	mustFence(t, c, 1, FenceParams{})
	worst := 0
	for i := range int64(10) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
		f.take()
		mustLoad(t, f, c.Seq())
		worst = max(worst, len(f.take()))
	}
	if worst > 10 {
		t.Errorf("a chain of at most 10 segments took %d reads to load", worst)
	}
}

// build appends n segments, 64 an entry.
func build(t testing.TB, c *Chain, n int64) {
	t.Helper()
	for i := int64(0); i < n; {
		var segs []Segment
		for ; i < n && len(segs) < 64; i++ {
			segs = append(segs, testSegment(10*i, 10*i+10, 1, uint32(i)))
		}
		mustAdd(t, c, 1, segs...)
	}
}

// A chain of 10,000 segments loads fast, answers from its pages, and publishing
// on it costs no more than on a short one.
func TestTenThousandSegments(t *testing.T) {
	ctx := context.Background()
	f := newFaulty()
	c := mustLoad(t, f, 0)
	mustFence(t, c, 1, FenceParams{})
	build(t, c, 10_000)
	f.take()
	begin := time.Now()
	d := mustLoad(t, f, c.Seq())
	if took, gets := time.Since(begin), len(f.take()); took > 2*time.Second || gets > 2+checkpointAge {
		t.Errorf("load took %s and %d reads", took, gets)
	}
	if d.Len() != 10_000 || d.End() != 100_000 || len(d.Pages()) < 3 {
		t.Fatalf("%d segments to %d in %d pages", d.Len(), d.End(), len(d.Pages()))
	}
	for _, o := range []int64{0, 20_479, 20_480, 55_555, 99_999} {
		if l, err := d.Find(ctx, o); err != nil || l.Segment.Base != o/10*10 {
			t.Errorf("offset %d: %+v %v", o, l, err)
		}
	}
	segs, err := d.Segments(ctx, 0, d.End())
	if err != nil || len(segs) != 10_000 {
		t.Fatalf("%d segments: %v", len(segs), err)
	}
	f.take()
	// Over one checkpoint period, what is written per segment stays small.
	bytes := 0
	for i := int64(10_000); i < 10_256; i++ {
		mustAdd(t, d, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
	}
	for _, call := range f.take() {
		_, key, _ := strings.Cut(call, " ")
		info, err := f.Store.Head(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		bytes += int(info.Size)
	}
	if per := bytes / 256; per > 4<<10 {
		t.Errorf("%d bytes of manifest for each segment", per)
	}
	// A trim of nearly everything goes page by page and names every object.
	dropped := 0
	for d.Start() < 99_990 {
		out, err := d.Trim(ctx, testOwner(1), 99_990)
		if err != nil {
			t.Fatal(err)
		}
		dropped += len(out)
	}
	if dropped != 9_999 || d.Len() != 10_256-9_999 {
		t.Errorf("%d dropped, %d left", dropped, d.Len())
	}
}

// The cost of an append by the length of the chain.
func BenchmarkAdd(b *testing.B) {
	for _, n := range []int64{0, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFaulty()
			c := mustLoad(b, f.Store, 0)
			mustFence(b, c, 1, FenceParams{})
			build(b, c, n)
			b.ReportAllocs()
			i := n
			for b.Loop() {
				mustAdd(b, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
				i++
			}
		})
	}
}
