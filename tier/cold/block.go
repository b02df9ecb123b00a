package cold

import (
	"sync"
	"sync/atomic"
)

// block is memory for adjacent chunks, which one request or one file fills. It
// is borrowed from a pool and goes back when its last holder lets go: fresh
// memory of this size costs as much to clear as to fill.
//
// Whoever loses track of one, a scan that is not closed for instance, costs
// only the reuse: the garbage collector takes it.
type block struct {
	pool *sync.Pool
	buf  []byte // capacity: a whole number of chunks
	refs atomic.Int32
}

// blocks are pools of blocks by their number of chunks, 1 to maxGet. What lies in
// them unused goes with the next garbage collections.
type blocks [maxGet]sync.Pool

// get returns a block of size bytes, at most maxGet chunks, with one holder and
// whatever its memory held before.
func (p *blocks) get(size int) *block {
	n := max(1, (size+ChunkSize-1)/ChunkSize)
	pool := &p[n-1]
	b, ok := pool.Get().(*block)
	if !ok {
		b = &block{pool: pool, buf: make([]byte, n*ChunkSize)}
	}
	b.buf = b.buf[:size]
	b.refs.Store(1)
	return b
}

// hold adds holders. The caller is one.
func (b *block) hold(n int) { b.refs.Add(int32(n)) }

// release takes one holder away. After the last one the memory belongs to
// somebody else.
func (b *block) release() {
	if b.refs.Add(-1) == 0 {
		b.pool.Put(b)
	}
}
