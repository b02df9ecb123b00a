package partition

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Runs of holders are sealed when each of them lets enough of the log go, the
// first ones first, and none that stands behind one that a seal does not help.
func TestWorthSealing(t *testing.T) {
	const each = 100
	for name, c := range map[string]struct {
		shut []int   // holders that a seal does not help
		kept []int64 // from each on, and behind the last
		want int
	}{
		"nobody":                              {nil, []int64{0}, 0},
		"one, just enough":                    {nil, []int64{100, 0}, 1},
		"one, not enough":                     {nil, []int64{99, 0}, 0},
		"ten share what is enough for five":   {nil, []int64{500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 0}, 0},
		"ten share what is enough for ten":    {nil, []int64{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 0}, 10},
		"the first holds most":                {nil, []int64{1000, 90, 80, 70, 60, 0}, 1},
		"two hold most":                       {nil, []int64{1000, 990, 80, 70, 60, 0}, 2},
		"far more than is let go of":          {nil, []int64{10_000, 9_950, 9_940, 9_930}, 0},
		"the first waits for its upload":      {[]int{0}, []int64{1000, 900, 0}, 0},
		"the second waits for its upload":     {[]int{1}, []int64{1000, 900, 0}, 1},
		"the second is enough for both":       {nil, []int64{210, 200, 0}, 2},
		"what the last one alone would bring": {nil, []int64{350, 300, 200, 100}, 0},
	} {
		holders := make([]holder, len(c.kept)-1)
		for i := range holders {
			holders[i].open = !slices.Contains(c.shut, i)
		}
		if got := worthSealing(holders, c.kept, each); got != c.want {
			t.Errorf("%s: %d are sealed, want %d", name, got, c.want)
		}
	}
}

// A partition with a record now and then keeps the shipped log of all others: it
// is sealed before its age once that is much. While its segment waits for the
// archive nothing is sealed again, and when little is kept nothing is at all.
func TestSlowPartitionLetsTheLogGo(t *testing.T) {
	const perRecord = 1 << 10 // of the shipped log
	shipped := uint64(0)      // and older than the window, up to this LSN
	r := openWith(t, vfs.NewMem(), rigConfig{idle: true, change: func(o *Options) {
		o.FlushBytes, o.SegmentBytes, o.SealLogBytes = 1<<20, 1<<20, 100*perRecord
		o.ShippedFrom = func(lsns []uint64) []int64 {
			out := make([]int64, len(lsns))
			for i, lsn := range lsns {
				if shipped >= lsn {
					out[i] = int64(shipped-max(lsn, 1)+1) * perRecord
				}
			}
			return out
		}
	}})
	r.create(0, 1, 2)
	sealed := func() []int {
		t.Helper()
		r.engine.SealOld()
		var out []int
		for n := range uint32(3) {
			out = append(out, r.engine.Get(pid(n)).Local().Sealed)
		}
		return out
	}
	put := func(n uint32, records int) {
		t.Helper()
		for range records {
			if _, err := r.produce(n, "v"); err != nil {
				t.Fatal(err)
			}
		}
		shipped = r.log.Durable()
	}
	expect := func(when string, want ...int) {
		t.Helper()
		if got := sealed(); !slices.Equal(got, want) {
			t.Fatalf("%s: sealed segments %v, want %v", when, got, want)
		}
	}
	put(0, 1)
	put(1, 50)
	expect("little is kept", 0, 0, 0)
	put(1, 40)
	put(2, 300)
	// The first and the second let go of 391 records together, the third of its own.
	expect("much is kept", 1, 1, 1)
	put(0, 1)
	put(1, 500)
	expect("the first segments wait for the archive", 1, 1, 1)
	for n := range uint32(3) {
		p := r.engine.Get(pid(n))
		p.SetArchived(p.Local().Pieces[0].Next, 1)
	}
	expect("they are archived", 2, 2, 1)
	for range 10 {
		expect("nothing comes", 2, 2, 1)
	}
	r.close()
}

// What a seal does not help is told from what it does: a sealed segment that is
// not archived, and a range that was trimmed before the archive named it.
func TestOpenUnarchived(t *testing.T) {
	r := open(t, vfs.NewMem(), func(o *Options) { o.FlushBytes, o.SegmentBytes = 1<<20, 1<<20 })
	r.create(0)
	p := r.engine.Get(pid(0))
	look := func(when string, wantOpen, wantOK bool) {
		t.Helper()
		if _, open, ok := p.unarchived(); ok != wantOK || ok && open != wantOpen {
			t.Fatalf("%s: open %v, unarchived %v", when, open, ok)
		}
	}
	look("nothing", false, false)
	values, _ := wants(30)
	r.produceAll(0, values[:10])
	look("in the tail", true, true)
	r.flush(0)
	look("in a file", true, true)
	if err := r.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	r.produceAll(0, values[10:20])
	look("sealed, and more in the tail", false, true)
	p.SetArchived(10, 1)
	look("archived, and more in the tail", true, true)
	r.flush(0)
	r.trim(0, 20)
	look("trimmed before it was archived", false, true)
	r.close()
}
