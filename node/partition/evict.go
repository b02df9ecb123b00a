package partition

import (
	"github.com/tidemark-mq/tidemark/node/state"
)

// Evict removes the local copies of sealed segments that lie wholly below an
// offset and whose copy in the archive was confirmed by checksum (I6). The
// records stay in the log: reads of them go to the archive. Segments that are
// only covered by other objects, or not archived yet, stay whatever below says.
// Errors: Storage (nothing was removed), or why p refuses service.
func (e *Engine) Evict(p *Partition, below int64) (Freed, error) {
	p.flush.Lock()
	defer p.flush.Unlock()
	if err := p.Refused(); err != nil {
		return Freed{}, err
	}
	gone := p.evictable(below)
	if len(gone) == 0 {
		return Freed{}, nil
	}
	// The local state first: it never names a file that is gone. It says in the
	// same step how far the archive reaches, so that after a crash the missing
	// offsets are looked for there.
	if err := e.commitFiles(p, gone, func(*state.Partition) {}); err != nil {
		return Freed{}, err
	}
	return e.unlink(p, gone, nil), nil
}

// evictable lists the segments that Evict may remove.
func (p *Partition) evictable(below int64) (out []state.Sealed) {
	end, _ := p.ArchivedEnd()
	p.files.RLock()
	defer p.files.RUnlock()
	for i := range p.files.sealed {
		if s := &p.files.sealed[i]; s.Next <= min(below, end) && s.Confirmed {
			out = append(out, *s)
		}
	}
	return out
}

// lists says whether path is one of p's sealed segments.
func (p *Partition) lists(path string) bool {
	p.files.RLock()
	defer p.files.RUnlock()
	for i := range p.files.sealed {
		if p.segmentPath(p.files.sealed[i].Base) == path {
			return true
		}
	}
	return false
}

// listed returns those of marked that are still p's: an eviction or a trim may
// have come since they were captured, and must not be undone.
func (p *Partition) listed(marked []state.Sealed) (out []state.Sealed) {
	p.files.RLock()
	defer p.files.RUnlock()
	for i := range marked {
		if p.isSealed(marked[i].Base) {
			out = append(out, marked[i])
		}
	}
	return out
}

// Piece is a run of records that stays or goes as a whole.
type Piece struct {
	Base, Next int64
	Bytes      int64
	MaxAppend  int64 // latest append time in ms; 0 = not known
	Confirmed  bool  // the archive has exactly these bytes
}

// Local is what this node holds of a partition.
type Local struct {
	Oldest        int64 // start of the log
	HighWatermark int64
	ArchivedEnd   int64   // end of the archive's chain as last seen
	ChainSeq      uint64  // 0: as far as is known, there is no chain
	Pieces        []Piece // ascending: the sealed segments, then what is in none
	Sealed        int     // how many of Pieces are sealed segments
	// Cut is where the next upload would begin at the earliest: what the
	// archive does not have of the log below it, it will never get.
	Cut int64
}

// Doubts returns what is known of append times of p that cannot be right, as the
// local state keeps it. The caller does not change it.
func (p *Partition) Doubts() [][3]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.doubts
}

// SetDoubts replaces what Doubts returns. It is durable with the next checkpoint,
// and with the next trim or eviction: nothing goes on the ground of what is
// known and would be forgotten. The slice is p's from then on.
func (p *Partition) SetDoubts(d [][3]int64) {
	p.mu.Lock()
	p.mu.doubts = d
	p.mu.Unlock()
	p.e.dirty.add(p)
}

// Local describes p for decisions about what may go.
func (p *Partition) Local() Local {
	p.files.RLock()
	defer p.files.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	l := Local{Oldest: p.mu.oldest, HighWatermark: p.hw.Load(), ArchivedEnd: p.mu.archivedEnd, ChainSeq: p.mu.chainSeq}
	l.Sealed = len(p.files.sealed)
	l.Pieces = make([]Piece, 0, l.Sealed+1)
	for i := range p.files.sealed {
		s := &p.files.sealed[i]
		l.Pieces = append(l.Pieces, Piece{s.Base, s.Next, s.Bytes, s.MaxAppend, s.Confirmed})
	}
	if open, ok := p.openPiece(); ok {
		l.Pieces = append(l.Pieces, open)
	}
	l.Cut = l.HighWatermark
	for i := range l.Pieces {
		if x := &l.Pieces[i]; x.Next > l.ArchivedEnd {
			l.Cut = x.Base
			break
		}
	}
	return l
}

// openPiece is what is in no sealed segment: the active file and the visible
// records behind it. The caller holds p.files and p.mu.
func (p *Partition) openPiece() (x Piece, ok bool) {
	t := &p.mu.tail
	known := true
	if w := p.files.active; w != nil && w.Size() > 0 {
		x = Piece{Base: p.files.meta.Base, Next: w.Next(), Bytes: w.Size(), MaxAppend: p.files.meta.MaxAppend}
		known, ok = x.MaxAppend > 0, true
	}
	if t.flushed < t.visible {
		first, last := t.at(t.flushed), t.at(t.visible-1)
		if !ok {
			x.Base = first.base
		}
		x.Next, x.Bytes, ok = last.next, x.Bytes+t.pending, true
		x.MaxAppend = max(x.MaxAppend, first.appendMS, last.appendMS)
	}
	if !known {
		x.MaxAppend = 0
	}
	return x, ok
}
