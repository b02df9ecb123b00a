package restore_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// tornWorld is an archive with one partition whose segments have their objects.
type tornWorld struct {
	*world
	wr    *writer
	chain *manifest.Chain
	owner manifest.Owner
}

func newTornWorld(t testing.TB) *tornWorld {
	t.Helper()
	w := &tornWorld{world: newWorld(t, 1), owner: manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: firstI, Node: nodeID}}
	w.chain = w.segments(0, 0, 10) // the fence alone
	w.wr = w.writer(firstI, 1, 1)
	w.wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	return w
}

func (w *tornWorld) object(s manifest.Segment) { w.put(s.Key(), bytes.Repeat([]byte{7}, int(s.Bytes))) }

// add uploads and publishes [base, next) and returns the entry's key.
func (w *tornWorld) add(base, next int64) string {
	w.t.Helper()
	s := w.segment(0, base, next)
	w.object(s)
	if err := w.chain.Add(context.Background(), w.owner, s); err != nil {
		w.t.Fatal(err)
	}
	return manifest.EntryKey(w.id(0), w.chain.Seq())
}

// tear leaves half of an entry, as a store does that says that all is well.
func (w *tornWorld) tear(key string) {
	b := w.get(key)
	w.replace(key, b[:len(b)/2])
}

// passes expects a dry run that changes nothing and names the entry, and a restore
// behind which the chain goes on.
func (w *tornWorld) passes(key string) (string, *restore.Report) {
	w.t.Helper()
	o := w.options()
	w.untouched(func() {
		plan, err := restore.Look(context.Background(), o)
		if err != nil || !slices.Equal(plan.TornEntries, []string{key}) {
			w.t.Fatalf("dry run: torn %q, want %q: %v", plan.TornEntries, key, err)
		}
	})
	dir, report := w.restore()
	if !slices.Equal(report.TornEntries, []string{key}) {
		w.t.Fatalf("torn %q, want %q", report.TornEntries, key)
	}
	c, err := manifest.Load(context.Background(), w.mem, w.id(0), 0)
	if err != nil || len(c.Torn()) != 0 || c.Generation() != 2 {
		w.t.Fatalf("the chain behind the restore: %v", err)
	}
	return dir, report
}

// The owner died behind a put that the store tore: nothing rests on that entry, the
// log has what it would have listed, and a restore passes it with every record
// (I7, I16).
func TestTornEntryOfADeadOwner(t *testing.T) {
	w := newTornWorld(t)
	for base := int64(0); base < 100; base += 10 {
		w.add(base, base+10)
	}
	w.wr.records(w.id(0), 1, 100, 10)
	w.wr.records(w.id(0), 1, 110, 5)
	w.wr.ship()
	key := w.add(100, 110)
	w.tear(key)
	dir, report := w.passes(key)
	if report.Segments != 10 || report.TailRecords != 15 {
		t.Fatalf("%+v", report)
	}
	if got := w.records(dir, 0, 100); !slices.Equal(got, values(firstI, 1, 100, 115)) {
		t.Fatalf("%q", got)
	}
	// Once more from there: the entry is skipped for good.
	if _, report = w.restore(); len(report.TornEntries) != 0 {
		t.Fatalf("torn again: %q", report.TornEntries)
	}
}

// An entry that others rest on, or may, is never passed: it was whole, the log was
// collected behind it, objects were deleted that it had replaced or trimmed. The
// refusal names the entry and changes nothing (I4, I7, I16).
func TestTornEntryThatOthersRestOn(t *testing.T) {
	ctx := context.Background()
	start := func() *tornWorld {
		w := newTornWorld(t)
		w.add(0, 10)
		w.add(10, 20)
		return w
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(w *tornWorld, key string, says string) {
		t.Helper()
		w.tear(key)
		w.untouched(func() { w.refused(errcode.Corrupt, key, says) })
	}

	// Its records are in its object alone, which stands beside.
	w := start()
	w.wr.ship()
	refused(w, w.add(20, 30), "offset 20 without it")

	// The log has some of them, and then the log ends.
	w = start()
	w.wr.records(w.id(0), 1, 20, 5)
	w.wr.ship()
	refused(w, w.add(20, 30), "says 30")

	// The log goes on behind them: a hole.
	w = start()
	w.wr.records(w.id(0), 1, 30, 5)
	w.wr.ship()
	refused(w, w.add(20, 30), "from 20 on")

	// The object is gone as well, and a state knows that there were records.
	w = start()
	w.wr.ship()
	key := w.add(20, 30)
	w.wr.state(archive.State{LSN: 1, ReplayFrom: 1, Partitions: []archive.PartitionState{{Topic: w.topic.ID, Generation: 1, Next: 30}}})
	s := w.segment(0, 20, 30)
	w.replace(s.Key(), nil)
	refused(w, key, "a state of its owner says 30")

	// A merge: its inputs were deleted since.
	merge := func() (*tornWorld, string, [2]manifest.Segment) {
		w := start()
		w.wr.ship()
		in := [2]manifest.Segment{w.segment(0, 0, 10), w.segment(0, 10, 20)}
		out := w.segment(0, 0, 20)
		w.object(out)
		must(w.chain.Replace(ctx, w.owner, in[:], out))
		return w, manifest.EntryKey(w.id(0), w.chain.Seq()), in
	}
	w, key, in := merge()
	w.replace(in[1].Key(), nil)
	refused(w, key, in[1].Key())
	// They are there still: the chain names them again, and they stay.
	w, key, _ = merge()
	w.tear(key)
	if _, report := w.passes(key); report.Segments != 2 {
		t.Fatalf("%+v", report)
	}

	// A trim: what it had let go is gone; or is there still, and then comes back.
	for _, deleted := range []bool{true, false} {
		w = start()
		w.wr.ship()
		gone, err := w.chain.Trim(ctx, w.owner, 10)
		must(err)
		key = manifest.EntryKey(w.id(0), w.chain.Seq())
		if deleted {
			w.replace(gone[0].Key(), nil)
			refused(w, key, gone[0].Key())
			continue
		}
		w.tear(key)
		if _, report := w.passes(key); report.Segments != 2 {
			t.Fatalf("%+v", report)
		}
	}
}

// Histories of uploads, merges, shipping and collecting that end with a put that
// was torn, or with entries that rot: whatever a restore passes, every record that
// was in the archive is behind it, in a segment whose object is there or in the
// log; one that was never confirmed and whose log was shipped is always passed
// (I4, I7, I16).
func TestHistoriesThatEndInATornEntry(t *testing.T) {
	runs := 60
	if testing.Short() {
		runs = 20
	}
	passed, refusals := 0, 0
	for seed := range runs {
		if tornHistory(t, uint64(seed)) {
			passed++
		} else {
			refusals++
		}
	}
	if passed < runs/5 || refusals < runs/5 {
		t.Fatalf("%d passed, %d refused: the histories show nothing", passed, refusals)
	}
}

func tornHistory(t *testing.T, seed uint64) (passed bool) {
	t.Helper()
	ctx, rng := context.Background(), rand.New(rand.NewPCG(seed, 5))
	w := newTornWorld(t)
	end, logged := int64(0), int64(0) // of what is archived and of what is in the log
	for range 2 + rng.IntN(6) {
		next := end + 1 + int64(rng.IntN(9))
		w.add(end, next)
		end, logged = next, next
	}
	// What is in segments by now was collected from the log. A few come after.
	for range rng.IntN(4) {
		n := 1 + rng.IntN(6)
		w.wr.records(w.id(0), 1, logged, n)
		logged += int64(n)
	}
	w.wr.ship()
	segs, err := w.chain.Segments(ctx, 0, end)
	if err != nil {
		t.Fatal(err)
	}
	confirmed := rng.IntN(2) == 0 // the owner went on, and collected
	most := logged                // exclusive end of what the archive had
	switch op := rng.IntN(3); {
	case op == 0 && len(segs) > 1: // a merge
		at := rng.IntN(len(segs) - 1)
		out := w.segment(0, segs[at].Base, segs[at+1].Next)
		out.Nonce = 1000
		w.object(out)
		if err := w.chain.Replace(ctx, w.owner, segs[at:at+2], out); err != nil {
			t.Fatal(err)
		}
		if confirmed && rng.IntN(3) > 0 {
			w.replace(segs[at+rng.IntN(2)].Key(), nil)
		}
	case !confirmed: // an upload of what the log has
		if logged == end {
			w.wr.records(w.id(0), 1, logged, 3)
			w.wr.ship()
			logged += 3
			most = logged
		}
		w.add(end, end+1+rng.Int64N(logged-end))
	default: // an upload of what was collected
		next := logged + 1 + rng.Int64N(9)
		w.add(end, next)
		most = next
	}
	key := manifest.EntryKey(w.id(0), w.chain.Seq())
	w.tear(key)

	before := w.content()
	dir, report, err := w.tryRestore()
	if err != nil {
		if !errcode.Is(err, errcode.Corrupt) || !bytes.Contains([]byte(err.Error()), []byte(key)) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !confirmed {
			t.Fatalf("seed %d: nothing rests on the entry, and it is refused: %v", seed, err)
		}
		for k, v := range before {
			if got, ok := w.content()[k]; !ok || got != v {
				t.Fatalf("seed %d: a refusal changed %s", seed, k)
			}
		}
		return false
	}
	if !slices.Equal(report.TornEntries, []string{key}) {
		t.Fatalf("seed %d: torn %q", seed, report.TornEntries)
	}
	c, err := manifest.Load(ctx, w.mem, w.id(0), 0)
	if err != nil {
		t.Fatal(err)
	}
	var archived int64
	if segs, err = c.Segments(ctx, 0, c.End()); err != nil {
		t.Fatal(err)
	}
	for _, s := range segs {
		if s.Base != archived || int64(len(w.get(s.Key()))) != s.Bytes {
			t.Fatalf("seed %d: segment %d to %d behind %d, or its object is another", seed, s.Base, s.Next, archived)
		}
		archived = s.Next
	}
	if archived+report.TailRecords != most {
		t.Fatalf("seed %d: %d records in segments and %d from the log, there were %d", seed, archived, report.TailRecords, most)
	}
	if got := w.entries(dir)[w.id(0)]; got.Partition.Generation != 2 {
		t.Fatalf("seed %d: generation %d", seed, got.Partition.Generation)
	}
	return true
}

func (w *world) tryRestore() (string, *restore.Report, error) {
	o := w.options()
	r, err := restore.Run(context.Background(), o)
	return o.Dir, r, err
}
