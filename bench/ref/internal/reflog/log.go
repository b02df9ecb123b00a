// Package reflog is the shared log of the reference programs: a ring of
// already written blocks and a natural group commit, nothing else.
//
// Appenders copy their record into the open group. The first one that finds no
// commit running leads: it writes the group with one WriteAt, calls fdatasync
// once and wakes all members with one broadcast. What arrives meanwhile forms
// the next group, which starts as soon as the first is done. So a group is as
// large as one sync is long, without timers, and a lone appender writes and
// syncs on its own goroutine.
//
// An appended record is on stable storage when Append returns nil. Nothing
// reads the log back: the ring overwrites its oldest groups, and a restart
// begins at its start.
package reflog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
	"syscall"
)

// Sizes of the log. A group starts at a multiple of blockSize, as in any log
// that must not tear a group that was already answered.
const (
	blockSize = 4 << 10
	headerLen = 16 // bytes u64, records u32, crc32c u32
	frameLen  = 4  // length u32 before each record
	maxGroup  = 32 << 20

	// MinSize is the smallest ring, so that a full group always fits.
	MinSize = 2 * maxGroup
	// MaxRecord is the largest record that Append takes.
	MaxRecord = maxGroup - headerLen - frameLen
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrTooLarge is returned for a record over MaxRecord; nothing was written.
var ErrTooLarge = errors.New("record is larger than a group of the reference log")

// Stats counts what a Log did since it was opened.
type Stats struct {
	Records uint64 `json:"records"`
	Groups  uint64 `json:"groups"` // one write and one fdatasync each
}

// Log is a shared log over one prepared file. All methods may be called
// concurrently.
type Log struct {
	f    *os.File
	size int64 // bytes of the ring, a multiple of blockSize

	mu struct {
		sync.Mutex
		open    *group
		running bool   // a commit is writing or syncing
		spare   []byte // buffer of the last finished group
		pos     int64  // where the next group goes
		err     error  // first failed write or sync; final
		stats   Stats
	}
}

// group is a set of records that share one write and one sync.
type group struct {
	buf     []byte
	records uint32
	done    chan struct{} // closed when err is set and the group is durable or failed
	err     error
}

// Open prepares path (see Prepare) as a ring of size bytes, which is rounded
// down to whole blocks and must be at least MinSize.
func Open(path string, size int64) (*Log, error) {
	size -= size % blockSize
	if size < MinSize {
		return nil, fmt.Errorf("reference log of %d bytes: it needs at least %d", size, MinSize)
	}
	f, err := Prepare(path, size)
	if err != nil {
		return nil, err
	}
	l := &Log{f: f, size: size}
	l.mu.open = newGroup(nil)
	return l, nil
}

// Close closes the file. No Append may be running or follow.
func (l *Log) Close() error { return l.f.Close() }

// Stats returns the counters.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.stats
}

// Append copies rec into the log and returns once it is durable. After a
// failed write or sync it returns that error for ever: the state of the pages
// is unknown then, and a second sync that succeeds would prove nothing.
func (l *Log) Append(rec []byte) error {
	if len(rec) > MaxRecord {
		return ErrTooLarge
	}
	g, lead, err := l.join(rec)
	if err != nil {
		return err
	}
	if lead {
		l.commit()
	}
	<-g.done
	return g.err
}

// join adds rec to the open group and says whether the caller has to commit.
// It waits while the open group has no room.
func (l *Log) join(rec []byte) (g *group, lead bool, err error) {
	l.mu.Lock()
	for {
		if l.mu.err != nil {
			defer l.mu.Unlock()
			return nil, false, l.mu.err
		}
		g = l.mu.open
		if len(g.buf)+frameLen+len(rec) <= maxGroup {
			break
		}
		// A full group is waiting for the running commit; its end makes room.
		l.mu.Unlock()
		<-g.done
		l.mu.Lock()
	}
	g.buf = binary.BigEndian.AppendUint32(g.buf, uint32(len(rec)))
	g.buf = append(g.buf, rec...)
	g.records++
	lead = !l.mu.running
	l.mu.running = true
	l.mu.Unlock()
	return g, lead, nil
}

// commit makes the open group durable, wakes its members and hands on to a
// goroutine of its own when more has arrived, so that the leader can answer.
func (l *Log) commit() {
	l.mu.Lock()
	g, at := l.take()
	err := l.mu.err // a group that formed behind a failed one fails with it
	l.mu.Unlock()

	if err == nil {
		err = l.write(g, at)
	}

	l.mu.Lock()
	l.mu.err = err
	g.err = err
	l.mu.spare = g.buf
	l.mu.stats.Groups++
	l.mu.stats.Records += uint64(g.records)
	l.mu.running = l.mu.open.records > 0
	more := l.mu.running
	l.mu.Unlock()

	close(g.done)
	if more {
		go l.commit() // its members wait on g.done, so it ends before they return
	}
}

// take closes the open group, pads it to whole blocks and gives it its place.
// The caller holds the lock.
func (l *Log) take() (*group, int64) {
	g := l.mu.open
	l.mu.open = newGroup(l.mu.spare)
	l.mu.spare = nil
	if pad := -len(g.buf) & (blockSize - 1); pad > 0 {
		g.buf = append(g.buf, make([]byte, pad)...)
	}
	n := int64(len(g.buf))
	if l.mu.pos+n > l.size {
		l.mu.pos = 0
	}
	at := l.mu.pos
	l.mu.pos += n
	return g, at
}

// write puts a group on stable storage at its place.
func (l *Log) write(g *group, at int64) error {
	binary.BigEndian.PutUint64(g.buf, uint64(len(g.buf)))
	binary.BigEndian.PutUint32(g.buf[8:], g.records)
	binary.BigEndian.PutUint32(g.buf[12:], crc32.Checksum(g.buf[headerLen:], castagnoli))
	if _, err := l.f.WriteAt(g.buf, at); err != nil {
		return fmt.Errorf("write reference log at %d: %w", at, err)
	}
	// fdatasync is enough: size and blocks of the file never change.
	if err := Datasync(l.f); err != nil {
		return fmt.Errorf("sync reference log at %d: %w", at, err)
	}
	return nil
}

// Datasync flushes the written data of f to stable storage.
func Datasync(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// newGroup returns an empty group that writes into buf's memory.
func newGroup(buf []byte) *group {
	g := &group{done: make(chan struct{})}
	g.buf = append(buf[:0], make([]byte, headerLen)...)
	return g
}
