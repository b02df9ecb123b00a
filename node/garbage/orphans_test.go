package garbage

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// An object below the chain's end that no entry names goes at the second look
// that finds it so, a grace after the first. What the chain names, what lies
// above its end, what is in use, of a later generation, or foreign stays (T6,
// T7, T10).
func TestOrphans(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	named := keysOf(w.upload(id, 3))
	orphan := w.segment(id, 0, 10)
	straddles := w.segment(id, 20, 20)
	above := w.segment(id, 30, 10)
	used := w.segment(id, 0, 20)
	later := w.segment(id, 10, 10)
	later.Generation = 2
	foreign := manifest.PartitionPrefix(id) + "s/readme.txt"
	for _, s := range []manifest.Segment{orphan, straddles, above, used, later} {
		w.put(s.Key(), []byte("attempt"))
	}
	w.put(foreign, []byte("hello"))
	w.inUse[used.Key()] = true

	w.turn()
	w.pass(DefaultOrphanInterval)
	w.untouched(w.turn) // the first look
	if c := w.cause(Orphan); c.Waiting != 1 || c.Bytes != int64(len("attempt")) {
		t.Fatalf("%+v", c)
	}
	w.pass(testGrace - time.Second)
	w.untouched(w.turn)
	w.pass(DefaultInterval + time.Second)
	w.turn()
	w.gone(orphan.Key())
	w.kept("needed", append(named, straddles.Key(), above.Key(), used.Key(), later.Key(), foreign)...)
	if c := w.cause(Orphan); c.Waiting != 0 || c.Deleted != 1 {
		t.Fatalf("%+v", c)
	}
}

// An upload that is published between the two looks is named by then and stays,
// also when its entry was written by this process and its answer was lost (T26).
func TestOrphanThatWins(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	segs := w.upload(id, 2)
	merged := w.segment(id, 0, 20)
	w.put(merged.Key(), []byte("merged"))
	w.turn()
	w.pass(DefaultOrphanInterval)
	w.turn()
	if c := w.cause(Orphan); c.Waiting != 1 {
		t.Fatalf("%+v", c)
	}
	c, _ := w.manifest(t.Context(), id)
	h := w.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "*/m/*", Do: fault.LoseAnswer})
	g := w.fault.Add(fault.Rule{Ops: []string{fault.Get}, Key: "*/m/*", Do: fault.Fail})
	if err := c.Replace(t.Context(), w.owner(id), segs, merged); err == nil {
		t.Fatal("the answer was not lost")
	}
	h.Remove()
	g.Remove()
	w.pass(testGrace + DefaultInterval)
	w.turn()
	w.kept("named", merged.Key())
}

// The look costs a LIST a partition and day, spread over the day, and nothing
// more for a partition that has no orphans; steady turns make no LIST and no
// HEAD at all.
func TestOrphanLooksAreSpread(t *testing.T) {
	w := newWorld(t, nil)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		w.upload(w.topic(name), 1)
	}
	w.export()
	w.turn()
	w.count.Reset()
	most := 0
	for range 24 {
		before := w.calls()["list"]
		for range 12 {
			w.pass(5 * time.Minute)
			w.turn()
		}
		most = max(most, w.calls()["list"]-before)
	}
	n := w.calls()
	if n["list"] < 8 || n["list"] > 8+2 || n["head"] != 0 || most > 5 {
		t.Fatalf("a day of 8 partitions: %v, %d lists in one hour", n, most)
	}
}

// A chain that cannot be read holds its own partition back and no other (T9).
func TestOrphansBesideADamagedChain(t *testing.T) {
	w := newWorld(t, nil)
	bad, good := w.topic("bad"), w.topic("good")
	w.upload(bad, 1)
	w.upload(good, 1)
	for _, id := range []manifest.Segment{w.segment(bad, 0, 5), w.segment(good, 0, 5)} {
		w.put(id.Key(), []byte("attempt"))
	}
	entry := manifest.EntryKey(bad, 2)
	_ = w.mem.Delete(t.Context(), []string{entry})
	w.put(entry, []byte("damage"))
	w.start()
	for range 60 {
		w.turn()
		w.pass(time.Hour)
	}
	if n := len(w.keys(manifest.PartitionPrefix(good) + "s/")); n != 1 {
		t.Fatalf("%d objects of the good partition", n)
	}
	if n := len(w.keys(manifest.PartitionPrefix(bad) + "s/")); n != 2 {
		t.Fatalf("%d objects of the damaged partition", n)
	}
	if c := w.cause(Orphan); len(c.Holds) != 1 {
		t.Fatalf("%+v", c)
	}
}

// A store that reports deletes which it did not do, one that refuses them, and
// one that answers nothing: each is noticed, shown, and asked again with growing
// pauses, not in a loop; when it works again everything goes (T32, B44).
func TestDeletesThatDoNotHappen(t *testing.T) {
	for name, c := range map[string]struct {
		do   fault.Action
		err  error
		code errcode.Code
		says string
	}{
		"pretended": {fault.Pretend, nil, errcode.Conflict, "says that it deleted"},
		"denied":    {fault.Fail, errcode.New(errcode.Denied, "no right"), errcode.Denied, "refuses deletes"},
		"down":      {fault.Fail, nil, errcode.Transient, "delete t/"},
		"lost":      {fault.LoseAnswer, nil, errcode.Transient, "delete t/"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			id := w.topic("t")
			segs := keysOf(w.upload(id, 4))
			w.turn()
			w.trim(id, 20)
			w.pass(testGrace)
			h := w.fault.Add(fault.Rule{Ops: []string{fault.Delete}, Do: c.do, Err: c.err})
			w.fails(c.code, c.says)
			for range 24 * 60 { // a day of turns each minute, as Run takes them
				w.pass(time.Minute)
				if w.c.due() {
					_, _ = w.c.Turn(t.Context())
				}
			}
			if n := h.Hits(); n < 20 || n > 60 {
				t.Fatalf("%d deletes in a day", n)
			}
			if w.cause(Retired).Waiting != 2 || w.cause(Retired).Deleted != 0 {
				t.Fatalf("%+v", w.cause(Retired))
			}
			h.Remove()
			w.turn()
			w.gone(segs[:2]...)
			if w.c.Paused() != "" {
				t.Fatal(w.c.Paused())
			}
		})
	}
}

// The first failure is followed by a try within a second, whatever the interval:
// what failed may be the registration of a node that has just started.
// The pauses double from there on, and Run looks once an interval at least (B44).
func TestFirstPausesAreShort(t *testing.T) {
	w := newWorld(t, nil)
	w.turn()
	if d := w.c.pause(false); d != DefaultInterval {
		t.Fatalf("%s to the next turn", d)
	}
	if d := w.c.pause(true); d != moreSoon {
		t.Fatalf("%s to the next turn when there is more", d)
	}
	w.c.looked = time.Time{}
	w.fault.Add(fault.Rule{Do: fault.Fail})
	for n, most := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		if _, err := w.c.Turn(t.Context()); err == nil {
			t.Fatal("nothing failed")
		}
		d := w.c.pause(false)
		if d < most/2 || d > most || w.c.due() {
			t.Fatalf("pause %d is %s", n, d)
		}
		w.pass(d)
		if !w.c.due() {
			t.Fatal("the pause does not end with the wait")
		}
	}
	for range 12 {
		_, _ = w.c.Turn(t.Context())
	}
	if d := w.c.pause(false); d != DefaultInterval || w.c.Report().RetryInMS < maxBackoff.Milliseconds()/2 {
		t.Fatalf("%s to the next look, %d ms to the next try", d, w.c.Report().RetryInMS)
	}
}

// While anything stands below snap/ nothing at all is deleted, and the report
// says so; when it is gone the collector goes on (I7).
func TestSnapshotsHoldEverything(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	segs := keysOf(w.upload(id, 2))
	snap := manifest.SnapshotKey(w.now, 7)
	w.put(snap, []byte("{}"))
	w.trim(id, 10)
	w.doom("doomed", 1)
	w.export()
	w.untouched(func() {
		for range 30 {
			w.pass(testGrace)
			w.fails(errcode.PreconditionFailed, "which this build cannot read")
		}
	})
	_ = w.mem.Delete(t.Context(), []string{snap})
	w.turn()
	w.gone(segs[0])
}

// Claims, tombstones, fences and snapshots are refused at the last step,
// whoever asks for them.
func TestNeverDeleted(t *testing.T) {
	for _, key := range []string{manifest.ClusterKey(1), manifest.TombstoneKey(1), manifest.SnapshotKey(time.Unix(0, 0), 1), manifest.WALFenceKey("n", 1)} {
		if !neverDeleted(key) {
			t.Errorf("%s may be deleted", key)
		}
	}
	for _, key := range []string{manifest.WALOpenKey("n", 1), manifest.WALKey("n", 1, 1, 2), manifest.MetaKey(1, 1)} {
		if neverDeleted(key) {
			t.Errorf("%s is never deleted", key)
		}
	}
}

// sweeping is a store with uploads in parts.
type sweeping struct {
	objstore.Store
	before []time.Time
}

func (s *sweeping) SweepUploads(_ context.Context, before time.Time) (int, error) {
	s.before = append(s.before, before)
	return 3, nil
}

// Uploads in parts that began a day ago are ended once an interval, through
// whatever decorators the store has; a fenced node ends none.
func TestUploadsInParts(t *testing.T) {
	inner := &sweeping{}
	w := newWorld(t, func(o *Options) {
		inner.Store = o.Store
		o.Store = objstore.For(inner, objstore.CauseOther)
	})
	w.turn()
	w.pass(DefaultOrphanInterval)
	w.turn()
	w.turn()
	if len(inner.before) != 1 || w.now.Sub(inner.before[0]) != uploadAge || w.cause(Upload).Deleted != 3 {
		t.Fatalf("%v %+v", inner.before, w.cause(Upload))
	}
	w.pass(DefaultOrphanInterval)
	key := manifest.WALFenceKey(testNode, testInc)
	_ = w.mem.Put(t.Context(), key, bytes.NewReader([]byte("{}")), 2, objstore.PutOptions{})
	w.fails(errcode.Fenced, "FENCE stands")
	if len(inner.before) != 1 {
		t.Fatal("a fenced node swept")
	}
}

// However often a partition is looked at, an object that nothing names stays for
// a whole grace after the first look: its entry may be on its way.
func TestOrphanWaitsItsGrace(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.OrphanInterval = 10 * time.Minute })
	id := w.topic("t")
	w.upload(id, 2)
	orphan := w.segment(id, 0, 10)
	w.put(orphan.Key(), []byte("attempt"))
	w.turn()
	w.pass(10 * time.Minute)
	w.turn() // the first look
	for range 5 {
		w.pass(10 * time.Minute)
		w.untouched(w.turn)
	}
	w.pass(20 * time.Minute)
	w.turn()
	w.gone(orphan.Key())
}

// meanwhile does something while the leader is asked.
type meanwhile struct {
	*raftmeta.Meta
	do func()
}

func (m meanwhile) Confirm(ctx context.Context) (*raftmeta.State, error) {
	m.do()
	return m.Meta.Confirm(ctx)
}

// What becomes named between the look and the delete stays: the chain is asked
// behind the confirmation, not before it.
func TestOrphanThatWinsDuringTheConfirmation(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	segs := w.upload(id, 2)
	merged := w.segment(id, 0, 20)
	w.put(merged.Key(), []byte("merged"))
	w.turn()
	w.pass(DefaultOrphanInterval)
	w.turn()
	w.pass(testGrace + DefaultInterval)
	c, _ := w.manifest(t.Context(), id)
	w.c.opts.Metadata = meanwhile{w.meta, func() {
		if err := c.Replace(t.Context(), w.owner(id), segs, merged); err != nil {
			t.Error(err)
		}
	}}
	w.turn()
	w.kept("named", merged.Key())
}

// An output of a merge that is published right when it is asked whether it is in
// use stays: whoever has it in use lets go of it when the chain names it, so the
// chain is read behind that answer.
func TestMergeThatEndsDuringTheQuestions(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	segs := w.upload(id, 2)
	merged := w.segment(id, 0, 20)
	w.put(merged.Key(), []byte("merged"))
	w.turn()
	w.pass(DefaultOrphanInterval)
	w.turn()
	w.pass(testGrace + DefaultInterval)
	c, _ := w.manifest(t.Context(), id)
	asked := 0
	w.c.opts.InUse = func(_ broker.PartitionID, key string) bool {
		if key != merged.Key() {
			return false
		}
		if asked++; asked != 2 { // the first one is of the look, this is the delete's
			return false
		}
		if err := c.Replace(t.Context(), w.owner(id), segs, merged); err != nil {
			t.Error(err)
		}
		return false
	}
	w.turn()
	if asked < 2 {
		t.Fatalf("asked %d times", asked)
	}
	w.kept("named", merged.Key())
}
