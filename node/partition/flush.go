package partition

import (
	"context"
	"runtime"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// Batches from this size on were compressed when they arrived, or do not
// shrink; the flusher stores them as they are.
const mergeBelow = 32 << 10

// mergeTo is the size of a merged batch before it is compressed. Above it zstd
// gains nothing worth having (ratios of 3.69 here, 3.75 at 256 KiB of text),
// takes longer for each byte, and keeps its processor from requests for more
// than a millisecond.
const mergeTo = 60 << 10

// flushChunk is how much of a tail is looked at in one step of a flush.
const flushChunk = 4 << 20

func (e *Engine) runFlusher(ctx context.Context) {
	var m merger
	for {
		p, ok := e.flushes.pop()
		if !ok {
			return
		}
		p.mu.Lock()
		p.mu.queued = false
		p.mu.Unlock()
		err := e.flush(p, &m, e.opts.FlushBytes)
		p.mu.Lock()
		p.mu.stuck = err != nil
		p.mu.Unlock()
		if err != nil {
			e.metrics.flushErrors.Inc()
			e.opts.Logger.Error("flush failed, the log keeps the records", "partition", p.ID.String(), "error", err)
		}
		e.evict(p)
		if n, _ := e.room.waiting(); n > 0 {
			e.crowd() // what was flushed can be given back once a checkpoint covers it
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// flush moves visible batches of p into its segment file while at least
// atLeast bytes of them wait. It takes what is visible when it begins, so that
// it ends however fast more come: that is the next one's, and other partitions
// have their turn before. Between two steps p's files are free: a checkpoint,
// without which no memory is given back, would wait for a busy partition else.
func (e *Engine) flush(p *Partition, m *merger, atLeast int64) error {
	end := p.HighWatermark()
	for {
		more, err := e.flushStep(p, m, atLeast, end)
		if err != nil || !more {
			return err
		}
	}
}

// flushStep flushes up to flushChunk of what begins below end. more says that
// something may be left.
func (e *Engine) flushStep(p *Partition, m *merger, atLeast, end int64) (more bool, err error) {
	p.flush.Lock()
	defer p.flush.Unlock()
	if err := e.heal(p); err != nil {
		return false, err
	}
	p.mu.Lock()
	var batches []tailBatch
	if p.mu.refused == nil && p.mu.tail.pending >= max(atLeast, 1) {
		batches = p.mu.tail.unflushed(flushChunk)
	}
	p.mu.Unlock()
	if len(batches) == 0 || batches[0].base >= end {
		return false, nil
	}
	if err := e.opts.DiskOK(); err != nil {
		return false, err
	}
	if err := e.write(p, m, batches); err != nil {
		e.abandon(p, err)
		return false, err
	}
	return true, nil
}

// flushAll flushes everything visible.
func (e *Engine) flushAll(p *Partition) error {
	var m merger
	return e.flush(p, &m, 1)
}

// abandon answers a failed write of p's files. One that the disk may take later
// is tried again over the valid prefix of its file (heal). A file whose sync
// failed may lie (I5), and one that does not fit its tail is a bug: then the
// partition refuses service until a restart. The caller holds p.flush.
func (e *Engine) abandon(p *Partition, cause error) {
	if !errcode.Is(cause, errcode.Storage) {
		p.refuse(cause)
		return
	}
	if err := e.heal(p); err != nil {
		e.opts.Logger.Warn("a segment file waits for the disk", "partition", p.ID.String(), "error", err)
	}
}

// heal replaces a writer whose write failed by one over the valid prefix of its
// file, as after a crash. What the file lost is still in memory, because only
// what a checkpoint covers is evicted, and is flushed again; what it holds
// beyond the last flush is not. While the disk does not let it, the old writer
// stays for those who read. The caller holds p.flush.
func (e *Engine) heal(p *Partition) error {
	old := p.files.active
	if old == nil || old.Err() == nil {
		return nil
	}
	if err := e.opts.DiskOK(); err != nil {
		return err
	}
	p.mu.Lock()
	checkpointed := p.mu.checkpointed
	p.mu.Unlock()
	meta := p.files.meta
	w, _, err := segment.Recover(e.opts.FS, p.dir, segment.RecoverOptions{
		Options: p.segmentOptions(meta.Base), Flushed: max(meta.Base, checkpointed), MinAppend: meta.MinAppend, MaxAppend: meta.MaxAppend,
	})
	if errcode.Is(err, errcode.Conflict) {
		return e.healSeal(p, old)
	}
	if err != nil {
		if !errcode.Is(err, errcode.Storage) {
			p.refuse(err)
		}
		return err
	}
	p.files.Lock() // waits for those who read from the old writer
	p.files.active = w
	p.files.Unlock()
	p.mu.Lock()
	// What the file holds beyond the last flush was not counted in its range.
	low, high := p.mu.tail.times(w.Next())
	p.mu.tail.align(w.Next())
	p.mu.Unlock()
	w.Widen(low, high)
	in := w.Info()
	p.files.Lock()
	p.files.meta.MinAppend, p.files.meta.MaxAppend = in.MinAppend, in.MaxAppend
	p.files.Unlock()
	e.dirty.add(p)
	if err := old.Close(); err != nil {
		e.opts.Logger.Warn("close a segment file after a failed write", "error", err)
	}
	return nil
}

// healSeal ends a seal that had renamed its file and could not sync the
// directory, for want of a descriptor, say. The sealed file is read and checked
// as after a crash. The caller holds p.flush.
func (e *Engine) healSeal(p *Partition, old *segment.Writer) error {
	info, err := segment.Adopt(e.opts.FS, p.dir, p.segmentOptions(p.files.meta.Base))
	if err == nil && info.Next != old.Next() {
		err = errcode.New(errcode.Corrupt, "segment %s ends at offset %d after its seal, %d was written", p.segmentPath(info.Base), info.Next, old.Next())
	}
	if err != nil {
		if !errcode.Is(err, errcode.Storage) {
			p.refuse(err)
		}
		return err
	}
	return e.recordSeal(p, old, info, e.opts.Now())
}

// write appends batches to the segment file, merging small neighbours. The
// caller holds p.flush.
func (e *Engine) write(p *Partition, m *merger, batches []tailBatch) error {
	for len(batches) > 0 {
		out, n, err := m.next(batches, min(e.opts.FlushBytes, mergeTo), p.compress())
		if err != nil {
			return err
		}
		if err := e.writeBatch(p, out, batches[:n]); err != nil {
			return err
		}
		// At once: after a failure further on, nothing may be written twice.
		p.mu.Lock()
		p.mu.tail.markFlushed(n)
		p.mu.Unlock()
		e.dirty.add(p)
		if batches = batches[n:]; len(batches) > 0 && !e.behind() {
			runtime.Gosched() // requests go first: this may take milliseconds
		}
	}
	return nil
}

// behind says that the tails grow although they are flushed. Then the flusher
// yields to nobody: a processor with much to do takes up who yielded once in 61
// turns, and turns of large records are milliseconds.
func (e *Engine) behind() bool {
	hot := e.opts.HotBytes
	return e.memory.Load() > hot+(e.opts.MemoryBudget-hot)/8
}

// writeBatch appends one batch that stands for the given tail batches.
func (e *Engine) writeBatch(p *Partition, out []byte, from []tailBatch) error {
	first, last := &from[0], &from[len(from)-1]
	// A file without records, which a crash right after its creation leaves, is
	// no segment: it takes its first batch, however large.
	if w := p.files.active; w != nil && w.Size() > 0 {
		index := w.IndexBytes() + segment.IndexEntrySize
		full := w.Size()+int64(len(out))+index+segment.FooterSize > e.opts.SegmentBytes
		if full || w.Next() != first.base { // a segment ends at a gap
			if err := e.seal(p); err != nil {
				return err
			}
		}
	}
	minAppend, maxAppend := first.appendMS, first.appendMS
	for i := range from {
		minAppend, maxAppend = min(minAppend, from[i].appendMS), max(maxAppend, from[i].appendMS)
	}
	if p.files.active == nil {
		w, err := segment.Create(e.opts.FS, p.dir, p.segmentOptions(first.base))
		if err != nil {
			return err
		}
		p.files.Lock()
		p.files.active = w
		p.files.meta = state.Active{Base: first.base, MinAppend: minAppend, MaxAppend: maxAppend, FirstLSN: first.lsn}
		p.files.Unlock()
	}
	if err := p.files.active.Append(out, minAppend, maxAppend); err != nil {
		return err
	}
	p.files.Lock()
	p.files.meta.MinAppend = min(p.files.meta.MinAppend, minAppend)
	p.files.meta.MaxAppend = max(p.files.meta.MaxAppend, maxAppend)
	p.files.Unlock()
	e.metrics.flushedBytes.Add(float64(len(out)))
	if got := p.files.active.Next(); got != last.next {
		return errcode.New(errcode.Internal, "segment %d of partition %s ends at %d after a flush up to %d", p.files.meta.Base, p.ID, got, last.next)
	}
	return nil
}

// seal closes the active file into a segment and tells the archive. The caller
// holds p.flush.
func (e *Engine) seal(p *Partition) error {
	start := e.opts.Now()
	w := p.files.active
	info, err := w.Seal()
	if err != nil {
		return err
	}
	return e.recordSeal(p, w, info, start)
}

// recordSeal makes the sealed file of w one of p's segments. The caller holds
// p.flush.
func (e *Engine) recordSeal(p *Partition, w *segment.Writer, info segment.Info, start time.Time) error {
	sealed := state.Sealed{Info: info, FirstLSN: p.files.meta.FirstLSN}
	// The file has its final name, and the directory was synced; now the local
	// state may name it. A crash in between finds the .seg file in place of
	// the .log file that the state names, and adopts it.
	if err := e.commitSeal(p, sealed); err != nil {
		return err
	}
	p.files.Lock() // waits for those who read from the writer
	p.files.active = nil
	p.files.meta = state.Active{}
	p.files.sealed = append(p.files.sealed, sealed)
	p.files.Unlock()
	if err := w.Close(); err != nil { // everything is synced: only the descriptor is at stake
		e.opts.Logger.Warn("close a sealed segment", "error", err)
	}
	p.mu.Lock()
	p.mu.checkpointed = max(p.mu.checkpointed, info.Next)
	p.mu.Unlock()
	e.dirty.add(p)
	e.metrics.sealed.Inc()
	e.opts.Logger.Info("segment sealed", "partition", p.ID.String(), "base", info.Base, "next", info.Next, "bytes", info.Bytes, "took", e.opts.Now().Sub(start))
	e.opts.OnSealed(p.ID, p.segmentPath(info.Base), sealed)
	return nil
}

// commitSeal makes durable that p has one more sealed segment and no active
// file. The caller holds p.flush.
func (e *Engine) commitSeal(p *Partition, s state.Sealed) error {
	e.entries.Lock()
	defer e.entries.Unlock()
	p.mu.Lock()
	entry := p.betweenLocked()
	p.mu.Unlock()
	entry.Active, entry.Flushed = nil, s.Next
	b := e.opts.State.NewBatch()
	b.PutSegment(p.ID, s)
	b.PutPartition(p.ID, entry)
	if err := b.Commit(); err != nil {
		return err
	}
	p.writes++
	p.written = entry
	return nil
}

// SealOld flushes and seals what has reached its age. Age counts from the
// broker's append time of the oldest record that is in no sealed segment. A time
// that lies ahead was given by a clock that was wrong then: nobody knows the age, and
// to wait until it is that late would keep the shipped log from that record on.
// Younger ones are sealed when the archive keeps much of the log for them alone.
func (e *Engine) SealOld() {
	now := e.opts.Now()
	for _, p := range e.All() {
		oldest, size := p.unsealed()
		if oldest == 0 {
			continue
		}
		age := now.Sub(time.UnixMilli(oldest))
		if age < -e.opts.SealAge {
			age = e.opts.SealAgeMax
		}
		if age >= e.opts.SealAgeMax || age >= e.opts.SealAge && size >= e.opts.SealMinBytes {
			if err := e.Seal(p); err != nil {
				e.opts.Logger.Error("seal failed", "partition", p.ID.String(), "error", err)
			}
		}
	}
	e.sealHolders()
}

// Seal flushes everything visible and seals the active segment, if there is one
// and it holds something.
func (e *Engine) Seal(p *Partition) error {
	if err := e.flushAll(p); err != nil {
		return err
	}
	p.flush.Lock()
	defer p.flush.Unlock()
	// Between the flush and here another write may have failed.
	if err := e.heal(p); err != nil {
		return err
	}
	if p.files.active == nil || p.files.active.Size() == 0 || p.Refused() != nil {
		return nil
	}
	if err := e.seal(p); err != nil {
		e.abandon(p, err)
		return err
	}
	return nil
}

// unsealed returns the append time of the oldest record that is in no sealed
// segment, 0 when there is none, and about how many bytes there are.
func (p *Partition) unsealed() (oldestMS, size int64) {
	p.files.RLock()
	if p.files.active != nil {
		oldestMS, size = p.files.meta.MinAppend, p.files.active.Size()
	}
	p.files.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	size += p.mu.tail.pending
	if t := &p.mu.tail; oldestMS == 0 && t.flushed < t.visible {
		oldestMS = t.at(t.flushed).appendMS
	}
	return oldestMS, size
}

// evict frees memory once the tails hold more than HotBytes: batches of p first,
// then of every other partition, an eighth more than needed, so that the walk
// over all partitions is rare. What no checkpoint covers stays (see heal).
func (e *Engine) evict(p *Partition) {
	if e.memory.Load() <= e.opts.HotBytes {
		return
	}
	target := e.opts.HotBytes - e.opts.HotBytes/8
	p.evict(e.memory.Load() - target)
	for _, other := range e.All() {
		over := e.memory.Load() - target
		if over <= 0 {
			return
		}
		other.evict(over)
	}
}

// evict drops up to about want bytes that a checkpoint covers.
func (p *Partition) evict(want int64) {
	p.mu.Lock()
	freed := p.mu.tail.evict(want, p.mu.checkpointed)
	p.mu.Unlock()
	p.e.room.freed(freed)
}
