package node

import "sync"

const (
	// arenaChunk is small, because the chunk of one record that stays in a
	// tail for long stays as a whole.
	arenaChunk = 32 << 10
	// arenaLargest is the largest batch that shares a chunk.
	arenaLargest = 4 << 10
)

// arena gives small batches their memory: many of them share an allocation,
// which the collector frees when the last of them has left its tail.
type arena struct{ free []byte }

var arenas = sync.Pool{New: func() any { return new(arena) }}

// newBatchBytes returns an empty slice with room for size bytes and no more.
func newBatchBytes(size int) []byte {
	if size > arenaLargest {
		return make([]byte, 0, size)
	}
	a := arenas.Get().(*arena)
	if len(a.free) < size {
		a.free = make([]byte, arenaChunk)
	}
	b := a.free[:0:size]
	a.free = a.free[size:]
	arenas.Put(a)
	return b
}
