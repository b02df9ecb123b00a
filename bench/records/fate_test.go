package records

import (
	"bytes"
	"strings"
	"testing"
)

// Proves what a ledger makes of requests that were refused or got no answer, of which
// records are seen before or after that is known: an unknown fate allows one sight
// and none, a refusal none, and what was never sent is no record either.
func TestFates(t *testing.T) {
	r := NewRun(NewCorpus(Text, 1), 256, 9)
	s := source(t, r, 0)
	var recs [][]byte
	for range 40 {
		recs = append(recs, bytes.Clone(s.Next(0)))
	}
	for _, c := range []struct {
		name          string
		early, late   []int // sequences seen before, and after, the requests were answered
		lost, dup     uint64
		refused, once uint64
		says          string
	}{
		// 0 to 9 are accepted, 10 to 19 unsure, 20 to 29 refused, 30 to 39 never sent.
		{"none of the unsure", nil, sequence(0, 10), 0, 0, 10, 0, "10 without an answer, 0 of them seen once"},
		{"all of the unsure, late", nil, sequence(0, 20), 0, 0, 10, 10, "10 refused, none of them seen"},
		{"some of the unsure, early", sequence(5, 13), append(sequence(0, 5), 19), 0, 0, 10, 4, "4 of them seen once"},
		{"an unsure one twice", []int{12}, append(sequence(0, 10), 12), 0, 1, 10, 1, "1 duplicates"},
		{"an unsure one twice before", []int{12, 12}, sequence(0, 10), 0, 1, 10, 1, "1 duplicates"},
		{"an accepted one twice, once early", []int{3}, sequence(0, 10), 0, 1, 10, 0, "1 duplicates"},
		{"an accepted one lost, an unsure one seen", nil, append(sequence(1, 10), 10), 1, 0, 10, 1, "1 lost"},
		{"a refused one, late", nil, append(sequence(0, 10), 25), 0, 1, 10, 0, "1 duplicates"},
		{"a refused one, early", []int{25}, sequence(0, 10), 0, 1, 10, 0, "1 duplicates"},
		{"one that was never sent", nil, append(sequence(0, 10), 35), 0, 1, 10, 0, "1 duplicates"},
	} {
		l := NewLedger(r)
		see := func(which []int) {
			for _, i := range which {
				if _, err := l.Seen(recs[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
		see(c.early)
		l.Accepted(0, 0, 10)
		if err := l.Unsure(0, 10, 10); err != nil {
			t.Fatal(err)
		}
		l.Refused(0, 20, 10)
		see(c.late)
		v := l.Verdict()
		if v.Lost != c.lost || v.Duplicates != c.dup || v.Mixed != 0 || v.Refused != c.refused || v.Unsure != 10 || v.UnsureSeen != c.once || !strings.Contains(v.String(), c.says) {
			t.Errorf("%s: %+v: %s", c.name, v, &v)
		}
		if again := l.Verdict(); again.Lost != v.Lost || again.Duplicates != v.Duplicates {
			t.Errorf("%s: a second verdict: %+v", c.name, again)
		}
	}
}

// Proves that the counts by which a consumer knows that it has everything leave out
// what may or may not come.
func TestCountsLeaveOutTheUnsure(t *testing.T) {
	r := NewRun(NewCorpus(Text, 1), 256, 9)
	l, s := NewLedger(r), source(t, r, 0)
	for range 4 { // 0 and 1 accepted, 2 and 3 unsure
		if _, err := l.Seen(s.Next(0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, seen := l.Counts(); seen != 4 {
		t.Errorf("%d of 4 are seen", seen)
	}
	l.Accepted(0, 0, 2)
	if err := l.Unsure(0, 2, 2); err != nil {
		t.Fatal(err)
	}
	if accepted, seen := l.Counts(); accepted != 2 || seen != 2 {
		t.Errorf("%d accepted, %d seen", accepted, seen)
	}
}

// Proves that the unknown fates of a run are bounded: at the bound they are taken, one
// above it they are not.
func TestUnsureIsBounded(t *testing.T) {
	l := NewLedger(NewRun(NewCorpus(Text, 1), 256, 9))
	if err := l.Unsure(1, 0, MaxUnsure); err != nil {
		t.Error(err)
	}
	if err := l.Unsure(2, 0, 1); err == nil {
		t.Error("more than the bound is taken")
	}
	if v := l.Verdict(); v.Unsure != MaxUnsure || !v.OK() {
		t.Errorf("%+v", v)
	}
}

func sequence(from, to int) (out []int) {
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}
