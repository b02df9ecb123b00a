package retention

import (
	"slices"

	"github.com/tidemark-mq/tidemark/node/partition"
)

// maxSpans bounds what is remembered of one partition's wrong append times.
const maxSpans = 8

// span says that the records in [from, to) existed at a time (ms), and that
// their append times say nothing: whatever they are, age counts from there.
type span struct{ from, to, at int64 }

// stamps are the append times of one partition that cannot be right, ascending by
// when they were found. The clock was wrong when the records came, or nobody
// knows when they came. It is kept with the partition, see doubts. What has no append
// time, one that lies ahead, or one from before its topic or from before the
// records in front of it, counts anew then: such records stay longer, never
// shorter.
type stamps struct {
	spans   []span
	created int64 // ms of the topic's creation: no record is older; 0 = not known
}

// distrust notes that the append times of [from, to) cannot be right, at ms.
func (s *stamps) distrust(from, to, at int64) {
	if from >= to {
		return
	}
	s.spans = slices.DeleteFunc(s.spans, func(x span) bool { return x.from >= from && x.to <= to })
	s.spans = append(s.spans, span{from, to, at})
	if len(s.spans) > maxSpans {
		// One for two: the later time keeps more.
		a, b := s.spans[0], s.spans[1]
		s.spans = slices.Replace(s.spans, 0, 2, span{min(a.from, b.from), max(a.to, b.to), max(a.at, b.at)})
	}
}

// correct gives pieces, which it changes, the append times that age counts from.
// What is unknown, lies behind now or before what it follows is distrusted from
// now on. Pieces ascend.
func (s *stamps) correct(pieces []partition.Piece, now int64) {
	newest := int64(0) // append time, of what lies in front
	for i := range pieces {
		x := &pieces[i]
		raw := x.MaxAppend
		if raw > 0 && raw+maxSkew.Milliseconds() < newest {
			x.MaxAppend = 0 // the clock was behind when these came, or ahead before: nobody knows
		}
		if raw <= now {
			newest = max(newest, raw)
		}
		x.MaxAppend = s.appended(x, now)
	}
}

// appended is when the newest record of x was appended, at the latest.
func (s *stamps) appended(x *partition.Piece, now int64) int64 {
	at, inside := s.within(x)
	if inside {
		return at
	}
	if x.MaxAppend <= 0 || x.MaxAppend > now || x.MaxAppend+maxSkew.Milliseconds() < s.created {
		s.distrust(x.Base, x.Next, now)
		return now
	}
	return max(x.MaxAppend, at)
}

// within returns the latest time of the spans that x meets, and whether one of
// them holds all of x.
func (s *stamps) within(x *partition.Piece) (at int64, inside bool) {
	for _, y := range s.spans {
		if y.from < x.Next && x.Base < y.to {
			at = max(at, y.at)
			inside = inside || y.from <= x.Base && x.Next <= y.to
		}
	}
	return at, inside
}

// clamp brings times that lie ahead of now, which is right, back to it: they were
// noted by a clock that was ahead, and would keep records until it is that late.
func (s *stamps) clamp(now int64) {
	for i := range s.spans {
		s.spans[i].at = min(s.spans[i].at, now)
	}
}

// forget drops what is below the start of the log.
func (s *stamps) forget(start int64) {
	s.spans = slices.DeleteFunc(s.spans, func(x span) bool { return x.to <= start })
}
