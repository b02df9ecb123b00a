package queue

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// checkSpans compares a set with the offsets it should hold, and checks that
// its spans are disjoint, ordered, do not touch, and are counted right.
func checkSpans(t interface{ Fatalf(string, ...any) }, s *spans, want []bool) {
	var n int
	var total, last int64
	got := make([]bool, len(want))
	for sp := range s.all() {
		if n > 0 && sp.from <= last || sp.from >= sp.to {
			t.Fatalf("span [%d, %d) after %d", sp.from, sp.to, last)
		}
		for off := sp.from; off < sp.to; off++ {
			got[off] = true
		}
		n++
		total += sp.to - sp.from
		last = sp.to
	}
	if n != s.len() || total != s.total || n > 0 && last != s.end() {
		t.Fatalf("%d spans, %d offsets, end %d: counted %d, %d, %d", n, total, last, s.len(), s.total, s.end())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the set differs from the model")
	}
	for _, c := range s.chunks {
		if len(c) > chunkLen || len(c) == 0 && len(s.chunks) > 1 {
			t.Fatalf("a chunk of %d spans among %d", len(c), len(s.chunks))
		}
	}
}

// The set of spans agrees with an array of booleans, with a few spans and with
// so many that chunks split and vanish.
func TestSpansModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int64{40, 6000}).Draw(rt, "size")
		var s spans
		want := make([]bool, size)
		if size > 100 && rapid.Bool().Draw(rt, "start with holes") {
			for off := int64(0); off < size; off += 2 {
				s.add(off, off+1)
				want[off] = true
			}
		}
		fill := func(from, to int64, v bool) (changed int64) {
			for off := from; off < to; off++ {
				if want[off] != v {
					changed++
				}
				want[off] = v
			}
			return changed
		}
		draw := func(name string) int64 { return rapid.Int64Range(0, size-1).Draw(rt, name) }
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { checkSpans(rt, &s, want) },
			"add": func(*rapid.T) {
				from := draw("from")
				to := min(size, from+rapid.Int64Range(0, 8).Draw(rt, "length"))
				if got, want := s.add(from, to), fill(from, to, true); got != want {
					rt.Fatalf("add [%d, %d): %d new, want %d", from, to, got, want)
				}
			},
			"add long": func(*rapid.T) {
				from := draw("from")
				to := rapid.Int64Range(from, size).Draw(rt, "to")
				if got, want := s.add(from, to), fill(from, to, true); got != want {
					rt.Fatalf("add [%d, %d): %d new, want %d", from, to, got, want)
				}
			},
			"cut below": func(*rapid.T) {
				off := draw("off") / 4
				s.cutBelow(off)
				fill(0, off, false)
			},
			"cut from": func(*rapid.T) {
				off := size - draw("off")/4
				s.cutFrom(off)
				fill(off, size, false)
			},
			"covering": func(*rapid.T) {
				off := draw("off")
				sp, ok := s.covering(off)
				if ok != want[off] || ok && (off < sp.from || off >= sp.to) {
					rt.Fatalf("covering %d: %v %v, want %v", off, sp, ok, want[off])
				}
			},
			"below": func(*rapid.T) {
				off := draw("off")
				var n int64
				for _, in := range want[:off] {
					if in {
						n++
					}
				}
				if got := s.below(off); got != n {
					rt.Fatalf("below %d: %d, want %d", off, got, n)
				}
			},
		})
	})
}
