package cold

import (
	"context"

	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

const (
	// minOpening is the least that an opening fetches: less is not faster.
	minOpening = 64 << 10
	// maxOpening is the most. Where batches are so large that this is not
	// enough, their chunk is as good.
	maxOpening = ChunkSize / 2
)

// opening is a small part of an object in which the first batch of a scan
// probably lies. It is fetched beside the index and not after it, and is that
// scan's alone: the chunks that the scan needs behind it come meanwhile.
type opening struct {
	pos, end int64
	f        *flight
}

// has says whether a batch lies in it as a whole.
func (o *opening) has(e segment.Entry) bool {
	return o != nil && o.pos <= e.Position && e.End() <= o.end
}

// whereabouts returns the range of the object in which the batch with an offset
// lies if all batches are about of one size; ok is false when its chunk is as
// good. The index's length says how many batches there are.
func whereabouts(seg *manifest.Segment, from int64) (pos int64, size int, ok bool) {
	batches := max(1, (seg.Bytes-seg.DataLength-segment.FooterSize)/segment.IndexEntrySize)
	n := max(minOpening, 4*(seg.DataLength/batches))
	if n > maxOpening || n >= seg.DataLength {
		return 0, 0, false
	}
	if from > seg.Base {
		pos = min(max(0, guess(seg, from)-n/2), seg.DataLength-n)
	}
	return pos, int(n), true
}

// guess is the position of an offset if all records are of one size.
func guess(seg *manifest.Segment, from int64) int64 {
	part := float64(from-seg.Base) / float64(seg.Next-seg.Base)
	return min(max(0, int64(part*float64(seg.DataLength))), seg.DataLength-1)
}

// begin asks for what a scan from an offset probably needs first, while the index
// is on its way. Who did not ask for that either finds others at this place, with
// whom a chunk is shared. What goes wrong here is met when the chunk is needed.
func (a *ahead) begin(from int64, alone bool) {
	c := a.cache
	if pos, size, ok := whereabouts(&a.seg, from); ok && alone {
		if f, err := c.direct(a.source(), pos, size); err == nil {
			a.opening = &opening{pos, pos + int64(size), f}
		}
		return
	}
	n := uint32(guess(&a.seg, from) / ChunkSize)
	if holds, err := c.request(a.source(), n, n+1); err == nil {
		a.held[n] = holds[0]
	}
}

// opened returns the opening if the batch, the scan's next one, lies in it, and
// asks for the chunks behind it. nil: the batch's chunk is what to wait for.
func (b *Batches) opened(ctx context.Context, e segment.Entry) (*opening, error) {
	a, o := b.ahead, b.ahead.opening
	if o == nil {
		return nil, nil
	}
	if !o.has(e) {
		a.opening = nil
		return nil, nil
	}
	if err := a.cache.governor.pay(ctx, e.Size); err != nil {
		return nil, err
	}
	if _, err := o.f.wait(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		a.opening = nil
		return nil, nil
	}
	// Not before the first batch is there, which somebody waits for.
	behind := b.next + 1
	for behind < b.index.Len() && o.has(b.index.At(behind)) {
		behind++
	}
	if behind < b.index.Len() {
		// An error is met when the reader gets there.
		_ = a.fill(uint32(b.index.At(behind).Position/ChunkSize), a.window)
	}
	return o, nil
}
