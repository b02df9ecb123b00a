package queue

import (
	"iter"
	"slices"
)

// chunkLen is the number of spans in a full chunk: 8 KiB, so that an insert
// moves at most that much, and a million spans need two thousand chunks.
const chunkLen = 512

// span is the half-open range [from, to) of offsets.
type span struct{ from, to int64 }

// spans is an ordered set of offsets, kept as disjoint ranges that do not
// touch. It is a sorted list of sorted chunks: with the few ranges of ordinary
// work it is one short slice, with a million it still finds and inserts in
// about a microsecond.
type spans struct {
	chunks [][]span // none is empty, except the only one
	n      int
	total  int64 // offsets in all spans together
}

func (s *spans) len() int { return s.n }

// end is the exclusive end of the highest span, 0 when there is none.
func (s *spans) end() int64 {
	if s.n == 0 {
		return 0
	}
	c := s.chunks[len(s.chunks)-1]
	return c[len(c)-1].to
}

func (s *spans) first() (span, bool) {
	if s.n == 0 {
		return span{}, false
	}
	return s.chunks[0][0], true
}

// find returns the place of the first span whose end is at or above off; ci is
// len(chunks) when there is none.
func (s *spans) find(off int64) (ci, i int) {
	if s.n == 0 {
		return len(s.chunks), 0
	}
	lo, hi := 0, len(s.chunks)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if c := s.chunks[mid]; c[len(c)-1].to < off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if ci = lo; ci == len(s.chunks) {
		return ci, 0
	}
	c := s.chunks[ci]
	lo, hi = 0, len(c)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if c[mid].to < off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return ci, lo
}

// covering returns the span that holds off.
func (s *spans) covering(off int64) (span, bool) {
	ci, i := s.find(off + 1)
	if ci == len(s.chunks) || s.chunks[ci][i].from > off {
		return span{}, false
	}
	return s.chunks[ci][i], true
}

// add puts [from, to) into the set and returns how many of its offsets are new.
func (s *spans) add(from, to int64) int64 {
	if from >= to {
		return 0
	}
	before := s.total
	ci, i := s.find(from)
	if ci == len(s.chunks) || s.chunks[ci][i].from > to {
		s.insert(ci, i, span{from, to})
		s.total += to - from
		return to - from
	}
	// The span found touches the new one: it grows, and swallows what follows.
	sp := &s.chunks[ci][i]
	s.total -= sp.to - sp.from
	merged := span{min(sp.from, from), max(sp.to, to)}
	*sp = merged
	for {
		ni, nj := ci, i+1
		if nj == len(s.chunks[ni]) {
			ni, nj = ni+1, 0
		}
		if ni == len(s.chunks) || s.chunks[ni][nj].from > merged.to {
			break
		}
		merged.to = max(merged.to, s.swallow(ni, nj, merged.to))
		s.chunks[ci][i] = merged
	}
	s.total += merged.to - merged.from
	return s.total - before
}

// swallow removes the spans of chunk ci from i on that begin at or below to,
// and returns the highest end among them. There is at least one.
func (s *spans) swallow(ci, i int, to int64) int64 {
	c, j := s.chunks[ci], i
	for j < len(c) && c[j].from <= to {
		s.total -= c[j].to - c[j].from
		j++
	}
	end := c[j-1].to
	s.remove(ci, i, j)
	return end
}

// remove deletes the spans [i, j) of chunk ci and counts them off; the chunk
// goes too when it is left empty, unless it is the only one, whose memory the
// next insert uses.
func (s *spans) remove(ci, i, j int) {
	s.n -= j - i
	s.chunks[ci] = slices.Delete(s.chunks[ci], i, j)
	if len(s.chunks[ci]) == 0 && len(s.chunks) > 1 {
		s.chunks = slices.Delete(s.chunks, ci, ci+1)
	}
}

func (s *spans) insert(ci, i int, sp span) {
	s.n++
	if ci == len(s.chunks) { // above all others
		if ci == 0 {
			s.chunks = append(s.chunks, []span{sp})
			return
		}
		ci--
		i = len(s.chunks[ci])
		if i == chunkLen {
			s.chunks = append(s.chunks, []span{sp})
			return
		}
	}
	c := s.chunks[ci]
	if len(c) == chunkLen {
		upper := make([]span, chunkLen/2, chunkLen)
		copy(upper, c[chunkLen/2:])
		s.chunks[ci] = c[:chunkLen/2]
		s.chunks = slices.Insert(s.chunks, ci+1, upper)
		if i > chunkLen/2 {
			ci, i = ci+1, i-chunkLen/2
		}
	}
	s.chunks[ci] = slices.Insert(s.chunks[ci], i, sp)
}

// cutBelow removes every offset below off.
func (s *spans) cutBelow(off int64) {
	for s.n > 0 {
		c, j := s.chunks[0], 0
		for j < len(c) && c[j].to <= off {
			s.total -= c[j].to - c[j].from
			j++
		}
		if j < len(c) {
			if c[j].from < off {
				s.total -= off - c[j].from
				c[j].from = off
			}
			s.remove(0, 0, j)
			return
		}
		s.remove(0, 0, j)
	}
}

// cutFrom removes every offset at or above off.
func (s *spans) cutFrom(off int64) {
	for s.n > 0 {
		ci := len(s.chunks) - 1
		c := s.chunks[ci]
		last := &c[len(c)-1]
		if last.to <= off {
			return
		}
		if last.from < off {
			s.total -= last.to - off
			last.to = off
			return
		}
		s.total -= last.to - last.from
		s.remove(ci, len(c)-1, len(c))
	}
}

// below counts the offsets of the set that are below off.
func (s *spans) below(off int64) int64 {
	n := s.total
	for ci := len(s.chunks) - 1; ci >= 0; ci-- {
		c := s.chunks[ci]
		for i := len(c) - 1; i >= 0; i-- {
			if c[i].to <= off {
				return n
			}
			n -= c[i].to - max(c[i].from, off)
		}
	}
	return n
}

func (s *spans) clear() { *s = spans{} }

// all yields the spans in order.
func (s *spans) all() iter.Seq[span] {
	return func(yield func(span) bool) {
		for _, c := range s.chunks {
			for _, sp := range c {
				if !yield(sp) {
					return
				}
			}
		}
	}
}
