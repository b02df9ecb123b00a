package retention

import (
	"maps"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/partition"
)

// run makes pieces of 10 offsets and 100 bytes each, with the given latest
// append times; a negative one marks a piece that the archive did not confirm.
func run(times ...int64) (out []partition.Piece) {
	for i, ms := range times {
		x := partition.Piece{Base: int64(10 * i), Next: int64(10*i + 10), Bytes: 100, MaxAppend: max(ms, -ms), Confirmed: ms >= 0}
		out = append(out, x)
	}
	return out
}

// Which start age leaves: whole pieces, from the oldest on, up to the first that
// has a record within its age, or one of unknown age (B110).
func TestStartByAge(t *testing.T) {
	for _, c := range []struct {
		name        string
		times       []int64
		now, age    int64
		start, want int64
	}{
		{"nothing there", nil, 1000, 100, 7, 7},
		{"all young", []int64{950, 960}, 1000, 100, 0, 0},
		{"exactly of that age", []int64{900, 901}, 1000, 100, 0, 10},
		{"all old", []int64{1, 2, 3}, 1000, 100, 0, 30},
		{"a young one keeps those behind it", []int64{1, 950, 3}, 1000, 100, 0, 10},
		{"of unknown age", []int64{0, 1}, 1000, 100, 0, 0},
		{"for ever", []int64{1, 2}, 1000, 0, 0, 0},
		{"older than the clock", []int64{1, 2}, 1000, 2000, 0, 0},
		{"the start is inside a piece", []int64{1, 2}, 1000, 100, 15, 20},
		{"the start is above all", []int64{1}, 1000, 100, 15, 15},
	} {
		if got := startByAge(run(c.times...), c.start, over(c.now, c.age)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// Which start size leaves: at least the limit stays, at most one piece more.
func TestStartByBytes(t *testing.T) {
	five := run(1, 1, 1, 1, 1)
	for _, c := range []struct {
		total, limit, want int64
	}{
		{500, 0, 0}, {500, 1000, 0}, {500, 500, 0}, {500, 401, 0}, {500, 400, 10}, {500, 399, 10}, {500, 301, 10}, {500, 300, 20}, {500, 1, 40},
		{900, 500, 40}, // of a longer log only the first pieces are given
		{500, 450, 0},
	} {
		if got := startByBytes(five, 0, c.total, c.limit); got != c.want {
			t.Errorf("%d of %d bytes: %d, want %d", c.limit, c.total, got, c.want)
		}
	}
	if got := startByBytes(nil, 3, 0, 10); got != 3 {
		t.Errorf("an empty log begins at %d", got)
	}
}

// Which local copies go by age and by size: those that the archive confirmed, and
// what it did not confirm in between stays without keeping the others.
func TestLocalBounds(t *testing.T) {
	for _, c := range []struct {
		name  string
		times []int64
		want  int64
	}{
		{"none", nil, 0},
		{"young", []int64{950}, 0},
		{"old", []int64{1, 2, 950}, 20},
		{"not confirmed", []int64{-1, -2}, 0},
		{"one in between is not", []int64{1, -950, 3, 950}, 30},
		{"unknown", []int64{0, 1}, 0},
	} {
		if got := localByAge(run(c.times...), over(1000, 100)); got != c.want {
			t.Errorf("by age, %s: %d, want %d", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name  string
		times []int64
		limit int64
		want  int64
	}{
		{"no bound", []int64{1, 1}, 0, 0},
		{"within", []int64{1, 1}, 200, 0},
		{"one too many", []int64{1, 1, 1}, 200, 10},
		{"the first one is not confirmed", []int64{-1, 1, 1}, 200, 20},
		{"none is", []int64{-1, -1, -1}, 100, 0},
		{"what is not counts", []int64{1, -1, -1}, 200, 10},
	} {
		if got := localByBytes(run(c.times...), c.limit); got != c.want {
			t.Errorf("by size, %s: %d, want %d", c.name, got, c.want)
		}
	}
}

// Under pressure the oldest copies of all partitions go, no more than needed,
// and no more than a turn may take.
func TestUnderPressure(t *testing.T) {
	a, b := broker.PartitionID{Topic: 1}, broker.PartitionID{Topic: 1, Partition: 1}
	all := func() (out []candidate) {
		for i, x := range run(5, 20, 30) {
			out = append(out, candidate{a, x})
			x.MaxAppend = []int64{10, 15, 40}[i]
			out = append(out, candidate{b, x})
		}
		return out
	}
	for _, c := range []struct {
		need int64
		most int
		want map[broker.PartitionID]int64
	}{
		{0, 10, map[broker.PartitionID]int64{}},
		{1, 10, map[broker.PartitionID]int64{a: 10}},
		{100, 10, map[broker.PartitionID]int64{a: 10}},
		{101, 10, map[broker.PartitionID]int64{a: 10, b: 10}},
		{350, 10, map[broker.PartitionID]int64{a: 20, b: 20}},
		{10000, 10, map[broker.PartitionID]int64{a: 30, b: 30}},
		{10000, 2, map[broker.PartitionID]int64{a: 10, b: 10}},
	} {
		if got := underPressure(all(), c.need, c.most); !maps.Equal(got, c.want) {
			t.Errorf("%d bytes: %v, want %v", c.need, got, c.want)
		}
	}
}

// Append times that cannot be right count from when that was found: a time in the
// future (B109), an unknown one (B110), and those of a range that came while the
// clock was wrong, in whichever direction.
func TestStamps(t *testing.T) {
	var s stamps
	pieces := run(500, 90_000, 0, 700)
	s.correct(pieces, 1000)
	for i, want := range []int64{500, 1000, 1000, 700} {
		if pieces[i].MaxAppend != want {
			t.Errorf("at first piece %d is of %d, want %d", i, pieces[i].MaxAppend, want)
		}
	}
	pieces = run(500, 90_000, 0, 700)
	s.correct(pieces, 5000)
	for i, want := range []int64{500, 1000, 1000, 700} {
		if pieces[i].MaxAppend != want {
			t.Errorf("later piece %d is of %d, want %d", i, pieces[i].MaxAppend, want)
		}
	}
	// It grows: what came since may be as young as now.
	grown := []partition.Piece{{Base: 10, Next: 25, MaxAppend: 90_000}}
	if s.correct(grown, 6000); grown[0].MaxAppend != 6000 {
		t.Errorf("a piece that grew is of %d", grown[0].MaxAppend)
	}
	s.forget(30)
	if len(s.spans) != 0 {
		t.Errorf("below the start %v is remembered", s.spans)
	}

	s = stamps{}
	s.distrust(10, 30, 8000)
	pieces = run(500, 3, 9_000, 700)
	s.correct(pieces, 10_000)
	for i, want := range []int64{500, 8000, 8000, 700} {
		if pieces[i].MaxAppend != want {
			t.Errorf("in a range that came while the clock was wrong, piece %d is of %d, want %d", i, pieces[i].MaxAppend, want)
		}
	}
	half := []partition.Piece{{Base: 25, Next: 35, MaxAppend: 700}, {Base: 25, Next: 35, MaxAppend: 9500}}
	s.correct(half, 10_000)
	if half[0].MaxAppend != 8000 || half[1].MaxAppend != 9500 {
		t.Errorf("half in the range: %+v", half)
	}
	for i := range int64(100) {
		s.distrust(100*i, 100*i+50, 1000+i)
	}
	if len(s.spans) > maxSpans {
		t.Errorf("%d spans are kept", len(s.spans))
	}
	if x := (partition.Piece{Base: 100, Next: 150, MaxAppend: 5}); s.appended(&x, 20_000) < 1001 {
		t.Errorf("what was merged is of %d", s.appended(&x, 20_000))
	}
}
