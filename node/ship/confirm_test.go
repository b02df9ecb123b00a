package ship

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/wal"
)

// The archive confirms an incarnation that nobody fenced, with two GETs under
// the caller's cause; it confirms nothing before registration, when it does not
// answer, and for ever after a FENCE or a later claim (I7, I8).
func TestConfirm(t *testing.T) {
	for name, end := range map[string]func(testing.TB, *bucket){
		"fence": func(tb testing.TB, b *bucket) { tb.Helper(); b.fence(tb) },
		"claim": func(tb testing.TB, b *bucket) {
			tb.Helper()
			b.put(tb, manifest.ClusterKey(2), archive.Claim{ClusterID: testCluster, Generation: 2, Node: "n9"}.Encode())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				down := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Do: fault.Fail})
				r := start(t, b, vfs.NewMem(), 0, nil)
				defer r.stop()
				calls := count.New(b.fault)
				store := objstore.For(calls, objstore.CauseGarbage)
				confirm := func() error { return r.ship.Confirm(t.Context(), store) }
				if err := confirm(); !errcode.Is(err, errcode.Unavailable) {
					t.Fatalf("before registration: %v", err)
				}
				down.Remove()
				wait(time.Minute)
				if err := confirm(); err != nil {
					t.Fatal(err)
				}
				if n := calls.Calls()[count.Call{Op: "get", Cause: objstore.CauseGarbage}]; n != 2 || len(calls.Calls()) != 1 {
					t.Fatalf("it took %v", calls.Calls())
				}
				// A 404 that is none, or no answer: nothing is confirmed.
				for _, code := range []errcode.Code{errcode.Transient, errcode.Denied} {
					h := b.fault.Down(code)
					if err := confirm(); !errcode.Is(err, code) {
						t.Fatalf("store answers %v: %v", code, err)
					}
					h.Remove()
				}
				if len(r.fences()) != 0 {
					t.Fatalf("fenced without a fence: %v", r.fences())
				}
				end(t, b)
				for range 2 {
					if err := confirm(); !errcode.Is(err, errcode.Fenced) {
						t.Fatalf("after the %s: %v", name, err)
					}
				}
				if len(r.fences()) != 1 {
					t.Fatalf("the node heard of its fence %d times", len(r.fences()))
				}
			})
		})
	}
}

// seen collects what OnObject reports.
type seen struct {
	mu      sync.Mutex
	objects []Object
}

func (s *seen) add(o Object) { s.mu.Lock(); s.objects = append(s.objects, o); s.mu.Unlock() }

func (s *seen) kind(k manifest.KeyKind) (out []Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects {
		if o.Key.Kind == k {
			out = append(out, o)
		}
	}
	return out
}

// forgetful captures states that need the log from frame from on.
type forgetful struct {
	log  *wal.Log
	mu   *sync.Mutex
	from *uint64
}

func (f forgetful) Capture() (*archive.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &archive.State{LSN: f.log.NextLSN() - 1, ReplayFrom: *f.from}, nil
}

func (f forgetful) set(v uint64) { f.mu.Lock(); *f.from = v; f.mu.Unlock() }

func needsOther(from uint64) func(Object) bool {
	return func(o Object) bool { return o.ReplayFrom != from }
}

// A state object never needs more of the log than the one before it: those
// frames may be deleted by then. That holds over a restart whose capture knows
// less, and when the newest object does not read (I10).
func TestReplayFromNeverFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, fs := newBucket(), vfs.NewMem()
		from := forgetful{mu: new(sync.Mutex), from: new(uint64)}
		live := func(shipped uint64, replay uint64) (*rig, *seen) {
			objects := &seen{}
			from.set(replay)
			r := start(t, b, fs, shipped, func(o *Options) {
				o.StateInterval, o.OnObject = 5*time.Second, objects.add
				from.log = o.Log.(*wal.Log)
				o.States = from
			})
			return r, objects
		}
		r, objects := live(0, 3)
		defer func() { r.stop() }()
		for range 4 {
			r.append("x")
		}
		wait(20 * time.Second)
		from.set(2)
		r.append("y")
		wait(20 * time.Second)
		states := objects.kind(manifest.KindState)
		if len(states) < 2 || slices.ContainsFunc(states, needsOther(3)) {
			t.Fatalf("states of one process: %+v", states)
		}
		if n := len(objects.kind(manifest.KindWAL)); n != len(b.keys(t, manifest.WALPrefix(testNode, testIncarnation)))-1 {
			t.Fatalf("%d WAL objects were reported", n)
		}
		if n := len(objects.kind(manifest.KindMeta)); n != 1 {
			t.Fatalf("%d exports were reported", n)
		}
		shipped := r.ship.Status().Shipped
		r.stop()

		b.put(t, manifest.StateKey(testNode, testIncarnation, shipped+1000), []byte("damaged, by whatever"))
		r, objects = live(shipped, 1)
		r.append("z")
		wait(20 * time.Second)
		states = objects.kind(manifest.KindState)
		if len(states) == 0 || slices.ContainsFunc(states, needsOther(3)) {
			t.Fatalf("states after a restart: %+v", states)
		}
		stored, err := ReadState(context.Background(), b.mem, states[0].Key)
		if err != nil || stored.ReplayFrom != 3 {
			t.Fatalf("%+v %v", stored, err)
		}
		r.stop()
	})
}

// A state object whose first answer was lost is reported as it stands in the
// archive, not as it was captured the second time: deleting by the newer
// numbers would take away what the stored one needs (T26).
func TestStateWithALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, fs := newBucket(), vfs.NewMem()
		from := forgetful{mu: new(sync.Mutex), from: new(uint64)}
		from.set(1)
		objects := &seen{}
		lost := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "state/*", Times: 1, Do: fault.LoseAnswer})
		r := start(t, b, fs, 0, func(o *Options) {
			o.StateInterval, o.OnObject = 5*time.Second, objects.add
			from.log = o.Log.(*wal.Log)
			o.States = from
			o.Store = onPut{b.count, func(key string) {
				if k, err := manifest.ParseKey(key); err == nil && k.Kind == manifest.KindState {
					from.set(4) // the next capture finds more archived
				}
			}}
		})
		defer r.stop()
		for range 3 {
			r.append("x")
		}
		wait(time.Minute)
		states := objects.kind(manifest.KindState)
		if lost.Hits() != 1 || len(states) == 0 || states[0].ReplayFrom != 1 {
			t.Fatalf("%d answers lost, states %+v", lost.Hits(), states)
		}
	})
}

// An old copy of a data directory is found out also when the frames that it
// lacks were covered and deleted: by a newer object behind the hole, or by the
// state object that covers them (I3, I8).
func TestOldCopyBehindDeletedObjects(t *testing.T) {
	for _, what := range []string{"object", "state"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, fs := newBucket(), vfs.NewMem()
				change := func(o *Options) {
					o.StateInterval, o.States = 5*time.Second, states{o.Log.(*wal.Log)}
				}
				r := start(t, b, fs, 0, change)
				r.append("a")
				wait(2 * time.Second)
				shipped := r.ship.Status().Shipped
				r.stop()
				copied := vfs.NewMem()
				if _, err := vfs.Clone(fs, copied, "wal", "wal"); err != nil {
					t.Fatal(err)
				}
				r = start(t, b, fs, shipped, change)
				for range 5 {
					r.append("b")
					wait(20 * time.Second)
				}
				r.stop()
				keys := b.keys(t, manifest.WALPrefix(testNode, testIncarnation))
				keep := ""
				if what == "object" {
					keep = keys[len(keys)-2] // before OPEN
				}
				for _, key := range keys {
					if k, err := manifest.ParseKey(key); err == nil && k.Kind == manifest.KindWAL && key != keep {
						_ = b.mem.Delete(t.Context(), []string{key})
					}
				}
				if what == "object" {
					_ = b.mem.Delete(t.Context(), b.keys(t, "state/"))
				}
				before := b.content(t)
				r = start(t, b, copied, shipped, change)
				defer r.stop()
				r.append("c")
				wait(time.Minute)
				if f := r.fences(); len(f) != 1 || !errcode.Is(f[0], errcode.Fenced) {
					t.Fatalf("the old copy heard %v", f)
				}
				if !maps.Equal(before, b.content(t)) {
					t.Fatal("the old copy wrote into the archive")
				}
			})
		})
	}
}
