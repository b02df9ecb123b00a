package upload

import (
	"math/rand/v2"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// outage bounds what a store that does not answer is asked, whatever the number
// of partitions. Their own pauses do not: with thousands of them, some pause is
// over at any time. After a run of failures without a success one piece of work
// at a time finds out whether the store is back, at a pace that falls; its first
// success lets everybody go on at once, within the slots that there are.
type outage struct {
	failures int // in a row, of all partitions
	until    time.Time
}

// outageAfter is how many slots' worth of failures in a row are an outage.
const outageAfter = 2

// unanswered says whether an error is about the store and not about one
// segment, chain or owner.
func unanswered(err error) bool {
	switch errcode.Of(err) {
	case errcode.Transient, errcode.Throttled, errcode.Denied, errcode.Canceled, errcode.ArchiveUnavailable:
		return true
	}
	return false
}

// allows returns how many of the free slots may be used now, and how long to
// wait when none may because of the pace.
func (o *outage) allows(free, all int, now time.Time) (slots int, wait time.Duration) {
	switch {
	case o.failures < outageAfter*all:
		return free, 0
	case o.until.After(now):
		return 0, o.until.Sub(now)
	case free < all:
		return 0, 0 // one is under way, and kicks when it ends
	}
	return 1, 0
}

// failed notes a failure: full jitter below a limit that doubles.
func (o *outage) failed(c *Config, now time.Time) {
	o.failures++
	if over := o.failures - outageAfter*c.Concurrency; over >= 0 {
		o.until = now.Add(rand.N(min(c.Backoff<<min(over, 20), c.MaxBackoff)) + time.Millisecond)
	}
}

// over notes a success and says whether it ended a run of failures.
func (o *outage) over() bool {
	ended := o.failures > 0
	*o = outage{}
	return ended
}

// resumeAll ends the pauses of all partitions: what they wait for is back.
// Locked.
func (u *Uploader) resumeAll() {
	for p := range u.mu.later {
		if p.err != nil && !unanswered(p.err) {
			continue
		}
		p.retryAt = time.Time{}
		delete(u.mu.later, p)
		u.schedule(p)
	}
}
