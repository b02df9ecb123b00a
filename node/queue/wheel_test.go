package queue

import (
	"testing"

	"pgregory.net/rapid"
)

// Records leave the wheel exactly at their tick, whatever is added and removed
// in between and however far time jumps; next never overshoots the first.
func TestWheelModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := wheel{now: rapid.Int64Range(0, 1<<40).Draw(rt, "start")}
		in := make(map[*rec]int64)
		var order []*rec
		draw := func() int64 {
			return int64(1)<<rapid.IntRange(0, 36).Draw(rt, "log") + rapid.Int64Range(-1, 70).Draw(rt, "more")
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {
				first := never
				for _, tick := range in {
					first = min(first, tick)
				}
				if next := w.next(); next > first || (first == never) != (next == never) || next <= w.now {
					rt.Fatalf("next %d at %d, first %d", next, w.now, first)
				}
				if w.n != len(in) {
					rt.Fatalf("%d in the wheel, want %d", w.n, len(in))
				}
			},
			"add": func(*rapid.T) {
				r := &rec{tick: w.now + draw()}
				r.timer.owner = r
				if at := w.add(r); at > r.tick || at < w.now {
					rt.Fatalf("attention at %d for tick %d at %d", at, r.tick, w.now)
				}
				in[r] = r.tick
				order = append(order, r)
			},
			"remove": func(*rapid.T) {
				if len(order) == 0 {
					return
				}
				r := order[rapid.IntRange(0, len(order)-1).Draw(rt, "which")]
				w.remove(r)
				delete(in, r)
			},
			"advance": func(*rapid.T) {
				to := w.now + draw()
				last := w.now
				w.advance(to, func(r *rec) {
					if tick, ok := in[r]; !ok || tick != r.tick || tick > to || tick < last || tick > w.now {
						rt.Fatalf("fired tick %d (known %v) at %d of %d after %d", r.tick, ok, w.now, to, last)
					}
					last = r.tick
					delete(in, r)
				})
				for _, tick := range in {
					if tick <= to {
						rt.Fatalf("tick %d did not fire by %d", tick, to)
					}
				}
				if w.now != to {
					rt.Fatalf("at %d, want %d", w.now, to)
				}
			},
		})
	})
}

// The ready heap yields the lowest offset first, also after removals from its
// middle.
func TestReadyHeapModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var h readyHeap
		offs := rapid.SliceOfDistinct(rapid.Int64Range(0, 1000), rapid.ID[int64]).Draw(rt, "offsets")
		in := make(map[int64]*rec)
		for _, off := range offs {
			r := &rec{offset: off}
			in[off] = r
			h.push(r)
			gone := rapid.SampledFrom(offs).Draw(rt, "remove")
			if r := in[gone]; r != nil && rapid.Bool().Draw(rt, "now") {
				h.remove(r)
				delete(in, gone)
			}
		}
		for last := int64(-1); len(in) > 0; {
			r := h.top()
			if r.offset <= last || in[r.offset] != r {
				rt.Fatalf("%d after %d", r.offset, last)
			}
			last = r.offset
			h.remove(r)
			delete(in, r.offset)
		}
		if h.top() != nil {
			rt.Fatalf("%d left", len(h))
		}
	})
}
