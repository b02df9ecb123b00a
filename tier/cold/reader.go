package cold

import (
	"context"

	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// Reader reads one archived segment. It holds no resource and is safe for
// concurrent use.
type Reader struct {
	cache *Cache
	seg   manifest.Segment
	key   string
	index segment.Index
}

// Segment returns what the chain says about it.
func (r *Reader) Segment() manifest.Segment { return r.seg }

// Index lists the segment's batches.
func (r *Reader) Index() segment.Index { return r.index }

// Batches returns a scan of the batches that hold offsets at or above from. It
// is for one goroutine; Close ends it.
func (r *Reader) Batches(from int64) *Batches {
	return newBatches(newAhead(r.cache, r.seg, r.key), r.index, from)
}

func newBatches(a *ahead, x segment.Index, from int64) *Batches {
	b := &Batches{from: from, next: x.Len(), ahead: a, index: x}
	if from < a.seg.Next {
		b.next = x.SeekOffset(from)
	}
	return b
}

// Scan is Open and Batches in one, with the first batch sooner: unless the index
// is in memory, the part of the segment in which from probably lies is fetched
// beside it and not after it. Errors as Open.
func (c *Cache) Scan(ctx context.Context, seg manifest.Segment, from int64) (*Batches, error) {
	a := newAhead(c, seg, seg.Key())
	f, begun, x, err := c.findIndex(&a.seg, a.key)
	if f != nil {
		a.begin(from, begun)
		x, err = f.wait(ctx)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return newBatches(a, x, from), nil
}
