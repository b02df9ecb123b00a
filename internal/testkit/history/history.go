package history

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// Level is what a client was told about a produce.
type Level int

// The levels, weakest first. Unknown is no answer, or one that leaves it open.
const (
	Unknown  Level = iota
	Stored         // accepted or committed: it survives the process
	Archived       // it survives the disk
)

// Never is the time of an answer that did not come.
const Never = time.Duration(math.MaxInt64)

// Nowhere is the offset and AnyPartition the partition of a produce whose
// answer does not tell.
const (
	Nowhere      = int64(-1)
	AnyPartition = int32(-1)
)

// Place is an offset of a partition.
type Place struct {
	Partition int32
	Offset    int64
}

// String returns "partition/offset".
func (p Place) String() string { return fmt.Sprintf("%d/%d", p.Partition, p.Offset) }

// Record is what a client can recognise: a name that no two records share, and
// a sum over everything it holds.
type Record struct {
	ID  string
	Sum uint64
}

// Produce is one record that was sent.
type Produce struct {
	Record
	Level    Level
	Place    Place // Partition and Offset as far as they were told
	Sent     time.Duration
	Answered time.Duration // Never at Unknown
}

// Logged is one record of a log that was read.
type Logged struct {
	Offset int64
	Record
}

// Cut says what may be missing after a fault. The zero value: nothing.
type Cut struct {
	// DiskLost: records, positions and acks that are younger than Before may be
	// missing, unless they were answered as archived.
	DiskLost bool
	Before   time.Duration
}

// keeps says whether something that was so at a time must still be.
func (c Cut) keeps(at time.Duration) bool { return !c.DiskLost || at < c.Before }

// sent is a produce and what became of it.
type sent struct {
	Produce
	lost bool // by a restore, which may do that
}

// place is what is known of one offset.
type place struct {
	Record
	visible bool          // seen by a reader or consumer
	logged  int           // the last check in whose logs it stood
	since   time.Duration // when it was first seen
	acked   bool
	ackedAt time.Duration // when the ack was answered
	maybe   bool          // an ack was sent, whose answer did not come
}

// maxFindings bounds what is kept of violations.
const maxFindings = 50

// History is what clients were told, and what was seen. New makes one.
type History struct {
	begin time.Time

	mu struct {
		sync.Mutex
		produces map[string]*sent
		places   map[Place]*place
		checks   int
		cuts     []cutAt
		findings []string
		dropped  int
	}
}

// cutAt is a cut and when it was.
type cutAt struct {
	Cut
	at time.Duration
}

// New returns an empty history that begins now.
func New() *History {
	h := &History{begin: time.Now()}
	h.mu.produces = map[string]*sent{}
	h.mu.places = map[Place]*place{}
	return h
}

// Now is the time of the history's clock.
func (h *History) Now() time.Duration { return time.Since(h.begin) }

func (h *History) find(format string, args ...any) {
	if len(h.mu.findings) == maxFindings {
		h.mu.dropped++
		return
	}
	h.mu.findings = append(h.mu.findings, fmt.Sprintf(format, args...))
}

// Produced records a produce once its answer is there, or will not come.
func (h *History) Produced(p Produce) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.produces[p.ID] != nil {
		h.find("the test sent %s twice", p.ID)
		return
	}
	h.mu.produces[p.ID] = &sent{Produce: p}
	if p.Level > Unknown && p.Place.Offset >= 0 {
		h.at(p.Place, p.Record)
	}
}

// at returns the place, which must hold r and nothing else, ever.
func (h *History) at(where Place, r Record) *place {
	p := h.mu.places[where]
	if p == nil {
		p = &place{Record: r}
		h.mu.places[where] = p
	}
	if p.Record != r {
		h.find("offset %s has two contents: %s (sum %x) and %s (sum %x)", where, p.ID, p.Sum, r.ID, r.Sum)
	}
	return p
}

func (h *History) see(where Place, r Record, now time.Duration) *place {
	p := h.at(where, r)
	if !p.visible {
		p.visible, p.since = true, now
	}
	return p
}

// Delivered records a delivery. asked is when the consume that brought it was
// sent: an ack that had been answered by then must have been known.
func (h *History) Delivered(where Place, r Record, asked time.Duration) {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.see(where, r, now)
	h.known(r, where)
	if !p.acked || asked <= p.ackedAt {
		return
	}
	if !h.forgiven(p.ackedAt, asked) {
		h.find("%s at %s was acked at %.3fs and delivered to a consume of %.3fs", r.ID, where, p.ackedAt.Seconds(), asked.Seconds())
	}
	p.acked = false // it counts as open from now on
}

// forgiven says whether a restore between an ack and a consume may have lost
// the ack.
func (h *History) forgiven(acked, asked time.Duration) bool {
	for _, c := range h.mu.cuts {
		if acked < c.at && c.at <= asked && !c.keeps(acked) {
			return true
		}
	}
	return false
}

// Acked records the answer to an ack: settled for 204, false when none came,
// so that it may be settled or not. Acks that were refused are not recorded.
func (h *History) Acked(where Place, settled bool) {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.mu.places[where]
	switch {
	case p == nil:
		h.find("the test acked %s, which was never delivered", where)
	case settled:
		p.acked, p.ackedAt = true, now
	default:
		p.maybe = true
	}
}

// Cut records a fault. Call it after the broker has ended and before clients
// use the next one; answers that come later belong to the next one.
func (h *History) Cut(c Cut) {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.cuts = append(h.mu.cuts, cutAt{Cut: c, at: now})
}

// known checks that a record was sent as it is, and to where it is.
func (h *History) known(r Record, where Place) *sent {
	s := h.mu.produces[r.ID]
	switch {
	case s == nil:
		// A consumer may be faster than the producer's answer: Check asks again.
		return nil
	case s.Sum != r.Sum:
		h.find("%s at %s is not as it was sent: sum %x, sent %x", r.ID, where, r.Sum, s.Sum)
	case s.Place.Partition != AnyPartition && s.Place.Partition != where.Partition,
		s.Place.Offset != Nowhere && s.Place.Offset != where.Offset:
		h.find("%s was answered with %s and is at %s", r.ID, s.Place, where)
	}
	return s
}

// Counts is how much a history has seen.
type Counts struct {
	Sent, Stored, Archived, Unknown, Lost, Seen, Acked int
}

// Counts returns the numbers so far.
func (h *History) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := Counts{Sent: len(h.mu.produces)}
	for _, s := range h.mu.produces {
		switch s.Level {
		case Unknown:
			c.Unknown++
		case Archived:
			c.Archived++
		default:
			c.Stored++
		}
		if s.lost {
			c.Lost++
		}
	}
	for _, p := range h.mu.places {
		if p.visible {
			c.Seen++
		}
		if p.acked {
			c.Acked++
		}
	}
	return c
}
