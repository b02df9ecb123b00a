package records

import "fmt"

// MaxUnsure bounds the records of a run whose fate is unknown.
const MaxUnsure = 1 << 20

// fate is what a ledger knows of the records of one stream that were neither
// accepted nor lost. A stream sends its records in order, one request at a time, so
// that what lies from decided on is on its way or was not sent yet.
type fate struct {
	decided uint64
	early   map[uint64]int // seen before their request was answered, how often
	unsure  map[uint64]int // no answer said whether they are stored; seen how often
}

// Refused says that a broker has not taken n records of a stream, from a sequence on.
// One that is seen all the same counts as seen more often than accepted.
func (l *Ledger) Refused(stream int, from uint64, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fate(stream)
	l.mu.nRefused += uint64(n)
	for seq, times := range f.decide(from, n) {
		for range times {
			of(l.mu.seen, stream).add(seq)
		}
	}
}

// Unsure says that no answer told whether a broker has taken n records of a stream,
// from a sequence on: each of them may be seen once, or not. It is an error when
// they are more than MaxUnsure in all.
func (l *Ledger) Unsure(stream int, from uint64, n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.nUnsure+uint64(n) > MaxUnsure {
		return fmt.Errorf("what became of %d records is unknown, which is too many to go on", l.mu.nUnsure+uint64(n))
	}
	f := l.fate(stream)
	early := f.decide(from, n)
	if f.unsure == nil {
		f.unsure = map[uint64]int{}
	}
	for i := range uint64(n) {
		f.unsure[from+i] = early[from+i]
		l.mu.nSeen -= uint64(early[from+i])
	}
	l.mu.nUnsure += uint64(n)
	return nil
}

// saw counts a record by what is known of its request; the lock is held.
func (l *Ledger) saw(s Stamp) {
	f := l.fate(s.Stream)
	if times, unsure := f.unsure[s.Seq]; unsure {
		f.unsure[s.Seq] = times + 1
		return
	}
	l.mu.nSeen++
	if s.Seq < f.decided {
		of(l.mu.seen, s.Stream).add(s.Seq)
		return
	}
	if f.early == nil {
		f.early = map[uint64]int{}
	}
	f.early[s.Seq]++
}

// settle adds to the verdict what the fates say, and empties what was seen early; the
// lock is held.
func (l *Ledger) settle(v *Verdict) {
	v.Refused, v.Unsure = l.mu.nRefused, l.mu.nUnsure
	for stream, f := range l.mu.fates {
		for seq, times := range f.early { // never sent, says whoever sent them
			for range times {
				of(l.mu.seen, stream).add(seq)
			}
		}
		f.early = nil
		for seq, times := range f.unsure {
			if times > 0 {
				v.UnsureSeen++
			}
			if times > 1 {
				v.Duplicates += uint64(times - 1)
				l.problem("stream %d: sequence %d was seen %d times", stream, seq, times)
			}
		}
	}
}

func (l *Ledger) fate(stream int) *fate {
	f := l.mu.fates[stream]
	if f == nil {
		f = &fate{}
		l.mu.fates[stream] = f
	}
	return f
}

// decide moves the mark behind n records and returns those of them that were seen
// before it.
func (f *fate) decide(from uint64, n int) (seen map[uint64]int) {
	f.decided = max(f.decided, from+uint64(n))
	if len(f.early) == 0 {
		return nil
	}
	seen = map[uint64]int{}
	for i := range uint64(n) {
		if times, ok := f.early[from+i]; ok {
			seen[from+i] = times
			delete(f.early, from+i)
		}
	}
	return seen
}
