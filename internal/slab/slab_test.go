package slab

import (
	"sync"
	"testing"
	"unsafe"
)

// Every chunk is memory of its own, whoever takes and gives back beside.
func TestChunksAreDisjoint(t *testing.T) {
	var p Pool
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var held []*Chunk
			mark := byte(g + 1)
			for i := range 5000 {
				c := p.Get()
				if len(c.Bytes) != ChunkBytes || cap(c.Bytes) != ChunkBytes {
					t.Errorf("a chunk has %d bytes of %d", len(c.Bytes), cap(c.Bytes))
					return
				}
				for _, at := range []int{0, ChunkBytes / 2, ChunkBytes - 1} {
					c.Bytes[at] = mark
				}
				held = append(held, c)
				if len(held) < 300 && i < 4700 {
					continue
				}
				c, held = held[0], held[1:]
				for _, at := range []int{0, ChunkBytes / 2, ChunkBytes - 1} {
					if c.Bytes[at] != mark {
						t.Errorf("somebody wrote into a chunk that is held")
						return
					}
				}
				p.Put(c)
			}
			for _, c := range held {
				p.Put(c)
			}
		}()
	}
	wg.Wait()
}

// Memory follows what is held: it is used again before more is mapped, and
// after a burst all but a reserve is unmapped.
func TestMemoryFollowsUse(t *testing.T) {
	var p Pool
	const n = 20 * slabBytes / ChunkBytes
	var held []*Chunk
	for range n {
		held = append(held, p.Get())
	}
	if got := p.Mapped(); got != 20*slabBytes {
		t.Fatalf("%d chunks take %d bytes, want %d", n, got, 20*slabBytes)
	}
	for range 1000 { // a tail: the oldest goes, a new one comes
		p.Put(held[0])
		held = append(held[1:], p.Get())
	}
	if got := p.Mapped(); got != 20*slabBytes {
		t.Errorf("%d bytes after memory went round, want %d", got, 20*slabBytes)
	}
	for _, c := range held {
		p.Put(c)
	}
	if got := p.Mapped(); got > 2*slabBytes {
		t.Errorf("%d bytes stay mapped when nothing is held", got)
	}
}

// The chunk that was given back last comes first: it is the warm one.
func TestLastInFirstOut(t *testing.T) {
	var p Pool
	a, b := p.Get(), p.Get()
	p.Put(a)
	p.Put(b)
	if c := p.Get(); unsafe.SliceData(c.Bytes) != unsafe.SliceData(b.Bytes) {
		t.Error("another chunk came back")
	}
}
