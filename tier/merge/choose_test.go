package merge

import (
	"math/rand/v2"
	"testing"

	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// run makes adjacent segments of these sizes, ten offsets and ten seconds each.
func run(sizes ...int64) (out []manifest.Segment) {
	for i, n := range sizes {
		at := int64(i)
		out = append(out, manifest.Segment{Partition: pid, Base: 10 * at, Next: 10*at + 10, Bytes: n, Records: 10, OriginTopic: pid.Topic,
			FirstGeneration: 1, LastGeneration: 1, Generation: 1, Nonce: uint32(i + 1), MinAppend: 1000 + 10_000*at, MaxAppend: 1000 + 10_000*at + 9_999})
	}
	return out
}

func repeat(n int, size int64) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = size
	}
	return out
}

// What may be merged, and what not: too few, gaps, trimmed starts, large ones,
// copies of other topics, unknown times, generations that go back, limits of time
// and of bytes, and what a merge would hardly make larger (T31).
func TestChoose(t *testing.T) {
	rules := Rules{MinSegments: 4, TargetBytes: 1000}
	for _, c := range []struct {
		name     string
		segs     []manifest.Segment
		change   func([]manifest.Segment)
		start    int64
		rules    func(*Rules)
		barred   int64 // base of one that is, 0 = none
		from, to int   // to = 0: nothing
	}{
		{name: "nothing"},
		{name: "three", segs: run(10, 10, 10)},
		{name: "four", segs: run(10, 10, 10, 10), to: 4},
		{name: "all that fit", segs: run(repeat(10, 200)...), to: 5},
		{name: "behind a large one", segs: run(250, 10, 10, 10, 10), from: 1, to: 5},
		{name: "just small enough", segs: run(249, 249, 249, 249), to: 4},
		{name: "between large ones", segs: run(10, 10, 250, 10, 10)},
		{name: "a gap", segs: run(repeat(7, 10)...), change: func(s []manifest.Segment) { s[3].Base += 2 }, from: 3, to: 7},
		{name: "trimmed in part", segs: run(repeat(5, 10)...), start: 5, from: 1, to: 5},
		{name: "trimmed before", segs: run(repeat(4, 10)...), start: 0, to: 4},
		{name: "barred", segs: run(repeat(8, 10)...), barred: 30, from: 4, to: 8},
		{name: "other origin", segs: run(repeat(8, 10)...), change: func(s []manifest.Segment) { s[2].OriginTopic = 5 }, from: 3, to: 8},
		{name: "time not known", segs: run(repeat(8, 10)...), change: func(s []manifest.Segment) { s[2].MinAppend, s[2].MaxAppend = 0, 0 }, from: 3, to: 8},
		{name: "no time known", segs: run(repeat(4, 10)...), change: func(s []manifest.Segment) {
			for i := range s {
				s[i].MinAppend, s[i].MaxAppend = 0, 0
			}
		}, to: 4},
		{name: "no time known and a limit", segs: run(repeat(4, 10)...), change: func(s []manifest.Segment) {
			for i := range s {
				s[i].MinAppend, s[i].MaxAppend = 0, 0
			}
		}, rules: func(r *Rules) { r.SpanMS = 1 << 40 }},
		{name: "generations ascend", segs: run(repeat(4, 10)...), change: func(s []manifest.Segment) {
			s[1].LastGeneration = 2
			s[2].FirstGeneration, s[2].LastGeneration = 2, 4
			s[3].FirstGeneration, s[3].LastGeneration = 4, 4
		}, to: 4},
		{name: "generations go back", segs: run(repeat(4, 10)...), change: func(s []manifest.Segment) { s[1].LastGeneration = 2 }},
		{name: "span", segs: run(repeat(8, 10)...), rules: func(r *Rules) { r.SpanMS = 50_000 }, to: 5},
		{name: "span too short", segs: run(repeat(8, 10)...), rules: func(r *Rules) { r.SpanMS = 30_000 }},
		{name: "hardly larger", segs: run(100, 10, 10, 10, 10, 100), from: 1, to: 5},
		{name: "one large and few small", segs: run(100, 20, 20, 20)},
		{name: "grows fourfold with enough", segs: run(40, 30, 30, 30, 30), to: 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rules
			if c.rules != nil {
				c.rules(&r)
			}
			if c.change != nil {
				c.change(c.segs)
			}
			from, to, found := Choose(c.segs, c.start, r, func(x *manifest.Segment) bool { return c.barred > 0 && x.Base == c.barred })
			if from != c.from || to != c.to || found != (c.to > 0) {
				t.Fatalf("%d to %d, %v; want %d to %d", from, to, found, c.from, c.to)
			}
		})
	}
}

// However segments come, no record is copied more often than the sizes allow, few
// small segments are left, and choosing always comes to an end (T9, T31).
func TestWritesAreBounded(t *testing.T) {
	const target = 64 << 20
	rules := Rules{MinSegments: 8, TargetBytes: target}
	for name, size := range map[string]func(r *rand.Rand) int64{
		"equal":  func(*rand.Rand) int64 { return 8 << 10 },
		"tiny":   func(*rand.Rand) int64 { return 300 },
		"random": func(r *rand.Rand) int64 { return 300 + r.Int64N(2<<20) },
		"mixed":  func(r *rand.Rand) int64 { return int64(300) << r.IntN(16) },
		"usual":  func(r *rand.Rand) int64 { return 1<<20 + r.Int64N(1<<18) },
		"one huge": func(r *rand.Rand) int64 {
			return []int64{500, 500, 500, 500, 500, 500, 500, 500, 500, 40 << 20}[r.IntN(10)]
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 7))
			var segs []manifest.Segment
			var copies []int  // of the most copied record of each segment
			var least []int64 // size of the smallest first segment in it
			written, in := int64(0), int64(0)
			for n := range int64(4000) {
				s := size(r)
				in += s
				x := run(s)[0]
				x.Base, x.Next, x.Nonce = n, n+1, uint32(n)
				x.MinAppend, x.MaxAppend = n+1, n+1
				segs, copies, least = append(segs, x), append(copies, 0), append(least, s)
				for {
					from, to, found := Choose(segs, 0, rules, func(*manifest.Segment) bool { return false })
					if !found {
						break
					}
					out, most, small := segs[from], 0, least[from]
					out.Next, out.MaxAppend, out.Bytes = segs[to-1].Next, segs[to-1].MaxAppend, 0
					for i := from; i < to; i++ {
						out.Bytes += segs[i].Bytes
						most, small = max(most, copies[i]), min(small, least[i])
					}
					written += out.Bytes
					segs = append(segs[:from], append([]manifest.Segment{out}, segs[to:]...)...)
					copies = append(copies[:from], append([]int{most + 1}, copies[to:]...)...)
					least = append(least[:from], append([]int64{small}, least[to:]...)...)
				}
			}
			for i := range segs {
				bound := 0
				for s := least[i]; s < target; s *= growth {
					bound++
				}
				if copies[i] > bound || segs[i].Bytes > target && segs[i].Bytes != least[i] {
					t.Fatalf("segment %d of %d bytes: a record was copied %d times, the bound is %d", i, segs[i].Bytes, copies[i], bound)
				}
			}
			large := int(in/(target/small)) + 1
			t.Logf("%d of 4,000 segments are left, %.1f bytes written for each", len(segs), float64(written)/float64(in))
			if name != "one huge" && len(segs) > large+120 {
				t.Fatalf("%d segments are left of %d bytes", len(segs), in)
			}
		})
	}
}
