package cold

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// follow reads segments to their end as one reader, and tells watch of each batch.
func follow(t *testing.T, c *Cache, segs []manifest.Segment, watch func()) {
	t.Helper()
	ctx := context.Background()
	r, err := c.Open(ctx, segs[0])
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(segs[0].Base)
	defer func() { b.Close() }()
	for i := range segs {
		if i+1 < len(segs) {
			b.Follow(segs[i+1])
		}
		for {
			_, _, err := b.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			watch()
		}
		if i+1 < len(segs) {
			if b, err = b.Continue(ctx, segs[i].Next); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A reader at speed asks for 8 MiB at a time, also across the border of two
// segments: what costs a store is the request. Only the beginning, which somebody
// waits for, and the end of each segment are smaller.
func TestWholeRequests(t *testing.T) {
	st := newStore()
	var segs []manifest.Segment
	for i := range int64(3) {
		s, _ := archived(t, st, 1000*i, repeat(35, ChunkSize)...)
		segs = append(segs, s)
	}
	c := open(t, crash.NewFS(), st, nil)
	follow(t, c, segs, func() {})
	whole, other := 0, 0
	for _, g := range st.gets() {
		switch {
		case g.size > maxGet*ChunkSize:
			t.Errorf("a request of %d bytes", g.size)
		case g.size == maxGet*ChunkSize:
			whole++
		default:
			other++
		}
	}
	// Per segment four, but for the first one, which begins small; besides an index and a rest each.
	if whole < 10 || other > 2*len(segs)+4 {
		t.Errorf("%d whole requests and %d smaller ones: %v", whole, other, st.gets())
	}
}

// One reader may be far ahead, but not when readers together hold much of what all
// may hold: then there is as much for the next.
func TestWindow(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(100, ChunkSize)...)
	for _, x := range []struct{ all, least, most int64 }{{1 << 30, 56 << 20, 64 << 20}, {48 << 20, 28 << 20, 40 << 20}} {
		c := open(t, crash.NewFS(), st, func(c *Config) { c.AheadBytes, c.MaxBytes = x.all, 1 })
		peak := int64(0)
		follow(t, c, []manifest.Segment{seg}, func() { peak = max(peak, c.ahead.Load()) })
		if peak < x.least || peak > x.most {
			t.Errorf("%d bytes were ahead with %d for all, want %d to %d", peak, x.all, x.least, x.most)
		}
		settle(t, c)
		if n := c.ahead.Load(); n != 0 {
			t.Errorf("%d bytes of read-ahead are not given back", n)
		}
	}
}

// A disk that stands still holds up to writeBytes of downloads and no reader. What
// came beyond that is not kept; what waits is written once the disk goes on.
func TestStandingDisk(t *testing.T) {
	gate := make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(gate) }) }
	fs := errorfs.Wrap(crash.NewFS(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate {
			<-gate
		}
		return nil
	}))
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(112, ChunkSize)...)
	reg := prometheus.NewRegistry()
	c := open(t, fs, st, func(c *Config) { c.Registry = reg })
	t.Cleanup(release) // before the cache is closed
	read := make(chan struct{})
	go func() {
		defer close(read)
		follow(t, c, []manifest.Segment{seg}, func() {
			if n := c.unsaved.Load(); n > writeBytes+ChunkSize*int64(c.cfg.Concurrency) {
				t.Errorf("%d bytes wait for the disk", n)
			}
		})
	}()
	select {
	case <-read:
	case <-time.After(20 * time.Second):
		t.Fatal("a reader waits for the disk")
	}
	waiting := c.unsaved.Load()
	if unkept := value(t, reg, "tidemark_cold_chunk_unkept_total"); waiting > writeBytes || waiting < writeBytes-2*maxGet*ChunkSize || unkept == 0 {
		t.Errorf("%d bytes wait for the disk, %v chunks are not kept", waiting, unkept)
	}
	release()
	settle(t, c)
	// Those of a file that the bound has cut short went as well.
	unkept := value(t, reg, "tidemark_cold_chunk_unkept_total")
	if n, _ := c.Usage(); float64(n)+unkept != float64(chunksIn(seg.DataLength)) {
		t.Errorf("%d chunks are kept and %v not, of %d", n, unkept, chunksIn(seg.DataLength))
	}
	if n := c.unsaved.Load(); n != 0 {
		t.Errorf("%d bytes still count as waiting", n)
	}
}

// value is the value of a counter.
func value(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("nothing counts %s", name)
	return 0
}
