package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Check compares the complete logs after a fault with all that is known, and
// returns what must not be, worst first found. No clients may run. Cuts that
// were recorded since the last Check say what may be missing.
func (h *History) Check(logs map[int32][]Logged) []string {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.checks++
	there := h.readLogs(logs, now)
	h.checkProduces(there)
	h.checkPlaces()
	h.checkOrder(there)
	return h.takeFindings()
}

// Findings returns what clients saw that must not be, since the last call.
func (h *History) Findings() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.takeFindings()
}

func (h *History) takeFindings() []string {
	out := h.mu.findings
	if h.mu.dropped > 0 {
		out = append(out, fmt.Sprintf("and %d more", h.mu.dropped))
	}
	h.mu.findings, h.mu.dropped = nil, 0
	return out
}

// readLogs takes the logs in and returns where each record is.
func (h *History) readLogs(logs map[int32][]Logged, now time.Duration) map[string]Place {
	there := map[string]Place{}
	for partition, log := range logs {
		last := int64(-1)
		for _, l := range log {
			where := Place{partition, l.Offset}
			if l.Offset <= last {
				h.find("the log of partition %d goes from offset %d to %d", partition, last, l.Offset)
			}
			last = l.Offset
			if before, twice := there[l.ID]; twice {
				h.find("%s is there twice, at %s and at %s", l.ID, before, where)
			}
			there[l.ID] = where
			h.see(where, l.Record, now).logged = h.mu.checks
			s := h.known(l.Record, where)
			switch {
			case s == nil:
				h.find("%s at %s was sent by nobody", l.ID, where)
			case s.lost:
				h.find("%s at %s was gone after a restore and is back", l.ID, where)
			}
		}
	}
	return there
}

// mustKeep says whether no cut so far allows that something which was so at a
// time is missing.
func (h *History) mustKeep(since time.Duration) bool {
	for _, c := range h.mu.cuts {
		if since < c.at && !c.keeps(since) {
			return false
		}
	}
	return true
}

func (h *History) checkProduces(there map[string]Place) {
	for id, s := range h.mu.produces {
		if _, ok := there[id]; ok || s.lost || s.Level == Unknown {
			continue
		}
		if s.Level == Archived || h.mustKeep(s.Answered) {
			h.find("%s is missing: sent at %.3fs, answered at %.3fs with %s as %s%s", id, s.Sent.Seconds(), s.Answered.Seconds(), s.Place, s.Level, h.lastCut())
		}
		s.lost = true // found once is enough
	}
}

func (h *History) checkPlaces() {
	for where, p := range h.mu.places {
		if !p.visible || p.logged == h.mu.checks {
			continue
		}
		s := h.mu.produces[p.ID]
		if h.mustKeep(p.since) && (s == nil || !s.lost) {
			h.find("%s was seen at %s at %.3fs and is there no more%s", p.ID, where, p.since.Seconds(), h.lastCut())
		}
		p.visible = false
		if s != nil {
			s.lost = true
		}
	}
}

func (h *History) lastCut() string {
	if len(h.mu.cuts) == 0 {
		return ""
	}
	c := h.mu.cuts[len(h.mu.cuts)-1]
	if !c.DiskLost {
		return fmt.Sprintf("; killed at %.3fs", c.at.Seconds())
	}
	return fmt.Sprintf("; the disk was lost at %.3fs, and may have taken what is younger than %.3fs", c.at.Seconds(), c.Before.Seconds())
}

// String names a level.
func (l Level) String() string {
	switch l {
	case Stored:
		return "stored"
	case Archived:
		return "archived"
	default:
		return "unknown"
	}
}

// placed is a record for the check of order.
type placed struct {
	id             string
	offset         int64
	sent, answered time.Duration
}

// checkOrder checks that of two records of a partition the one that was sent
// after the other's answer has the higher offset.
func (h *History) checkOrder(there map[string]Place) {
	parts := map[int32][]placed{}
	for id, where := range there {
		s := h.mu.produces[id]
		if s == nil {
			continue
		}
		parts[where.Partition] = append(parts[where.Partition], placed{id, where.Offset, s.Sent, s.Answered})
	}
	for partition, bySent := range parts {
		byAnswer := slices.Clone(bySent)
		slices.SortFunc(bySent, func(a, b placed) int { return cmp.Compare(a.sent, b.sent) })
		slices.SortFunc(byAnswer, func(a, b placed) int { return cmp.Compare(a.answered, b.answered) })
		highest := placed{offset: math.MinInt64}
		next := 0
		for _, p := range bySent {
			for ; next < len(byAnswer) && byAnswer[next].answered < p.sent; next++ {
				if byAnswer[next].offset > highest.offset {
					highest = byAnswer[next]
				}
			}
			if p.offset <= highest.offset {
				h.find("order of partition %d: %s was sent at %.3fs, after %s was answered at %.3fs, and stands before it (%d, %d)",
					partition, p.id, p.sent.Seconds(), highest.id, highest.answered.Seconds(), p.offset, highest.offset)
			}
		}
	}
}

// Open returns the places of the logs that a consumer must still get: not
// acked, and without an ack whose answer did not come.
func (h *History) Open(logs map[int32][]Logged) map[Place]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	open := map[Place]bool{}
	for partition, log := range logs {
		for _, l := range log {
			where := Place{partition, l.Offset}
			if p := h.mu.places[where]; p == nil || !p.acked && !p.maybe {
				open[where] = true
			}
		}
	}
	return open
}
