package records

import (
	"fmt"
	"slices"
	"sync"
)

// maxProblems bounds the sentences of a verdict.
const maxProblems = 20

// tally is a multiset of sequences in three words.
type tally struct{ n, seqs, hashes uint64 }

func (t *tally) add(seq uint64) {
	t.n++
	t.seqs += seq
	t.hashes += mix(seq)
}

// mix spreads the bits of a sequence over a word, so that different multisets
// have different sums.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Ledger compares what was accepted with what was seen.
type Ledger struct {
	run *Run
	mu  struct {
		sync.Mutex
		accepted, seen map[int]*tally
		nAccepted      uint64
		nSeen          uint64 // but of those that are unsure
		nRefused       uint64
		nUnsure        uint64
		fates          map[int]*fate
		corrupt        uint64
		problems       []string
	}
}

// NewLedger returns an empty ledger of the run's records.
func NewLedger(r *Run) *Ledger {
	l := &Ledger{run: r}
	l.mu.accepted, l.mu.seen, l.mu.fates = map[int]*tally{}, map[int]*tally{}, map[int]*fate{}
	return l
}

// Accepted says that a broker has taken n records of a stream, from a sequence on.
func (l *Ledger) Accepted(stream int, from uint64, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := of(l.mu.accepted, stream)
	for i := range n {
		t.add(from + uint64(i))
	}
	l.mu.nAccepted += uint64(n)
	for seq, times := range l.fate(stream).decide(from, n) {
		for range times {
			of(l.mu.seen, stream).add(seq)
		}
	}
}

// Seen verifies a record that a broker gave out, and counts it. A record that
// does not verify is counted too, and is an error of Check.
func (l *Ledger) Seen(b []byte) (Stamp, error) {
	s, err := l.run.Check(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.mu.nSeen++
		l.mu.corrupt++
		l.problem("%v", err)
		return s, err
	}
	l.saw(s)
	return s, nil
}

// Counts returns how many records were accepted, and how many were seen, changed
// ones too, but not those whose fate is unknown.
func (l *Ledger) Counts() (accepted, seen uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.nAccepted, l.mu.nSeen
}

// Verdict is the comparison at the end.
type Verdict struct {
	Accepted   uint64   `json:"accepted"`
	Seen       uint64   `json:"seen"`
	Lost       uint64   `json:"lost"`       // accepted and not seen
	Duplicates uint64   `json:"duplicates"` // seen more often than accepted
	Corrupt    uint64   `json:"corrupt"`    // not what was sent
	Mixed      uint64   `json:"mixed"`      // streams with as many records as accepted, but other ones
	Refused    uint64   `json:"refused"`    // not taken, and not seen
	Unsure     uint64   `json:"unsure"`     // of requests that no answer told the fate of
	UnsureSeen uint64   `json:"unsure_seen"`
	Problems   []string `json:"problems,omitempty"`
}

// OK says that every accepted record was seen exactly once and unchanged.
func (v *Verdict) OK() bool {
	return v.Lost == 0 && v.Duplicates == 0 && v.Corrupt == 0 && v.Mixed == 0
}

// String says it in a line.
func (v *Verdict) String() string {
	if v.OK() {
		said := fmt.Sprintf("%d records accepted, each seen once, checksums verified", v.Accepted)
		if v.Refused > 0 {
			said += fmt.Sprintf("; %d refused, none of them seen", v.Refused)
		}
		if v.Unsure > 0 {
			said += fmt.Sprintf("; %d without an answer, %d of them seen once", v.Unsure, v.UnsureSeen)
		}
		return said
	}
	return fmt.Sprintf("%d records accepted, %d seen: %d lost, %d duplicates, %d changed, %d streams with other records than accepted", v.Accepted, v.Seen, v.Lost, v.Duplicates, v.Corrupt, v.Mixed)
}

// Add adds the counts of another verdict, for the sum over several runs.
func (v *Verdict) Add(o Verdict) {
	v.Accepted += o.Accepted
	v.Seen += o.Seen
	v.Lost += o.Lost
	v.Duplicates += o.Duplicates
	v.Corrupt += o.Corrupt
	v.Mixed += o.Mixed
	v.Refused += o.Refused
	v.Unsure += o.Unsure
	v.UnsureSeen += o.UnsureSeen
	v.Problems = append(v.Problems, o.Problems[:min(len(o.Problems), maxProblems-min(len(v.Problems), maxProblems))]...)
}

// Verdict compares.
func (l *Ledger) Verdict() Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := Verdict{Accepted: l.mu.nAccepted, Seen: l.mu.nSeen, Corrupt: l.mu.corrupt}
	l.settle(&v)
	streams := map[int]bool{}
	for s := range l.mu.accepted {
		streams[s] = true
	}
	for s := range l.mu.seen {
		streams[s] = true
	}
	order := make([]int, 0, len(streams))
	for s := range streams {
		order = append(order, s)
	}
	slices.Sort(order)
	for _, s := range order {
		a, b := of(l.mu.accepted, s), of(l.mu.seen, s)
		switch {
		case a.n > b.n:
			v.Lost += a.n - b.n
			l.problem("stream %d: %d records were accepted and not seen%s", s, a.n-b.n, single(a, b))
		case a.n < b.n:
			v.Duplicates += b.n - a.n
			l.problem("stream %d: %d records were seen more often than accepted%s", s, b.n-a.n, single(b, a))
		case *a != *b:
			v.Mixed++
			l.problem("stream %d: as many records were seen as accepted (%d), but not the same ones: some are missing, some came twice", s, a.n)
		}
	}
	v.Problems = slices.Clone(l.mu.problems)
	return v
}

// single names the one record by which two multisets differ, when it is one.
func single(more, less *tally) string {
	seq := more.seqs - less.seqs
	if more.n-less.n != 1 || more.hashes-less.hashes != mix(seq) {
		return ""
	}
	return fmt.Sprintf(" (sequence %d)", seq)
}

// problem keeps a sentence for the verdict; the lock is held.
func (l *Ledger) problem(format string, args ...any) {
	if len(l.mu.problems) < maxProblems {
		l.mu.problems = append(l.mu.problems, fmt.Sprintf(format, args...))
	}
}

func of(m map[int]*tally, stream int) *tally {
	t := m[stream]
	if t == nil {
		t = &tally{}
		m[stream] = t
	}
	return t
}
