package retention

import (
	"context"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
)

// fakeLog is a log in memory whose records stand in pieces.
type fakeLog struct {
	id    broker.PartitionID
	limit Limits
	local partition.Local
	kept  [][3]int64 // what survives a restart
}

func (l *fakeLog) ID() broker.PartitionID       { return l.id }
func (l *fakeLog) Limits() (Limits, bool)       { return l.limit, true }
func (l *fakeLog) Followed(int64, uint64, bool) {}
func (l *fakeLog) Doubts() [][3]int64           { return l.kept }
func (l *fakeLog) SetDoubts(d [][3]int64)       { l.kept = d }

func (l *fakeLog) Local() partition.Local {
	out := l.local
	out.Pieces = append([]partition.Piece(nil), l.local.Pieces...)
	return out
}

func (l *fakeLog) Trim(start int64) (partition.Freed, error) {
	l.local.Oldest = max(l.local.Oldest, start)
	for len(l.local.Pieces) > 0 && l.local.Pieces[0].Next <= start {
		l.local.Pieces = l.local.Pieces[1:]
	}
	return partition.Freed{}, nil
}

func (l *fakeLog) Evict(int64) (partition.Freed, error) { return partition.Freed{}, nil }

// add appends one piece that was appended at a time.
func (l *fakeLog) add(at time.Time) {
	base := l.local.HighWatermark
	l.local.HighWatermark = base + 10
	l.local.Pieces = append(l.local.Pieces, partition.Piece{Base: base, Next: base + 10, Bytes: 100, MaxAppend: at.UnixMilli()})
}

// fakeArchive knows the time, or does not answer; it has no chains.
type fakeArchive struct {
	Archive
	skew  time.Duration
	fails bool
}

func (a *fakeArchive) Readable() bool                         { return false }
func (a *fakeArchive) Known(broker.PartitionID) (Chain, bool) { return nil, false }

func (a *fakeArchive) Skew(context.Context) (time.Duration, error) {
	if a.fails {
		return 0, errcode.New(errcode.Transient, "no answer")
	}
	return a.skew, nil
}

// sweeping drives a sweeper whose clocks and logs a test moves.
type sweeping struct {
	t       *testing.T
	s       *Sweeper
	right   time.Time // what the time really is
	wrong   time.Duration
	mono    time.Duration
	logs    []*fakeLog
	broken  bool // nothing could be made durable now
	archive *fakeArchive
}

func newSweeping(t *testing.T, archive *fakeArchive, wrong time.Duration, logs ...*fakeLog) *sweeping {
	t.Helper()
	c := &sweeping{t: t, right: time.UnixMilli(1_800_000_000_000), wrong: wrong, logs: logs, archive: archive}
	o := Options{Logs: c.all, Now: c.now, Elapsed: func() time.Duration { return c.mono }}
	if archive != nil {
		archive.skew = -wrong
		o.Archive = archive
	}
	var err error
	if c.s, err = New(o); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *sweeping) now() time.Time { return c.right.Add(c.wrong) }

func (c *sweeping) all() []Log {
	if c.broken {
		return nil
	}
	out := make([]Log, len(c.logs))
	for i := range c.logs {
		out[i] = c.logs[i]
	}
	return out
}

// turns lets time pass in turns of a minute.
func (c *sweeping) turns(d time.Duration) {
	for ; d > 0; d -= time.Minute {
		c.right, c.mono = c.right.Add(time.Minute), c.mono+time.Minute
		c.s.Turn(context.Background())
	}
}

// set puts the clock right.
func (c *sweeping) set() {
	c.wrong = 0
	if c.archive != nil {
		c.archive.skew = 0
	}
}

func (c *sweeping) kept(what string, l *fakeLog, oldest int64) {
	c.t.Helper()
	if l.local.Oldest != oldest {
		c.t.Fatalf("%s: the log begins at %d, want %d", what, l.local.Oldest, oldest)
	}
}

const (
	day   = 24 * time.Hour
	years = 20 * 365 * day
)

func aged(topic int, d time.Duration) *fakeLog {
	return &fakeLog{id: broker.PartitionID{Topic: broker.TopicID(topic)}, limit: Limits{AgeMS: d.Milliseconds()}}
}

// A machine that comes up in the past, as one without a battery does, gives its
// records append times of then. Once its clock is set, none of them is old: they
// are kept for their time, in the topics that were there as in those that were
// created meanwhile (I10).
func TestRecordsOfAClockThatWasWrongFromTheStart(t *testing.T) {
	for _, known := range []bool{true, false} {
		archive := &fakeArchive{}
		if !known {
			archive = nil // nobody tells: the clock is believed until it jumps
		}
		old, young := aged(1, day), aged(2, day)
		c := newSweeping(t, archive, -years, old)
		old.add(c.now())
		c.turns(10 * time.Minute)
		c.logs = append(c.logs, young)
		young.add(c.now())
		c.turns(10 * time.Minute)
		c.set()
		c.turns(2 * time.Hour)
		if why := c.s.Paused(); why != "" {
			t.Fatalf("still paused: %s", why)
		}
		c.kept("minutes old, stamped years ago", old, 0)
		c.kept("of a new topic", young, 0)
		c.turns(day)
		c.kept("a day later", old, 10)
		c.kept("a day later", young, 10)
	}
}

// What is known of wrong append times outlives a while in which no log can be
// changed, because the disk of the local state fails.
func TestWrongTimesAreRememberedWhileTheDiskFails(t *testing.T) {
	l := aged(1, day)
	c := newSweeping(t, &fakeArchive{}, -years, l)
	c.turns(time.Minute)
	l.add(c.now())
	c.turns(time.Minute)
	c.set()
	c.turns(10 * time.Minute)
	c.broken = true
	c.turns(time.Minute)
	c.broken = false
	c.turns(10 * time.Minute)
	c.kept("after the disk is back", l, 0)
	c.turns(day)
	c.kept("a day later", l, 10)
}

// restart ends the process and begins the next one, with what the logs kept.
func (c *sweeping) restart() {
	c.t.Helper()
	next := newSweeping(c.t, c.archive, c.wrong, c.logs...)
	next.right, next.mono = c.right, c.mono
	*c = *next
	c.s.opts.Logs, c.s.opts.Now = c.all, c.now
	c.s.opts.Elapsed = func() time.Duration { return c.mono }
}

// What is known of wrong append times outlives a restart: records that a clock
// ahead stamped go a time after that was found, not a time after the last start;
// those of a clock that went back, also when the process ends before it is set,
// stay for their time; and no restart is needed to get rid of either (I10).
func TestWrongTimesSurviveARestart(t *testing.T) {
	l := aged(1, 3*day)
	c := newSweeping(t, &fakeArchive{}, 0, l)
	l.add(c.now().Add(years)) // a clock that was ahead, of an earlier process
	c.turns(time.Hour)
	if len(l.kept) != 1 {
		t.Fatalf("kept %v", l.kept)
	}
	for range 5 {
		c.restart()
		c.turns(12 * time.Hour)
	}
	c.kept("before its time", l, 0)
	c.turns(12 * time.Hour)
	c.kept("three days after it was found", l, 10)
	if len(l.kept) != 0 {
		t.Fatalf("what is gone is remembered: %v", l.kept)
	}

	l = aged(1, 3*day)
	c = newSweeping(t, &fakeArchive{}, 0, l)
	c.turns(time.Hour)
	c.wrong, c.archive.skew = -years, years
	c.turns(5 * time.Minute)
	l.add(c.now())
	c.turns(5 * time.Minute)
	c.restart() // before anybody has set the clock
	l.add(c.now())
	c.turns(5 * time.Minute)
	c.set()
	c.restart() // and before anybody has looked since
	c.turns(2 * time.Hour)
	c.kept("stamped years ago by a clock that went back", l, 0)
	c.restart()
	c.turns(2 * day)
	c.kept("two days later", l, 0)
	c.turns(day)
	c.kept("three days later", l, 20)
}

// A time that was noted by a clock that is ahead is brought back once the clock
// is right: nothing is kept until it is that late (I10).
func TestTimesNotedAheadDoNotKeepForEver(t *testing.T) {
	l := aged(1, day)
	l.kept = [][3]int64{{0, 10, time.UnixMilli(1_800_000_000_000).Add(years).UnixMilli()}}
	l.add(time.UnixMilli(1_800_000_000_000).Add(years))
	c := newSweeping(t, &fakeArchive{}, 0, l)
	c.turns(20 * time.Hour)
	c.kept("before its time", l, 0)
	c.turns(6 * time.Hour)
	c.kept("a day later", l, 10)
}

// A machine that comes up in the future takes every record for old. While an
// archive that could tell does not answer, that is not believed for an hour (I10).
func TestNothingGoesBeforeTheStoreSaysThatTheClockIsRight(t *testing.T) {
	l := aged(1, day)
	archive := &fakeArchive{fails: true}
	l.add(time.UnixMilli(1_800_000_000_000))
	c := newSweeping(t, archive, years, l)
	c.turns(30 * time.Minute)
	c.kept("the store does not answer", l, 0)
	if c.s.Paused() == "" {
		t.Fatal("nobody is told that retention waits")
	}
	archive.fails = false
	c.turns(2 * time.Hour)
	c.kept("the store says no", l, 0)
	c.set()
	c.turns(2 * time.Minute)
	c.kept("set", l, 0)
	if why := c.s.Paused(); why != "" {
		t.Fatalf("still paused: %s", why)
	}
	c.turns(day)
	c.kept("a day later", l, 10)

	// A store that never answers does not keep records for ever.
	l = aged(1, day)
	l.add(time.UnixMilli(1_800_000_000_000).Add(-2 * day))
	c = newSweeping(t, &fakeArchive{fails: true}, 0, l)
	c.turns(50 * time.Minute)
	c.kept("for an hour", l, 0)
	c.turns(20 * time.Minute)
	c.kept("from then on", l, 10)
}

// Append times that cannot be right are seen without a memory of the clock:
// records are not older than their topic, nor than those in front of them. So a
// restart after the clock was set does not take them away (I10).
func TestRecordsThatClaimToBeOlderThanTheyCanBe(t *testing.T) {
	start := time.UnixMilli(1_800_000_000_000)
	topic, behind := aged(1, day), aged(2, day)
	topic.limit.CreatedMS = start.Add(-time.Hour).UnixMilli()
	topic.add(start.Add(-years))
	behind.add(start.Add(-23 * time.Hour))
	behind.add(start.Add(-years))
	c := newSweeping(t, &fakeArchive{}, 0, topic, behind)
	c.turns(2 * time.Hour)
	c.kept("older than its topic", topic, 0)
	c.kept("older than what it follows", behind, 10)
	c.turns(day)
	c.kept("a day later", topic, 10)
	c.kept("a day later", behind, 20)
}
