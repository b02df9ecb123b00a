package cold

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// A reader that says which segment comes next has its index and its first chunks
// when it gets there, and reads every batch of all segments once and in order.
func TestFollow(t *testing.T) {
	st := newStore()
	var segs []manifest.Segment
	for i := range int64(3) {
		s, _ := archived(t, st, 100*i, repeat(100, 100_000)...)
		segs = append(segs, s)
	}
	c := open(t, crash.NewFS(), st, nil)
	ctx := context.Background()
	r, err := c.Open(ctx, segs[0])
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(0)
	want := int64(0)
	for i := range segs {
		if i+1 < len(segs) {
			b.Follow(segs[0]) // the second call counts
			b.Follow(segs[i+1])
		}
		for {
			run, err := b.Run(ctx, 1<<20)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if want += int64(len(run.Batches)); run.Next != want {
				t.Fatalf("run ends at offset %d, want %d", run.Next, want)
			}
			run.Release()
		}
		if i+1 == len(segs) {
			break
		}
		if len(b.ahead.then.held) < 4 {
			t.Errorf("%d chunks of the next segment are asked for at the end of segment %d", len(b.ahead.then.held), i)
		}
		c.indexes.mu.Lock()
		_, known := c.indexes.mu.known[segs[i+1].Key()]
		_, flying := c.indexes.mu.flights[segs[i+1].Key()]
		c.indexes.mu.Unlock()
		if !known && !flying {
			t.Errorf("the index behind segment %d is not asked for", i)
		}
		old := b
		if b, err = b.Continue(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if _, _, err := old.Next(ctx); !errors.Is(err, io.EOF) {
			t.Errorf("a scan that was continued elsewhere: %v, want EOF", err)
		}
		old.Close() // does nothing to the scan that goes on
	}
	if want != 300 {
		t.Errorf("%d records, want 300", want)
	}
	b.Close()
	settle(t, c)
	if n := c.ahead.Load(); n != 0 {
		t.Errorf("%d bytes of read-ahead are not given back", n)
	}
	var total int64
	for _, k := range st.gets() {
		total += int64(k.size)
	}
	if all := segs[0].Bytes + segs[1].Bytes + segs[2].Bytes; total > all+all/50 {
		t.Errorf("%d bytes were fetched of %d", total, all)
	}
}

// A scan that was followed and is closed early gives everything back; a next
// segment that is not there is the error of Continue, not of the scan before it.
func TestFollowEnds(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(20, 1000)...)
	lost, _ := archived(t, nil, 20, repeat(20, 1000)...)
	c := open(t, crash.NewFS(), st, nil)
	ctx := context.Background()
	r, err := c.Open(ctx, seg)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(0)
	if _, err := b.Continue(ctx, 0); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("continue without a segment: %v", err)
	}
	b.Follow(lost)
	run, err := b.Run(ctx, 1<<20)
	if err != nil || len(run.Batches) != 20 {
		t.Fatalf("%+v: %v", run, err)
	}
	run.Release()
	if _, err := b.Continue(ctx, 0); !errcode.Is(err, errcode.Gone) {
		t.Errorf("continue into a lost segment: %v", err)
	}
	b.Close()
	settle(t, c)
	if n := c.ahead.Load(); n != 0 {
		t.Errorf("%d bytes of read-ahead are not given back", n)
	}
}

// A scan that goes on in a segment which begins below, because a merge put it in
// the place of the scan's own, goes on behind what it has passed; also when nothing
// is left there.
func TestContinueInTheMiddle(t *testing.T) {
	st := newStore()
	small, _ := archived(t, st, 0, repeat(20, 1000)...)
	merged, _ := archived(t, st, 0, repeat(60, 1000)...)
	c := open(t, crash.NewFS(), st, nil)
	ctx := context.Background()
	for _, from := range []int64{0, 20, 33, 59, 60} {
		r, err := c.Open(ctx, small)
		if err != nil {
			t.Fatal(err)
		}
		b := r.Batches(0)
		b.Follow(merged)
		if b, err = b.Continue(ctx, from); err != nil {
			t.Fatal(err)
		}
		_, h, err := b.Next(ctx)
		if from == 60 {
			if !errors.Is(err, io.EOF) {
				t.Errorf("behind the end: %v", err)
			}
		} else if err != nil || h.BaseOffset > from || h.NextOffset() <= from {
			t.Errorf("from %d: offsets %d to %d: %v", from, h.BaseOffset, h.NextOffset(), err)
		}
		b.Close()
	}
	settle(t, c)
}
