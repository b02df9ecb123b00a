package wal

import (
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// fillPiece is what the janitor writes and syncs at a time, so that a sync of
// the log never waits behind much of it.
const fillPiece = 1 << 20

// janitor recycles files that nobody needs and prewrites spares: overwriting
// blocks that exist costs a sync less than growing a file does.
func (l *Log) janitor() {
	for {
		select {
		case <-l.stop:
			return
		case <-l.chores:
		}
		if l.poisoned() {
			return
		}
		l.recycle()
		if l.o.DiskOK(0) != nil {
			l.shed()
		} else {
			l.fill()
		}
	}
}

// Reconsider says that Options.DiskOK may answer otherwise than before. It does
// not block.
func (l *Log) Reconsider() { poke(l.chores) }

// shed gives spares back to a disk that is short of space. One stays: it is
// what acks are written to when the next file is due and the disk is full, and
// it was made while there was room for it.
func (l *Log) shed() {
	for {
		sp, ok := l.files.surplus()
		if !ok {
			return
		}
		if err := l.o.FS.Remove(l.path(sp.name)); err != nil {
			l.files.addSpare(sp)
			l.o.Logger.Warn("wal: a spare file could not be given back, it is tried again later", "file", sp.name, "error", err)
			return
		}
		l.o.Logger.Info("wal: gave a spare file back to the disk", "file", sp.name, "bytes", sp.size)
	}
}

// surplus takes a spare out of the pool if it is not the last one.
func (s *fileSet) surplus() (spare, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.spares) < 2 {
		return spare{}, false
	}
	sp := s.mu.spares[0]
	s.mu.spares = append(s.mu.spares[:0], s.mu.spares[1:]...)
	return sp, true
}

func (l *Log) poisoned() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.poison != nil
}

// recycle frees the oldest files that nobody needs, strictly oldest first and
// with a directory sync after each: the files of a log must be a chain at
// every moment, also in what a crash leaves of un-synced renames. So one caller
// at a time: a second one would free the next file while the first is still there.
func (l *Log) recycle() {
	l.files.recycling.Lock()
	defer l.files.recycling.Unlock()
	for {
		f := l.files.oldestFree()
		if f == nil {
			return
		}
		if err := l.free(f); err != nil {
			l.o.Logger.Warn("wal: a file could not be recycled, it is tried again later", "file", fileName(f.first), "error", err)
			return
		}
	}
}

// oldestFree returns the oldest file if nobody needs it, else nil. It stays in
// the list until dropOldest.
func (s *fileSet) oldestFree() *logFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.list) < 2 || s.mu.list[0].readers > 0 || s.mu.list[1].first > s.lowest() {
		return nil
	}
	return s.mu.list[0]
}

// free turns f into a spare, or removes it when the pool is full or its size
// is not a spare's.
func (l *Log) free(f *logFile) error {
	name := l.path(fileName(f.first))
	if !l.files.dropOldest(f) {
		return nil // a reader came, or somebody else frees it
	}
	sp := spare{size: f.size.Load()}
	if l.files.wants(l.o, sp.size) {
		sp.name = l.files.newSpareName()
	}
	var err error
	if sp.name != "" {
		err = l.o.FS.Rename(name, l.path(sp.name))
	} else {
		err = l.o.FS.Remove(name)
	}
	if err != nil {
		l.files.putBack(f) // it is still there, and so still the start of the chain
		return errcode.Wrap(errcode.Storage, err, "recycle %s", name)
	}
	// Before its content may change: else the old name could come back with it.
	if err := l.syncDir(); err != nil {
		return err
	}
	if sp.name != "" {
		if f, err := l.o.FS.Open(l.path(sp.name)); err == nil {
			dropCache(f)
			_ = f.Close() // nothing was written
		}
		l.files.addSpare(sp)
	}
	l.metrics.recycled.Inc()
	return nil
}

// dropOldest takes f out of the list, unless a reader has come or f is not the
// oldest any more.
func (s *fileSet) dropOldest(f *logFile) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.readers > 0 || s.mu.list[0] != f {
		return false
	}
	s.mu.list = append(s.mu.list[:0], s.mu.list[1:]...)
	return true
}

func (s *fileSet) putBack(f *logFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.list = append([]*logFile{f}, s.mu.list...)
}

func (s *fileSet) wants(o Options, size int64) bool {
	most := o.PoolFiles
	if o.DiskOK(0) != nil {
		most = min(most, 1) // see shed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return reusable(o, size) && len(s.mu.spares) < most
}

func (s *fileSet) addSpare(sp spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.spares = append(s.mu.spares, sp)
}

// fill prewrites spares up to the demand, within MaxBytes.
func (l *Log) fill() {
	for l.files.short(l.o) {
		if l.o.DiskOK(l.o.FileSize) != nil {
			l.files.giveUp() // files grow instead, as far as there is room
			return
		}
		if err := l.prewrite(); err != nil {
			l.files.giveUp()
			if errcode.Is(err, errcode.Closed) {
				return
			}
			l.o.Logger.Warn("wal: no spare file could be prewritten, files grow instead", "dir", l.o.Dir, "error", err)
			return
		}
		select {
		case <-l.stop:
			return
		default:
		}
	}
}

// short reports whether one more spare is wanted and allowed.
func (s *fileSet) short(o Options) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.bytes() + int64(len(s.mu.spares)+1)*o.FileSize
	return !s.mu.filled && len(s.mu.spares) < s.mu.target && sum <= o.MaxBytes
}

// giveUp stops prewriting until the next rotation.
func (s *fileSet) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.filled = true
}

// prewrite makes one spare. A failed sync here loses nothing that anybody was
// promised: the file is abandoned and removed.
func (l *Log) prewrite() error {
	name := l.files.newSpareName()
	f, err := l.o.FS.Create(l.path(name), writeCategory)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "create %s", name)
	}
	zeros := make([]byte, min(fillPiece, l.o.FileSize))
	done := int64(0)
	for done < l.o.FileSize && err == nil {
		piece := zeros[:min(int64(len(zeros)), l.o.FileSize-done)]
		// Others write to the disk meanwhile.
		if err = l.o.DiskOK(l.o.FileSize - done); err == nil {
			err = writeAll(f, piece, done)
		}
		if err == nil {
			err = f.SyncData()
		}
		done += int64(len(piece))
		select {
		case <-l.stop:
			err = errcode.New(errcode.Closed, "wal: closed")
		default:
		}
	}
	dropCache(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		// Its name too, so that a restart finds it.
		err = l.syncDir()
	}
	if err != nil {
		_ = l.o.FS.Remove(l.path(name)) // the first error is the one to tell
		return errcode.Wrap(errcode.Storage, err, "prewrite %s", name)
	}
	l.files.addSpare(spare{name: name, size: l.o.FileSize})
	return nil
}

// checkPressure wakes the goroutine that asks the owner for room.
func (l *Log) checkPressure() {
	if l.o.OnPressure != nil && l.files.excess(l.o.MaxBytes) > 0 {
		poke(l.crowded)
	}
}

// excess returns the LSN up to which frames must become unneeded to bring the
// files under most, or 0.
func (s *fileSet) excess(most int64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, upTo := s.bytes(), uint64(0)
	for i := 0; sum > most && i+1 < len(s.mu.list); i++ {
		sum -= s.mu.list[i].size.Load()
		upTo = s.mu.list[i+1].first - 1
	}
	return upTo
}

// The pauses after which the owner is asked again, doubling, while the log stays
// over its size: what hindered it may be over, and without an append, as at the
// disk's reserve, nothing else would ask.
const (
	leastPress = time.Second
	mostPress  = 30 * time.Second
)

// press calls OnPressure, one call at a time.
func (l *Log) press() {
	again := time.NewTimer(mostPress)
	defer again.Stop()
	again.Stop()
	for pause := leastPress; ; {
		select {
		case <-l.stop:
			return
		case <-l.crowded:
			pause = leastPress
		case <-again.C:
			pause = min(2*pause, mostPress)
		}
		if upTo := l.files.excess(l.o.MaxBytes); upTo > 0 {
			l.o.OnPressure(upTo)
			again.Reset(pause)
		}
	}
}
