package garbage

import (
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Cause is a reason for which objects are deleted.
type Cause uint8

// The causes, in the order in which a turn looks at them.
const (
	Retired Cause = iota
	Topic
	State
	Export
	WAL
	Incarnation
	Orphan
	Upload
	numCauses
)

var causes = [numCauses]struct{ name, why string }{
	Retired:     {"retired", "segments that retention or a merge took out of their chains"},
	Topic:       {"topic", "everything of deleted topics"},
	State:       {"state", "state objects older than the window"},
	Export:      {"export", "metadata exports older than the window"},
	WAL:         {"wal", "shipped log that state objects and chains cover, older than the window"},
	Incarnation: {"incarnation", "what incarnations of lost or replaced data directories shipped"},
	Orphan:      {"orphan", "segments that no chain names"},
	Upload:      {"upload", "uploads in parts that nobody goes on with"},
}

// String returns the cause's name in metrics and reports.
func (c Cause) String() string { return causes[c].name }

// maxHolds bounds the reasons that a report names for one cause.
const maxHolds = 8

// tally is what is known of one cause.
type tally struct {
	waiting, bytes int64
	oldest         time.Time
	holds          []string
	deleted, freed int64
}

func (t *tally) wait(n, bytes int64, since time.Time) {
	t.waiting += n
	t.bytes += bytes
	if t.oldest.IsZero() || since.Before(t.oldest) {
		t.oldest = since
	}
}

func (t *tally) hold(why string) {
	for _, h := range t.holds {
		if h == why {
			return
		}
	}
	if len(t.holds) < maxHolds {
		t.holds = append(t.holds, why)
	}
}

// Report says what is known now, without asking the store.
func (c *Collector) Report() broker.GarbageReport {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	r := broker.GarbageReport{
		Paused: c.mu.paused, GraceMS: c.opts.Grace.Milliseconds(), WindowMS: c.opts.Window.Milliseconds(),
		RetryInMS: max(0, c.mu.retryAt.Sub(now).Milliseconds()),
	}
	if !c.mu.lastTurn.IsZero() {
		r.LastTurnAt = c.mu.lastTurn.Unix()
	}
	for cause, t := range c.talliesLocked(now) {
		out := broker.GarbageCause{
			Cause: Cause(cause).String(), Why: causes[cause].why, Waiting: t.waiting, Bytes: t.bytes,
			Holds: t.holds, Deleted: t.deleted, DeletedBytes: t.freed,
		}
		if !t.oldest.IsZero() {
			out.OldestMS = max(0, now.Sub(t.oldest).Milliseconds())
		}
		r.Causes = append(r.Causes, out)
	}
	return r
}

// Paused returns why nothing is deleted now, "" when nothing hinders it.
func (c *Collector) Paused() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.paused
}

// talliesLocked counts what waits. The caller holds c.mu.
func (c *Collector) talliesLocked(now time.Time) (out [numCauses]tally) {
	for cause := range out {
		out[cause].deleted, out[cause].freed = c.mu.deleted[cause], c.mu.freed[cause]
	}
	c.mu.retired.tally(&out[Retired])
	for _, p := range c.mu.purges {
		p.tally(&out[Topic])
	}
	c.mu.shipped.tally(&out, now, c.opts.Window)
	for _, i := range c.mu.old {
		i.tally(&out[Incarnation])
	}
	for _, l := range c.mu.looks {
		l.tally(&out[Orphan])
	}
	return out
}
