package garbage

import (
	"context"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// Trimmed segments go one grace after their chain let go of them, not before,
// all in one delete; those that it names stay (T5).
func TestRetiredSegments(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.OrphanInterval = 1000 * time.Hour }) // no look in between
	id := w.topic("t")
	segs := keysOf(w.upload(id, 5))
	w.turn()
	w.trim(id, 30)
	w.pass(testGrace - time.Second)
	w.untouched(w.turn)
	if c := w.cause(Retired); c.Waiting != 3 || c.OldestMS != (testGrace-time.Second).Milliseconds() {
		t.Fatalf("%+v", c)
	}
	w.pass(time.Second)
	w.count.Reset()
	w.turn()
	w.gone(segs[:3]...)
	w.kept("named", segs[3:]...)
	if n := w.calls(); n["delete"] != 1 || n["list"]+n["head"] != 0 {
		t.Fatalf("it took %v", n)
	}
	if c := w.cause(Retired); c.Waiting != 0 || c.Deleted != 3 {
		t.Fatalf("%+v", c)
	}
}

// What is handed over and still named is never deleted: the chain is asked at
// the end, not when it was handed over. So is what stands above its end, what a
// later generation wrote, and what a merge in flight reads or a snapshot holds;
// the latter go when that is over (T7, T20, I7).
func TestRetiredAndNeeded(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	segs := w.upload(id, 4)
	above := w.segment(id, 40, 10)
	later := w.segment(id, 0, 10)
	later.Generation++
	w.put(above.Key(), []byte("in flight"))
	w.put(later.Key(), []byte("of the next owner"))
	c, _ := w.manifest(t.Context(), id)
	dropped, err := c.Trim(t.Context(), w.owner(id), 20)
	if err != nil {
		t.Fatal(err)
	}
	used, pinned := dropped[0].Key(), dropped[1].Key()
	w.inUse[used], w.pinned[pinned] = true, true
	w.c.Discard(id, segs)
	w.c.Discard(id, []manifest.Segment{above, later})
	for range 3 {
		w.pass(testGrace)
		w.untouched(w.turn)
	}
	w.inUse, w.pinned = map[string]bool{}, map[string]bool{}
	w.pass(testGrace)
	w.turn()
	w.gone(used, pinned)
	w.kept("named", keysOf(segs[2:])...)
	w.kept("not judged", above.Key(), later.Key())
}

// An entry whose answer was lost is part of the chain: what it names stays,
// although the process does not know of it (T26).
func TestRetiredByAnEntryWithALostAnswer(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	segs := w.upload(id, 3)
	merged := w.segment(id, 0, 30)
	w.put(merged.Key(), []byte("merged"))
	c, _ := w.manifest(t.Context(), id)
	w.turn()
	// The merge is published, and its process hears an error.
	h := w.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "*/m/*", Do: fault.LoseAnswer})
	g := w.fault.Add(fault.Rule{Ops: []string{fault.Get}, Key: "*/m/*", Do: fault.Fail})
	if err := c.Replace(t.Context(), w.owner(id), segs, merged); err == nil {
		t.Fatal("the answer was not lost")
	}
	h.Remove()
	g.Remove()
	// It takes the loss for a failure and gives its output away.
	w.c.Discard(id, []manifest.Segment{merged})
	w.pass(testGrace)
	w.untouched(w.turn)
	// The truth is known now, and what was replaced may go.
	w.c.Discard(id, segs)
	w.pass(testGrace)
	w.turn()
	w.gone(keysOf(segs)...)
	w.kept("named", merged.Key())
}

// A partition that is another incarnation's, or whose chain another generation
// fenced, is not touched; nor is anything while the metadata has no leader, is
// older than the archive, or calls this incarnation fenced (I7, I8, B106, B157).
func TestZombieDeletesNothing(t *testing.T) {
	for name, end := range map[string]func(w *world, id broker.PartitionID) (errcode.Code, string){
		"fence": func(w *world, _ broker.PartitionID) (errcode.Code, string) {
			w.put(manifest.WALFenceKey(testNode, testInc), archive.Fence{ClusterGeneration: 2}.Encode())
			return errcode.Fenced, "FENCE stands"
		},
		"later cluster": func(w *world, _ broker.PartitionID) (errcode.Code, string) {
			w.put(manifest.ClusterKey(2), archive.Claim{ClusterID: "x", Generation: 2}.Encode())
			return errcode.Fenced, "cluster/00000000000000000002 stands"
		},
		"fences unknown": func(w *world, _ broker.PartitionID) (errcode.Code, string) {
			w.fault.Add(fault.Rule{Ops: []string{fault.Get}, Key: "*/FENCE", Do: fault.Fail, Err: errcode.New(errcode.Denied, "key removed")})
			return errcode.Denied, "key removed"
		},
		"fenced in metadata": func(w *world, _ broker.PartitionID) (errcode.Code, string) {
			if _, err := w.meta.FenceIncarnation(context.Background(), testNode, testInc); err != nil {
				w.t.Fatal(err)
			}
			return errcode.Fenced, "not the active one"
		},
		"other incarnation": func(w *world, _ broker.PartitionID) (errcode.Code, string) {
			if _, err := w.meta.RegisterIncarnation(context.Background(), 0x78, nil); err != nil {
				w.t.Fatal(err)
			}
			return errcode.Fenced, "not the active one"
		},
		"no leader": func(w *world, _ broker.PartitionID) (errcode.Code, string) {
			w.c.opts.Metadata = leaderless{w.meta}
			return errcode.Unavailable, "no leader"
		},
		"metadata older than the archive": func(w *world, _ broker.PartitionID) (errcode.Code, string) {
			w.c.newest = w.meta.State().Index() + 1
			return errcode.Conflict, "a copy from before"
		},
		"moved": func(w *world, id broker.PartitionID) (errcode.Code, string) {
			if _, err := w.meta.SetAssignment(context.Background(), id, raftmeta.Expect{Owner: testNode, Generation: 1},
				raftmeta.Assignment{Owner: testNode, OwnerIncarnation: testInc, Generation: 2, PreviousEnd: 50, Start: 50}); err != nil {
				w.t.Fatal(err)
			}
			return 0, "" // it is not judged, which is no failure
		},
		"moved to another that serves": func(w *world, id broker.PartitionID) (errcode.Code, string) {
			ctx := context.Background()
			_, err := w.meta.RegisterIncarnation(ctx, 0x78, nil)
			if err == nil {
				_, err = w.meta.SetAssignment(ctx, id, raftmeta.Expect{Owner: testNode, Generation: 1},
					raftmeta.Assignment{Owner: testNode, OwnerIncarnation: 0x78, Generation: 2, PreviousEnd: 50, Start: 50})
			}
			if err == nil {
				_, err = w.meta.RegisterIncarnation(ctx, testInc, nil)
			}
			var other *manifest.Chain
			if err == nil {
				other, err = manifest.Load(ctx, w.mem, id, 0)
			}
			if err == nil {
				_, err = other.Fence(ctx, manifest.Owner{ClusterGeneration: 1, Generation: 2, Incarnation: 0x78, Node: testNode}, manifest.FenceParams{PreviousEndAtLeast: 50})
			}
			if err != nil {
				w.t.Fatal(err)
			}
			return 0, ""
		},
		"chain of a later owner": func(w *world, id broker.PartitionID) (errcode.Code, string) {
			other, err := manifest.Load(context.Background(), w.mem, id, 0)
			if err == nil {
				_, err = other.Fence(context.Background(), manifest.Owner{ClusterGeneration: 1, Generation: 9, Incarnation: 9, Node: "n9"}, manifest.FenceParams{})
			}
			if err != nil {
				w.t.Fatal(err)
			}
			return 0, ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			id := w.topic("t")
			w.upload(id, 5)
			doomed := w.topic("doomed")
			w.upload(doomed, 2)
			w.turn()
			w.trim(id, 30)
			for lsn := uint64(1); lsn < 10; lsn++ {
				w.wal(lsn, lsn+1)
			}
			w.state(9, 10)
			w.pass(2 * testGrace)
			code, says := end(w, id)
			w.untouched(func() {
				for range 3 {
					w.pass(testGrace)
					if code == 0 {
						// Of this partition nothing; the covered log is another matter.
						if _, err := w.c.Turn(context.Background()); err != nil {
							t.Fatal(err)
						}
						break
					}
					w.fails(code, says)
				}
			}, "wal/")
			if n := w.calls()["delete"]; code != 0 && n != 0 {
				t.Fatalf("%d deletes", n)
			}
		})
	}
}

// leaderless is the metadata of a node that lost its quorum.
type leaderless struct{ *raftmeta.Meta }

func (leaderless) Confirm(context.Context) (*raftmeta.State, error) {
	return nil, errcode.New(errcode.Unavailable, "no leader")
}

// The queue has a bound; what does not fit is counted and found by the sweep of
// orphans (I12).
func TestQueueIsBounded(t *testing.T) {
	w := newWorld(t, nil)
	id := w.topic("t")
	segs := make([]manifest.Segment, 1000)
	for i := range segs {
		segs[i] = w.segment(id, int64(i), 1)
	}
	for range maxRetired/len(segs) + 2 {
		w.c.Discard(id, segs)
	}
	if n := w.cause(Retired).Waiting; n != maxRetired {
		t.Fatalf("%d segments wait, the bound is %d", n, maxRetired)
	}
}
