package partition

import (
	"context"
	"errors"
	iofs "io/fs"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// newPartition registers a partition that begins with entry.
func (e *Engine) newPartition(id broker.PartitionID, entry state.Partition) *Partition {
	p := &Partition{ID: id, e: e, dir: e.dir(id)}
	p.mu.generation, p.mu.previousEnd, p.mu.start = entry.Generation, entry.PreviousEnd, entry.Start
	p.mu.oldest, p.mu.groupLSN, p.mu.gaps = entry.Oldest, entry.GroupLSN, entry.Gaps
	p.mu.archivedEnd, p.mu.chainSeq = entry.ArchivedEnd, entry.ChainSeq
	p.mu.skippedLSN, p.mu.skippedEnd = entry.SkippedLSN, entry.SkippedEnd
	p.mu.carried, p.mu.doubts = entry.Carried, entry.Doubts
	p.mu.checkpointCarried = p.mu.carried
	p.mu.checkpointed = entry.Flushed
	p.setEnd(entry.Flushed)
	e.parts.Lock()
	e.parts.m[id] = p
	e.parts.Unlock()
	return p
}

// setEnd sets next and high watermark to the end of what exists, or to the
// generation's start when that lies behind a gap and nothing of the generation
// was written yet.
func (p *Partition) setEnd(end int64) {
	if p.mu.start > p.mu.previousEnd {
		end = max(end, p.mu.start)
	}
	p.mu.next = end
	p.hw.Store(end)
}

func (e *Engine) dir(id broker.PartitionID) string {
	return e.opts.FS.PathJoin(e.opts.Dir, id.Topic.String(), partitionName(id.Partition))
}

// Load opens the partitions that the local state names. A partition whose
// files are damaged is there and refuses service with the reason. Load errors
// are those of the file system as a whole.
func (e *Engine) Load(entries []state.Entry) error {
	for i := range entries {
		entry := &entries[i]
		p := e.newPartition(entry.ID, entry.Partition)
		// It was made durable before the local state named the partition.
		if _, err := e.opts.FS.Stat(p.dir); err != nil {
			if err := segment.MakeDir(e.opts.FS, e.opts.Dir, p.dir); err != nil {
				return err
			}
		}
		p.sweepMends()
		gone, err := p.openFiles(entry)
		if err != nil {
			p.files.unopened = entry.Sealed
			p.refuse(err)
			continue
		}
		if err := p.forget(gone); err != nil {
			return err
		}
	}
	return nil
}

// forget takes segments out of the local state whose files are missing and that
// nothing here needs: the archive confirmed that it has exactly their bytes, or
// they are trimmed. It is as if they had been evicted, in the same one step.
// Nothing else runs yet.
func (p *Partition) forget(gone []state.Sealed) error {
	if len(gone) == 0 {
		return nil
	}
	b := p.e.opts.State.NewBatch()
	for i := range gone {
		b.DeleteSegment(p.ID, gone[i].Base)
		if gone[i].Confirmed {
			// A chain that names it reaches that far, whatever the last checkpoint saw.
			p.mu.archivedEnd = max(p.mu.archivedEnd, gone[i].Next)
		}
	}
	// As it is by now: a file may have been adopted since the entry was read.
	b.PutPartition(p.ID, p.entryLocked())
	return b.Commit()
}

// openFiles checks the listed segments and opens the active one. It returns those
// that are missing for good.
func (p *Partition) openFiles(entry *state.Entry) (gone []state.Sealed, err error) {
	for i := range entry.Sealed {
		s := &entry.Sealed[i]
		st, err := p.e.opts.FS.Stat(p.segmentPath(s.Base))
		switch {
		case err == nil && st.Size() == s.Bytes:
			p.files.sealed = append(p.files.sealed, *s)
		case err == nil && s.Confirmed && p.e.opts.Archive != nil:
			// It stays listed: reads of it find the damage and go to the archive.
			p.files.sealed = append(p.files.sealed, *s)
			p.e.opts.Logger.Warn("a local segment file is damaged, its records are read from the archive", "file", p.segmentPath(s.Base), "bytes", st.Size(), "sealed", s.Bytes)
		case err == nil:
			return nil, errcode.New(errcode.Corrupt, "segment %s has %d bytes, %d were sealed: restore the file, or the node from the archive", p.segmentPath(s.Base), st.Size(), s.Bytes)
		case errors.Is(err, iofs.ErrNotExist) && (s.Confirmed && p.e.opts.Archive != nil || s.Next <= entry.Oldest):
			gone = append(gone, *s)
			p.e.opts.Logger.Warn("local copy of an archived or trimmed segment is missing, nothing here needs it; it is forgotten", "file", p.segmentPath(s.Base))
		case errors.Is(err, iofs.ErrNotExist) && (s.Confirmed || s.Next <= max(entry.ArchivedEnd, entry.Oldest)):
			p.e.opts.Logger.Warn("local copy of an archived or trimmed segment is missing, nothing here needs it", "file", p.segmentPath(s.Base))
		case errors.Is(err, iofs.ErrNotExist):
			return nil, errcode.New(errcode.Corrupt, "segment %s is missing and the archive does not have it: restore the file, or the node from the archive", p.segmentPath(s.Base))
		default:
			return nil, errcode.Wrap(errcode.Storage, err, "look at segment %s", p.segmentPath(s.Base))
		}
	}
	if entry.Active != nil && !p.isSealed(entry.Active.Base) {
		p.files.meta = *entry.Active
		if err := p.openActive(entry.Flushed); err != nil {
			return nil, err
		}
	}
	return gone, p.adoptNewer()
}

// openActive recovers the active file, or adopts the sealed one that a crash
// left in its place.
func (p *Partition) openActive(flushed int64) error {
	meta := p.files.meta
	w, cut, err := segment.Recover(p.e.opts.FS, p.dir, segment.RecoverOptions{
		Options: p.segmentOptions(meta.Base), Flushed: flushed, MinAppend: meta.MinAppend, MaxAppend: meta.MaxAppend,
	})
	switch {
	case errcode.Is(err, errcode.Conflict), errcode.Is(err, errcode.NotFound):
		info, adoptErr := segment.Adopt(p.e.opts.FS, p.dir, p.segmentOptions(meta.Base))
		if adoptErr != nil {
			return errors.Join(err, adoptErr)
		}
		if info.Next < flushed {
			return errcode.New(errcode.Corrupt, "segment %s ends at offset %d, everything below %d was flushed", p.segmentPath(meta.Base), info.Next, flushed)
		}
		return p.adopted(info, meta.FirstLSN)
	case err != nil:
		return err
	}
	if cut > 0 {
		p.e.opts.Logger.Info("cut the torn end of a segment file, its records come from the log", "file", w.Path(), "bytes", cut)
	}
	p.files.active = w
	p.fileEnd(w.Next())
	return nil
}

// adoptNewer takes over the files behind what the local state lists: begun or
// sealed after its last checkpoint, or after the one that the disk went back
// to (B46).
func (p *Partition) adoptNewer() error {
	names, err := p.e.opts.FS.List(p.dir)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "list %s", p.dir)
	}
	var bases []int64
	for _, name := range names {
		if base, _, ok := segment.ParseName(name); ok && !slices.Contains(bases, base) {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	for _, base := range bases {
		switch {
		case p.isSealed(base) || p.files.active != nil && base == p.files.meta.Base:
			continue
		case base < p.mu.checkpointed:
			p.sweepFile(base)
			continue
		case p.files.active != nil:
			return errcode.New(errcode.Corrupt, "segment file %d of %s stands behind an active one that ends at %d: restore the node from the archive", base, p.dir, p.files.active.Next())
		}
		// Each begins where the one before it ends, or its generation does;
		// offsets in between would be lost without a word.
		if base != p.mu.checkpointed && (base != p.mu.start || p.mu.checkpointed > p.mu.previousEnd) {
			return errcode.New(errcode.Corrupt, "segment file %d of %s is there, but the files before it end at %d: restore the node from the archive", base, p.dir, p.mu.checkpointed)
		}
		p.files.meta = state.Active{Base: base, FirstLSN: 1}
		if err := p.openActive(base); err != nil {
			return err
		}
	}
	return nil
}

func (p *Partition) isSealed(base int64) bool {
	for i := range p.files.sealed {
		if p.files.sealed[i].Base == base {
			return true
		}
	}
	return false
}

// adopted lists a sealed file that the local state does not know yet, in one
// step with the partition's entry, as sealing does: a crash before the first
// checkpoint must leave neither a segment without an entry nor an entry that
// ends below its segments. Nothing else runs yet.
func (p *Partition) adopted(info segment.Info, firstLSN uint64) error {
	sealed := state.Sealed{Info: info, FirstLSN: firstLSN}
	p.files.sealed = append(p.files.sealed, sealed)
	p.files.meta = state.Active{}
	p.fileEnd(info.Next)
	b := p.e.opts.State.NewBatch()
	b.PutSegment(p.ID, sealed)
	b.PutPartition(p.ID, p.entryLocked())
	if err := b.Commit(); err != nil {
		return err
	}
	p.e.opts.Logger.Info("adopted a sealed segment", "file", p.segmentPath(info.Base), "next", info.Next)
	return nil
}

// fileEnd raises the end of the log to what a file proves. Everything in a
// segment file came from durable frames and was made durable when the file was
// opened, so the position comes from the data, not from a checkpoint that may
// be older.
func (p *Partition) fileEnd(end int64) {
	p.mu.checkpointed = max(p.mu.checkpointed, end)
	p.setEnd(max(p.mu.checkpointed, end))
	p.e.dirty.add(p)
}

// Replay takes one frame of the log. Frames of records that segment files hold
// already, and group entries that the checkpoint holds, are passed over; the
// others extend the tail, or go to onGroup. A frame of a partition that nobody
// knows is reported by NotFound: the caller decides whether its topic was
// deleted. Corrupt means that the log and the files do not fit together.
func (e *Engine) Replay(f wal.Frame, onGroup func(g frame.Group, lsn uint64) error) error {
	switch f.Kind {
	case wal.KindCommit, wal.KindCarry:
		return e.replayCommit(f)
	case wal.KindGroup:
		g, err := frame.ParseGroup(f.Body)
		if err != nil {
			return err
		}
		p := e.Get(g.Partition)
		if p == nil {
			return unknown(g.Partition, f.LSN)
		}
		if f.LSN <= p.mu.groupLSN || g.Generation < p.mu.generation {
			return nil
		}
		p.hold(f.LSN)
		if p.mu.refused != nil {
			return nil // it stays in the log until the partition serves again
		}
		p.mu.groupsChanged = true
		e.dirty.add(p)
		return onGroup(g, f.LSN)
	case wal.KindBase:
		b, err := frame.ParseBase(f.Body)
		if err != nil {
			return err
		}
		return e.replayBase(b, f.LSN)
	case wal.KindMark:
		return nil
	default:
		return errcode.New(errcode.UnsupportedVersion, "log frame %d has kind %d, which this build does not know: run the build that wrote it", f.LSN, f.Kind)
	}
}

func unknown(id broker.PartitionID, lsn uint64) error {
	return errcode.New(errcode.NotFound, "log frame %d is of partition %s, which this node does not have", lsn, id)
}

func (e *Engine) replayBase(b frame.Base, lsn uint64) error {
	if p := e.Get(b.Partition); p != nil {
		return nil // the local state holds at least the base
	}
	entry := baseEntry(b)
	p := e.begun(b, lsn)
	if err := segment.MakeDir(e.opts.FS, e.opts.Dir, p.dir); err != nil {
		return err
	}
	// Files may have been written before the first checkpoint.
	if _, err := p.openFiles(&entry); err != nil { // a base lists no segments, none is missing
		p.refuse(err)
	}
	return nil
}

// begun registers a partition that begins with b, the log's frame lsn. The log
// keeps that until a checkpoint has written an entry: one that cannot sync the
// partition's file, or passes it because it refuses service, writes none.
func (e *Engine) begun(b frame.Base, lsn uint64) *Partition {
	p := e.newPartition(b.Partition, baseEntry(b).Partition)
	p.mu.Lock()
	p.mu.base = lsn
	p.joinTailsLocked()
	p.mu.Unlock()
	e.dirty.add(p)
	return p
}

// baseEntry is the durable state of a partition that begins with b.
func baseEntry(b frame.Base) state.Entry {
	return state.Entry{ID: b.Partition, Partition: state.Partition{
		Generation: b.Generation, PreviousEnd: b.PreviousEnd, Start: b.Start, Flushed: b.End, ArchivedEnd: b.ChainEnd, Gaps: b.Gaps,
	}}
}

func (e *Engine) replayCommit(f wal.Frame) error {
	h, sections, err := frame.ParseCommit(f.Body)
	if err != nil {
		return err
	}
	var missing error
	for s := range sections {
		p := e.Get(s.Partition)
		if p == nil {
			missing = unknown(s.Partition, f.LSN)
			continue
		}
		if err := p.replay(f.LSN, h.AppendMS, s); err != nil {
			return errcode.Wrap(errcode.Corrupt, err, "log frame %d", f.LSN)
		}
	}
	return missing
}

// replay takes a section's batches into the tail. No lock is needed: nothing
// else runs yet.
func (p *Partition) replay(lsn uint64, appendMS int64, s frame.Section) error {
	for rest := s.Batches; len(rest) > 0; {
		batch, after, err := segment.NextBatch(rest)
		if err != nil {
			return err
		}
		h, err := segment.VerifyBatch(batch)
		if err != nil {
			return err
		}
		rest = after
		switch {
		case s.Generation < p.mu.generation && h.BaseOffset >= p.mu.previousEnd:
			continue
		case h.NextOffset() <= p.mu.next:
			p.widen(h.BaseOffset, h.NextOffset(), appendMS)
			continue
		case h.BaseOffset > p.mu.next && p.mu.carried.Again(lsn, h.BaseOffset, h.NextOffset()):
			continue // what stands before it may be recycled; all of it comes again
		case p.mu.refused != nil:
			p.hold(lsn) // the log may be all that has it
			continue
		case h.BaseOffset != p.mu.next:
			return errcode.New(errcode.Corrupt, "partition %s: the log continues at offset %d, the records end at %d: offsets in between are lost", p.ID, h.BaseOffset, p.mu.next)
		}
		// The frame's bytes are the log's; the tail needs its own.
		p.e.memory.Add(p.mu.tail.pushCopy(tailBatch{base: h.BaseOffset, next: h.NextOffset(), lsn: lsn, appendMS: appendMS, data: batch}))
		p.mu.next = h.NextOffset()
		p.joinTailsLocked()
	}
	return nil
}

// widen takes the append time of records that the active file has already into
// its range: those that were flushed after the last checkpoint are in the file,
// but their times are only in the log. Retention by age stands on that range.
func (p *Partition) widen(base, next, appendMS int64) {
	w := p.files.active
	if w == nil || base < p.files.meta.Base || next > w.Next() || appendMS <= 0 {
		return
	}
	w.Widen(appendMS, appendMS)
	in := w.Info()
	p.files.meta.MinAppend, p.files.meta.MaxAppend = in.MinAppend, in.MaxAppend
}

// Create begins partitions here: their base frames are durable when it
// returns, and appends may start. A partition that exists already is left alone.
// Corrupt means that the directory has files of a partition that the local
// state does not know: its offsets would be given out twice (I3).
func (e *Engine) Create(ctx context.Context, bases []frame.Base) error {
	var missing []frame.Base
	for _, b := range bases {
		if e.Get(b.Partition) != nil {
			continue
		}
		dir := e.dir(b.Partition)
		if err := segment.MakeDir(e.opts.FS, e.opts.Dir, dir); err != nil {
			return err
		}
		if err := e.empty(dir); err != nil {
			return err
		}
		missing = append(missing, b)
	}
	if len(missing) == 0 {
		return nil
	}
	lsn, err := e.begin(ctx, missing)
	if err != nil {
		return err
	}
	return e.log.WaitDurable(ctx, lsn)
}

// empty refuses a directory that holds segment files.
func (e *Engine) empty(dir string) error {
	names, err := e.opts.FS.List(dir)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "list %s", dir)
	}
	for _, name := range names {
		if _, _, ok := segment.ParseName(name); ok {
			return errcode.New(errcode.Corrupt, "%s is to be a new partition's directory, but holds %s, which the local state does not know: restore the node from the archive", dir, name)
		}
	}
	return nil
}

// begin stages the base frames and registers the partitions. No checkpoint runs
// meanwhile: it would let the log forget a base that no partition stands for yet.
func (e *Engine) begin(ctx context.Context, bases []frame.Base) (lsn uint64, err error) {
	if err := e.pause(ctx); err != nil {
		return 0, err
	}
	defer e.checkpoints.Unlock()
	for _, b := range bases {
		slot, err := e.log.Reserve(wal.KindBase, frame.BaseSize(b))
		if err != nil {
			return 0, err
		}
		frame.PutBase(slot.Body, b)
		slot.Done()
		lsn = slot.LSN
		e.begun(b, slot.LSN)
	}
	return lsn, nil
}

// pause takes the checkpoints' lock, or gives up with ctx: a checkpoint that
// waits for the disk has it for as long as that takes.
func (e *Engine) pause(ctx context.Context) error {
	tick := time.NewTicker(pausePoll)
	defer tick.Stop()
	for !e.checkpoints.TryLock() {
		select {
		case <-ctx.Done():
			return errcode.New(errcode.Storage, "a checkpoint did not end in time, the disk is slow or takes no writes: %w", ctx.Err()).After(retryAfter)
		case <-tick.C:
		}
	}
	return nil
}

// pausePoll is how often a pause looks; a checkpoint takes milliseconds.
const pausePoll = 2 * time.Millisecond
