package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func source(t *testing.T, r *Run, stream int) *Source {
	t.Helper()
	s, err := r.Source(stream)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Proves the stated zstd ratios: about 4 for text of usual sizes, in blocks as
// brokers compress them, and none for noise.
func TestRatio(t *testing.T) {
	for _, c := range []struct {
		kind        Kind
		size, block int
		low, high   float64
	}{
		{Text, 1 << 10, 64 << 10, 3.4, 4.6},
		{Text, 1 << 10, 1 << 20, 3.6, 4.8},
		{Text, 256, 1 << 20, 2.8, 4.6},
		{Noise, 1 << 10, 1 << 20, 0.9, 1.2},
	} {
		got, err := NewCorpus(c.kind, 7).Ratio(c.size, c.block)
		if err != nil || got < c.low || got > c.high {
			t.Errorf("%s, %d bytes in blocks of %d: ratio %.2f (%v), want %.1f to %.1f", c.kind, c.size, c.block, got, err, c.low, c.high)
		}
	}
}

// Proves that a record has its size, is JSON when it is text, and says what it was
// made with; that the bounds of size and stream hold; and that any change of any
// byte is noticed.
func TestStamp(t *testing.T) {
	for _, kind := range []Kind{Text, Noise} {
		corpus := NewCorpus(kind, 1)
		for _, size := range []int{MinBytes, 1000, 70_000} {
			r := NewRun(corpus, size, 0xfeedbeef)
			s := source(t, r, 65_535)
			for seq := range uint64(3) {
				b := s.Next(time.Duration(seq) * time.Second)
				if len(b) != size || kind == Text && !json.Valid(b) || bytes.ContainsAny(b[:90], "\n") {
					t.Fatalf("%s: %d bytes: %.120q", kind, len(b), b)
				}
				st, err := r.Check(b)
				if err != nil || st != (Stamp{65_535, seq, time.Duration(seq) * time.Second}) {
					t.Fatalf("%+v %v", st, err)
				}
			}
			b := s.Next(1)
			for i := range min(size, 400) {
				b[i] ^= 1
				if _, err := r.Check(b); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrForeign) {
					t.Errorf("%s: a change of byte %d of %d: %v", kind, i, size, err)
				}
				b[i] ^= 1
			}
			for _, cut := range []int{0, 50, size - 1} {
				if _, err := r.Check(b[:cut]); !errors.Is(err, ErrCorrupt) {
					t.Errorf("cut to %d: %v", cut, err)
				}
			}
			if _, err := NewRun(corpus, size, 1).Check(b); !errors.Is(err, ErrForeign) {
				t.Errorf("of another run: %v", err)
			}
		}
		for _, size := range []int{MinBytes - 1, MaxBytes + 1} {
			if _, err := NewRun(corpus, size, 1).Source(0); err == nil {
				t.Errorf("%d bytes are accepted", size)
			}
		}
		for _, stream := range []int{-1, MaxStreams} {
			if _, err := NewRun(corpus, 200, 1).Source(stream); err == nil {
				t.Errorf("stream %d is accepted", stream)
			}
		}
	}
}

// Proves that records are made without allocation, however many.
func TestSourceAllocates(t *testing.T) {
	s := source(t, NewRun(NewCorpus(Text, 1), 1024, 1), 3)
	if n := testing.AllocsPerRun(1000, func() { s.Next(5) }); n > 0 {
		t.Errorf("%v allocations a record", n)
	}
}

// Proves the ledger: it is content when all was seen once, in any order, and
// names a loss, a duplicate, one for the other, and a changed record.
func TestLedger(t *testing.T) {
	r := NewRun(NewCorpus(Text, 1), 256, 9)
	const n = 50
	for _, c := range []struct {
		name                      string
		of                        func(recs [][]byte) [][]byte
		lost, dup, corrupt, mixed uint64
		says                      string
	}{
		{"all, backwards", func(recs [][]byte) [][]byte {
			var out [][]byte
			for i := range recs {
				out = append(out, recs[len(recs)-1-i])
			}
			return out
		}, 0, 0, 0, 0, ""},
		{"one lost", func(recs [][]byte) [][]byte { return recs[1:] }, 1, 0, 0, 0, "stream 0: 1 records were accepted and not seen (sequence 0)"},
		{"two lost", func(recs [][]byte) [][]byte { return recs[2:] }, 2, 0, 0, 0, "2 records"},
		{"one twice", func(recs [][]byte) [][]byte { return append(recs, recs[n+7]) }, 0, 1, 0, 0, "stream 1: 1 records were seen more often than accepted (sequence 7)"},
		{"one for another", func(recs [][]byte) [][]byte { return append(recs[1:], recs[5]) }, 0, 0, 0, 1, "not the same"},
		{"sums agree", func(recs [][]byte) [][]byte { // 0+3 = 1+2
			return append(recs[4:], recs[1], recs[1], recs[2], recs[2])
		}, 0, 0, 0, 1, "not the same"},
		{"changed", func(recs [][]byte) [][]byte { recs[3][200] ^= 4; return recs }, 1, 0, 1, 0, "checksum"},
		{"nothing", func([][]byte) [][]byte { return nil }, 2 * n, 0, 0, 0, "50 records"},
	} {
		l := NewLedger(r)
		var recs [][]byte
		for stream := range 2 {
			s := source(t, r, stream)
			for range n {
				recs = append(recs, bytes.Clone(s.Next(0)))
			}
			l.Accepted(stream, 0, n)
		}
		for _, b := range c.of(recs) {
			_, _ = l.Seen(b) // errors are counted
		}
		v := l.Verdict()
		if v.Lost != c.lost || v.Duplicates != c.dup || v.Corrupt != c.corrupt || v.Mixed != c.mixed || v.OK() != (c.says == "") {
			t.Errorf("%s: %+v", c.name, v)
		}
		if !strings.Contains(strings.Join(v.Problems, "\n"), c.says) {
			t.Errorf("%s: no %q in %q", c.name, c.says, v.Problems)
		}
		var sum Verdict
		sum.Add(v)
		sum.Add(v)
		if sum.Accepted != 4*n || sum.OK() != v.OK() || !strings.HasPrefix(sum.String(), "200 records accepted") {
			t.Errorf("%s: twice: %s", c.name, &sum)
		}
	}
}
