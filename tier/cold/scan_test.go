package cold

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The first batch of a segment that nothing is known of costs one round trip and
// not two: the chunk is asked for while the index is on its way, and is the right
// one when records are of one size. Nothing is fetched twice, and what was begun
// is given back when the index is not there.
func TestFirstBatch(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(400, 20_000)...)
	ctx := context.Background()
	for _, from := range []int64{0, 133, 200, 399} {
		c := open(t, vfs.NewMem(), st, func(c *Config) { c.MaxBytes = 1 })
		second := make(chan struct{})
		first := len(st.gets())
		st.hook = func(ctx context.Context, n int, _ []byte, got int, err error) (int, error) {
			switch n - first {
			case 1: // is answered when the second request is there
				select {
				case <-second:
				case <-ctx.Done():
				}
			case 2:
				close(second)
			}
			return got, err
		}
		b, err := c.Scan(ctx, seg, from)
		if err != nil {
			t.Fatal(err)
		}
		if _, h, err := b.Next(ctx); err != nil || h.BaseOffset != from {
			t.Fatalf("from %d: batch at %d: %v", from, h.BaseOffset, err)
		}
		b.Close()
		settle(t, c)
		if n := len(st.gets()) - first; n != 2 {
			t.Errorf("from %d: %d requests for the first batch, want the index and a chunk", from, n)
		}
		if n := c.ahead.Load(); n != 0 {
			t.Errorf("from %d: %d bytes of read-ahead are not given back", from, n)
		}
	}
	st.hook = nil
	lost, _ := archived(t, nil, 1000, repeat(40, 20_000)...)
	c := open(t, vfs.NewMem(), st, nil)
	if _, err := c.Scan(ctx, lost, 1005); !errcode.Is(err, errcode.Gone) {
		t.Errorf("scan of a lost segment: %v", err)
	}
	settle(t, c)
	if n := c.ahead.Load(); n != 0 {
		t.Errorf("%d bytes of read-ahead are not given back", n)
	}
}
