package queue

// The model: every offset of every cursor spelled out, searched from the front
// for each question.
const modelLog = 400 // offsets that a model cursor has

type modelState int

const (
	mFresh modelState = iota
	mSettled
	mLeased
	mReady
	mDelayed
)

type modelRec struct {
	state    modelState
	attempt  uint32
	expiry   int64
	deadline int64
	open     bool
}

type modelCursor [modelLog]modelRec

func (c *modelCursor) committed() int64 {
	for off := range c {
		if c[off].state != mSettled {
			return int64(off)
		}
	}
	return modelLog
}

func (c *modelCursor) ranges() (out [][2]int64) {
	for off := c.committed(); off < modelLog; off++ {
		if c[off].state != mSettled {
			continue
		}
		if n := len(out); n > 0 && out[n-1][1] == off {
			out[n-1][1]++
		} else {
			out = append(out, [2]int64{off, off + 1})
		}
	}
	return out
}

func (c *modelCursor) count(s modelState) (n int) {
	for _, r := range c {
		if r.state == s {
			n++
		}
	}
	return n
}

func (c *modelCursor) settle(from, to int64) {
	for off := from; off < to; off++ {
		c[off] = modelRec{state: mSettled}
	}
}

// capture is what a snapshot at `now` has to hold.
func (c *modelCursor) capture(group string, now int64) State {
	s := State{Group: group, Committed: c.committed(), Ranges: c.ranges()}
	for off, r := range c {
		switch {
		case r.state == mFresh, r.state == mSettled:
		case (r.state == mLeased || r.open) && now < r.deadline:
			s.Leased = append(s.Leased, Leased{int64(off), r.attempt, r.expiry, r.deadline})
		case r.state == mDelayed:
			s.Returned = append(s.Returned, Returned{int64(off), r.attempt, r.deadline / 1000})
		case r.attempt > 0:
			s.Returned = append(s.Returned, Returned{int64(off), r.attempt, 0})
		}
	}
	return s
}

// frozen is the cursor as a snapshot at `now` keeps it.
func (c *modelCursor) frozen(now int64) *modelCursor {
	out := *c
	for off := range out {
		r := &out[off]
		switch {
		case (r.state == mLeased || r.open) && now < r.deadline:
			r.state, r.open = mReady, true
		case r.state == mLeased || r.state == mReady:
			*r = modelRec{state: mReady, attempt: r.attempt}
			if r.attempt == 0 {
				r.state = mFresh
			}
		}
	}
	return &out
}

// replay applies one journal entry to a frozen cursor.
func (c *modelCursor) replay(o op, start int64) {
	switch o.kind {
	case opSettle, opSkip:
		c.settle(o.from, o.to)
	case opReturn:
		if r := &c[o.from]; r.state != mSettled && r.attempt <= o.attempts {
			*r = modelRec{state: mReady, attempt: o.attempts}
			if o.dueMS > 0 {
				r.state, r.deadline = mDelayed, o.dueMS*1000
			}
		}
	case opExtend:
		if r := &c[o.from]; r.state != mSettled && r.attempt <= o.attempts && (r.attempt < o.attempts || r.open) {
			*r = modelRec{state: mReady, attempt: o.attempts, expiry: o.expiry, deadline: o.deadline, open: true}
		}
	case opSeek, opDelete:
		to := o.from
		if o.kind == opDelete {
			to = start
		}
		*c = modelCursor{}
		c.settle(0, to)
	case opCut:
		for off := o.from; off < modelLog; off++ {
			c[off] = modelRec{}
		}
	}
}
