package scrub

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// tier is where copies are.
type tier uint8

const (
	local tier = iota
	archived
	numTiers
)

// String returns the tier's name in metrics and reports.
func (t tier) String() string {
	if t == local {
		return "local"
	}
	return "archive"
}

const (
	// maxTries is how often a copy that cannot be read is tried.
	maxTries = 5
	// maxBackoff is the longest pause between two tries.
	maxBackoff = 5 * time.Minute
	// surveyEvery is how long an estimate of what is left counts.
	surveyEvery = time.Minute
)

// walk goes over the copies of one tier in order. Only Run's goroutine uses it.
type walk struct {
	tier tier
	only map[broker.PartitionID]struct{} // what was asked for; nil: everything, at its pace

	// The place: the next copy is the first one of partition at or above from.
	at   broker.PartitionID
	from int64

	round    broker.ScrubRound
	last     broker.ScrubRound
	deadline time.Time // of the round
	due      time.Time // of the next copy

	left     int64 // bytes
	surveyed time.Time
	tries    int  // of the next copy
	passed   bool // the copy before was passed over: this one is waited for
}

// begin starts a round.
func (w *walk) begin(now time.Time, interval time.Duration) {
	w.round = broker.ScrubRound{StartedAt: now.UnixMilli()}
	w.at, w.from, w.tries = broker.PartitionID{}, 0, 0
	w.deadline, w.surveyed = now.Add(interval), time.Time{}
}

func compareIDs(a, b broker.PartitionID) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

// ids returns the partitions of the walk from its place on.
func (s *Scrubber) ids(w *walk) []broker.PartitionID {
	out := slices.DeleteFunc(s.o.Partitions.IDs(), func(id broker.PartitionID) bool {
		if w.only != nil {
			if _, ok := w.only[id]; !ok {
				return true
			}
		}
		return compareIDs(id, w.at) < 0
	})
	slices.SortFunc(out, compareIDs)
	return out
}

// next returns the copy at the walk's place; ok is false at its end. The place is
// moved over partitions that have none.
func (s *Scrubber) next(ctx context.Context, w *walk) (u unit, ok bool, err error) {
	for _, id := range s.ids(w) {
		if id != w.at {
			w.at, w.from = id, 0
		}
		if u, ok, err = s.copyAt(ctx, w.tier, id, w.from); err != nil || ok {
			return u, ok, err
		}
		if w.only != nil && w.tier == archived {
			delete(w.only, id) // it was asked for, and is done
		}
	}
	return unit{}, false, nil
}

// copyAt returns the first copy of a partition at or above from.
func (s *Scrubber) copyAt(ctx context.Context, t tier, id broker.PartitionID, from int64) (u unit, ok bool, err error) {
	u = unit{tier: t, id: id}
	if t == local {
		list := s.o.Partitions.Files(id, from, 1)
		if len(list) == 1 {
			u.file = list[0]
		}
		return u, len(list) == 1, nil
	}
	if s.o.Archive == nil {
		return u, false, nil
	}
	u.seg, ok, err = s.o.Archive.Next(ctx, id, from)
	return u, ok, err
}

// survey brings the estimate of what is left up to date.
func (s *Scrubber) survey(w *walk, now time.Time) {
	if since := now.Sub(w.surveyed); since >= 0 && since < surveyEvery && !w.surveyed.IsZero() {
		return
	}
	w.surveyed, w.left = now, 0
	ids := s.ids(w)
	known := int64(0)
	for _, id := range ids {
		from := int64(0)
		if id == w.at {
			from = w.from
		}
		if w.tier == local {
			for _, f := range s.o.Partitions.Files(id, from, 1<<30) {
				w.left += f.Bytes
			}
		} else if n, ok := s.o.Archive.Bytes(id); ok {
			w.left += n
			known++
		}
	}
	// A chain that is not loaded yet counts as one of those that are.
	if w.tier == archived && known > 0 {
		w.left += w.left / known * (int64(len(ids)) - known)
	}
}

// passOn moves the place behind a copy and sets when the next one is due, so that
// what is left takes the time that is left.
func (s *Scrubber) passOn(w *walk, u *unit) {
	now := s.o.Now()
	w.from, w.tries = max(w.from, u.next()), 0
	w.due = now
	if w.only != nil {
		return
	}
	n := u.bytes()
	w.left = max(0, w.left-n)
	s.survey(w, now)
	if rest := min(w.deadline.Sub(now), s.o.Interval); rest > 0 && n > 0 {
		w.due = now.Add(time.Duration(float64(rest) * float64(n) / float64(w.left+n)))
	}
}

// visit looks at the copy at the walk's place. ended says that there was none.
func (s *Scrubber) visit(ctx context.Context, w *walk) (ended bool) {
	u, ok, err := s.next(ctx, w)
	if err == nil && !ok {
		return true
	}
	var v verdict
	if err != nil {
		v.err = err // the chain: without it nothing of the partition is known
	} else {
		v = s.check(ctx, &u)
	}
	if ctx.Err() != nil {
		return false
	}
	if v.err != nil {
		if w.tries++; w.tries < maxTries || w.passed {
			w.due = s.o.Now().Add(s.pause(w.tries))
			return false
		}
		if w.tier == local && lostBytes(v.err) {
			v = verdict{bad: v.err.Error()}
		}
	}
	if v.err != nil {
		w.passed = true
		w.round.Unread++
		s.metrics.unread.WithLabelValues(w.tier.String()).Inc()
		s.o.Logger.Warn("a segment could not be read for verification; the next round tries again", "tier", w.tier.String(), "partition", w.at.String(), "from", w.from, "error", v.err)
		if err != nil { // go on with the next partition
			u.file.Next, u.seg.Next = 1<<62, 1<<62
		}
		s.passOn(w, &u)
		return false
	}
	w.passed = false
	w.round.Segments++
	w.round.Bytes += u.bytes()
	s.metrics.read(w.tier, u.bytes())
	r := s.settle(ctx, &u, v)
	if ctx.Err() != nil {
		return false // the next start comes here again
	}
	if r.damaged {
		w.round.Damaged++
	}
	if r.repaired {
		w.round.Repaired++
	}
	if r.again {
		s.again(suspicion{place: u.place(), tries: 1})
	}
	s.passOn(w, &u)
	return false
}

// pause is how long to wait after the n-th try.
func (s *Scrubber) pause(n int) time.Duration {
	return min(s.o.Backoff<<min(n-1, 16), maxBackoff)
}

// result is what settle came to.
type result struct {
	damaged  bool
	repaired bool
	again    bool // what the repair needs does not answer now
}

// settle does what a verdict asks for: it repairs a damaged copy, and keeps the
// findings.
func (s *Scrubber) settle(ctx context.Context, u *unit, v verdict) result {
	if v.bad == "" {
		s.findings.clear(u.place())
		return result{}
	}
	o := s.repair(ctx, u, v.bad)
	if ctx.Err() != nil && !o.repaired {
		return result{}
	}
	if o.gone {
		s.findings.clear(u.place())
		return result{}
	}
	if o.err != nil {
		o.done = "it is repaired as soon as possible: " + o.err.Error()
	}
	s.report(u, v.bad, o)
	return result{damaged: true, repaired: o.repaired, again: o.err != nil}
}

// report notes a finding; one that is known already is not told again.
func (s *Scrubber) report(u *unit, bad string, o outcome) {
	f := broker.ScrubFinding{
		At: s.o.Now().UnixMilli(), Tier: u.tier.String(), TopicID: u.id.Topic.String(), Partition: u.id.Partition,
		From: u.base(), Next: u.next(), What: bad, Done: o.done,
	}
	if u.tier == local {
		f.File = u.file.Path
	} else {
		f.Key = u.seg.Key()
	}
	fresh := s.findings.note(u.place(), f, o.repaired)
	args := []any{"tier", f.Tier, "partition", u.id.String(), "from", f.From, "next", f.Next, "file", f.File, "key", f.Key, "what", bad, "done", o.done}
	if fresh {
		s.metrics.damaged.WithLabelValues(f.Tier).Inc()
	}
	switch {
	case o.repaired:
		s.metrics.repaired.WithLabelValues(f.Tier).Inc()
		s.o.Logger.Warn("a damaged copy of a segment was repaired", args...)
	case fresh:
		s.o.Logger.Error("a copy of a segment is damaged", args...)
	}
}

// errUnknownTopic answers a request for what is not here.
func errUnknownTopic(topic string) error {
	return errcode.New(errcode.NotFound, "this node has no partition of topic %s", topic)
}
