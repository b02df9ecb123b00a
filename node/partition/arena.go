package partition

import "sync"

const (
	// SmallBatch is the size in bytes up to which the engine copies a batch;
	// larger ones it keeps.
	SmallBatch = 4 << 10

	// chunkBytes is what a tail of small batches grows by.
	chunkBytes = 32 << 10
	// firstChunk is the first chunk of a tail: most tails are idle.
	firstChunk = SmallBatch
)

// arena is the memory of a tail's small batches. They stand in chunks in the
// order in which they came, and leave in that order. An empty chunk goes to
// whichever tail needs one next: memory that goes round costs a small append
// much less than memory that the collector has to find, clear and map anew.
//
// So what stands in an arena may be overwritten once its batch is evicted:
// readers copy it under the partition's lock.
type arena struct {
	chunks []*chunk // the last one takes what comes
}

type chunk struct {
	buf  []byte
	used int // bytes from the beginning that were given out
	live int // batches in it
}

// chunks are those of chunkBytes that no tail uses; the collector takes what
// is too much.
var chunks = sync.Pool{New: func() any { return &chunk{buf: make([]byte, chunkBytes)} }}

// add returns room for a batch of size bytes, at most SmallBatch.
func (a *arena) add(size int) []byte {
	n := len(a.chunks)
	if n == 0 {
		a.chunks = append(a.chunks, &chunk{buf: make([]byte, firstChunk)})
	} else if c := a.chunks[n-1]; len(c.buf)-c.used < size {
		a.chunks = append(a.chunks, chunks.Get().(*chunk))
	}
	c := a.chunks[len(a.chunks)-1]
	at := c.used
	c.used += size
	c.live++
	return c.buf[at:c.used:c.used]
}

// drop takes the oldest batch out.
func (a *arena) drop() {
	c := a.chunks[0]
	if c.live--; c.live > 0 {
		return
	}
	c.used = 0
	if len(a.chunks) == 1 {
		return
	}
	a.chunks[0] = nil
	a.chunks = a.chunks[1:]
	if len(c.buf) == chunkBytes {
		chunks.Put(c)
	}
}
