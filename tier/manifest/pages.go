package manifest

import (
	"container/list"
	"context"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// cachedPages is how many pages a Chain keeps that shares no cache.
const cachedPages = 2

// Pages keeps the pages of chains that were used last, whichever chain they are
// of: at most a number of them, each of up to 2,048 segments and about half a
// MiB. It is not locked while a page is read: two readers may read the same page
// at once, which is rare and harmless. Safe for concurrent use.
type Pages struct {
	mu struct {
		sync.Mutex
		known map[Hash]*list.Element // of cachedPage, by the hash of the page
		order *list.List             // the last used one is in front
	}
	limit int
}

type cachedPage struct {
	sum  Hash
	segs []Segment
}

// NewPages returns a cache of at most limit pages, at least one.
func NewPages(limit int) *Pages {
	p := &Pages{limit: max(1, limit)}
	p.mu.known, p.mu.order = make(map[Hash]*list.Element), list.New()
	return p
}

// WithPages has the chain keep its pages in p, beside those of other chains.
// Without it a chain keeps two of its own.
func WithPages(p *Pages) Option { return func(o *options) { o.pages = p } }

func (p *Pages) get(ref PageRef) ([]Segment, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.mu.known[ref.SHA256]
	if !ok {
		return nil, false
	}
	p.mu.order.MoveToFront(e)
	return e.Value.(*cachedPage).segs, true
}

func (p *Pages) put(ref PageRef, segs []Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.mu.known[ref.SHA256]; ok {
		return
	}
	p.mu.known[ref.SHA256] = p.mu.order.PushFront(&cachedPage{ref.SHA256, segs})
	for p.mu.order.Len() > p.limit {
		delete(p.mu.known, p.mu.order.Remove(p.mu.order.Back()).(*cachedPage).sum)
	}
}

// Len is the number of pages that are kept.
func (p *Pages) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.order.Len()
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
