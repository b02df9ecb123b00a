package retention

import (
	"strings"
	"testing"
	"time"
)

// clockTest drives a clock with a wall time that can be set and a monotonic one
// that cannot.
type clockTest struct {
	t    *testing.T
	c    clock
	wall time.Time
	mono time.Duration
}

func (c *clockTest) pass(d time.Duration) { c.wall, c.mono = c.wall.Add(d), c.mono+d }

// look says what the clock thinks; store is what a store answers when it is asked,
// nil when it does not.
func (c *clockTest) look(store *time.Duration) (paused string, asked, resumed bool) {
	resumed = c.c.look(c.wall, c.mono)
	if asked = c.c.due(c.mono); asked {
		skew := time.Duration(0)
		if store != nil {
			skew = *store
		}
		c.c.answered(c.mono, skew, store != nil)
		resumed = c.c.look(c.wall, c.mono) || resumed
	}
	return c.c.paused, asked, resumed
}

func (c *clockTest) want(what string, paused, got string) {
	c.t.Helper()
	if (paused == "") != (got == "") || !strings.Contains(got, paused) {
		c.t.Errorf("%s: paused because of %q, want %q", what, got, paused)
	}
}

func skewOf(d time.Duration) *time.Duration { return &d }

// With a store: it is asked at the start, then once an hour, and at once when the
// clock jumps. What it says about the clock as it is now decides; a clock that
// was set right is trusted again, and the records that came meanwhile are named.
func TestClockWithAStore(t *testing.T) {
	c := &clockTest{t: t, wall: time.Unix(1_000_000, 0)}
	paused, asked, _ := c.look(skewOf(time.Second))
	c.want("start", "", paused)
	if !asked {
		t.Error("the store is not asked at the start")
	}
	for range 300 {
		c.pass(10 * time.Second)
		if paused, asked, _ := c.look(nil); paused != "" || asked {
			t.Fatalf("in the first hour: paused %q, asked %v", paused, asked)
		}
	}
	c.pass(20 * time.Minute)
	if _, asked, _ := c.look(skewOf(0)); !asked {
		t.Error("the store is not asked after an hour")
	}
	c.wall = c.wall.Add(4 * time.Minute) // less than what counts
	paused, _, _ = c.look(nil)
	c.want("4 minutes", "", paused)

	c.wall = c.wall.Add(24 * time.Hour)
	c.pass(10 * time.Second)
	paused, asked, _ = c.look(nil)
	c.want("a day on, the store is down", "jumped by 24h", paused)
	if !asked {
		t.Error("the store is not asked after a jump")
	}
	c.pass(10 * time.Second)
	if _, asked, _ = c.look(nil); asked {
		t.Error("the store is asked again after 10 s")
	}
	c.pass(time.Minute)
	paused, _, _ = c.look(skewOf(-24 * time.Hour))
	c.want("the store says no", "the store's clock differs", paused)
	c.pass(2 * time.Hour)
	paused, _, _ = c.look(nil)
	c.want("an even clock does not overrule the store", "the store's clock differs", paused)
	c.wall = c.wall.Add(-24 * time.Hour)
	c.pass(10 * time.Second)
	paused, _, resumed := c.look(nil)
	c.want("set back", "", paused)
	if !resumed {
		t.Error("that it was not trusted is not said")
	}

	c.wall = c.wall.Add(-time.Hour) // it was wrong before, and is right now
	c.pass(10 * time.Second)
	paused, _, _ = c.look(skewOf(time.Second))
	c.want("set right", "", paused)
	if _, _, resumed := c.look(nil); resumed {
		t.Error("resumed without a pause")
	}
}

// A node's clock that is wrong from the start is found out by the store, and
// trusted within a minute after it was set.
func TestClockWrongFromTheStart(t *testing.T) {
	c := &clockTest{t: t, wall: time.Unix(1_000_000, 0)}
	paused, _, _ := c.look(skewOf(6 * time.Minute))
	c.want("start", "differs from this node's by 6m0s", paused)
	c.wall = c.wall.Add(6 * time.Minute)
	c.pass(10 * time.Second)
	paused, _, resumed := c.look(skewOf(0))
	c.want("set", "", paused)
	if !resumed {
		t.Error("not resumed")
	}
}

// Without a store a jump pauses until the clock is back, or has run evenly for
// an hour.
func TestClockWithoutAStore(t *testing.T) {
	c := &clockTest{t: t, wall: time.Unix(1_000_000, 0)}
	look := func() string {
		c.c.look(c.wall, c.mono)
		return c.c.paused
	}
	c.want("start", "", look())
	c.wall = c.wall.Add(-time.Hour)
	c.pass(10 * time.Second)
	c.want("an hour back", "jumped by -1h", look())
	c.wall = c.wall.Add(time.Hour)
	c.pass(10 * time.Second)
	c.want("set back", "", look())
	c.wall = c.wall.Add(time.Hour)
	c.pass(10 * time.Second)
	c.want("an hour on", "jumped by 1h", look())
	c.pass(50 * time.Minute)
	c.want("for 50 minutes", "jumped", look())
	c.pass(15 * time.Minute)
	c.want("for more than an hour", "", look())
	c.pass(10 * time.Second)
	c.want("from then on", "", look())
}
