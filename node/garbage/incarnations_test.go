package garbage

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/raftmeta"
	seg "github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/wal"
)

const oldInc = 0x66

// old is an incarnation of the cluster generation before.
type old struct {
	*world
	log     *wal.Log
	shipped uint64
}

// heir makes a world whose cluster generation is 2, and an incarnation of
// generation 1 that shipped before it and is fenced.
func heir(t *testing.T) (*world, *old) {
	t.Helper()
	w := newWorld(t, nil)
	w.fence.cluster = 2
	_, export, err := w.meta.Export()
	if err != nil {
		t.Fatal(err)
	}
	w.meta, err = raftmeta.Open(t.Context(), raftmeta.Options{Dir: t.TempDir(), NodeID: testNode, BindAddr: "127.0.0.1:0",
		Bootstrap: &raftmeta.Bootstrap{Adopt: export, Generation: 2}})
	if err != nil {
		t.Fatal(err)
	}
	adopted := w.meta
	t.Cleanup(func() {
		if err := adopted.Close(); err != nil {
			t.Error(err)
		}
	})
	w.put(manifest.ClusterKey(2), archive.Claim{ClusterID: w.meta.State().Cluster().ID, Generation: 2}.Encode())
	w.start()
	log, _, err := wal.Open(wal.Options{FS: vfs.NewMem(), Dir: "wal", Incarnation: oldInc, FileSize: 1 << 20, PoolFiles: -1, AckSyncInterval: time.Hour},
		func(wal.Frame) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	w.put(manifest.WALOpenKey("n0", oldInc), archive.Open{Node: "n0", Incarnation: oldInc, ClusterGeneration: 1, FirstLSN: 1}.Encode())
	w.put(manifest.WALFenceKey("n0", oldInc), archive.Fence{ClusterGeneration: 2}.Encode())
	return w, &old{world: w, log: log}
}

// records ships one object with records of [base, base+n) of a partition.
func (o *old) records(id broker.PartitionID, base int64, n int) string {
	o.t.Helper()
	recs := make([]broker.Record, n)
	for i := range recs {
		recs[i] = broker.Record{Offset: int64(i), Timestamp: 1000, Value: []byte("v")}
	}
	b, err := seg.AppendBatch(nil, recs, seg.BatchOptions{})
	if err != nil {
		o.t.Fatal(err)
	}
	seg.Stamp(b, base, 1)
	body := make([]byte, frame.CommitHeaderSize+frame.SectionHeaderSize)
	frame.PutCommitHeader(body, frame.CommitHeader{AppendMS: 1000, OriginIncarnation: oldInc})
	frame.PutSectionHeader(body[frame.CommitHeaderSize:], id, 1, len(b))
	body = append(body, b...)
	slot, err := o.log.Reserve(wal.KindCommit, len(body))
	if err != nil {
		o.t.Fatal(err)
	}
	copy(slot.Body, body)
	slot.Done()
	if err := o.log.WaitDurable(o.t.Context(), slot.LSN); err != nil {
		o.t.Fatal(err)
	}
	run, err := o.log.ReadGroups(o.shipped+1, 1<<20)
	if err != nil {
		o.t.Fatal(err)
	}
	data, err := archive.EncodeWAL(run)
	if err != nil {
		o.t.Fatal(err)
	}
	key := manifest.WALKey("n0", oldInc, run.First, run.Next)
	o.put(key, data)
	o.shipped = run.Next - 1
	return key
}

func (o *old) oldState(lsn, replayFrom uint64, ids ...broker.PartitionID) string {
	o.t.Helper()
	s := &archive.State{Node: "n0", Incarnation: oldInc, LSN: lsn, ReplayFrom: replayFrom}
	for _, id := range ids {
		s.Partitions = append(s.Partitions, archive.PartitionState{Topic: id.Topic, Partition: id.Partition, Generation: 1})
	}
	data, err := archive.EncodeState(s)
	if err != nil {
		o.t.Fatal(err)
	}
	key := manifest.StateKey("n0", oldInc, lsn)
	o.put(key, data)
	return key
}

// settle lets everything pass that only takes time.
func (w *world) settle() {
	w.t.Helper()
	for range 4 {
		w.turn()
		w.export()
		w.pass(2 * testGrace)
	}
	w.turn()
}

func (w *world) stateOf(lsn uint64, ids ...broker.PartitionID) {
	w.t.Helper()
	var ps []archive.PartitionState
	for _, id := range ids {
		a, _ := w.meta.Assignment(id)
		ps = append(ps, archive.PartitionState{Topic: id.Topic, Partition: id.Partition, Generation: a.Generation})
	}
	w.state(lsn, lsn+1, ps...)
}

// What an old incarnation shipped stays until the chain's end has passed every
// record of it and a state object of this incarnation has its partitions, and
// goes then, after a grace and an export that says so: OPEN last, FENCE never.
// At each step the reason is told (B132).
func TestOldIncarnation(t *testing.T) {
	w, o := heir(t)
	id, other := w.topic("t"), w.topic("other")
	covered := o.records(id, 0, 5)
	state := o.oldState(o.shipped, o.shipped+1, id, other)
	needed := o.records(id, 5, 10)
	second := o.records(other, 0, 3)
	all := []string{covered, state, needed, second}
	w.start()
	holds := func(says string) {
		t.Helper()
		w.untouched(w.settle, "meta/")
		if h := w.cause(Incarnation); len(h.Holds) != 1 || !strings.Contains(h.Holds[0], says) || h.Waiting != int64(len(all)) {
			t.Fatalf("%+v, want %q", h, says)
		}
	}
	holds("up to offset 15 are in no segment yet")
	w.upload(id, 2)
	w.count.Reset()
	holds("up to offset 3 are in no segment yet")
	w.upload(other, 1)
	holds("waits for a state object of this incarnation")
	w.stateOf(1, id)
	holds("waits for a state object with partition " + other.String())
	w.stateOf(2, id, other)
	w.settle()
	w.gone(all...)
	w.gone(manifest.WALOpenKey("n0", oldInc))
	w.kept("the fence", manifest.WALFenceKey("n0", oldInc))
	if f, _ := w.meta.State().Fenced(oldInc); f.RetiredMs == 0 || f.Node != "n0" {
		t.Fatalf("%+v", f)
	}
	w.start()
	w.untouched(w.settle, "meta/")
	if h := w.cause(Incarnation); h.Waiting != 0 || len(h.Holds) != 0 {
		t.Fatalf("%+v", h)
	}
}

// What a repair of the log leaves: an incarnation of the same cluster generation,
// which nobody fenced in the bucket. While the metadata does not forbid it, it
// stays. Then it gets its FENCE, what a copy of its directory shipped until then
// is counted in, and it goes when all of that is covered (I7, I10, B132).
func TestOldIncarnationOfTheSameGeneration(t *testing.T) {
	w, o := heir(t)
	if err := w.mem.Delete(t.Context(), []string{manifest.WALFenceKey("n0", oldInc), manifest.WALOpenKey("n0", oldInc)}); err != nil {
		t.Fatal(err)
	}
	w.put(manifest.WALOpenKey("n0", oldInc), archive.Open{Node: "n0", Incarnation: oldInc, ClusterGeneration: 2, FirstLSN: 1}.Encode())
	id := w.topic("t")
	all := []string{o.records(id, 0, 5)}
	all = append(all, o.oldState(o.shipped, o.shipped+1, id))
	w.upload(id, 1)
	w.stateOf(1, id)
	w.start()
	w.untouched(w.settle, "meta/")
	if h := w.cause(Incarnation); len(h.Holds) != 1 || !strings.Contains(h.Holds[0], "it may be alive") {
		t.Fatalf("%+v", h)
	}
	if _, err := w.meta.FenceIncarnation(t.Context(), "n0", oldInc); err != nil {
		t.Fatal(err)
	}
	zombie := o.records(id, 5, 20) // shipped behind the list, in front of the fence
	w.turn()
	w.kept("what it shipped", append(all, zombie, manifest.WALFenceKey("n0", oldInc))...)
	w.settle()
	w.kept("records in no segment", append(all, zombie)...)
	if h := w.cause(Incarnation); len(h.Holds) != 1 || !strings.Contains(h.Holds[0], "up to offset 25 are in no segment yet") || h.Waiting != 3 {
		t.Fatalf("%+v", h)
	}
	w.upload(id, 2)
	w.settle()
	w.gone(append(all, zombie, manifest.WALOpenKey("n0", oldInc))...)
	w.kept("the fence", manifest.WALFenceKey("n0", oldInc))
	w.kept("the living one", manifest.WALOpenKey(testNode, testInc))
}

// The living incarnation is never taken for an old one, whatever the metadata
// says of it (I7, I10).
func TestLivingIncarnationIsNotOld(t *testing.T) {
	w, _ := heir(t)
	own := &incarnation{writer: writer{testNode, testInc}}
	if _, err := w.meta.FenceIncarnation(t.Context(), testNode, testInc); err != nil {
		t.Fatal(err)
	}
	if w.c.forbidden(w.meta.State(), own) {
		t.Fatal("the own incarnation is forbidden")
	}
	if err := w.c.fenceOff(t.Context(), own); err == nil || w.has(manifest.WALFenceKey(testNode, testInc)) {
		t.Fatalf("the own incarnation was fenced: %v", err)
	}
	w.kept("the living one", manifest.WALOpenKey(testNode, testInc))
}

// While the proof waits for one partition nothing is listed or read for it.
func TestOldIncarnationWaitsCheaply(t *testing.T) {
	w, o := heir(t)
	id := w.topic("t")
	o.records(id, 0, 5)
	w.start()
	w.turn()
	w.pass(2 * time.Hour)
	w.turn()
	w.count.Reset()
	for range 12 {
		w.pass(5 * time.Minute)
		w.turn()
	}
	if n := w.calls(); n["list"]+n["get"]+n["get_range"]+n["head"] > 1 {
		t.Fatalf("an hour of waiting took %v", n)
	}
}

// Each of these keeps an old incarnation for ever, however much time passes: in
// doubt it stays (I10).
func TestOldIncarnationInDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		doubt func(w *world, o *old, id broker.PartitionID)
		says  string
	}{
		"no fence": {func(w *world, _ *old, _ broker.PartitionID) {
			_ = w.mem.Delete(w.t.Context(), []string{manifest.WALFenceKey("n0", oldInc)})
		}, "it may be alive"},
		"no OPEN": {func(w *world, _ *old, _ broker.PartitionID) {
			_ = w.mem.Delete(w.t.Context(), []string{manifest.WALOpenKey("n0", oldInc)})
		}, "nobody can tell whose it was"},
		"of this cluster generation": {func(w *world, _ *old, _ broker.PartitionID) {
			key := manifest.WALOpenKey("n0", oldInc)
			_ = w.mem.Delete(w.t.Context(), []string{key})
			w.put(key, archive.Open{Node: "n0", Incarnation: oldInc, ClusterGeneration: 2, FirstLSN: 1}.Encode())
		}, "belongs to cluster generation 2"},
		"a topic that the metadata does not know": {func(_ *world, o *old, _ broker.PartitionID) {
			o.records(broker.PartitionID{Topic: 0xdead}, 0, 1)
		}, "which the metadata does not know"},
		"a state with one": {func(_ *world, o *old, id broker.PartitionID) {
			o.oldState(o.shipped, o.shipped+1, id, broker.PartitionID{Topic: 0xdead})
		}, "which the metadata does not know"},
		"a damaged object": {func(w *world, _ *old, _ broker.PartitionID) {
			w.put(manifest.WALKey("n0", oldInc, 500, 501), []byte("damage"))
		}, "shipped WAL"},
		"a damaged state": {func(w *world, _ *old, _ broker.PartitionID) {
			w.put(manifest.StateKey("n0", oldInc, 500), []byte("damage"))
		}, "state object"},
		"a damaged OPEN": {func(w *world, _ *old, _ broker.PartitionID) {
			key := manifest.WALOpenKey("n0", oldInc)
			_ = w.mem.Delete(w.t.Context(), []string{key})
			w.put(key, []byte("damage"))
		}, "OPEN"},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := heir(t)
			id := w.topic("t")
			o.records(id, 0, 5)
			w.upload(id, 1)
			w.stateOf(1, id)
			c.doubt(w, o, id)
			w.start()
			w.untouched(func() {
				for range 5 {
					w.settle()
				}
			}, "meta/", "state/"+testNode)
			if h := w.cause(Incarnation).Holds; len(h) != 1 || !strings.Contains(h[0], c.says) {
				t.Fatalf("%v, want %q", h, c.says)
			}
		})
	}
}

// Records of a deleted topic hold nothing back.
func TestOldIncarnationOfADeletedTopic(t *testing.T) {
	w, o := heir(t)
	id := w.topic("gone")
	key := o.records(id, 0, 5)
	if _, err := w.meta.DeleteTopic(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.stateOf(1)
	w.settle()
	w.settle()
	w.gone(key)
}

// A deletion that breaks off anywhere goes on after a restart; the incarnation
// stays retired, so that a restore passes over what is left of it, and OPEN goes
// last (B116).
func TestOldIncarnationResumes(t *testing.T) {
	for _, op := range []string{fault.Delete, fault.List, fault.GetRange} {
		for _, do := range []fault.Action{fault.Fail, fault.LoseAnswer, fault.Cut} {
			w, o := heir(t)
			id := w.topic("t")
			for i := range 6 {
				o.records(id, int64(i), 1)
			}
			w.upload(id, 1)
			for round := range 4 {
				w.start()
				w.stateOf(uint64(round+1), id)
				w.pass(2 * testGrace)
				for skip := range 3 {
					h := w.fault.Add(fault.Rule{Ops: []string{op}, Skip: skip, Times: 1, Do: do})
					_, _ = w.c.Turn(t.Context())
					h.Remove()
					w.export()
					w.pass(2 * testGrace)
					left := w.keys(manifest.WALPrefix("n0", oldInc))
					f, _ := w.meta.State().Fenced(oldInc)
					if len(left) < 8 && f.RetiredMs == 0 {
						t.Fatal("objects went before the metadata called it retired")
					}
					if len(left) > 1 && !w.has(manifest.WALOpenKey("n0", oldInc)) {
						t.Fatalf("OPEN went before %v", left)
					}
				}
			}
			w.start()
			w.settle()
			w.settle()
			if left := w.keys(manifest.WALPrefix("n0", oldInc)); len(left) != 1 {
				t.Fatalf("%v %v: left %v", op, do, left)
			}
		}
	}
}

// Lists that hide a part of a retired incarnation, or all of it, and deletes that
// are done by half do not leave anything of it: it is done with when two looks, a
// grace apart, have found nothing, and OPEN goes then (B116, T32).
func TestOldIncarnationLooksTwice(t *testing.T) {
	for name, rule := range map[string]fault.Rule{
		"lists show nothing":    {Ops: []string{fault.List}, Do: fault.Pretend},
		"lists show a part":     {Ops: []string{fault.List}, Do: fault.Tear},
		"deletes are half done": {Ops: []string{fault.Delete}, Do: fault.Tear, Times: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := heir(t)
			id := w.topic("t")
			for i := range 8 {
				o.records(id, int64(i), 1)
			}
			w.upload(id, 1)
			w.stateOf(1, id)
			w.start()
			w.turn()
			w.pass(2 * testGrace)
			w.turn() // it is called retired
			w.export()
			w.pass(2 * testGrace)
			open := manifest.WALOpenKey("n0", oldInc)
			h := w.fault.Add(rule)
			_, _ = w.c.Turn(t.Context())
			h.Remove()
			if w.turn(); h.Hits() == 0 || !w.has(open) {
				t.Fatalf("%d hits; OPEN is there: %v", h.Hits(), w.has(open))
			}
			for range 2 {
				w.pass(testGrace)
				w.turn()
			}
			if left := w.keys(manifest.WALPrefix("n0", oldInc)); len(left) != 1 {
				t.Fatalf("left %v", left)
			}
			if c := w.cause(Incarnation); c.Waiting != 0 {
				t.Fatalf("%+v", c)
			}
		})
	}
}

// An incarnation that the confirmed metadata does not call retired loses
// nothing, whatever the collector believes.
func TestRetirementIsConfirmed(t *testing.T) {
	w, o := heir(t)
	id := w.topic("t")
	o.records(id, 0, 5)
	w.start()
	w.turn()
	for _, i := range w.c.mu.old {
		i.retired = w.now.Add(-2 * testGrace)
	}
	w.fence.confirmed = 1 << 40
	w.untouched(func() {
		w.turn()
		w.turn()
	})
	if h := w.cause(Incarnation).Holds; len(h) != 1 || !strings.Contains(h[0], "does not call it retired") {
		t.Fatal(h)
	}
}

// An incarnation that is covered waits for the window, then for a grace after it
// was called retired, and then for an export that says so: until then a restore
// would read it, and what it found in part would look damaged.
func TestOldIncarnationTakesItsTime(t *testing.T) {
	w, o := heir(t)
	id := w.topic("t")
	key := o.records(id, 0, 5)
	w.upload(id, 1)
	w.stateOf(1, id)
	w.start()
	says := func(text string) {
		t.Helper()
		w.untouched(w.turn)
		if h := w.cause(Incarnation).Holds; len(h) != 1 || !strings.Contains(h[0], text) {
			t.Fatalf("%v, want %q", h, text)
		}
	}
	retired := func() bool { f, _ := w.meta.State().Fenced(oldInc); return f.RetiredMs > 0 }
	w.fence.confirmed = w.meta.State().Index() // knows everything so far
	says("is inside the window")
	w.pass(time.Hour - time.Second)
	says("is inside the window")
	if retired() {
		t.Fatal("it is called retired inside the window")
	}
	w.pass(time.Second)
	says("its grace lasts")
	if !retired() {
		t.Fatal("it is covered and not called retired")
	}
	w.pass(testGrace - time.Second)
	says("its grace lasts")
	w.pass(time.Second)
	says("no export yet that says so")
	// A restart begins the grace anew, and asks for the export still.
	w.start()
	says("its grace lasts")
	w.pass(testGrace)
	says("no export yet that says so")
	w.export()
	w.turn()
	w.gone(key)
}
