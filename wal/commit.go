package wal

import (
	"context"
	"io"
	"math"
	"runtime"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxYields bounds how often a leader lets others go first.
const maxYields = 8

// WaitWritten returns nil when lsn is in the file, so that it survives a crash
// of the process. A caller that finds nobody writing writes itself; it then
// returns when its write has, even if ctx ends meanwhile. Errors:
// errcode.NotConfirmed (the frame may be there after a restart or not),
// errcode.InvalidArgument for an LSN that was never reserved.
func (l *Log) WaitWritten(ctx context.Context, lsn uint64) error { return l.wait(ctx, lsn, false) }

// WaitDurable returns nil when lsn is fsynced, so that it survives loss of
// power. A caller that finds nobody syncing writes and syncs itself; it then
// returns when that has ended, even if ctx ends meanwhile. Errors as
// WaitWritten's.
func (l *Log) WaitDurable(ctx context.Context, lsn uint64) error { return l.wait(ctx, lsn, true) }

// wait waits for the write that covers lsn, or with synced for the sync.
func (l *Log) wait(ctx context.Context, lsn uint64, synced bool) error {
	mark := &l.written
	if synced {
		mark = &l.durable
	} else if l.several.Load() && l.written.Load() < lsn {
		// The last write brought frames of several. One that leads right away would
		// take its own frame alone: who goes last writes for all, and the others
		// find theirs written. A lone caller does not come here to wait.
		runtime.Gosched()
	}
	for mark.Load() < lsn {
		if ctx.Err() != nil {
			return interrupted(ctx, lsn)
		}
		l.mu.Lock()
		if mark.Load() >= lsn {
			l.mu.Unlock()
			return nil
		}
		if err := l.mu.waitError(lsn, l.written.Load()); err != nil {
			l.mu.Unlock()
			return err
		}
		c := l.mu.follow(lsn, synced)
		l.mu.Unlock()
		switch {
		case c == nil && synced:
			l.leadSync()
			continue
		case c == nil:
			l.leadWrite()
			continue
		}
		select {
		case <-c:
		case <-ctx.Done():
			return interrupted(ctx, lsn)
		}
	}
	return nil
}

// follow returns the channel that is closed after the write that covers lsn, or
// with synced after the sync. Nil: nobody was at it, and the caller has the role
// now.
func (s *staging) follow(lsn uint64, synced bool) chan struct{} {
	switch {
	case synced && s.syncing:
		return s.syncChan(lsn)
	case synced:
		s.beginSync()
	case s.writing:
		return s.writeChan(lsn)
	default:
		s.beginWrite()
	}
	return nil
}

// makeDurable is WaitDurable for the log's own use.
func (l *Log) makeDurable(lsn uint64) error { return l.WaitDurable(context.Background(), lsn) }

func interrupted(ctx context.Context, lsn uint64) error {
	return errcode.New(errcode.NotConfirmed, "wal: wait for LSN %d ended, it may become durable: %w", lsn, context.Cause(ctx))
}

// waitError returns why waiting for lsn is of no use, or nil.
func (s *staging) waitError(lsn, written uint64) error {
	unconfirmed := func(cause *errcode.Error) error {
		return errcode.New(errcode.NotConfirmed, "wal: LSN %d may have been applied: %w", lsn, cause).After(cause.Wait)
	}
	switch {
	case lsn >= s.next:
		return errcode.New(errcode.InvalidArgument, "wal: wait for LSN %d, the next to be reserved is %d", lsn, s.next)
	case s.poison != nil:
		return unconfirmed(s.poison)
	case s.dead:
		return unconfirmed(errcode.New(errcode.Closed, "wal: closed"))
	case s.stall != nil && lsn > written:
		return unconfirmed(s.stall)
	default:
		return nil
	}
}

// beginWrite takes the write role for everything staged so far.
func (s *staging) beginWrite() {
	s.closeGroup()
	s.writing, s.writeTo = true, s.next-1
}

// beginSync takes the sync role. Until leadSync settles what it covers, that
// is whatever has been reserved by then: who comes before waits for this sync.
func (s *staging) beginSync() { s.syncing, s.syncTo = true, math.MaxUint64 }

// writeChan returns the channel that is closed after the write that covers lsn.
func (s *staging) writeChan(lsn uint64) chan struct{} {
	if lsn <= s.writeTo {
		return shared(&s.wrun)
	}
	return shared(&s.wnext)
}

// syncChan returns the channel that is closed after the sync that covers lsn.
func (s *staging) syncChan(lsn uint64) chan struct{} {
	if lsn <= s.syncTo {
		return shared(&s.srun)
	}
	s.snextMin = min(s.snextMin, lsn)
	return shared(&s.snext)
}

// leadWrite writes what is staged and gives the write role back, or hands it
// to a new leader if somebody waits for more. The caller has the role.
func (l *Log) leadWrite() {
	if err := l.writeStaged(); err != nil {
		return // stalled or poisoned: the failure path has dealt with the role
	}
	l.mu.Lock()
	l.endWrite()
	l.mu.Unlock()
}

// endWrite gives the write role back. The mutex is held.
func (l *Log) endWrite() {
	broadcast(&l.mu.wrun)
	if l.mu.wnext == nil || l.mu.poison != nil {
		l.mu.writing = false
		broadcast(&l.mu.wnext)
		broadcast(&l.mu.room)
		return
	}
	l.mu.wrun, l.mu.wnext = l.mu.wnext, nil
	l.mu.beginWrite()
	go l.leadWrite() // Close waits for it by taking the role
}

// writeStaged writes the groups that were staged when the write role began,
// which the caller has.
func (l *Log) writeStaged() error {
	l.mu.Lock()
	for l.mu.poison == nil && len(l.mu.full) > 0 && l.mu.full[0].first <= l.mu.writeTo {
		g, synced := l.mu.full[0], l.mu.syncing
		l.mu.Unlock()
		if err := l.writeGroup(g, synced); err != nil {
			l.writeFailed(err)
			return err
		}
		l.mu.Lock()
		l.mu.full = append(l.mu.full[:0], l.mu.full[1:]...)
		l.written.Store(g.first + uint64(g.frames) - 1)
		l.several.Store(g.frames > 1)
		l.mu.release(g)
	}
	l.mu.Unlock()
	return nil
}

// writeGroup waits for the group's slots, checksums it outside the lock and
// writes it with its padding in one piece. Only after success does the
// position move, so that a retry writes the same bytes to the same place.
// synced is as writeAt's.
func (l *Log) writeGroup(g *stagedGroup, synced bool) error {
	if !g.waited {
		g.waited = true
		if g.pending.Add(-1) != 0 {
			<-g.ready
		}
	}
	size := roundUp(int64(g.n))
	if err := l.makeWay(g.first, size); err != nil {
		return err
	}
	// The header's durable LSN is read before the write is issued: it is
	// evidence, and evidence must not run ahead of the fact.
	sealGroup(g.buf[:g.n], l.mu.salt, g.first, g.frames, l.durable.Load())
	clear(g.buf[g.n:size]) // the buffer is reused, padding must be zero
	if err := l.writeAt(g.buf[:size], l.mu.pos, synced); err != nil {
		return errcode.Wrap(errcode.Storage, err, "write group of LSN %d at %d", g.first, l.mu.pos)
	}
	if l.o.TailBytes > 0 {
		l.tail.add(g.buf[:size], l.mu.pos)
	}
	l.mu.pos += size
	l.mu.entry.size.Store(max(l.mu.entry.size.Load(), l.mu.pos))
	l.metrics.group(g.n, int(g.frames))
	return nil
}

// writeAll is WriteAt that treats a short write without an error as one.
func writeAll(f io.WriterAt, b []byte, at int64) error {
	n, err := f.WriteAt(b, at)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// writeFailed enters the stalled state: nothing more is accepted, everybody
// who waits is answered, and the keeper takes over the write role.
func (l *Log) writeFailed(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.poison != nil { // a sync failed inside the rotation
		l.mu.writing = l.mu.stall != nil
		l.mu.wakeAll()
		return
	}
	first := l.mu.stall == nil
	l.mu.stall = errcode.New(errcode.Storage, "wal: writes to %s fail, free space or repair the disk: %w", l.o.Dir, cause).After(retryAdvice)
	l.mu.wakeAll()
	if first {
		l.metrics.stalls.Inc()
		l.o.Logger.Error("wal: write failed, no appends until a retry succeeds", "dir", l.o.Dir, "error", cause)
		poke(l.stalled)
	}
}

// retryWrite tries again what failed; true when the log accepts appends again.
// The caller has the write role by way of the stall.
func (l *Log) retryWrite() bool {
	l.mu.Lock()
	l.mu.beginWrite() // take along what was reserved before the failure
	l.mu.Unlock()
	if err := l.writeStaged(); err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.poison != nil {
		return false
	}
	l.mu.stall = nil
	l.endWrite()
	l.o.Logger.Info("wal: writes succeed again", "dir", l.o.Dir, "written", l.written.Load())
	return true
}

// leadSync writes what is staged, syncs, and gives the sync role back or hands
// it to a new leader. The caller has the role.
func (l *Log) leadSync() {
	l.gather()
	l.mu.Lock()
	upTo := l.mu.next - 1
	l.mu.syncTo = upTo
	lead := !l.mu.writing && l.mu.poison == nil && l.written.Load() < upTo
	if lead {
		l.mu.beginWrite() // in the same breath, so that the write brings just what was promised
	}
	l.mu.Unlock()
	if lead {
		l.leadWrite()
	}
	l.ensureWritten(upTo)
	_ = l.syncWritten() // its failure is in the state that waiters look at
	l.mu.Lock()
	l.endSync()
	l.mu.Unlock()
}

// gather lets those who are about to append do so before the group is sealed,
// when there were several of late: it yields the processor while that brings
// more. A sync costs far more than the few microseconds, and without this the
// callers of one sync and those who came during it take turns for ever, each
// with half a group. A lone caller does not come here to wait.
func (l *Log) gather() {
	l.mu.Lock()
	seen, busy := l.mu.next, l.mu.lastSync > 1
	l.mu.Unlock()
	for i := 0; busy && i < maxYields; i++ {
		runtime.Gosched()
		l.mu.Lock()
		next := l.mu.next
		l.mu.Unlock()
		if busy = next != seen || i == 0; busy {
			seen = next
		}
	}
}

// ensureWritten returns when lsn is in the file, or cannot be for now.
func (l *Log) ensureWritten(lsn uint64) {
	l.mu.Lock()
	for l.written.Load() < lsn && l.mu.poison == nil && l.mu.stall == nil {
		if !l.mu.writing {
			l.mu.beginWrite()
			l.mu.Unlock()
			l.leadWrite()
			l.mu.Lock()
			continue
		}
		c := l.mu.writeChan(lsn)
		l.mu.Unlock()
		<-c
		l.mu.Lock()
	}
	l.mu.Unlock()
}

// syncWritten makes durable what is written. Files before the current one were
// fsynced to their end before it began, so syncing the current one is enough.
func (l *Log) syncWritten() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.mu.Lock()
	target, file, poison := l.written.Load(), l.mu.file, l.mu.poison
	l.mu.Unlock()
	if poison != nil {
		return poison
	}
	if target <= l.durable.Load() {
		return nil
	}
	begin := time.Now()
	if err := file.SyncData(); err != nil {
		return l.setPoison(err, "the current file")
	}
	l.metrics.sync(time.Since(begin))
	l.advance(target)
	return nil
}

// advance publishes a new durable LSN.
func (l *Log) advance(lsn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was := l.durable.Load(); lsn > was {
		l.mu.lastSync = lsn - was
		l.durable.Store(lsn)
		broadcast(&l.mu.changed)
	}
}

// setPoison ends the log: after a failed fsync the kernel may have dropped the
// pages and marked them clean, so that a second fsync would succeed without
// them. Nothing later is ever called durable; a restart finds out what is.
func (l *Log) setPoison(cause error, what string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.poison == nil {
		l.mu.poison = errcode.New(errcode.Poisoned, "wal: fsync of %s in %s failed, nothing is accepted until the process is restarted: %w", what, l.o.Dir, cause)
		l.o.Logger.Error("wal: fsync failed, no appends until a restart", "dir", l.o.Dir, "what", what, "error", cause)
	}
	l.mu.wakeAll()
	return l.mu.poison
}

// endSync gives the sync role back. The mutex is held.
func (l *Log) endSync() {
	broadcast(&l.mu.srun)
	covered := l.mu.snextMin <= l.durable.Load() // an overlapping write brought more than promised
	l.mu.snextMin = math.MaxUint64
	if l.mu.snext == nil || covered || l.mu.poison != nil {
		l.mu.syncing = false
		broadcast(&l.mu.snext)
		return
	}
	l.mu.srun, l.mu.snext = l.mu.snext, nil
	l.mu.beginSync()
	go l.leadSync() // Close waits for it by taking the role
}
