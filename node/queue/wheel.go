package queue

import "math/bits"

const (
	slotBits   = 6
	slots      = 1 << slotBits
	numLevels  = 7 // 64^7 ms: 139 years from the engine's start
	never      = int64(1)<<62 - 1
	tickMicros = 1000
)

// wheel is a hierarchical timing wheel over the leases and delays of one
// group. Level l has 64 slots of 64^l milliseconds; a record stands at the
// lowest level whose slot its due tick does not share with the present, and
// moves down as the present comes nearer. Adding and removing are O(1), and
// the next tick that needs attention is found from one word per level.
//
// Ticks are milliseconds since the engine started. A record never fires before
// its tick; the owner rounds deadlines up.
type wheel struct {
	now    int64 // ticks up to and including this one have fired
	n      int
	levels [numLevels]*wheelLevel // made on first use
}

type wheelLevel struct {
	occupied uint64
	slots    [slots]list[rec]
}

// add places r by r.tick and returns the tick at which the wheel needs
// attention because of it: r.tick or earlier.
func (w *wheel) add(r *rec) int64 {
	tick := max(r.tick, w.now+1)
	r.tick = tick
	level := (bits.Len64(uint64(tick^w.now)) - 1) / slotBits
	l := w.levels[level]
	if l == nil {
		l = new(wheelLevel)
		w.levels[level] = l
	}
	shift := level * slotBits
	slot := tick >> shift & (slots - 1)
	l.slots[slot].pushBack(&r.timer)
	l.occupied |= 1 << slot
	r.level, r.slot = uint8(level), uint8(slot)
	w.n++
	return tick >> shift << shift
}

// remove takes r out; a record that is not in the wheel stays out.
func (w *wheel) remove(r *rec) {
	if r.timer.in == nil {
		return
	}
	r.timer.unlink()
	w.n--
	if l := w.levels[r.level]; l.slots[r.slot].head == nil {
		l.occupied &^= 1 << r.slot
	}
}

// next returns the tick at which the wheel needs attention, never when it is
// empty. Every record of a lower level is due before any of a higher one.
func (w *wheel) next() int64 {
	at, _, _ := w.earliest()
	return at
}

func (w *wheel) earliest() (at int64, level, slot int) {
	if w.n == 0 {
		return never, 0, 0
	}
	for level, l := range w.levels {
		if l == nil || l.occupied == 0 {
			continue
		}
		slot := bits.TrailingZeros64(l.occupied)
		shift := level * slotBits
		return w.now>>(shift+slotBits)<<(shift+slotBits) | int64(slot)<<shift, level, slot
	}
	return never, 0, 0
}

// advance moves the present to tick `to` and calls fire for every record that
// is due, in order of its tick. fire may add records again.
func (w *wheel) advance(to int64, fire func(*rec)) {
	for {
		at, level, slot := w.earliest()
		if at > to {
			break
		}
		w.now = at
		l := w.levels[level]
		for r := l.slots[slot].front(); r != nil; r = l.slots[slot].front() {
			w.remove(r)
			if r.tick <= at {
				fire(r)
			} else {
				w.add(r)
			}
		}
	}
	w.now = max(w.now, to)
}
