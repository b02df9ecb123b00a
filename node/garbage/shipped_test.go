package garbage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// Which states and exports go: all that are older than the newest one outside
// the window, but for the newest two.
func TestExpired(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	at := func(ages ...int) (out []object) {
		for i, minutes := range ages {
			out = append(out, object{a: uint64(i + 1), at: now.Add(-time.Duration(minutes) * time.Minute)})
		}
		return out
	}
	for name, c := range map[string]struct {
		l    []object
		want int
	}{
		"none":                {nil, 0},
		"one":                 {at(900), 0},
		"two old":             {at(900, 800), 0},
		"three old":           {at(900, 800, 700), 1},
		"all young":           {at(50, 40, 30, 20), 0},
		"one old, two young":  {at(900, 40, 30), 0},
		"two old, two young":  {at(900, 800, 40, 30), 1},
		"two old, one young":  {at(900, 800, 30), 1},
		"exactly the window":  {at(900, 60, 30, 20), 1},
		"a second inside":     {at(900, 59, 30, 20), 0},
		"many old, one young": {at(900, 800, 700, 600, 30), 3},
	} {
		if got := expired(c.l, now, time.Hour); len(got) != c.want {
			t.Errorf("%s: %d go, want %d", name, len(got), c.want)
		}
	}
}

// Shipped log goes when it lies below what every state object needs and is out
// of the window: not one object more, and oldest first.
func TestCoveredLog(t *testing.T) {
	w := newWorld(t, nil)
	var wal []string
	for lsn := uint64(1); lsn <= 100; lsn += 10 {
		wal = append(wal, w.wal(lsn, lsn+10))
	}
	w.pass(2 * time.Hour)
	w.untouched(w.turn) // no state object: everything is needed
	first := w.state(60, 31)
	w.state(90, 55)
	w.turn()
	w.gone(wal[:3]...)
	w.kept("needed by the older state", wal[3:]...)
	if w.has(first) == false {
		t.Fatal("one of the newest two states went")
	}
	w.pass(2 * time.Hour)
	third := w.state(100, 101)
	w.turn() // the first is out of the window, and not among the newest two
	w.turn()
	w.gone(first)
	w.gone(wal[:5]...)
	w.kept("needed by the state at 90", wal[5:]...)
	w.kept("the newest", third)
	w.pass(2 * time.Hour)
	young := w.wal(101, 102)
	w.state(101, 102)
	w.pass(30 * time.Minute)
	w.turn()
	w.turn()
	w.gone(wal...)
	w.kept("inside the window", young)
}

// How much of the shipped log stands for the sake of frames from some LSNs on:
// what is older than the window, each object once, an object that holds an LSN
// among them, and nothing of what is gone.
func TestShippedFrom(t *testing.T) {
	w := newWorld(t, nil)
	look := func(lsns []uint64, want ...int64) {
		t.Helper()
		if got := w.c.ShippedFrom(lsns); !slices.Equal(got, want) {
			t.Fatalf("from %v: %v, want %v", lsns, got, want)
		}
	}
	look(nil)
	look([]uint64{0, 5}, 0, 0)
	for lsn := uint64(1); lsn <= 40; lsn += 10 { // 3 bytes each
		w.wal(lsn, lsn+10)
	}
	look([]uint64{0}, 0)
	w.pass(time.Hour)
	w.wal(41, 51)
	look([]uint64{0}, 12)
	look([]uint64{0, 1, 10, 11, 11, 25, 40, 41, 100}, 12, 12, 12, 9, 9, 6, 3, 0, 0)
	w.state(40, 21)
	w.state(41, 21)
	w.turn()
	look([]uint64{0, 1, 30}, 6, 6, 6)
}

// A restarted collector learns from one list what stands there, and deletes the
// same: what states need is read from them. Ages come from the store's clock.
func TestCoveredLogAfterARestart(t *testing.T) {
	w := newWorld(t, nil)
	var wal []string
	for lsn := uint64(1); lsn <= 50; lsn += 10 {
		wal = append(wal, w.wal(lsn, lsn+10))
		w.pass(time.Minute)
	}
	w.state(50, 31)
	w.pass(3 * time.Hour)
	w.state(51, 41)
	w.start()
	w.count.Reset()
	w.turn()
	w.gone(wal[:3]...)
	w.kept("needed", wal[3:]...)
	n := w.calls()
	if n["list"] != 4 || n["delete"] != 1 || n["head"] != 0 {
		t.Fatalf("the first turn took %v", n)
	}
	// A state object that does not read holds the log back, and nothing else.
	w.state(60, 61)
	w.put(manifest.StateKey(testNode, testInc, 70), []byte("damaged"))
	w.start()
	w.turn()
	w.pass(2 * time.Hour)
	w.untouched(w.turn, "state/")
	if holds := w.cause(WAL).Holds; len(holds) == 0 {
		t.Fatal("nobody says why the log stays")
	}
}

// When a state object that others rest on is not there, nothing older goes:
// somebody else deletes in this bucket, or it loses objects.
func TestLostStateHoldsTheLog(t *testing.T) {
	w := newWorld(t, nil)
	wal := []string{w.wal(1, 10), w.wal(10, 20)}
	key := w.state(20, 21)
	w.state(21, 22)
	w.pass(2 * time.Hour)
	_ = w.mem.Delete(t.Context(), []string{key})
	w.untouched(func() { w.fails(errcode.Corrupt, "the archive lost "+key) })
	w.kept("the log", wal...)
}

// A store that does half of each delete and calls it done: what it left of the
// log, the states and the exports is found and deleted by the same process, and
// costs a LIST a kind, a page and an orphan interval, no more; a store that does
// what it says costs three LISTs an interval (T32).
func TestHalfDeletedIsFound(t *testing.T) {
	w := newWorld(t, nil)
	w.turn()
	w.export()
	h := w.fault.Add(fault.Rule{Ops: []string{fault.Delete}, Do: fault.Tear})
	lsn := uint64(1)
	day := func() {
		for range 24 {
			for range 120 {
				w.wal(lsn, lsn+1)
				lsn++
			}
			w.state(lsn-1, lsn)
			w.topic(fmt.Sprint("t", lsn))
			w.export()
			w.pass(time.Hour)
			_, _ = w.c.Turn(t.Context()) // the last of a batch stays, which it may see
		}
	}
	lists := func() (n int) { // but for those of the orphans of the topics
		for line := range strings.Lines(w.count.Transcript()) {
			if strings.HasPrefix(line, `list "wal`) || strings.HasPrefix(line, `list "state`) || strings.HasPrefix(line, `list "meta`) {
				n++
			}
		}
		return n
	}
	left := func() int {
		return len(w.keys(manifest.WALPrefix(testNode, testInc))) + len(w.keys(manifest.StatePrefix(testNode, testInc))) + len(w.keys(manifest.PrefixMeta))
	}
	day()
	h.Remove()
	before := left()
	w.count.Reset()
	day()
	day()
	const kept = 3*120 + 3 + 3 + 1 // of each what is inside the window, the newest two, OPEN
	if n := left(); before < 1000 || n > kept {
		t.Fatalf("%d objects were left, %d are still there", before, n)
	}
	if n := lists(); n == 0 || n > 2*3+3+2 { // two looks of each, one more behind what was found, a second page
		t.Fatalf("%d lists in two days", n)
	}
	w.count.Reset()
	for range 4 {
		day()
	}
	if n := lists(); n == 0 || n > 4*3 || w.calls()["head"] != 0 {
		t.Fatalf("%d lists in four days", n)
	}
}

// Exports go like states; the newest two stay, and while the newest is of an
// older cluster generation all do.
func TestOldExports(t *testing.T) {
	w := newWorld(t, nil)
	var keys []string
	note := func(cluster, index uint64) {
		k := manifest.Key{Kind: manifest.KindMeta, Cluster: cluster, Index: index}
		w.put(k.String(), []byte("export"))
		w.c.Note(ship.Object{Key: k, Bytes: 6})
		keys = append(keys, k.String())
	}
	note(0, 100) // of the cluster before
	note(0, 200)
	note(0, 300)
	w.pass(3 * time.Hour)
	w.untouched(w.turn)
	note(1, 1)
	w.turn()
	w.gone(keys[:2]...)
	w.kept("the newest outside the window", keys[2:]...)
	w.pass(3 * time.Hour)
	note(1, 2)
	w.turn()
	w.gone(keys[:3]...)
	w.kept("the newest two", keys[3:]...)
}

// The metadata here is older than what the archive holds of it: nothing goes
// (B157). A directory that was put back from a copy looks like this.
func TestOldMetadataDeletesNothing(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	w.upload(id, 3)
	w.doom("doomed", 1)
	w.export()
	k := manifest.MetaKey(1, w.meta.State().Index()+5)
	w.put(k, []byte("a later export of this cluster"))
	w.start()
	w.trim(id, 20)
	w.turn()
	w.untouched(func() {
		for range 5 {
			w.pass(testGrace)
			w.fails(errcode.Conflict, "a copy from before")
		}
	})
}

// steady turns ask for next to nothing: a batch a turn, and what it is confirmed
// with. No LIST, no HEAD.
func TestCostOfADay(t *testing.T) {
	w := newWorld(t, nil)
	w.turn()
	w.export()
	w.count.Reset()
	lsn := uint64(1)
	for i := range 24 * 12 {
		for range 300 { // one object a second
			w.wal(lsn, lsn+1)
			lsn++
		}
		if i%2 == 0 {
			w.state(lsn-1, lsn, archive.PartitionState{})
		}
		w.pass(5 * time.Minute)
		w.turn()
	}
	n := w.calls()
	total := 0
	for _, k := range n {
		total += k
	}
	if n["list"] > 1 || n["head"] != 0 || total > 24*12*12 {
		t.Fatalf("a day cost %v", n)
	}
	if left := len(w.keys(manifest.WALPrefix(testNode, testInc))); left > 2*3600+1 {
		t.Fatalf("%d objects are left of a day", left)
	}
	t.Logf("%v", n)
}
