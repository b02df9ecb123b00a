package scrub

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	maxOpen     = 1000 // findings that are kept
	maxListed   = 100  // of those in a report
	maxRepaired = 50
)

// place names a copy.
type place struct {
	tier tier
	id   broker.PartitionID
	base int64
}

func (u *unit) place() place { return place{u.tier, u.id, u.base()} }

// findings are the damaged copies that are known.
type findings struct {
	mu       sync.Mutex
	open     map[place]broker.ScrubFinding
	repaired []broker.ScrubFinding // newest last
	changed  bool                  // since the last save
}

// note keeps a finding; fresh is false when the copy was known to be damaged.
func (f *findings) note(at place, x broker.ScrubFinding, repaired bool) (fresh bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, known := f.open[at]
	f.changed = true
	if repaired {
		delete(f.open, at)
		f.repaired = append(f.repaired, x)
		if n := len(f.repaired) - maxRepaired; n > 0 {
			f.repaired = slices.Delete(f.repaired, 0, n)
		}
		return !known
	}
	if known || len(f.open) < maxOpen {
		f.open[at] = x
	}
	return !known
}

// clear forgets a copy that is good, or gone.
func (f *findings) clear(at place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.open[at]; ok {
		delete(f.open, at)
		f.changed = true
	}
}

// expire forgets findings of a tier that a whole round has not met again: what
// they were about is gone.
func (f *findings) expire(t tier, beganMS int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.open, func(at place, x broker.ScrubFinding) bool {
		gone := at.tier == t && x.At < beganMS
		f.changed = f.changed || gone
		return gone
	})
}

// has says whether a copy is known to be damaged.
func (f *findings) has(at place) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.open[at]
	return ok
}

// list returns the open findings, newest first, and the repaired ones.
func (f *findings) list() (open, repaired []broker.ScrubFinding, total int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	open = slices.SortedFunc(maps.Values(f.open), func(a, b broker.ScrubFinding) int {
		return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(a.TopicID, b.TopicID), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.From, b.From))
	})
	total = len(open)
	repaired = slices.Clone(f.repaired)
	slices.Reverse(repaired)
	return open[:min(total, maxListed)], repaired, total
}

// take says whether something changed since the last call.
func (f *findings) take() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.changed
	f.changed = false
	return was
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.tier, b.tier), compareIDs(a.id, b.id), cmp.Compare(a.base, b.base))
}
