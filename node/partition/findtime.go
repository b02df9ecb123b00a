package partition

import (
	"context"
	"errors"
	iofs "io/fs"
	"slices"

	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// FindTime returns the first visible offset whose record's timestamp is at or
// after ms, or the high watermark when there is none. Times need not ascend. What
// a tier says about the times that it holds decides where to look: a time after
// all records costs no read.
func (p *Partition) FindTime(ctx context.Context, ms int64) (int64, error) {
	if err := p.Refused(); err != nil {
		return 0, err
	}
	hw := p.HighWatermark()
	for {
		oldest := p.Oldest()
		at, again, err := p.findTime(ctx, oldest, ms, hw)
		if err != nil {
			return 0, p.because(err)
		}
		// What was trimmed meanwhile is not the answer (B123).
		if now := p.Oldest(); !again && (at >= now || now == oldest) {
			return max(oldest, min(at, hw)), nil
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// findTime looks from offset oldest on. again is set when records moved to
// another tier while it looked.
func (p *Partition) findTime(ctx context.Context, oldest, ms, hw int64) (at int64, again bool, err error) {
	start := max(oldest, p.localStart())
	if a := p.e.opts.Archive; a != nil && oldest < start {
		at, ok, err := a.FindTime(ctx, p.ID, oldest, start, ms)
		if err != nil || ok && at < start {
			return at, false, err
		}
	}
	// Records move from the tail into files, never back: what is taken from the
	// tail now and not found there is in the files that are looked at next.
	p.mu.Lock()
	inMemory := hw
	if t := &p.mu.tail; t.flushed < t.visible {
		inMemory = max(start, t.at(t.flushed).base)
	}
	p.mu.Unlock()
	at, ok, again, err := p.findTimeFiles(ctx, start, ms)
	switch {
	case err != nil || again:
		return at, again, err
	case p.localStart() > start:
		return 0, true, nil // files left for the archive: one of them may have been passed over
	case ok:
		return at, false, nil
	case inMemory >= hw:
		return hw, false, nil
	default:
		return p.findTimeTail(inMemory, ms, hw)
	}
}

// findTimeFiles looks in the files from offset from on. again is set when one
// of them turned out to be only in the archive.
func (p *Partition) findTimeFiles(ctx context.Context, from, ms int64) (at int64, ok, again bool, err error) {
	for {
		p.files.RLock()
		i := slices.IndexFunc(p.files.sealed, func(s state.Sealed) bool { return s.Next > from && s.MaxTimestamp >= ms })
		if i < 0 {
			defer p.files.RUnlock() // the lock keeps the active file open
			if p.files.active == nil {
				return 0, false, false, nil
			}
			at, ok, err = findTimeIn(p.files.active.Reader(), from, ms)
			return at, ok, false, err
		}
		s := p.files.sealed[i]
		base, next, path := s.Base, s.Next, p.segmentPath(s.Base)
		p.files.RUnlock()
		h, err := p.openSealed(&s)
		if errors.Is(err, iofs.ErrNotExist) && p.forgetMissing(path) {
			return 0, false, true, nil
		}
		if err == nil {
			at, ok, err = findTimeIn(h.Reader, from, ms)
			p.e.handles.release(h)
		}
		if p.elsewhere(base, err) {
			at, ok, err = p.e.opts.Archive.FindTime(ctx, p.ID, from, next, ms)
			ok = ok && at < next
		}
		if err != nil || ok {
			return at, ok, false, err
		}
		from = next
	}
}

// findTimeIn looks in one file from offset from on.
func findTimeIn(r *segment.Reader, from, ms int64) (int64, bool, error) {
	x := r.Index()
	// The first batch that reaches ms, or one behind it when that lies below
	// from: then batches are looked into until one of them reaches it again.
	i := x.SeekTime(ms)
	if i < x.Len() {
		i = max(i, x.SeekOffset(from))
	}
	var buf []byte
	for ; i < x.Len(); i++ {
		b, h, err := r.ReadBatch(x.At(i), buf)
		if err != nil {
			return 0, false, err
		}
		buf = b
		if h.MaxTimestamp < ms {
			continue
		}
		if at, _, found, err := segment.FindTimeFrom(b, from, ms, nil); err != nil || found {
			return at, found, err
		}
	}
	return 0, false, nil
}

// tailHeaders is how many batches a look for a time takes under the lock.
const tailHeaders = 512

// findTimeTail looks in memory from offset from on. again
// is set when that has been evicted meanwhile: it is in a file now.
func (p *Partition) findTimeTail(from, ms, hw int64) (at int64, again bool, err error) {
	for {
		data, next, again, err := p.nextInTail(from, ms)
		if err != nil || again {
			return 0, again, err
		}
		if data == nil && next == from {
			return hw, false, nil
		}
		if data != nil {
			if at, _, found, err := segment.FindTimeFrom(data, from, ms, nil); err != nil || found {
				return at, false, err
			}
		}
		from = next
	}
}

// nextInTail looks at some of the batches in memory from offset from on. It
// returns the first whose latest record is not before ms, if there is one, and
// where to go on: from itself at the end of what is visible.
func (p *Partition) nextInTail(from, ms int64) (data []byte, next int64, evicted bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &p.mu.tail
	i, ok := t.find(from)
	if !ok {
		return nil, from, t.visible == 0 || from < t.at(0).base, nil
	}
	for end := min(t.visible, i+tailHeaders); i < end; i++ {
		b := t.at(i)
		h, err := segment.ParseHeader(b.data)
		if err != nil {
			return nil, 0, false, err
		}
		from = b.next
		if h.MaxTimestamp >= ms {
			return b.lasting(), from, false, nil
		}
	}
	return nil, from, false, nil
}
