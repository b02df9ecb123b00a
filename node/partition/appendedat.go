package partition

import "sort"

// AppendedAt returns about when the record at offset was appended, in ms, or of
// the oldest local one above it when it is not here; 0 when there is neither.
// It reads nothing: in a segment file, times are taken to run evenly from its
// first to its last.
func (p *Partition) AppendedAt(offset int64) (ms int64) {
	p.files.RLock()
	defer p.files.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &p.mu.tail
	if t.len() > 0 && offset >= t.at(0).base {
		i := sort.Search(t.len(), func(i int) bool { return t.at(i).next > offset })
		if i == t.len() {
			return 0
		}
		return t.at(i).appendMS
	}
	sealed := p.files.sealed
	if i := sort.Search(len(sealed), func(i int) bool { return sealed[i].Next > offset }); i < len(sealed) {
		s := &sealed[i]
		return between(offset, s.Base, s.Next, s.MinAppend, s.MaxAppend)
	}
	if w := p.files.active; w != nil && offset < w.Next() {
		return between(offset, p.files.meta.Base, w.Next(), p.files.meta.MinAppend, p.files.meta.MaxAppend)
	}
	if t.len() > 0 {
		return t.at(0).appendMS
	}
	return 0
}

// between is the time of offset where base has the time low and next high.
func between(offset, base, next, low, high int64) int64 {
	if offset <= base || next <= base {
		return low
	}
	return low + int64(float64(high-low)*float64(offset-base)/float64(next-base))
}
