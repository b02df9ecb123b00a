package wal

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	// GroupBytes is the size of a group's buffer, of which there are Groups at
	// most. A frame that does not fit in one gets a larger buffer of its own, of
	// which two are in use at a time. A record of 1 MiB with its key fits.
	GroupBytes = 1<<20 + 128<<10
	Groups     = 8

	bigGroups   = 2
	retryAdvice = time.Second
)

// stagedGroup is a group that takes frames, waits to be written, or is being
// written. buf holds header, frames and padding in one piece, so that a group
// is one WriteAt.
type stagedGroup struct {
	buf    []byte // multiple of blockSize
	n      int    // bytes used, header included
	first  uint64
	frames uint32
	ready  chan struct{} // capacity 1: the last Done after the group was closed
	// pending counts slots without Done, and one for the group itself until
	// the writer takes that off; who brings it to 0 lets the write begin.
	pending atomic.Int32
	waited  bool // the writer has taken its own count off; only the write role touches it
}

// staging is what the log's mutex guards: the groups in memory, the two roles
// and the channels of those who wait for them.
type staging struct {
	sync.Mutex
	maxGroup int
	std      int

	next uint64         // LSN of the next frame
	cur  *stagedGroup   // takes frames; nil = none begun
	full []*stagedGroup // closed, in LSN order; the first may be in writing
	free []*stagedGroup // standard size; last in, first out keeps one warm in the CPU's cache
	made int            // standard groups in existence
	big  int            // larger groups in cur and full
	kept *stagedGroup   // one larger group for reuse

	writing bool   // somebody has the write role
	syncing bool   // somebody has the sync role
	writeTo uint64 // the running write covers at least this
	syncTo  uint64 // the running sync covers at least this

	// Waiters of the running write or sync, and of the next one. Channels are
	// made by the first who waits and closed once: one broadcast per group.
	wrun, wnext, srun, snext chan struct{}
	snextMin                 uint64        // lowest LSN that waits on snext
	room                     chan struct{} // those who found no free group
	changed                  chan struct{} // DurableChanged

	file vfs.File // current file: read under mu, replaced by the write role under mu
	// Of the current file; only the write role touches them.
	direct *directWriter // nil: there is none
	pos    int64         // where the next group goes
	salt   uint64
	entry  *logFile

	lastSync uint64 // frames that the last sync made durable

	armed   bool // the keeper knows that there is traffic
	markLSN uint64
	markMs  uint64

	closed bool           // Close has begun
	dead   bool           // Close has ended
	poison *errcode.Error // a sync failed; for ever
	stall  *errcode.Error // a write fails; until a retry succeeds
}

func (s *staging) init(o Options) {
	s.maxGroup = o.MaxGroup
	s.std = int(min(GroupBytes, roundUp(int64(o.MaxGroup))))
	s.full = make([]*stagedGroup, 0, Groups+bigGroups)
	s.free = make([]*stagedGroup, 0, Groups)
	s.snextMin = math.MaxUint64
}

// Slot is a reserved place in the log.
type Slot struct {
	LSN  uint64
	Body []byte // to be filled before Done; the caller's until then
	g    *stagedGroup
}

// Done says that Body is filled in. It must be called exactly once, soon, and
// the caller must not touch Body afterwards.
func (s Slot) Done() {
	if s.g.pending.Add(-1) == 0 {
		s.g.ready <- struct{}{}
	}
}

// Want is one frame of a [Log.ReserveAll].
type Want struct {
	Kind Kind
	Size int
}

// Reserve claims the next LSN and n body bytes in the current group. It takes
// a short lock and allocates nothing for bodies that fit in GroupBytes; when every
// buffer is in use it waits for the write of one. Errors: errcode.Poisoned,
// errcode.Closed, errcode.TooLarge, errcode.InvalidArgument, errcode.Storage
// (writes fail now); then nothing was reserved.
func (l *Log) Reserve(kind Kind, n int) (Slot, error) {
	if err := l.checkWant(kind, n); err != nil {
		return Slot{}, err
	}
	l.mu.Lock()
	g, err := l.place(frameHeaderSize+n, false)
	if err != nil {
		l.mu.Unlock()
		return Slot{}, err
	}
	s := l.mu.cut(g, kind, n)
	l.arm()
	l.mu.Unlock()
	return s, nil
}

// ReserveAll is Reserve for frames that belong together: they stand in one
// group with ascending LSNs, so that a crash leaves all or none. It fills
// slots, which must be as long as want. Errors as Reserve's.
func (l *Log) ReserveAll(slots []Slot, want []Want) error {
	if len(slots) != len(want) || len(want) == 0 {
		return errcode.New(errcode.InvalidArgument, "wal: %d slots for %d frames", len(slots), len(want))
	}
	total := 0
	for _, w := range want {
		if err := l.checkWant(w.Kind, w.Size); err != nil {
			return err
		}
		if total += frameHeaderSize + w.Size; total > l.mu.maxGroup-groupHeaderSize {
			return l.tooLarge(total)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g, err := l.place(total, false)
	if err != nil {
		return err
	}
	for i, w := range want {
		slots[i] = l.mu.cut(g, w.Kind, w.Size)
	}
	l.arm()
	return nil
}

func (l *Log) checkWant(kind Kind, n int) error {
	if kind < KindCommit || kind > KindCarryIngress || kind == KindMark {
		return errcode.New(errcode.InvalidArgument, "wal: frames of %v cannot be appended", kind)
	}
	if n < 0 {
		return errcode.New(errcode.InvalidArgument, "wal: body of %d bytes", n)
	}
	if n > l.mu.maxGroup-groupHeaderSize-frameHeaderSize {
		return l.tooLarge(n)
	}
	return nil
}

func (l *Log) tooLarge(n int) error {
	return errcode.New(errcode.TooLarge, "wal: %d bytes do not fit in a group of %d; send less at once", n, l.mu.maxGroup)
}

// place returns the group that takes size more bytes. The mutex is held at
// entry and exit, but released while it waits for a buffer. last = Close
// appends its mark.
func (l *Log) place(size int, last bool) (*stagedGroup, error) {
	for {
		if err := l.mu.refusal(); err != nil && !(last && err.Code == errcode.Closed) {
			return nil, err
		}
		if g := l.mu.cur; g != nil {
			if g.n+size <= min(len(g.buf), l.mu.maxGroup) {
				return g, nil
			}
			l.mu.closeGroup()
		}
		if g := l.mu.newGroup(groupHeaderSize + size); g != nil {
			l.mu.cur = g
			return g, nil
		}
		l.makeRoom()
	}
}

// makeRoom writes what is staged, or waits for the one who does. The mutex is
// held at entry and exit.
func (l *Log) makeRoom() {
	if l.mu.writing {
		c := shared(&l.mu.room)
		l.mu.Unlock()
		<-c
		l.mu.Lock()
		return
	}
	l.mu.beginWrite()
	l.mu.Unlock()
	l.leadWrite()
	l.mu.Lock()
}

// refusal returns why nothing is accepted now, or nil.
func (s *staging) refusal() *errcode.Error {
	switch {
	case s.poison != nil:
		return s.poison
	case s.closed:
		return errcode.New(errcode.Closed, "wal: closed")
	default:
		return s.stall
	}
}

// closeGroup moves the current group to those that wait to be written.
func (s *staging) closeGroup() {
	if s.cur != nil {
		s.full = append(s.full, s.cur)
		s.cur = nil
	}
}

// newGroup returns an empty group for size bytes, header included, or nil when
// as many as allowed are in use.
func (s *staging) newGroup(size int) *stagedGroup {
	var g *stagedGroup
	switch n := len(s.free); {
	case size > s.std:
		if s.big == bigGroups {
			return nil
		}
		s.big++
		if g, s.kept = s.kept, nil; g == nil || len(g.buf) < size {
			g = makeGroup(int(roundUp(int64(size))))
		}
	case n > 0:
		g, s.free = s.free[n-1], s.free[:n-1]
	case s.made < Groups:
		s.made++
		g = makeGroup(s.std)
	default:
		return nil
	}
	g.n, g.first, g.frames, g.waited = groupHeaderSize, s.next, 0, false
	g.pending.Store(1)
	return g
}

func makeGroup(size int) *stagedGroup {
	return &stagedGroup{buf: alignedBytes(size), ready: make(chan struct{}, 1)}
}

// release takes back a group that is written.
func (s *staging) release(g *stagedGroup) {
	if len(g.buf) > s.std {
		s.big--
		s.kept = g
	} else {
		s.free = append(s.free, g)
	}
	broadcast(&s.room)
}

// cut claims the next LSN and the next bytes of g.
func (s *staging) cut(g *stagedGroup, kind Kind, n int) Slot {
	at := g.n + frameHeaderSize
	binary.BigEndian.PutUint32(g.buf[g.n:], uint32(n))
	g.buf[g.n+4] = byte(kind)
	g.n = at + n
	g.frames++
	g.pending.Add(1)
	lsn := s.next
	s.next++
	return Slot{LSN: lsn, Body: g.buf[at:g.n:g.n], g: g}
}

// arm tells the keeper that there is something to sync and mark. The mutex is
// held.
func (l *Log) arm() {
	if !l.mu.armed {
		l.mu.armed = true
		poke(l.traffic)
	}
}

// shared returns the channel in c, made now if nobody waits on it yet.
func shared(c *chan struct{}) chan struct{} {
	if *c == nil {
		*c = make(chan struct{})
	}
	return *c
}

// broadcast wakes everybody who waits on the channel in c.
func broadcast(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// wakeAll lets every waiter look at the state again.
func (s *staging) wakeAll() {
	for _, c := range []*chan struct{}{&s.wrun, &s.wnext, &s.srun, &s.snext, &s.room} {
		broadcast(c)
	}
	s.snextMin = math.MaxUint64
}
