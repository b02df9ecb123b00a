package partition

import "github.com/tidemark-mq/tidemark/internal/slab"

const (
	// SmallBatch is the size in bytes up to which the engine copies a batch;
	// larger ones it keeps.
	SmallBatch = 4 << 10

	// firstChunk is the first chunk of a tail: most tails are idle.
	firstChunk = SmallBatch
)

// arena is the memory of a tail's small batches. They stand in chunks in the
// order in which they came, and leave in that order; a chunk that is empty goes
// to whichever tail needs one next.
//
// So what stands in an arena is overwritten, or gone, once its batch has left:
// readers copy it under the partition's lock.
type arena struct {
	chunks []*chunk // the last one takes what comes
}

type chunk struct {
	buf  []byte
	from *slab.Chunk // nil for a first chunk
	used int         // bytes from the beginning that were given out
	live int         // batches in it
}

// chunks are shared by all tails of the process.
var chunks slab.Pool

// add returns room for a batch of size bytes, at most SmallBatch.
func (a *arena) add(size int) []byte {
	n := len(a.chunks)
	if n == 0 {
		a.chunks = append(a.chunks, &chunk{buf: make([]byte, firstChunk)})
	} else if c := a.chunks[n-1]; len(c.buf)-c.used < size {
		from := chunks.Get()
		a.chunks = append(a.chunks, &chunk{buf: from.Bytes, from: from})
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
	if len(a.chunks) == 1 && c.from == nil {
		c.used = 0 // a first chunk stays with its tail
		return
	}
	a.chunks[0] = nil
	a.chunks = a.chunks[1:]
	c.release()
}

// close gives everything back.
func (a *arena) close() {
	for _, c := range a.chunks {
		c.release()
	}
	a.chunks = nil
}

func (c *chunk) release() {
	if c.from != nil {
		chunks.Put(c.from)
	}
}
