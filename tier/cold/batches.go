package cold

import (
	"context"
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// Batches is a scan of one segment. It reads ahead more and more while it goes
// on.
type Batches struct {
	index segment.Index
	from  int64
	next  int // number of the next batch
	ahead *ahead
	join  []byte // a batch that spans chunks
}

// Next returns the next batch, verified, and its header. It is valid until the
// following call of any method and only to be read. io.EOF at the segment's end.
// Errors as Cache.Open; after one the scan stands where it was and may go on.
func (b *Batches) Next(ctx context.Context) ([]byte, segment.BatchHeader, error) {
	for b.next < b.index.Len() {
		raw, h, f, err := b.batch(ctx, b.index.At(b.next), &b.join)
		if err != nil {
			return nil, h, err
		}
		if f != nil {
			f.release() // the current chunk is held until the following call
		}
		b.next++
		// The first batch may lie below from when a gap follows it.
		if h.NextOffset() > b.from {
			return raw, h, nil
		}
	}
	return nil, segment.BatchHeader{}, io.EOF
}

// Run is consecutive batches of one segment, whole and verified. They alias
// memory that several readers share: only to be read, and only until Release.
// A run outlives its scan, and the cache.
type Run struct {
	Batches [][]byte
	Next    int64 // the offset behind the last of them
	holds   []*flight
}

// Release gives the run's memory back. A run that is never released costs only
// the reuse of its memory. The run is empty afterwards.
func (r *Run) Release() {
	for _, f := range r.holds {
		f.release()
	}
	*r = Run{Next: r.Next}
}

// Run returns the next batches, together up to maxBytes and at least one,
// without copying them. io.EOF and errors as Next, when they meet the first
// batch; one that meets a later one ends the run and is the next call's.
func (b *Batches) Run(ctx context.Context, maxBytes int) (*Run, error) {
	r := &Run{}
	for size := 0; b.next < b.index.Len(); {
		e := b.index.At(b.next)
		if len(r.Batches) > 0 && (size+e.Size > maxBytes || b.ahead.opening != nil && !b.ahead.opening.has(e)) {
			break // the first run of a scan does not wait for what comes behind its opening
		}
		var own []byte
		raw, h, f, err := b.batch(ctx, e, &own)
		if err != nil && len(r.Batches) == 0 {
			return nil, err
		}
		if err != nil {
			break
		}
		b.next++
		switch last := len(r.holds) - 1; {
		case f == nil:
		case h.NextOffset() <= b.from || last >= 0 && r.holds[last] == f:
			f.release()
		default:
			r.holds = append(r.holds, f)
		}
		if h.NextOffset() > b.from {
			r.Batches, r.Next = append(r.Batches, raw), h.NextOffset()
			size += e.Size
		}
	}
	if len(r.Batches) == 0 {
		return nil, io.EOF
	}
	return r, nil
}

// Follow says which segment the reader goes on with: read-ahead runs on into it,
// its index included. The second of two calls counts.
func (b *Batches) Follow(seg manifest.Segment) {
	a := b.ahead
	if a.then != nil {
		a.then.close()
	}
	a.then = newAhead(a.cache, seg, seg.Key())
}

// Continue ends the scan and returns one of the batches at or above from in the
// segment that Follow named, with the read-ahead that is there. That segment may
// begin below from: a merge has put it in the place of this scan's own. Errors as
// Cache.Open; after one the scan is as it was. Without Follow it is InvalidArgument.
func (b *Batches) Continue(ctx context.Context, from int64) (*Batches, error) {
	a := b.ahead.then
	if a == nil {
		return nil, errcode.New(errcode.InvalidArgument, "scan of %s: no segment was named to go on with", b.ahead.key)
	}
	x, err := a.cache.index(ctx, a.seg)
	if err != nil {
		return nil, err
	}
	a.window, b.ahead.then = b.ahead.window, nil
	b.Close()
	next := &Batches{index: x, from: from, next: x.Len(), ahead: a}
	if from < a.seg.Next {
		next.next = x.SeekOffset(from)
	}
	return next, nil
}

// Close gives the read-ahead back. Downloads that run go on, into the cache.
func (b *Batches) Close() {
	b.ahead.close()
	b.next = b.index.Len()
}

// batch reads and verifies one batch. When the chunks give a bad one they are
// thrown away. If they were on disk, where they may have gone bad, they are
// downloaded; else the batch's bytes are fetched again, once and past the cache:
// they may have been damaged on their way. The caller releases the flight that
// holds the batch's memory; nil: it is in *join or nobody else's.
func (b *Batches) batch(ctx context.Context, e segment.Entry, join *[]byte) ([]byte, segment.BatchHeader, *flight, error) {
	for again := false; ; again = true {
		raw, f, kept, err := b.bytes(ctx, e, join)
		if err != nil {
			return nil, segment.BatchHeader{}, nil, err
		}
		h, err := b.verify(raw, e, f)
		if err == nil {
			return raw, h, f, nil
		}
		if f != nil {
			f.release()
		}
		b.ahead.cache.metrics.corrupt.Inc()
		b.forget(e)
		if kept && !again {
			continue
		}
		raw, h, err = b.direct(ctx, e)
		return raw, h, nil, err
	}
}

// direct reads and verifies a batch past the cache.
func (b *Batches) direct(ctx context.Context, e segment.Entry) ([]byte, segment.BatchHeader, error) {
	c := b.ahead.cache
	f, err := c.direct(b.ahead.source(), e.Position, e.Size)
	if err != nil {
		return nil, segment.BatchHeader{}, err
	}
	raw, err := f.wait(ctx)
	if err != nil {
		return nil, segment.BatchHeader{}, err
	}
	h, err := b.verify(raw, e, nil)
	if err == nil {
		return raw, h, nil
	}
	c.metrics.corrupt.Inc()
	if errcode.Is(err, errcode.UnsupportedVersion) {
		return nil, h, errcode.Wrap(errcode.UnsupportedVersion, err, "archived object %s: position %d", b.ahead.key, e.Position)
	}
	return nil, h, corrupt(&b.ahead.seg, e.Position, err)
}

// verify checks the next batch, of which the download whose memory f holds may have
// computed the sum.
func (b *Batches) verify(raw []byte, e segment.Entry, f *flight) (h segment.BatchHeader, err error) {
	if f != nil && f.good.has(b.next) {
		h, err = segment.ParseHeader(raw)
	} else {
		h, err = segment.VerifyBatch(raw)
	}
	if err != nil {
		return h, err
	}
	seg := &b.ahead.seg
	end := seg.Next
	if b.next+1 < b.index.Len() {
		end = b.index.At(b.next + 1).Base
	}
	if h.BaseOffset != e.Base || h.NextOffset() > end {
		return h, errcode.New(errcode.Corrupt, "batch of offsets %d to %d, the index says %d to at most %d", h.BaseOffset, h.NextOffset(), e.Base, end)
	}
	if h.Generation < seg.FirstGeneration || h.Generation > seg.LastGeneration {
		return h, errcode.New(errcode.Corrupt, "batch at offset %d of generation %d, the chain says %d to %d", h.BaseOffset, h.Generation, seg.FirstGeneration, seg.LastGeneration)
	}
	return h, nil
}

// bytes returns the bytes of an index entry: a part of a chunk, or of two that one
// request brought, with a hold on it, or joined from several in *join, which is
// grown as needed; kept says that some were on disk. Ranges are half open: a batch
// that ends at a chunk's border does not touch the next chunk.
func (b *Batches) bytes(ctx context.Context, e segment.Entry, join *[]byte) (raw []byte, f *flight, kept bool, err error) {
	o, err := b.opened(ctx, e)
	if err != nil {
		return nil, nil, false, err
	}
	if o != nil {
		o.f.refs.Add(1)
		return o.f.data[e.Position-o.pos : e.End()-o.pos : e.End()-o.pos], o.f, false, nil
	}
	first, last := uint32(e.Position/ChunkSize), uint32((e.End()-1)/ChunkSize)
	f, err = b.ahead.chunk(ctx, first)
	if err != nil {
		return nil, nil, false, err
	}
	f.refs.Add(1)
	at := int(e.Position - int64(first)*ChunkSize)
	if first == last {
		return f.data[at : at+e.Size : at+e.Size], f, f.kept, nil
	}
	defer f.release()
	if last == first+1 {
		g, err := b.ahead.chunk(ctx, last)
		if err != nil {
			return nil, nil, false, err
		}
		if f.precedes(g) { // three of four borders: no byte is copied
			g.refs.Add(1)
			at += f.at
			return g.block.buf[at : at+e.Size : at+e.Size], g, false, nil
		}
	}
	if cap(*join) < e.Size {
		*join = make([]byte, 0, e.Size)
	}
	out, kept := append((*join)[:0], f.data[at:]...), f.kept
	for n := first + 1; n <= last; n++ {
		f, err := b.ahead.chunk(ctx, n)
		if err != nil {
			return nil, nil, false, err
		}
		from := max(0, e.Position-int64(n)*ChunkSize)
		to := min(int64(len(f.data)), e.End()-int64(n)*ChunkSize)
		out = append(out, f.data[from:to]...)
		kept = kept || f.kept
	}
	return out, nil, kept, nil
}

// forget drops the chunks under a batch, in this scan and in the cache.
func (b *Batches) forget(e segment.Entry) {
	b.ahead.leave()
	b.ahead.opening = nil
	for n := uint32(e.Position / ChunkSize); n <= uint32((e.End()-1)/ChunkSize); n++ {
		b.ahead.forget(n)
	}
}
