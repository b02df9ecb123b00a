package retention

import (
	"fmt"
	"time"
)

const (
	// maxSkew is how far clocks may differ.
	maxSkew = 5 * time.Minute
	// askEvery is how often the store is asked for its time, askPaused how often
	// while the clocks do not agree, and askSilent while it has not answered.
	askEvery  = time.Hour
	askPaused = time.Minute
	askSilent = 15 * time.Second
	// settle is how long a clock that jumped has to run evenly before it is
	// believed when no store says that it is right.
	settle = time.Hour
)

// verdict is what the store said of the node's clock since that last jumped.
type verdict uint8

const (
	unknown verdict = iota
	agrees
	differs
)

// clock says whether the node's clock can be trusted. It is used by one goroutine.
type clock struct {
	asks   bool // there is a store to ask: before its first answer, or an hour, nothing is believed
	begun  bool
	sound  bool          // it was trusted once
	wall   time.Time     // at the last look at which it was trusted
	mono   time.Duration // then
	ahead  time.Duration // of the monotonic clock since then, as of the last look
	even   time.Duration // time of the last look that found it moved
	store  verdict
	skew   time.Duration // the store's clock minus the node's, as it said last
	asked  time.Duration
	ask    bool   // as soon as possible
	paused string // why it is not trusted; "" = it is
}

// due says whether the store is to be asked for its time now.
func (c *clock) due(mono time.Duration) bool {
	switch {
	case c.paused != "" && c.store == unknown:
		return c.ask || mono-c.asked >= askSilent
	case c.paused != "":
		return c.ask || mono-c.asked >= askPaused
	}
	return c.ask || mono-c.asked >= askEvery
}

// answered takes what the store said, its clock minus the node's; ok is false
// when it did not answer.
func (c *clock) answered(mono, skew time.Duration, ok bool) {
	c.asked, c.ask = mono, false
	if !ok {
		return
	}
	c.skew, c.store = skew, agrees
	if skew.Abs() > maxSkew {
		c.store = differs
	}
}

// look compares the wall clock with the monotonic one. resumed says that it was
// not trusted before and is now: append times given meanwhile may be wrong.
func (c *clock) look(wall time.Time, mono time.Duration) (resumed bool) {
	wall = wall.Round(0) // with its own monotonic reading it would never jump
	if !c.begun {
		c.wall, c.mono, c.even, c.begun, c.ask = wall, mono, mono, true, true
	}
	ahead := wall.Sub(c.wall) - (mono - c.mono)
	if (ahead - c.ahead).Abs() > maxSkew/2 {
		// It was moved: what the store said before is about another clock.
		c.even, c.store, c.ask = mono, unknown, true
	}
	c.ahead = ahead
	before := c.paused
	even := mono-c.even >= settle
	switch {
	case c.store == differs:
		c.paused = fmt.Sprintf("the store's clock differs from this node's by %s; set the clocks", c.skew.Round(time.Second))
	case c.store == unknown && c.asks && !c.sound && !even:
		// A machine may come up with any time, and one in the future makes every
		// record look old.
		c.paused = "the store has not said yet that the clock of this node is right"
	case c.store == unknown && ahead.Abs() > maxSkew && !even:
		c.paused = fmt.Sprintf("the clock of this node jumped by %s; set it, or wait until it is known to be right", ahead.Round(time.Second))
	default:
		c.paused, c.sound = "", true
		c.wall, c.mono, c.ahead = wall, mono, 0
	}
	return before != "" && c.paused == ""
}

// right says that the clock is not only trusted for want of a doubt: the store
// said that it is right, or it ran evenly for long. The append times of records
// that came before are right then.
func (c *clock) right(mono time.Duration) bool {
	return c.paused == "" && (c.store == agrees || mono-c.even >= settle)
}
