package cold

// hottest is the heat of what is kept whatever else there is.
const hottest = ^uint8(0)

// maxPassed bounds how many files that are read more often are passed over in
// the search for one that may go.
const maxPassed = 64

// heat counts how often chunks were read, on disk or not, lately. Once the cache
// is full it decides what is worth a place: what is read once, however much of it
// there is, does not drive out what is read again and again.
type heat struct {
	counts  map[chunkID]uint8
	touches int // since the counts were halved
	limit   int // chunks that are counted; up to twice as many for a while
}

// maxHeat is where counting ends: enough to tell often from once.
const maxHeat = 15

func newHeat(bytes int64) heat {
	// Some times as many chunks as the cache holds: a count that begins anew with
	// each read never rises.
	return heat{counts: make(map[chunkID]uint8), limit: int(min(1<<17, max(1<<10, 4*bytes/ChunkSize)))}
}

// touch counts one read of a chunk and returns the count.
func (h *heat) touch(id chunkID) uint8 {
	n := min(h.counts[id]+1, maxHeat)
	h.counts[id] = n
	if h.touches++; h.touches >= 8*h.limit || len(h.counts) > 2*h.limit {
		h.age()
	}
	return n
}

func (h *heat) of(id chunkID) uint8 { return h.counts[id] }

// age halves all counts: what was read often long ago makes room in the end.
func (h *heat) age() {
	h.touches = 0
	for id, n := range h.counts {
		if n /= 2; n == 0 {
			delete(h.counts, id)
		} else {
			h.counts[id] = n
		}
	}
}
