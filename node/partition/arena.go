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

// add returns room for a batch of size bytes, at most SmallBatch, and by how
// many bytes the arena grew for it. Its first chunk does not count.
func (a *arena) add(size int) (room []byte, grown int64) {
	n := len(a.chunks)
	if n == 0 {
		a.chunks = append(a.chunks, &chunk{buf: make([]byte, firstChunk)})
	} else if c := a.chunks[n-1]; len(c.buf)-c.used < size {
		from := chunks.Get()
		a.chunks = append(a.chunks, &chunk{buf: from.Bytes, from: from})
		grown = int64(len(from.Bytes))
	}
	c := a.chunks[len(a.chunks)-1]
	at := c.used
	c.used += size
	c.live++
	return c.buf[at:c.used:c.used], grown
}

// drop takes the oldest batch out and returns by how much the arena shrank.
func (a *arena) drop() (freed int64) {
	c := a.chunks[0]
	if c.live--; c.live > 0 {
		return 0
	}
	if len(a.chunks) == 1 && c.from == nil {
		c.used = 0 // a first chunk stays with its tail
		return 0
	}
	a.chunks[0] = nil
	a.chunks = a.chunks[1:]
	return c.release()
}

// close gives everything back and returns how much that was.
func (a *arena) close() (freed int64) {
	for _, c := range a.chunks {
		freed += c.release()
	}
	a.chunks = nil
	return freed
}

func (c *chunk) release() (freed int64) {
	if c.from == nil {
		return 0
	}
	chunks.Put(c.from)
	return int64(len(c.buf))
}
