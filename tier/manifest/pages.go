package manifest

import (
	"context"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// cachedPages is how many pages one Chain keeps: at most 2 x 2,048 segments.
const cachedPages = 2

// pageCache keeps the pages that were used last. It is not locked while a page
// is read: two readers may read the same page at once, which is rare and
// harmless.
type pageCache struct {
	mu struct {
		sync.Mutex
		list []cachedPage // the last used one is last
	}
	limit int
}

type cachedPage struct {
	ref  PageRef
	segs []Segment
}

func newPageCache(limit int) *pageCache { return &pageCache{limit: limit} }

func (p *pageCache) get(ref PageRef) ([]Segment, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range p.mu.list {
		if x.ref.SHA256 == ref.SHA256 {
			p.mu.list = append(append(p.mu.list[:i:i], p.mu.list[i+1:]...), x)
			return x.segs, true
		}
	}
	return nil, false
}

func (p *pageCache) put(ref PageRef, segs []Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.mu.list {
		if x.ref.SHA256 == ref.SHA256 {
			return
		}
	}
	if len(p.mu.list) == p.limit {
		p.mu.list = append(p.mu.list[:0:0], p.mu.list[1:]...)
	}
	p.mu.list = append(p.mu.list, cachedPage{ref, segs})
}

// page returns the segments of a page. The caller does not change them.
func (c *Chain) page(ctx context.Context, ref PageRef) ([]Segment, error) {
	if segs, ok := c.pages.get(ref); ok {
		return segs, nil
	}
	key := PageKey(c.pid, ref.Base, ref.SHA256)
	var p *Page
	var got PageRef
	err := twice(ctx, c.store, key, func(stored []byte) (err error) {
		p, got, err = decodePage(stored, "manifest page "+key)
		return err
	})
	if err != nil {
		if errcode.Is(err, errcode.NotFound) {
			// The chain names it, so this is loss and not absence.
			return nil, errcode.New(errcode.Corrupt, "manifest page %s is missing: %s", key, err.Error())
		}
		return nil, err
	}
	if got != ref || p.Partition != c.pid {
		return nil, errcode.New(errcode.Corrupt, "manifest page %s is of %s with SHA-256 %s, the chain names %s", key, p.Partition, got.SHA256, ref.SHA256)
	}
	c.pages.put(ref, p.Segments)
	return p.Segments, nil
}
