package partition

import (
	"errors"
	iofs "io/fs"
	"sort"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// Freed says what left this node's disk.
type Freed struct {
	Segments int   // files
	Bytes    int64 // of them, and of records that were in no file yet
}

// Trim raises the start of p's log to start, durably, and removes the local
// files and the memory that hold nothing at or above it. Below the present start
// it only finishes what an earlier call had to leave. The answer comes when the
// start is in the synced local state and visible to readers; a crash from then
// on leaves at most files that nothing names, which the next start removes.
//
// Offsets go on where they are: a log whose every record was trimmed is empty.
// A start inside a gap means the gap's end. Errors: InvalidArgument above the
// high watermark or below 0 (facts "oldest_offset" and "high_watermark"),
// Storage (the start may or may not have been raised; call it again), or why p
// refuses service.
func (e *Engine) Trim(p *Partition, start int64) (Freed, error) {
	p.flush.Lock()
	defer p.flush.Unlock()
	if err := p.Refused(); err != nil {
		return Freed{}, err
	}
	if hw := p.HighWatermark(); start < 0 || start > hw {
		oldest := p.Oldest()
		return Freed{}, errcode.New(errcode.InvalidArgument, "partition %d cannot be trimmed to offset %d: its log begins at %d and ends at %d; name an offset from 0 to %d", p.ID.Partition, start, oldest, hw, hw).
			With("oldest_offset", oldest).With("high_watermark", hw)
	}
	if start = p.afterGap(start); start > p.Oldest() {
		// The local state first: a start that readers have seen never falls.
		err := e.commitFiles(p, nil, func(entry *state.Partition) { entry.Oldest = start })
		if err != nil {
			return Freed{}, err
		}
		// Then the readers: who does not find a file looks at the start again
		// and knows why. The files go last.
		p.mu.Lock()
		p.mu.oldest = start
		p.mu.Unlock()
		e.opts.OnTrimmed(p.ID, start)
	}
	return e.dropBelow(p)
}

// dropBelow removes what lies wholly below the start. The caller holds p.flush.
func (e *Engine) dropBelow(p *Partition) (Freed, error) {
	start := p.Oldest()
	d := e.droppable(p, start, e.opts.Dropping(p.ID, start))
	if len(d.sealed) == 0 && d.active == nil && d.tail == 0 {
		e.forgetTail(p, start)
		return Freed{}, nil
	}
	err := e.commitFiles(p, d.sealed, func(entry *state.Partition) {
		entry.Flushed = max(entry.Flushed, d.end)
		if d.active != nil {
			entry.Active = nil
		}
		if d.lsn > 0 && (entry.SkippedLSN == 0 || d.lsn < entry.SkippedLSN) {
			entry.SkippedLSN = d.lsn
		}
		if d.lsn > 0 {
			entry.SkippedEnd = max(entry.SkippedEnd, d.end)
		}
	})
	if err != nil {
		return Freed{}, err
	}
	p.mu.Lock()
	p.mu.checkpointed = max(p.mu.checkpointed, d.end)
	p.mu.skippedLSN, p.mu.skippedEnd = p.written.SkippedLSN, p.written.SkippedEnd
	p.mu.tail.markFlushed(d.tail) // nothing of them is to be written any more
	p.mu.Unlock()
	freed := e.unlink(p, d.sealed, d.active)
	freed.Bytes += d.tailBytes
	e.forgetTail(p, start)
	return freed, nil
}

// drop is what a trim takes away.
type drop struct {
	sealed    []state.Sealed
	active    *segment.Writer // nil: it stays
	tail      int             // batches that are in no file and need not go there
	tailBytes int64
	end       int64  // where everything of this that is or was in files ends
	lsn       uint64 // first commit of what the chain does not hold; 0 = it holds all
}

// droppable collects what lies wholly below start: sealed files up to limit,
// and when none of them is left the active file, and then what waits in memory
// to be flushed. The caller holds p.flush, so none of it changes.
func (e *Engine) droppable(p *Partition, start, limit int64) (d drop) {
	p.files.RLock()
	defer p.files.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	unarchived := func(next int64, lsn uint64) {
		if next > p.mu.archivedEnd && d.lsn == 0 {
			d.lsn = lsn // 0: imported, so in no frame of this log
		}
	}
	n := sort.Search(len(p.files.sealed), func(i int) bool { return p.files.sealed[i].Next > min(start, limit) })
	d.sealed = p.files.sealed[:n:n]
	for i := range d.sealed {
		d.end = d.sealed[i].Next
		unarchived(d.end, d.sealed[i].FirstLSN)
	}
	if n < len(p.files.sealed) {
		return d
	}
	w := p.files.active
	if w != nil && w.Size() > 0 {
		if w.Next() > start {
			return d
		}
		d.active, d.end = w, w.Next()
		unarchived(d.end, p.files.meta.FirstLSN)
	}
	t := &p.mu.tail
	for i := t.flushed; i < t.visible && t.at(i).next <= start; i++ {
		b := t.at(i)
		d.tail++
		d.tailBytes += int64(len(b.data))
		d.end = b.next
		unarchived(b.next, b.lsn)
	}
	if d.tail > 0 {
		// A file without records, which a crash leaves, waits for the first of
		// these: one that begins higher needs a file of its own.
		d.active = w
	}
	return d
}

// commitFiles makes durable that p has lost the given sealed segments, and what
// change does to its entry, in one synced batch. The caller holds p.flush.
//
// It does not ask for disk space as a flush does: it is what makes space, and
// writes a few hundred bytes.
func (e *Engine) commitFiles(p *Partition, gone []state.Sealed, change func(*state.Partition)) error {
	e.entries.Lock()
	defer e.entries.Unlock()
	p.mu.Lock()
	entry := p.betweenLocked()
	// What was flushed since the last checkpoint is not synced.
	entry.Flushed = p.mu.checkpointed
	p.mu.Unlock()
	change(&entry)
	b := e.opts.State.NewBatch()
	for i := range gone {
		b.DeleteSegment(p.ID, gone[i].Base)
	}
	b.PutPartition(p.ID, entry)
	if err := b.Commit(); err != nil {
		return err
	}
	p.writes++
	p.written = entry
	e.dirty.add(p) // a checkpoint that runs now writes this entry instead of its own
	return nil
}

// unlink removes files that the local state does not name any more: from the
// list that readers use, from the open files, and then from the disk. Who reads
// one finishes: a file in use is closed by its last reader. The directory is not
// synced: a file that a crash brings back is removed by the next start.
func (e *Engine) unlink(p *Partition, sealed []state.Sealed, active *segment.Writer) (f Freed) {
	p.files.Lock() // waits for those who read the active file
	p.files.sealed = without(p.files.sealed, sealed)
	if active != nil {
		p.files.active = nil
		p.files.meta = state.Active{}
	}
	p.files.Unlock()
	for i := range sealed {
		path := p.segmentPath(sealed[i].Base)
		e.handles.forgetFile(path) // an open descriptor would keep the disk space
		e.remove(path)
		f.Segments++
		f.Bytes += sealed[i].Bytes
	}
	if active != nil {
		f.Segments++
		f.Bytes += active.Size()
		path := active.Path()
		if err := active.Close(); err != nil { // its content is not needed any more
			e.opts.Logger.Warn("close a trimmed segment file", "error", err)
		}
		e.remove(path)
	}
	return f
}

// without returns the segments of list that are not in gone, which ascend both,
// in a new array: readers hold the old one.
func without(list, gone []state.Sealed) []state.Sealed {
	out := make([]state.Sealed, 0, len(list))
	for i := range list {
		if len(gone) > 0 && list[i].Base == gone[0].Base {
			gone = gone[1:]
			continue
		}
		out = append(out, list[i])
	}
	return out
}

func (e *Engine) remove(path string) bool {
	err := e.opts.FS.Remove(path)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		e.opts.Logger.Warn("a segment file that is not needed any more could not be removed; the next start tries again", "file", path, "error", err)
		return false
	}
	return true
}

// forgetTail frees the memory of flushed records below start.
func (e *Engine) forgetTail(p *Partition, start int64) {
	p.mu.Lock()
	freed := p.mu.tail.evict(1<<62, min(start, p.mu.checkpointed))
	p.mu.Unlock()
	e.room.freed(freed)
}

// sweepFile removes what a crash left of the segment at base: the local state
// does not name it, and what it held was trimmed or is in the archive. A file
// that neither explains is kept; nothing reads it. Nothing else runs yet.
func (p *Partition) sweepFile(base int64) {
	sealed := p.segmentPath(base)
	active := p.e.opts.FS.PathJoin(p.dir, segment.ActiveName(base))
	if base >= max(p.mu.oldest, p.mu.archivedEnd) {
		p.e.opts.Logger.Warn("a segment file that the local state does not name is kept", "file", sealed)
		return
	}
	removed := false
	for _, path := range []string{sealed, active} {
		if _, err := p.e.opts.FS.Stat(path); err == nil && p.e.remove(path) {
			removed = true
			p.e.opts.Logger.Info("removed a segment file that was trimmed or evicted before a crash", "file", path)
		}
	}
	if removed {
		p.e.metrics.leftovers.Inc()
	}
}
