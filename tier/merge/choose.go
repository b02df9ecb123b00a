package merge

import "github.com/tidemark-mq/tidemark/tier/manifest"

const (
	// growth is how much larger than its largest input an output is at least.
	growth = 4
	// small is the part of the target below which a segment is merged.
	small = 4
	// mostInputs bounds a run, and with it a chain entry: 150 bytes each.
	mostInputs = 256
)

// Rules bound what a merge makes.
type Rules struct {
	MinSegments int   // of a run
	TargetBytes int64 // of an output, at most
	SpanMS      int64 // between first and last append in an output, at most; 0 = any
}

// Bar says that a segment must stay as it is.
type Bar func(*manifest.Segment) bool

// Choose returns the run segs[from:to] that is merged next, the oldest one that
// can be and as long as it can be; found is false when there is none. start is
// that of the chain; segs ascend.
//
// A run is of adjacent segments without a gap, none trimmed in part, each smaller
// than a quarter of the target, that together fit. It has at least MinSegments,
// and four times the bytes of its largest one, which bounds how often a record is
// copied.
func Choose(segs []manifest.Segment, start int64, r Rules, bar Bar) (from, to int, found bool) {
	// Each is asked about once, and none behind the run that is found.
	asked := make([]int8, len(segs)) // 0 = not yet, 1 = may be merged, -1 = not
	may := func(i int) bool {
		if asked[i] == 0 {
			asked[i] = 1
			if x := &segs[i]; x.Base < start || x.Bytes >= r.TargetBytes/small || bar(x) {
				asked[i] = -1
			}
		}
		return asked[i] > 0
	}
	for i := range segs {
		if n := longest(segs[i:], r, func(j int) bool { return may(i + j) }); n > 0 {
			return i, i + n, true
		}
	}
	return 0, 0, false
}

// longest returns the length of the longest run that begins with the first of
// segs, 0 when there is none.
func longest(segs []manifest.Segment, r Rules, may func(int) bool) (n int) {
	var sum, largest int64
	first := &segs[0]
	oldest, newest := appended(first)
	for j := range segs {
		if j == mostInputs || !may(j) || j > 0 && !joins(&segs[j-1], &segs[j]) {
			break
		}
		x := &segs[j]
		low, high := appended(x)
		oldest, newest = min(oldest, low), max(newest, high)
		if r.SpanMS > 0 && (x.MaxAppend <= 0 || newest-oldest > r.SpanMS) {
			break
		}
		sum, largest = sum+x.Bytes, max(largest, x.Bytes)
		if sum > r.TargetBytes {
			break
		}
		if j+1 >= r.MinSegments && sum >= growth*largest {
			n = j + 1
		}
	}
	return n
}

// joins says whether y may stand behind x in one segment. One whose append times
// are not known would take over those of the other, and retention would believe
// them.
func joins(x, y *manifest.Segment) bool {
	return x.Next == y.Base && x.OriginTopic == y.OriginTopic && x.LastGeneration <= y.FirstGeneration &&
		(x.MaxAppend > 0) == (y.MaxAppend > 0)
}

// appended returns when the first and the last record of x were appended, in ms.
func appended(x *manifest.Segment) (first, last int64) {
	if x.MinAppend > 0 {
		return x.MinAppend, x.MaxAppend
	}
	return x.MaxAppend, x.MaxAppend
}
