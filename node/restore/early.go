package restore

import (
	"cmp"
	"slices"
)

// earlyBatch is a batch whose predecessors were not seen yet: they stand later in
// the log, or it lies behind a gap that is not known yet.
type earlyBatch struct {
	base       int64
	generation uint32
	appendMS   int64
	data       []byte // a copy
}

// earlyBatches are a partition's, by their base, each base once. Most come in
// that order, and leave from the front.
type earlyBatches []earlyBatch

func (e earlyBatches) find(base int64) (int, bool) {
	return slices.BinarySearchFunc(e, base, func(b earlyBatch, at int64) int { return cmp.Compare(b.base, at) })
}

// put takes b, unless one of that base that is as long is there, and returns by
// how many bytes it grew.
func (e *earlyBatches) put(b earlyBatch) (grown int64) {
	i, ok := e.find(b.base)
	switch {
	case !ok:
		b.data = slices.Clone(b.data)
		*e = slices.Insert(*e, i, b)
		return int64(len(b.data))
	case len((*e)[i].data) >= len(b.data):
		return 0 // carried
	default: // it was a part of a larger batch
		grown = int64(len(b.data) - len((*e)[i].data))
		b.data = slices.Clone(b.data)
		(*e)[i] = b
		return grown
	}
}

// take removes batch i.
func (e *earlyBatches) take(i int) earlyBatch {
	b := (*e)[i]
	if (*e)[i].data = nil; i == 0 {
		*e = (*e)[1:]
	} else {
		*e = slices.Delete(*e, i, i+1)
	}
	return b
}
