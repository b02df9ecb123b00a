package partition

import (
	"bytes"
	"sort"
	"sync"
)

// tailBatch is one batch in memory. Its bytes are immutable once the high
// watermark passed it, until it is evicted; small ones stand in the arena.
type tailBatch struct {
	base, next int64
	lsn        uint64
	appendMS   int64
	data       []byte
}

// lasting returns b's bytes for a reader without the partition's lock, which
// the caller has.
func (b *tailBatch) lasting() []byte {
	if len(b.data) <= SmallBatch {
		return bytes.Clone(b.data) // it may be overwritten once it is evicted
	}
	return b.data
}

// tail is the newest batches of a partition in offset order. Three positions
// divide it: [0, flushed) is in segment files too and stays for readers until
// memory is needed, [flushed, visible) may be flushed, [visible, len) waits
// for the WAL.
//
// Batches stand in blocks, all but the last of them full, so that neither
// growth nor eviction moves what is there: under load that would cost more
// than the append itself. An idle partition's only block is as small as its
// content.
type tail struct {
	blocks  [][]tailBatch
	head    int // batches of the first block that were evicted
	count   int
	flushed int
	visible int
	pending int64 // bytes of batches that are visible and not flushed
	arena   arena
}

const (
	blockShift = 10
	blockSize  = 1 << blockShift
)

func (t *tail) len() int { return t.count }

// lastLSN is the LSN of the newest batch that waits for the WAL, 0 when none
// does.
func (t *tail) lastLSN() uint64 {
	if t.visible == t.count {
		return 0
	}
	return t.at(t.count - 1).lsn
}

// at returns batch i.
func (t *tail) at(i int) *tailBatch {
	i += t.head
	return &t.blocks[i>>blockShift][i&(blockSize-1)]
}

// blocks are full-sized ones that no tail uses, and empty.
var blocks = sync.Pool{New: func() any { return new([blockSize]tailBatch) }}

// push appends b and returns how many bytes of memory the tail took for it,
// which is nothing for most small batches and a whole chunk for some. It copies
// the bytes of a small batch and keeps those of a larger one.
func (t *tail) push(b tailBatch) (grown int64) {
	if data := b.data; len(data) <= SmallBatch {
		b.data, grown = t.arena.add(len(data))
		copy(b.data, data)
	} else {
		grown = int64(len(data))
	}
	switch last := len(t.blocks) - 1; {
	case last < 0:
		t.blocks = append(t.blocks, nil)
	case len(t.blocks[last]) == blockSize:
		t.blocks = append(t.blocks, blocks.Get().(*[blockSize]tailBatch)[:0])
	}
	last := &t.blocks[len(t.blocks)-1]
	*last = append(*last, b)
	t.count++
	return grown
}

// pushCopy is push for bytes that are not the tail's to keep.
func (t *tail) pushCopy(b tailBatch) (grown int64) {
	if len(b.data) > SmallBatch {
		b.data = bytes.Clone(b.data)
	}
	return t.push(b)
}

// close empties the tail and returns how many bytes it gave back.
func (t *tail) close() (freed int64) {
	for i := range t.count {
		if data := t.at(i).data; len(data) > SmallBatch {
			freed += int64(len(data))
		}
	}
	freed += t.arena.close()
	*t = tail{}
	return freed
}

// advance makes every batch up to the durable LSN visible and returns the new
// end of what is visible, or ok = false when nothing changed.
func (t *tail) advance(durable uint64) (end int64, ok bool) {
	for t.visible < t.count {
		b := t.at(t.visible)
		if b.lsn > durable {
			break
		}
		t.pending += int64(len(b.data))
		end, ok = b.next, true
		t.visible++
	}
	return end, ok
}

// unflushed returns visible batches that are in no segment file yet, from the
// oldest on: at most about limit bytes of them and at most to the end of their
// block, at least one if there is any. They stay as they are until markFlushed.
func (t *tail) unflushed(limit int64) []tailBatch {
	if t.flushed == t.visible {
		return nil
	}
	at := t.flushed + t.head
	block := t.blocks[at>>blockShift]
	first := at & (blockSize - 1)
	most := min(len(block), first+t.visible-t.flushed)
	end, size := first, int64(0)
	for end < most && (end == first || size+int64(len(block[end].data)) <= limit) {
		size += int64(len(block[end].data))
		end++
	}
	return block[first:end:end]
}

// markFlushed says that the first n unflushed batches are in a segment file.
func (t *tail) markFlushed(n int) {
	for range n {
		t.pending -= int64(len(t.at(t.flushed).data))
		t.flushed++
	}
}

// align says that segment files end at offset now, after one of them lost
// what was written last, or kept more than was noted.
func (t *tail) align(offset int64) {
	for t.flushed > 0 && t.at(t.flushed-1).next > offset {
		t.flushed--
		t.pending += int64(len(t.at(t.flushed).data))
	}
	for t.flushed < t.visible && t.at(t.flushed).next <= offset {
		t.pending -= int64(len(t.at(t.flushed).data))
		t.flushed++
	}
}

// times is the range of the append times of the batches that are not flushed
// and end at or below offset; zeros when there are none.
func (t *tail) times(offset int64) (low, high int64) {
	for i := t.flushed; i < t.visible && t.at(i).next <= offset; i++ {
		ms := t.at(i).appendMS
		if low == 0 || ms < low {
			low = ms
		}
		high = max(high, ms)
	}
	return low, high
}

// evict drops flushed batches that end at or below the checkpointed offset,
// oldest first, until about want bytes are free, and returns how many were.
func (t *tail) evict(want, checkpointed int64) (freed int64) {
	for t.flushed > 0 && freed < want {
		b := t.at(0)
		if b.next > checkpointed {
			break
		}
		if len(b.data) <= SmallBatch {
			freed += t.arena.drop()
		} else {
			freed += int64(len(b.data))
		}
		*b = tailBatch{} // its bytes may go although the block stays
		t.head++
		t.count--
		t.flushed--
		t.visible--
		if t.head == blockSize {
			t.head = 0
			blocks.Put((*[blockSize]tailBatch)(t.blocks[0]))
			t.blocks[0] = nil
			t.blocks = t.blocks[1:]
		}
	}
	if t.count == 0 {
		t.blocks, t.head = nil, 0
	}
	return freed
}

// find returns the index of the first visible batch that ends above offset;
// ok is false when memory does not reach back to offset, or not up to it.
func (t *tail) find(offset int64) (int, bool) {
	if t.visible == 0 || offset < t.at(0).base {
		return 0, false
	}
	i := sort.Search(t.visible, func(i int) bool { return t.at(i).next > offset })
	return i, i < t.visible
}

// oldest is the first batch that only the WAL holds durably according to the
// checkpoint, given the offset up to which files are synced.
func (t *tail) oldest(checkpointed int64) (*tailBatch, bool) {
	i := sort.Search(t.count, func(i int) bool { return t.at(i).next > checkpointed })
	if i == t.count {
		return nil, false
	}
	return t.at(i), true
}
