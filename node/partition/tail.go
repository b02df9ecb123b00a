package partition

import "sort"

// tailBatch is one batch in memory. Its bytes are immutable once the high
// watermark passed it.
type tailBatch struct {
	base, next int64
	lsn        uint64
	appendMS   int64
	data       []byte
}

// tail is the newest batches of a partition in offset order. Three positions
// divide it: [0, flushed) is in segment files too and stays for readers until
// memory is needed, [flushed, visible) may be flushed, [visible, len) waits
// for the WAL.
type tail struct {
	batches []tailBatch
	flushed int
	visible int
	pending int64 // of batches that are visible and not flushed
}

func (t *tail) push(b tailBatch) {
	t.batches = append(t.batches, b)
}

// advance makes every batch up to the durable LSN visible and returns the new
// end of what is visible, or ok = false when nothing changed.
func (t *tail) advance(durable uint64) (end int64, ok bool) {
	for t.visible < len(t.batches) && t.batches[t.visible].lsn <= durable {
		b := &t.batches[t.visible]
		t.pending += int64(len(b.data))
		end, ok = b.next, true
		t.visible++
	}
	return end, ok
}

// unflushed returns the visible batches that are in no segment file yet, at
// most about limit bytes of them (at least one).
func (t *tail) unflushed(limit int64) []tailBatch {
	end, size := t.flushed, int64(0)
	for end < t.visible && (end == t.flushed || size+int64(len(t.batches[end].data)) <= limit) {
		size += int64(len(t.batches[end].data))
		end++
	}
	return t.batches[t.flushed:end:end]
}

// markFlushed says that the first n unflushed batches are in a segment file.
func (t *tail) markFlushed(n int) {
	for _, b := range t.batches[t.flushed : t.flushed+n] {
		t.pending -= int64(len(b.data))
	}
	t.flushed += n
}

// unflush takes back what markFlushed said of batches that end above offset.
func (t *tail) unflush(offset int64) {
	for t.flushed > 0 && t.batches[t.flushed-1].next > offset {
		t.flushed--
		t.pending += int64(len(t.batches[t.flushed].data))
	}
}

// evict drops flushed batches that end at or below the checkpointed offset,
// oldest first, until about want bytes are free, and returns how many were.
func (t *tail) evict(want, checkpointed int64) (freed int64) {
	n := 0
	for n < t.flushed && freed < want && t.batches[n].next <= checkpointed {
		freed += int64(len(t.batches[n].data))
		n++
	}
	if n == 0 {
		return 0
	}
	// The rest moves to a new array: slicing forward would keep every evicted
	// batch reachable.
	t.batches = append(make([]tailBatch, 0, len(t.batches)-n+8), t.batches[n:]...)
	t.flushed -= n
	t.visible -= n
	return freed
}

// find returns the index of the first visible batch that ends above offset;
// ok is false when memory does not hold offset's batch or a later one begins
// where an earlier file ends.
func (t *tail) find(offset int64) (int, bool) {
	if t.visible == 0 || offset < t.batches[0].base {
		return 0, false
	}
	i := sort.Search(t.visible, func(i int) bool { return t.batches[i].next > offset })
	return i, i < t.visible
}

// oldestLSN is the LSN of the first batch that only the WAL holds durably
// according to the checkpoint, given the offset up to which files are synced.
func (t *tail) oldestLSN(checkpointed int64) (uint64, bool) {
	i := sort.Search(len(t.batches), func(i int) bool { return t.batches[i].next > checkpointed })
	if i == len(t.batches) {
		return 0, false
	}
	return t.batches[i].lsn, true
}
