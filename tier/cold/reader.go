package cold

import (
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
	b := &Batches{from: from, next: r.index.Len(), ahead: newAhead(r.cache, r.seg, r.key), index: r.index}
	if from < r.seg.Next {
		b.next = r.index.SeekOffset(from)
	}
	return b
}
