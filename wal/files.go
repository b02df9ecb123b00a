package wal

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// writeCategory labels the log's writes in the file system's statistics.
const writeCategory vfs.DiskWriteCategory = "tidemark-wal"

// logFile is one file of the log.
type logFile struct {
	first   uint64
	salt    uint64
	size    atomic.Int64 // on disk; the write role raises that of the current file
	readers int          // ReadGroups that have it open; it is not recycled meanwhile
}

// spare is a prewritten file; its content means nothing.
type spare struct {
	name string
	size int64
}

// cursor remembers where a sequential reader stands.
type cursor struct {
	file, lsn uint64
	off       int64
}

const maxCursors = 8

// fileSet is the list of files, the pool and the holds, under a lock of its
// own that is never held across I/O.
type fileSet struct {
	mu struct {
		sync.Mutex
		list    []*logFile // ascending; the last is the current one
		spares  []spare
		serial  uint64 // number of the next spare-N
		target  int    // spares to prewrite; grows with demand
		holds   map[string]uint64
		cursors [maxCursors]cursor
		cursorN int
		filled  bool // prewriting failed; wait for the next rotation
	}
	recycling sync.Mutex // held across all of recycle
	dirMu     sync.Mutex // held across directory syncs, for the reason of syncMu
	dirErr    error      // guarded by dirMu: the first failed directory sync
}

func (s *fileSet) init(o Options) {
	s.mu.holds = o.Holds
	if s.mu.holds == nil {
		s.mu.holds = map[string]uint64{}
	}
	s.mu.target = min(1, o.PoolFiles)
}

// path returns the path of a name in the log's directory.
func (l *Log) path(name string) string { return l.o.FS.PathJoin(l.o.Dir, name) }

// syncDir makes renames and removals durable. A failure poisons the log like
// that of a file.
func (l *Log) syncDir() error {
	l.files.dirMu.Lock()
	defer l.files.dirMu.Unlock()
	if l.files.dirErr != nil {
		return l.files.dirErr
	}
	if err := l.dir.Sync(); err != nil {
		l.files.dirErr = l.setPoison(err, "the directory")
		return l.files.dirErr
	}
	return nil
}

// spareNumber parses a spare's name.
func spareNumber(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, sparePrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	return n, err == nil
}

// reusable reports whether a file of that size is worth keeping as a spare.
// A file that had to grow ends a little short of the full size.
func reusable(o Options, size int64) bool {
	return size <= o.FileSize && size >= o.FileSize-o.FileSize/4
}

// newSpareName returns a name that no file has.
func (s *fileSet) newSpareName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.serial++
	return sparePrefix + strconv.FormatUint(s.mu.serial, 10)
}

// takeSpare returns a spare, or false when there is none.
func (s *fileSet) takeSpare() (spare, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.mu.spares)
	if n == 0 {
		return spare{}, false
	}
	sp := s.mu.spares[n-1]
	s.mu.spares = s.mu.spares[:n-1]
	return sp, true
}

// hasSpare reports whether takeSpare would return one.
func (s *fileSet) hasSpare() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.spares) > 0
}

// lowWater returns the lowest hold: no frame below it is needed. 0 = nobody
// has said what is needed, so everything is.
func (s *fileSet) lowWater() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lowest()
}

func (s *fileSet) lowest() uint64 {
	if len(s.mu.holds) == 0 {
		return 0
	}
	low := uint64(math.MaxUint64)
	for _, next := range s.mu.holds {
		low = min(low, next)
	}
	return low
}

// bytes returns the size of the log files. The lock is held.
func (s *fileSet) bytes() int64 {
	var n int64
	for _, f := range s.mu.list {
		n += f.size.Load()
	}
	return n
}

// Hold says that the named reader still needs frames from next on. The lowest
// of all holds bounds recycling; without any hold nothing is recycled. A
// reader that needs nothing any more holds math.MaxUint64. A hold may go back,
// but does not bring back what is gone.
func (l *Log) Hold(reader string, next uint64) {
	l.files.mu.Lock()
	l.files.mu.holds[reader] = next
	useful := len(l.files.mu.list) > 1 && l.files.mu.list[1].first <= l.files.lowest()
	l.files.mu.Unlock()
	if useful {
		poke(l.chores)
	}
}

// Held returns what each reader's hold keeps from being recycled, in bytes of log
// files. A reader that needs nothing has 0.
func (l *Log) Held() map[string]int64 {
	l.files.mu.Lock()
	holds := maps.Clone(l.files.mu.holds)
	l.files.mu.Unlock()
	out := make(map[string]int64, len(holds))
	for reader, next := range holds {
		out[reader] = 0
		if next < l.NextLSN() {
			out[reader] = l.BytesFrom(next)
		}
	}
	return out
}

// BytesFrom returns the size of the files that hold frames from lsn on: what a
// reader that needs lsn keeps from being recycled.
func (l *Log) BytesFrom(lsn uint64) int64 {
	l.files.mu.Lock()
	defer l.files.mu.Unlock()
	n := int64(0)
	for i := len(l.files.mu.list) - 1; i >= 0; i-- {
		f := l.files.mu.list[i]
		n += f.size.Load()
		if f.first <= lsn {
			break
		}
	}
	return n
}

// pin pins the file that holds lsn and returns it with the first LSN of its
// successor (math.MaxUint64 = none yet). The caller must call unpin.
func (s *fileSet) pin(lsn uint64) (*logFile, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := slices.BinarySearchFunc(s.mu.list, lsn, func(f *logFile, lsn uint64) int {
		switch {
		case f.first < lsn:
			return -1
		case f.first > lsn:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 {
		return nil, 0, errcode.New(errcode.Gone, "wal: LSN %d is recycled, the oldest is %d", lsn, s.mu.list[0].first)
	}
	f := s.mu.list[i]
	f.readers++
	if i+1 < len(s.mu.list) {
		return f, s.mu.list[i+1].first, nil
	}
	return f, math.MaxUint64, nil
}

func (s *fileSet) unpin(f *logFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.readers--
}

// seek returns the best known position at or before lsn in file.
func (s *fileSet) seek(file, lsn uint64) cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := cursor{file: file, lsn: file, off: blockSize}
	for _, c := range s.mu.cursors {
		if c.file == file && c.lsn <= lsn && c.lsn > best.lsn {
			best = c
		}
	}
	return best
}

// remember keeps c for the next sequential read, in place of from.
func (s *fileSet) remember(from, c cursor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.mu.cursors {
		if s.mu.cursors[i] == from {
			s.mu.cursors[i] = c
			return
		}
	}
	s.mu.cursors[s.mu.cursorN%maxCursors] = c
	s.mu.cursorN++
}
