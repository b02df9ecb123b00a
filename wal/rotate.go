package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// newborn is a file that has its header but not its name yet: a crash leaves a
// spare, whose content is ignored.
type newborn struct {
	file   vfs.File
	spare  string // name while it is being written
	pooled bool
	size   int64
	header fileHeader
}

// makeWay sees to it that the group of LSN first, of size bytes, fits in the
// current file at the present position. A file that would have to grow for it
// ends when a spare has been prewritten meanwhile: a sync behind a write that
// makes a file longer brings the file system's journal along, which is about
// as slow once more. That a file ends so is a gain and not a need: without a
// new one it grows on. The caller has the write role.
func (l *Log) makeWay(first uint64, size int64) error {
	end := l.mu.pos + size
	full := end > l.o.FileSize
	// A file without groups stays: its successor would have the same name.
	outgrown := end > l.mu.entry.size.Load() && l.mu.entry.first < first && l.files.hasSpare()
	if !full && !outgrown {
		return nil
	}
	nb, err := l.newFile(first)
	switch {
	case err == nil:
		return l.rotate(nb)
	case full:
		return err
	default:
		return nil
	}
}

// rotate makes the newborn the current file. The caller has the write role.
// Steps, each durable before the next:
//
//  1. the old file is fsynced to its end, so that recovery may call every file
//     but the last complete;
//  2. the new header is fsynced, so that a file under a log name always has a
//     valid header;
//  3. the newborn is renamed, and the directory fsynced, before its first group:
//     else an acknowledged group could come back under the name of a spare.
func (l *Log) rotate(nb newborn) error {
	if err := l.syncWritten(); err != nil {
		return errors.Join(err, nb.file.Close())
	}
	if err := nb.file.SyncData(); err != nil {
		return errors.Join(l.setPoison(err, "a new file"), nb.file.Close())
	}
	if err := l.christen(nb); err != nil {
		return err
	}
	l.adopt(nb, blockSize)
	l.files.demand(l.o.PoolFiles, nb.pooled)
	poke(l.chores)
	l.checkPressure()
	return nil
}

// newFile takes a spare, or makes a file that will grow, and writes its header
// with a fresh salt: what a recycled file still holds never verifies again.
// The file is not synced yet.
func (l *Log) newFile(first uint64) (newborn, error) {
	var salt [8]byte
	rand.Read(salt[:])
	nb := newborn{header: fileHeader{
		Incarnation: l.o.Incarnation,
		First:       first,
		Salt:        binary.BigEndian.Uint64(salt[:]),
		CreatedMs:   l.o.Now().UnixMilli(),
	}}
	if err := l.openNewborn(&nb); err != nil {
		return nb, err
	}
	block := make([]byte, blockSize)
	nb.header.encode(block)
	if err := writeAll(nb.file, block, 0); err != nil {
		return nb, errors.Join(errcode.Wrap(errcode.Storage, err, "write header of %s", nb.spare), l.discard(nb))
	}
	return nb, nil
}

// openNewborn opens a spare, or a file that will grow. One or the other: a spare
// that does not open may be damaged, and then a new file does; when neither opens
// the process may be out of descriptors, and the spare waits for the next try.
func (l *Log) openNewborn(nb *newborn) (err error) {
	sp, ok := l.files.takeSpare()
	if ok {
		nb.spare, nb.size, nb.pooled = sp.name, sp.size, true
		if nb.file, err = l.o.FS.OpenReadWrite(l.path(sp.name), writeCategory); err == nil {
			return nil
		}
	}
	bad := err
	nb.spare, nb.size, nb.pooled = l.files.newSpareName(), blockSize, false
	if nb.file, err = l.o.FS.Create(l.path(nb.spare), writeCategory); err != nil {
		if ok {
			l.files.addSpare(sp)
		}
		return errcode.Wrap(errcode.Storage, err, "open %s for the log", nb.spare)
	}
	if bad != nil {
		l.o.Logger.Warn("wal: a spare file does not open and is not used", "file", sp.name, "error", bad)
		_ = l.o.FS.Remove(l.path(sp.name)) // a restart removes it, or takes it
	}
	return nil
}

// christen gives the newborn its name, over a file of that name if there is
// one, and makes that durable.
func (l *Log) christen(nb newborn) error {
	if err := l.o.FS.Rename(l.path(nb.spare), l.path(fileName(nb.header.First))); err != nil {
		return errors.Join(errcode.Wrap(errcode.Storage, err, "rename %s", nb.spare), l.discard(nb))
	}
	if err := l.syncDir(); err != nil {
		return errors.Join(err, nb.file.Close())
	}
	return nil
}

// discard removes a newborn that did not become a log file, so that a full
// disk gets its blocks back.
func (l *Log) discard(nb newborn) error {
	err := errors.Join(nb.file.Close(), l.o.FS.Remove(l.path(nb.spare)))
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "remove %s", nb.spare)
	}
	return nil
}

// adopt makes the newborn the current file; pos is where its next group goes.
func (l *Log) adopt(nb newborn, pos int64) {
	direct := l.openDirect(nb)
	l.syncMu.Lock() // nobody may be syncing the file that is closed here
	defer l.syncMu.Unlock()
	l.mu.Lock()
	old, oldDirect := l.mu.file, l.mu.direct
	entry := &logFile{first: nb.header.First, salt: nb.header.Salt}
	entry.size.Store(max(nb.size, pos))
	l.mu.file, l.mu.direct, l.mu.pos, l.mu.salt, l.mu.entry = nb.file, direct, pos, nb.header.Salt, entry
	l.mu.Unlock()
	l.tail.begin(entry.first, pos)

	l.files.mu.Lock()
	l.files.mu.list = append(l.files.mu.list, entry)
	l.files.mu.Unlock()
	if old == nil {
		return
	}
	if err := errors.Join(old.Close(), oldDirect.close()); err != nil {
		// Everything in it is fsynced, so nothing is lost.
		l.o.Logger.Warn("wal: close of a finished file failed", "dir", l.o.Dir, "error", err)
	}
}

// demand notes a rotation: one that found the pool empty asks for one more
// spare, up to most.
func (s *fileSet) demand(most int, pooled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.filled = false
	if !pooled && s.mu.target < most {
		s.mu.target++
	}
}
