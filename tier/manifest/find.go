package manifest

import (
	"context"
	"slices"
	"sort"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Kind says what stands at an offset.
type Kind uint8

// What a chain can say about an offset.
const (
	InSegment Kind = iota + 1 // a segment covers it
	InGap                     // nothing will ever stand there: go on at Next
	Beyond                    // at or above the chain's end
	Below                     // below the start: trimmed
)

// String returns "segment", "gap", "beyond" or "below".
func (k Kind) String() string {
	return [...]string{"unknown", "segment", "gap", "beyond", "below"}[min(k, Below)]
}

// Location is what stands at an offset.
type Location struct {
	Kind    Kind
	Segment Segment // InSegment
	Next    int64   // first offset after the segment or gap; Below: the chain's start; Beyond: its end
}

// Find says what stands at offset. It reads a page from the store when the
// offset is old and the page is not in memory.
func (c *Chain) Find(ctx context.Context, offset int64) (Location, error) {
	s := c.state.Load()
	switch {
	case offset < s.start:
		return Location{Kind: Below, Next: s.start}, nil
	case offset >= s.end:
		return Location{Kind: Beyond, Next: s.end}, nil
	}
	if g, ok := s.gapAt(offset); ok {
		return Location{Kind: InGap, Next: g.Next}, nil
	}
	segs, err := c.around(ctx, s, offset)
	if err != nil {
		return Location{}, err
	}
	i := sort.Search(len(segs), func(i int) bool { return segs[i].Next > offset })
	if i < len(segs) && segs[i].Base <= offset {
		return Location{Kind: InSegment, Segment: segs[i], Next: segs[i].Next}, nil
	}
	return Location{}, errcode.New(errcode.Corrupt, "chain of %s: nothing covers offset %d between start %d and end %d", c.pid, offset, s.start, s.end)
}

// Paged says whether the segment around offset is listed in a page: what Replace
// does is for segments outside the pages.
func (c *Chain) Paged(offset int64) bool {
	pages := c.state.Load().pages
	return len(pages) > 0 && offset < pages[len(pages)-1].Next
}

// Segments returns the segments that hold offsets in [from, to), ascending.
// Offsets below the start are left out.
func (c *Chain) Segments(ctx context.Context, from, to int64) ([]Segment, error) {
	s := c.state.Load()
	return c.segments(ctx, s, max(from, s.start), to)
}

// Unpaged returns the segments outside the pages, ascending: those that Replace
// takes. The caller must not change them. It reads nothing.
func (c *Chain) Unpaged() []Segment {
	segs := c.state.Load().segs
	return segs[:len(segs):len(segs)]
}

func (c *Chain) segments(ctx context.Context, s *state, from, to int64) ([]Segment, error) {
	var out []Segment
	add := func(segs []Segment) {
		i := sort.Search(len(segs), func(i int) bool { return segs[i].Next > from })
		j := sort.Search(len(segs), func(j int) bool { return segs[j].Base >= to })
		if i < j {
			out = append(out, segs[i:j]...)
		}
	}
	for _, ref := range s.pages {
		if ref.Next <= from || ref.Base >= to {
			continue
		}
		segs, err := c.page(ctx, ref)
		if err != nil {
			return nil, err
		}
		add(segs)
	}
	add(s.segs)
	return out, nil
}

// FindTime returns the first segment that ends above offset from and holds a
// record with a timestamp of ms or later, Beyond when none does. Timestamps need
// not ascend, and the record may lie below from: then go on at the segment's
// end. It reads a page from the store only when that page names such a time.
func (c *Chain) FindTime(ctx context.Context, from, ms int64) (Location, error) {
	s := c.state.Load()
	from = max(from, s.start)
	first := func(segs []Segment) (Location, bool) {
		i := sort.Search(len(segs), func(i int) bool { return segs[i].Next > from })
		j := slices.IndexFunc(segs[i:], func(x Segment) bool { return x.MaxTimestamp >= ms })
		if j < 0 {
			return Location{}, false
		}
		x := segs[i+j]
		return Location{Kind: InSegment, Segment: x, Next: x.Next}, true
	}
	for _, ref := range s.pages[sort.Search(len(s.pages), func(i int) bool { return s.pages[i].Next > from }):] {
		if ref.MaxTimestamp < ms {
			continue
		}
		segs, err := c.page(ctx, ref)
		if err != nil {
			return Location{}, err
		}
		// In the first page the segment with that timestamp may lie below from.
		if l, ok := first(segs); ok {
			return l, nil
		}
	}
	if l, ok := first(s.segs); ok {
		return l, nil
	}
	return Location{Kind: Beyond, Next: s.end}, nil
}

// around returns the list that offset falls into: a page's, or the rest.
func (c *Chain) around(ctx context.Context, s *state, offset int64) ([]Segment, error) {
	i := sort.Search(len(s.pages), func(i int) bool { return s.pages[i].Next > offset })
	if i == len(s.pages) {
		return s.segs, nil
	}
	return c.page(ctx, s.pages[i])
}

func (s *state) gapAt(offset int64) (Gap, bool) {
	i := sort.Search(len(s.gaps), func(i int) bool { return s.gaps[i].Next > offset })
	if i == len(s.gaps) || s.gaps[i].From > offset {
		return Gap{}, false
	}
	return s.gaps[i], true
}
