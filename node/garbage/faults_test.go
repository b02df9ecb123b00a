package garbage

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// doomedKind is one kind of object that a collector deletes. make returns a world
// in which some are due at the next turn or soon after.
type doomedKind struct {
	name  string
	cause Cause
	make  func(t *testing.T) (w *world, doomed []string)
}

var doomedKinds = []doomedKind{
	{"segments behind a trim", Retired, func(t *testing.T) (*world, []string) {
		w := newWorld(t, nil)
		id := w.topic("t")
		segs := keysOf(w.upload(id, 6))
		w.turn()
		w.trim(id, 40)
		w.pass(testGrace)
		return w, segs[:4]
	}},
	{"inputs of a merge", Retired, func(t *testing.T) (*world, []string) {
		w := newWorld(t, nil)
		id := w.topic("t")
		segs := w.upload(id, 5)
		w.turn()
		merged := w.segment(id, 0, 40)
		w.put(merged.Key(), []byte("merged"))
		c, err := w.manifest(t.Context(), id)
		if err == nil {
			err = c.Replace(t.Context(), w.owner(id), segs[:4], merged)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.c.Discard(id, segs[:4])
		w.pass(testGrace)
		return w, keysOf(segs[:4])
	}},
	{"a topic, its chain and pages", Topic, func(t *testing.T) (*world, []string) {
		w := newWorld(t, nil)
		w.upload(w.topic("stays"), 3)
		id := w.doom("t", 3)
		doomed := w.keys(manifest.TopicPrefix(id.Topic))
		w.turn()
		w.pass(testGrace)
		w.export()
		return w, doomed
	}},
	{"state objects", State, func(t *testing.T) (*world, []string) {
		w := newWorld(t, nil)
		w.turn()
		w.wal(50, 60)
		doomed := []string{w.state(20, 50), w.state(30, 50), w.state(40, 50)}
		w.state(50, 50)
		w.state(51, 50)
		w.pass(2 * time.Hour)
		return w, doomed
	}},
	{"exports", Export, func(t *testing.T) (*world, []string) {
		w := newWorld(t, nil)
		w.turn()
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			w.topic(name) // so that there is something new to export
			w.export()
		}
		w.pass(2 * time.Hour)
		return w, w.keys(manifest.PrefixMeta)[:4]
	}},
	{"shipped log", WAL, func(t *testing.T) (*world, []string) {
		w := newWorld(t, nil)
		w.turn()
		var keys []string
		for lsn := uint64(1); lsn <= 60; lsn += 10 {
			keys = append(keys, w.wal(lsn, lsn+10))
		}
		w.state(59, 41)
		w.state(60, 41)
		w.pass(2 * time.Hour)
		return w, keys[:4]
	}},
	{"attempts that lost", Orphan, func(t *testing.T) (*world, []string) {
		w := newWorld(t, nil)
		id := w.topic("t")
		w.upload(id, 3)
		var doomed []string
		for range 4 {
			s := w.segment(id, 0, 10)
			w.put(s.Key(), []byte("attempt"))
			doomed = append(doomed, s.Key())
		}
		w.turn()
		w.pass(DefaultOrphanInterval)
		w.turn()
		w.pass(testGrace + DefaultInterval)
		return w, doomed
	}},
	{"an old incarnation", Incarnation, func(t *testing.T) (*world, []string) {
		w, o := heir(t)
		id := w.topic("t")
		doomed := []string{o.records(id, 0, 5), o.records(id, 5, 5), o.oldState(o.shipped, o.shipped+1, id)}
		w.upload(id, 2)
		w.stateOf(1, id)
		w.start()
		w.turn()
		w.export()
		w.pass(2 * testGrace)
		return w, append(doomed, manifest.WALOpenKey("n0", oldInc))
	}},
}

// Deletes of each kind of object go wrong in each way. Nothing but what is due
// ever goes; while it lasts the reason is told, with a time for the next try that
// backs off, and a turn asks for one delete; when it is over everything that is
// due is gone, also what an answer lied about. What a store half did and called
// done is found by the same process, an orphan interval later (I7, T26, T32).
func TestDeletesGoWrong(t *testing.T) {
	ways := []struct {
		name  string
		rule  fault.Rule
		lasts bool
		says  string // by the report, while it lasts
	}{
		{"fails once", fault.Rule{Do: fault.Fail, Times: 1}, false, ""},
		{"fails", fault.Rule{Do: fault.Fail}, true, "delete "},
		{"is slow", fault.Rule{Delay: 3 * time.Millisecond}, false, ""},
		{"hangs", fault.Rule{Do: fault.Hang}, true, ""},
		{"loses its answers", fault.Rule{Do: fault.LoseAnswer, Times: 3}, false, ""},
		{"is not done", fault.Rule{Do: fault.Pretend}, true, "still has it"},
		{"is done by half and fails", fault.Rule{Do: fault.Cut, Times: 3}, false, ""},
		{"is done by half", fault.Rule{Do: fault.Tear, Times: 3}, false, ""},
		{"is denied", fault.Rule{Do: fault.Fail, Err: errcode.New(errcode.Denied, "AccessDenied")}, true, "refuses deletes"},
		{"is throttled", fault.Rule{Do: fault.Fail, Err: errcode.New(errcode.Throttled, "SlowDown")}, true, "delete "},
	}
	for _, k := range doomedKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for _, way := range ways {
				w, doomed := k.make(t)
				rule := way.rule
				rule.Ops = []string{fault.Delete}
				h := w.fault.Add(rule)
				before := w.keys("")
				needed := slices.DeleteFunc(slices.Clone(before), func(key string) bool { return slices.Contains(doomed, key) })
				last, told := time.Duration(0), false
				for try := range 6 {
					w.count.Reset()
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					if rule.Do == fault.Hang {
						go func(hits int) { // the turn is given up once a delete hangs
							for h.Hits() == hits && ctx.Err() == nil {
								time.Sleep(time.Millisecond)
							}
							cancel()
						}(h.Hits())
					}
					_, err := w.c.Turn(ctx)
					cancel()
					w.kept(way.name, w.stillNeeded(needed)...)
					if n := w.calls()["delete"]; way.lasts && n > 1 {
						t.Fatalf("%s: %d deletes in turn %d", way.name, n, try)
					}
					if r := w.c.Report(); way.lasts && err != nil && rule.Do != fault.Hang {
						told = true
						wait := time.Duration(r.RetryInMS) * time.Millisecond
						if !strings.Contains(r.Paused, way.says) || wait <= 0 || wait > maxBackoff || wait < last/2 || w.c.due() {
							t.Fatalf("%s: turn %d: the report says %q, next try in %v after %v", way.name, try, r.Paused, wait, last)
						}
						last = wait
					}
					if k.cause == Incarnation {
						w.export()
						w.pass(2 * testGrace)
					}
				}
				if h.Hits() == 0 {
					t.Fatalf("%s: nothing was deleted", way.name)
				}
				if way.lasts {
					if rule.Do != fault.Hang && !told {
						t.Fatalf("%s: nobody was told", way.name)
					}
					w.kept(way.name+", which does nothing", doomed...)
				}
				h.Remove()
				for try := 0; slices.ContainsFunc(doomed, w.has); try++ {
					if try > 12 {
						t.Fatalf("%s: it is over, and what is due stays: %v", way.name, slices.DeleteFunc(doomed, func(k string) bool { return !w.has(k) }))
					}
					_, _ = w.c.Turn(t.Context())
					w.export()
					w.pass(DefaultOrphanInterval)
					w.kept(way.name+", when it is over", w.stillNeeded(needed)...)
				}
				w.turn()
				if r := w.c.Report(); r.Paused != "" {
					t.Fatalf("%s: it is over, and the report says %q", way.name, r.Paused)
				}
				lost := rule.Do == fault.Tear || rule.Do == fault.Cut || rule.Do == fault.LoseAnswer
				if c := w.cause(k.cause); !lost && c.Deleted < int64(len(doomed)) {
					t.Fatalf("%s: %d objects are counted as deleted, %d are gone", way.name, c.Deleted, len(doomed))
				}
			}
		})
	}
}

// stillNeeded leaves out exports that newer ones have made needless since: the
// test makes them as it goes. One is always there.
func (w *world) stillNeeded(keys []string) []string {
	w.t.Helper()
	exports := func(key string) bool { return strings.HasPrefix(key, manifest.PrefixMeta) }
	if slices.ContainsFunc(keys, exports) && len(w.keys(manifest.PrefixMeta)) == 0 {
		w.t.Fatal("the newest export is gone")
	}
	return slices.DeleteFunc(slices.Clone(keys), exports)
}

// What is asked before a delete gets no answer, or a wrong one: the leader's view
// of the chain, the objects that make others needless, the look that follows. None
// of them is a yes, and nothing that is needed goes; afterwards all goes as it
// should (I7, I10).
func TestQuestionsBeforeADeleteGoWrong(t *testing.T) {
	for _, k := range doomedKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for _, op := range []string{fault.Get, fault.GetRange, fault.List} {
				for _, do := range []fault.Action{fault.Fail, fault.LoseAnswer, fault.Pretend, fault.Cut, fault.Tear, fault.Flip, fault.Stale} {
					if testing.Short() && int(do)%2 == 0 {
						continue
					}
					for _, times := range []int{1, 0} {
						w, doomed := k.make(t)
						needed := slices.DeleteFunc(w.keys(""), func(key string) bool { return slices.Contains(doomed, key) })
						h := w.fault.Add(fault.Rule{Ops: []string{op}, Do: do, Times: times, Age: 5})
						for range 3 {
							_, _ = w.c.Turn(t.Context())
							w.kept("while it lasts", w.stillNeeded(needed)...)
						}
						h.Remove()
						for try := 0; slices.ContainsFunc(doomed, w.has); try++ {
							if try > 12 {
								t.Fatalf("%s, action %d: it is over, and what is due stays", op, do)
							}
							_, _ = w.c.Turn(t.Context())
							w.export()
							w.pass(DefaultOrphanInterval)
							w.kept("when it is over", w.stillNeeded(needed)...)
						}
					}
				}
			}
		})
	}
}
