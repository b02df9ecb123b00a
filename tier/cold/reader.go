package cold

import (
	"context"
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// maxWindow is how many chunks one sequential reader has ahead at most: 8 MiB.
const maxWindow = 8

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
	b := &Batches{r: r, from: from, next: r.index.Len(), window: 1, held: make(map[uint32]*flight)}
	if from < r.seg.Next {
		b.next = r.index.SeekOffset(from)
	}
	return b
}

// Batches is a scan. It reads ahead more and more while it goes on.
type Batches struct {
	r      *Reader
	from   int64
	next   int                // number of the next batch
	window int                // chunks
	held   map[uint32]*flight // requested and not passed yet; nil: on disk
	data   []byte             // of chunk cur
	cur    uint32
	buf    []byte // what chunk files are read into
	join   []byte // a batch that spans chunks
}

// Next returns the next batch, verified, and its header. It is valid until the
// following call and only to be read. io.EOF at the segment's end. Errors as
// Cache.Open; after one the scan stands where it was and may go on.
func (b *Batches) Next(ctx context.Context) ([]byte, segment.BatchHeader, error) {
	for b.next < b.r.index.Len() {
		e := b.r.index.At(b.next)
		batch, h, err := b.batch(ctx, e)
		if err != nil {
			return nil, h, err
		}
		b.next++
		// The first batch may lie below from when a gap follows it.
		if h.NextOffset() > b.from {
			return batch, h, nil
		}
	}
	return nil, segment.BatchHeader{}, io.EOF
}

// Close gives the read-ahead back. Downloads that run go on, into the cache.
func (b *Batches) Close() {
	b.r.cache.ahead.Add(-int64(len(b.held)) * ChunkSize)
	b.held, b.data, b.next = make(map[uint32]*flight), nil, b.r.index.Len()
}

// batch reads and verifies one batch. When the chunks give a bad one they are
// thrown away and its bytes are fetched again, once and past the cache: they
// may have been damaged on their way.
func (b *Batches) batch(ctx context.Context, e segment.Entry) ([]byte, segment.BatchHeader, error) {
	raw, err := b.bytes(ctx, e)
	if err != nil {
		return nil, segment.BatchHeader{}, err
	}
	h, err := b.verify(raw, e)
	if err == nil {
		return raw, h, nil
	}
	c := b.r.cache
	c.metrics.corrupt.Inc()
	b.forget(e)
	f, err := c.direct(source{&b.r.seg, b.r.key}, e.Position, e.Size)
	if err != nil {
		return nil, h, err
	}
	if raw, err = f.wait(ctx); err != nil {
		return nil, h, err
	}
	if h, err = b.verify(raw, e); err == nil {
		return raw, h, nil
	}
	c.metrics.corrupt.Inc()
	if errcode.Is(err, errcode.UnsupportedVersion) {
		return nil, h, errcode.Wrap(errcode.UnsupportedVersion, err, "archived object %s: position %d", b.r.key, e.Position)
	}
	return nil, h, corrupt(&b.r.seg, e.Position, err)
}

func (b *Batches) verify(raw []byte, e segment.Entry) (segment.BatchHeader, error) {
	h, err := segment.VerifyBatch(raw)
	if err != nil {
		return h, err
	}
	end := b.r.seg.Next
	if b.next+1 < b.r.index.Len() {
		end = b.r.index.At(b.next + 1).Base
	}
	if h.BaseOffset != e.Base || h.NextOffset() > end {
		return h, errcode.New(errcode.Corrupt, "batch of offsets %d to %d, the index says %d to at most %d", h.BaseOffset, h.NextOffset(), e.Base, end)
	}
	if h.Generation < b.r.seg.FirstGeneration || h.Generation > b.r.seg.LastGeneration {
		return h, errcode.New(errcode.Corrupt, "batch at offset %d of generation %d, the chain says %d to %d", h.BaseOffset, h.Generation, b.r.seg.FirstGeneration, b.r.seg.LastGeneration)
	}
	return h, nil
}

// bytes returns the bytes of an index entry: a part of a chunk, or joined from
// several. Ranges are half open: a batch that ends at a chunk's border does not
// touch the next chunk.
func (b *Batches) bytes(ctx context.Context, e segment.Entry) ([]byte, error) {
	first, last := uint32(e.Position/ChunkSize), uint32((e.End()-1)/ChunkSize)
	if first == last {
		data, err := b.chunk(ctx, first)
		if err != nil {
			return nil, err
		}
		at := e.Position - int64(first)*ChunkSize
		return data[at : at+int64(e.Size) : at+int64(e.Size)], nil
	}
	if cap(b.join) < e.Size {
		b.join = make([]byte, 0, e.Size)
	}
	out := b.join[:0]
	for n := first; n <= last; n++ {
		data, err := b.chunk(ctx, n)
		if err != nil {
			return nil, err
		}
		from := max(0, e.Position-int64(n)*ChunkSize)
		to := min(int64(len(data)), e.End()-int64(n)*ChunkSize)
		out = append(out, data[from:to]...)
	}
	return out, nil
}

// forget drops the chunks under a batch, in this scan and in the cache.
func (b *Batches) forget(e segment.Entry) {
	for n := uint32(e.Position / ChunkSize); n <= uint32((e.End()-1)/ChunkSize); n++ {
		b.release(n)
		b.r.cache.forget(idOf(b.r.key, n))
	}
	b.data = nil
}

// chunk returns the bytes of chunk n and keeps the window ahead of it filled.
func (b *Batches) chunk(ctx context.Context, n uint32) ([]byte, error) {
	if b.data != nil && b.cur == n {
		return b.data, nil
	}
	if err := b.fill(n); err != nil {
		return nil, err
	}
	c := b.r.cache
	f := b.held[n]
	if f == nil {
		// The current chunk may stand in this buffer; the caller is done with it.
		b.data = nil
		data, buf, ok := c.disk.get(idOf(b.r.key, n), n, b.buf)
		b.buf = buf
		if ok && len(data) == (source{&b.r.seg, b.r.key}).length(n) {
			c.metrics.hits.Inc()
			return b.pass(n, data), nil
		}
		c.disk.drop(idOf(b.r.key, n))
		// It was evicted or does not verify: a miss after all.
		b.release(n)
		flights, err := c.request(source{&b.r.seg, b.r.key}, n, n+1)
		if err != nil {
			return nil, err
		}
		if f = flights[0]; f == nil {
			return nil, errcode.New(errcode.Overloaded, "chunk %d of %s came back and went again: the cache is too small for its readers", n, b.r.key)
		}
		b.hold(n, f)
	}
	data, err := f.wait(ctx)
	if err != nil {
		if ctx.Err() == nil {
			b.release(n) // the next call asks again
		}
		return nil, err
	}
	return b.pass(n, data), nil
}

// pass makes n the current chunk and widens the window.
func (b *Batches) pass(n uint32, data []byte) []byte {
	for k := range b.held {
		if k <= n {
			b.release(k)
		}
	}
	b.cur, b.data = n, data
	b.window = min(2*b.window, maxWindow)
	return data
}

// fill requests chunk n, and what the window wants behind it once half of the
// window is used up, so that requests are large.
func (b *Batches) fill(n uint32) error {
	c := b.r.cache
	end := uint32((b.r.seg.DataLength + ChunkSize - 1) / ChunkSize)
	have := n
	for _, ok := b.held[have]; ok; _, ok = b.held[have] {
		have++
	}
	if int(have-n) > b.window/2 {
		return nil
	}
	to := min(end, n+uint32(b.window))
	if have > n && (to <= have || c.ahead.Load() >= c.cfg.AheadBytes) {
		return nil
	}
	if have == n && c.ahead.Load() >= c.cfg.AheadBytes {
		to = n + 1 // what is needed now is always asked for
	}
	flights, err := c.request(source{&b.r.seg, b.r.key}, have, to)
	if err != nil {
		return err
	}
	for i, f := range flights {
		b.hold(have+uint32(i), f)
	}
	return nil
}

func (b *Batches) hold(n uint32, f *flight) {
	if _, ok := b.held[n]; !ok {
		b.r.cache.ahead.Add(ChunkSize)
	}
	b.held[n] = f
}

func (b *Batches) release(n uint32) {
	if _, ok := b.held[n]; ok {
		b.r.cache.ahead.Add(-ChunkSize)
		delete(b.held, n)
	}
}
