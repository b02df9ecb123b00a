package cold

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// The first batch of a segment that nothing is known of costs one round trip and
// not two, and few bytes: a small part of the data is asked for while the index is
// on its way, and is the right one when records are of one size. The chunk behind
// it is asked for and not waited for. What was begun is given back when the index
// is not there.
func TestFirstBatch(t *testing.T) {
	st := newStore()
	seg, data := archived(t, st, 0, repeat(400, 20_000)...)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, from := range []int64{0, 133, 200, 399} {
		c := open(t, crash.NewFS(), st, func(c *Config) { c.MaxBytes = 1 })
		second, given := make(chan struct{}), make(chan struct{})
		first := len(st.gets())
		st.hook = func(ctx context.Context, n int, _ []byte, got int, err error) (int, error) {
			wait := given // chunks come when the first batch was given
			switch n - first {
			case 1: // is answered when the second request is there
				wait = second
			case 2:
				close(second)
				return got, err
			}
			select {
			case <-wait:
			case <-ctx.Done():
			}
			return got, err
		}
		b, err := c.Scan(ctx, seg, from)
		if err != nil {
			t.Fatal(err)
		}
		run, err := b.Run(ctx, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		close(given)
		if h, err := segment.ParseHeader(run.Batches[0]); err != nil || h.BaseOffset != from {
			t.Fatalf("from %d: batch at %d: %v", from, h.BaseOffset, err)
		}
		same(t, run, b.index, data)
		next := run.Next
		run.Release()
		for ; next < seg.Next; run.Release() {
			if run, err = b.Run(ctx, 1<<20); err != nil {
				t.Fatal(err)
			}
			if h, err := segment.ParseHeader(run.Batches[0]); err != nil || h.BaseOffset != next {
				t.Fatalf("from %d: batch at %d after the run up to %d: %v", from, h.BaseOffset, next, err)
			}
			same(t, run, b.index, data)
			next = run.Next
		}
		b.Close()
		settle(t, c)
		small := 0
		for _, k := range st.gets()[first:] {
			if k.off < seg.DataLength && k.size < ChunkSize/4 && k.off%ChunkSize != 0 || k.off == 0 && k.size < ChunkSize {
				small++
			}
		}
		if small != 1 {
			t.Errorf("from %d: %d requests of a small part, want one: %v", from, small, st.gets()[first:])
		}
		if n := c.ahead.Load(); n != 0 {
			t.Errorf("from %d: %d bytes of read-ahead are not given back", from, n)
		}
	}
	st.hook = nil
	lost, _ := archived(t, nil, 1000, repeat(40, 20_000)...)
	c := open(t, crash.NewFS(), st, nil)
	if _, err := c.Scan(ctx, lost, 1005); !errcode.Is(err, errcode.Gone) {
		t.Errorf("scan of a lost segment: %v", err)
	}
	settle(t, c)
	if n := c.ahead.Load(); n != 0 {
		t.Errorf("%d bytes of read-ahead are not given back", n)
	}
}

// A scan that begins with a part that is cut, flipped, refused or the wrong one
// goes on with the chunks: what it serves is right, and all of it.
func TestBadOpening(t *testing.T) {
	sizes := repeat(300, 1_000) // offsets say little about where batches lie
	sizes = append(sizes, repeat(100, 60_000)...)
	seg, data := archived(t, nil, 0, sizes...)
	for name, bad := range map[string]func(p []byte, got int, err error) (int, error){
		"flipped": func(p []byte, got int, err error) (int, error) {
			for i := 100; i < len(p); i += 500 {
				p[i] ^= 1
			}
			return got, err
		},
		"cut":     func(_ []byte, got int, err error) (int, error) { return got / 3, err },
		"refused": func([]byte, int, error) (int, error) { return 0, errcode.New(errcode.Denied, "injected") },
		"good":    func(_ []byte, got int, err error) (int, error) { return got, err },
	} {
		for _, from := range []int64{0, 150, 299, 300, 399} {
			st := newStore()
			if err := st.Put(context.Background(), seg.Key(), bytes.NewReader(data), int64(len(data)), objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			pos, size, ok := whereabouts(&seg, from)
			if !ok {
				t.Fatalf("from %d: a scan would begin with a chunk", from)
			}
			st.hook = func(_ context.Context, n int, p []byte, got int, err error) (int, error) {
				if k := st.gets()[n-1]; k.off == pos && k.size == size {
					return bad(p, got, err)
				}
				return got, err
			}
			c := open(t, crash.NewFS(), st, nil)
			b, err := c.Scan(context.Background(), seg, from)
			if err != nil {
				t.Fatal(err)
			}
			next := from
			for {
				raw, h, err := b.Next(context.Background())
				if errors.Is(err, io.EOF) {
					break
				}
				e := b.index.At(b.index.SeekOffset(next))
				if err != nil || h.BaseOffset != next || !bytes.Equal(raw, data[e.Position:e.End()]) {
					t.Fatalf("%s, from %d: batch at offset %d, want %d: %v", name, from, h.BaseOffset, next, err)
				}
				next++
			}
			if next != seg.Next {
				t.Errorf("%s, from %d: the scan ended at offset %d", name, from, next)
			}
			b.Close()
		}
	}
}

// However many scans begin in a segment that nothing is known of, its index and
// the small part are asked for once; the others share a chunk.
func TestOneOpening(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(400, 20_000)...)
	gate := make(chan struct{})
	st.hook = func(_ context.Context, _ int, _ []byte, got int, err error) (int, error) {
		<-gate
		return got, err
	}
	c := open(t, crash.NewFS(), st, nil)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			b, err := c.Scan(context.Background(), seg, 200)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close()
			if _, h, err := b.Next(context.Background()); err != nil || h.BaseOffset != 200 {
				t.Errorf("batch at offset %d: %v", h.BaseOffset, err)
			}
		})
	}
	for deadline := time.Now().Add(20 * time.Second); len(st.gets()) < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v were asked for", st.gets())
		}
	}
	close(gate)
	wg.Wait()
	settle(t, c)
	counts := make(map[call]int)
	for _, k := range st.gets() {
		if counts[k]++; counts[k] > 1 {
			t.Errorf("%d bytes at %d were asked for twice", k.size, k.off)
		}
	}
	if len(counts) > 4 {
		t.Errorf("%d requests, want index, part, and one or two chunks: %v", len(counts), counts)
	}
}
