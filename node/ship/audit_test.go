package ship

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/wal"
)

const walKeys = "*.ship"

// A store that takes the object of an ack=archived and has nothing gets no
// answer out of it: the object is put again until it can be read (I16).
func TestArchivedIsReadBack(t *testing.T) {
	for _, times := range []int{1, 5} {
		synctest.Test(t, func(t *testing.T) {
			b := newBucket()
			r := start(t, b, vfs.NewMem(), 0, nil)
			defer r.stop()
			wait(5 * time.Second)
			lies := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: walKeys, Times: times, Do: fault.Pretend})
			lsn := r.append("x")
			if err := r.archived(lsn, 1, time.Minute); err != nil {
				t.Fatal(err)
			}
			if n := uint64(len(b.shippedFrames(t))); n < lsn || lies.Hits() != times {
				t.Fatalf("answered with %d of %d frames in the bucket, after %d lies", n, lsn, lies.Hits())
			}
		})
	}
}

// An object that went missing before anybody waited is a hole that a restore
// refuses: the next ack=archived is answered only after it was closed, without
// a change to what is there.
func TestArchivedFindsAnEarlierHole(t *testing.T) {
	for name, lose := range map[string]fault.Rule{
		"one lie":       {Ops: []string{fault.Put}, Key: walKeys, Skip: 3, Times: 1, Do: fault.Pretend},
		"several lies":  {Ops: []string{fault.Put}, Key: walKeys, Skip: 2, Times: 4, Do: fault.Pretend},
		"an old list":   {Ops: []string{fault.List}, Key: "wal/*", Times: 1, Do: fault.Stale, Age: 3},
		"half the list": {Ops: []string{fault.List}, Key: "wal/*", Times: 1, Do: fault.Tear},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				r := start(t, b, vfs.NewMem(), 0, nil)
				defer r.stop()
				wait(5 * time.Second)
				rule := b.fault.Add(lose)
				for i := range 12 {
					r.append(fmt.Sprint(i))
					wait(1100 * time.Millisecond)
				}
				before := b.content(t)
				lsn := r.append("the one that is waited for")
				if err := r.archived(lsn, 1, time.Minute); err != nil {
					t.Fatal(err)
				}
				if n := uint64(len(b.shippedFrames(t))); n < lsn || rule.Hits() == 0 {
					t.Fatalf("answered with %d of %d frames in the bucket, after %d faults", n, lsn, rule.Hits())
				}
				r.sameLog()
				after := b.content(t)
				for k, v := range before {
					if after[k] != v {
						t.Fatalf("%s changed", k)
					}
				}
			})
		})
	}
}

// readable counts the frames from the first on that objects hold which a restore
// can use: what is damaged is passed over, and counts where another covers it.
func (b *bucket) readable(t testing.TB) (end uint64) {
	t.Helper()
	end = 1
	for _, key := range b.keys(t, manifest.WALPrefix(testNode, testIncarnation)) {
		k, err := manifest.ParseKey(key)
		if err != nil || k.Kind != manifest.KindWAL || k.First > end {
			continue
		}
		if w, err := archive.DecodeWAL(b.get(t, key)); err == nil && w.Each(func(wal.Frame) error { return nil }) == nil {
			end = max(end, w.Next)
		}
	}
	return end - 1
}

// Objects that a store spoiled before anybody waited, under sums that it calls
// right, are a log that a restore refuses: the next ack=archived is answered only
// after their frames were shipped again, without a change to what is there (I16).
func TestArchivedFindsEarlierDamage(t *testing.T) {
	for name, spoil := range map[string]fault.Rule{
		"one flipped":  {Ops: []string{fault.Put}, Key: walKeys, Skip: 3, Times: 1, Do: fault.Flip},
		"several torn": {Ops: []string{fault.Put}, Key: walKeys, Skip: 2, Times: 4, Do: fault.Tear},
		"a read fails": {Ops: []string{fault.Get}, Key: walKeys, Skip: 1, Times: 2, Do: fault.Fail},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				r := start(t, b, vfs.NewMem(), 0, nil)
				defer r.stop()
				wait(5 * time.Second)
				rule := b.fault.Add(spoil)
				for i := range 12 {
					r.append(fmt.Sprint(i))
					wait(1100 * time.Millisecond)
				}
				before := b.content(t)
				lsn := r.append("the one that is waited for")
				if err := r.archived(lsn, 1, time.Minute); err != nil {
					t.Fatal(err)
				}
				if n := b.readable(t); n < lsn || rule.Hits() == 0 {
					t.Fatalf("answered with %d of %d frames readable, after %d faults", n, lsn, rule.Hits())
				}
				after := b.content(t)
				for k, v := range before {
					if after[k] != v {
						t.Fatalf("%s changed", k)
					}
				}
			})
		})
	}
}

// What would be shipped in place of a damaged object may have its very key, since
// an object ends with a file of the log: nothing is overwritten, shipping goes on,
// and archived answers come once a state object stands behind it.
func TestDamageUnderTheSameKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		var st *replayFrom
		r := start(t, b, vfs.NewMem(), 0, func(o *Options) {
			st = &replayFrom{log: o.Log.(*wal.Log), from: 1}
			o.States, o.ObjectBytes = st, 1 // one group is one object
		})
		defer r.stop()
		wait(5 * time.Second)
		rule := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: walKeys, Times: 1, Do: fault.Flip})
		damaged := r.append("damaged")
		for range 4 {
			wait(1100 * time.Millisecond)
			r.append("x")
		}
		wait(1100 * time.Millisecond)
		lsn := r.append("waited for")
		if err := r.archived(lsn, 1, time.Minute); !errcode.Is(err, errcode.NotConfirmed) || rule.Hits() != 1 {
			t.Fatalf("answer over a damaged object: %v", err)
		}
		if s := r.ship.Status(); s.LastError == "" || s.Shipped < lsn {
			t.Fatalf("%+v, want an error and frame %d shipped", s, lsn)
		}
		st.from = damaged + 1
		r.append("y")
		if err := r.archived(lsn, 1, time.Minute); err != nil {
			t.Fatalf("answer behind the state object: %v", err)
		}
	})
}

// The first ack=archived after a while reads what was put since, each object
// once; those that follow find nothing left to read and need no list, and ten
// minutes after the last one shipping costs what it did.
func TestArchivedReadsEachObjectOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		r := start(t, b, vfs.NewMem(), 0, nil)
		defer r.stop()
		wait(5 * time.Second)
		objects := func() (n int) { return len(b.keys(t, manifest.WALPrefix(testNode, testIncarnation))) - 1 }
		reads := func() (n int) {
			for line := range strings.Lines(b.count.Transcript()) {
				if strings.HasPrefix(line, "get wal/") && strings.Contains(line, ".ship") {
					n++
				}
			}
			return n
		}
		run := func(d time.Duration, every time.Duration) (put, read, lists int) {
			b.count.Reset()
			had, asked := objects(), time.Now()
			for begin := time.Now(); time.Since(begin) < d; {
				lsn := r.append("x")
				if every > 0 && time.Since(asked) >= every {
					asked = time.Now()
					if err := r.archived(lsn, 1, time.Minute); err != nil {
						t.Fatal(err)
					}
				}
				wait(time.Second)
			}
			return objects() - had, reads(), b.count.Count("list")
		}
		put, read, lists := run(5*time.Minute, 0)
		if put < 200 || read > 11 || lists != 0 {
			t.Fatalf("nobody waits: %d objects, %d reads, %d lists", put, read, lists)
		}
		b.count.Reset()
		b.fault.Add(fault.Rule{Ops: []string{fault.Get}, Delay: 20 * time.Millisecond}) // as a store is, and several reads at once make up for it
		begin := time.Now()
		if err := r.archived(r.append("first"), 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := reads(); n < put-1 || n > put+10 || b.count.Count("list") > 1 || time.Since(begin) > 2*time.Second {
			t.Fatalf("the first answer took %d reads for %d objects and %d lists, %s", n, put, b.count.Count("list"), time.Since(begin))
		}
		t.Logf("the first answer: %d reads of 20 ms, %s", reads(), time.Since(begin))
		put, read, lists = run(5*time.Minute, time.Minute)
		if put < 200 || read > put+2 || lists != 0 {
			t.Fatalf("somebody waits each minute: %d objects, %d reads, %d lists", put, read, lists)
		}
		run(waitersStay, 0)
		put, read, lists = run(5*time.Minute, 0)
		if put < 200 || read > 11 || lists != 0 {
			t.Fatalf("nobody waits any more: %d objects, %d reads, %d lists", put, read, lists)
		}
	})
}

// A store that takes everything and keeps nothing is found out within the time
// of a look, is told in the status while it lasts, and costs no record that the
// log held (I12: the log is held back no further than the last look).
func TestLiesAreFoundWithoutAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		r := start(t, b, vfs.NewMem(), 0, nil)
		defer r.stop()
		r.append("before")
		wait(40 * time.Second)
		held := r.ship.held
		lies := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: walKeys, Do: fault.Pretend})
		for i := 0; r.ship.Status().LastError == ""; i++ {
			if i > 40 {
				t.Fatal("40 seconds of lies are not noticed")
			}
			r.append(fmt.Sprint(i))
			wait(time.Second)
		}
		if st := r.ship.Status(); !strings.Contains(st.LastError, "lost") || st.Shipped >= st.Durable {
			t.Fatalf("%+v", st)
		}
		wait(10 * time.Minute)
		if got := r.ship.held; got != held {
			t.Fatalf("the log was let go of up to %d during the lies, %d before", got, held)
		}
		if n := lies.Hits(); n > 40+10*60/int(maxBackoff/time.Second)*2 {
			t.Fatalf("%d puts in ten minutes", n)
		}
		lies.Remove()
		wait(maxBackoff + auditInterval + 5*time.Second)
		r.sameLog()
		if st := r.ship.Status(); st.LastError != "" || st.RPO != 0 || st.Shipped != st.Durable {
			t.Fatalf("after the lies: %+v", st)
		}
	})
}

// shortLog is a log that has let go of what is below oldest.
type shortLog struct {
	*wal.Log
	oldest uint64
}

func (l *shortLog) ReadGroups(from uint64, most int) (wal.GroupRun, error) {
	if from < l.oldest {
		return wal.GroupRun{}, errcode.New(errcode.Gone, "recycled")
	}
	return l.Log.ReadGroups(from, most)
}

func (l *shortLog) EachGroup(from uint64, most int, fn func(wal.Group, []byte) error) (wal.GroupRun, error) {
	if from < l.oldest {
		return wal.GroupRun{}, errcode.New(errcode.Gone, "recycled")
	}
	return l.Log.EachGroup(from, most, fn)
}

func (l *shortLog) FirstLSN() uint64 { return max(l.oldest, l.Log.FirstLSN()) }

// replayFrom is a capture whose replay position the test sets.
type replayFrom struct {
	log  *wal.Log
	from uint64
}

func (s *replayFrom) Capture() (*archive.State, error) {
	return &archive.State{LSN: s.log.NextLSN() - 1, ReplayFrom: s.from}, nil
}

// A hole that the local log cannot fill any more is told; shipping goes on, and
// archived answers come once a state object stands that a restore begins with
// behind the hole.
func TestHoleThatTheLogCannotFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		var log *shortLog
		var st *replayFrom
		r := start(t, b, vfs.NewMem(), 0, func(o *Options) {
			log = &shortLog{Log: o.Log.(*wal.Log)}
			st = &replayFrom{log: log.Log, from: 1}
			o.Log, o.States = log, st
		})
		defer r.stop()
		for i := range 5 {
			r.append(fmt.Sprint(i))
			wait(1100 * time.Millisecond)
		}
		// A bucket's rule, or a hand, takes one away.
		keys := b.keys(t, "wal/")
		if err := b.fault.Lose(context.Background(), keys[1]); err != nil {
			t.Fatal(err)
		}
		k, err := manifest.ParseKey(keys[1])
		if err != nil {
			t.Fatal(err)
		}
		log.oldest = k.End
		lsn := r.append("x")
		if err := r.archived(lsn, 1, time.Minute); !errcode.Is(err, errcode.NotConfirmed) {
			t.Fatalf("answer over a hole: %v", err)
		}
		if s := r.ship.Status(); s.LastError == "" || s.Shipped < lsn {
			t.Fatalf("%+v, want an error and frame %d shipped", s, lsn)
		}
		st.from = k.End // the segments went up
		r.append("y")
		if err := r.archived(lsn, 1, time.Minute); err != nil {
			t.Fatalf("answer behind the state object: %v", err)
		}
		if s := r.ship.Status(); s.LastError != "" {
			t.Fatalf("%+v", s)
		}
	})
}

// A node that ran without its archive for a while, until its log had let go of
// what was not shipped, ships on when it has the archive again. What is missing is
// told, over restarts too, and archived answers come once a state object stands
// that a restore begins with behind it.
func TestArchiveSwitchedOffAndOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, fs := newBucket(), vfs.NewMem()
		r := start(t, b, fs, 0, nil)
		defer func() { r.stop() }()
		r.append("a")
		wait(5 * time.Second)
		shipped := r.ship.Status().Shipped
		r.stop()
		log := openLog(t, fs) // without a shipper
		without := &rig{t: t, log: log}
		for i := range 5 {
			without.append(fmt.Sprint(i))
		}
		oldest := log.NextLSN() - 2
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		from := uint64(1)
		var st *replayFrom
		again := func() *rig {
			return start(t, b, fs, shipped, func(o *Options) {
				st = &replayFrom{log: o.Log.(*wal.Log), from: from}
				o.Log, o.States = &shortLog{Log: st.log, oldest: oldest}, st
			})
		}
		for range 2 {
			r = again()
			lsn := r.append("x")
			if err := r.archived(lsn, 1, time.Minute); !errcode.Is(err, errcode.NotConfirmed) {
				t.Fatalf("answer over a hole: %v", err)
			}
			if s := r.ship.Status(); s.Shipped < lsn || !strings.Contains(s.LastError, fmt.Sprintf("frames %d to %d", shipped+1, oldest-1)) {
				t.Fatalf("%+v, want frame %d shipped, and what is missing", s, lsn)
			}
			if len(r.marks) > 0 {
				t.Fatalf("the marks %d let a restart forget the hole", r.marks)
			}
			r.stop()
		}
		r = again()
		st.from = oldest // the segments went up
		lsn := r.append("y")
		if err := r.archived(lsn, 1, time.Minute); err != nil {
			t.Fatalf("answer behind the state object: %v", err)
		}
		if s := r.ship.Status(); s.LastError != "" || len(r.marks) == 0 {
			t.Fatalf("%+v, marks %d", s, r.marks)
		}
		r.stop()
	})
}

// The mark of the local state may be old: everything up to it and far behind was
// shipped, covered and deleted since, and the local log has let go of it too. A
// start goes on behind, and answers at once: a restore begins with the state object.
func TestOldMarkBehindDeletedObjects(t *testing.T) {
	// The local log begins where the state object needs it, or later: what lies
	// between is in the archive.
	for _, later := range []uint64{0, 1} {
		t.Run(fmt.Sprint(later), func(t *testing.T) { testOldMark(t, later) })
	}
}

func testOldMark(t *testing.T, later uint64) {
	synctest.Test(t, func(t *testing.T) {
		b, fs := newBucket(), vfs.NewMem()
		var st *replayFrom
		change := func(o *Options) {
			st = &replayFrom{log: o.Log.(*wal.Log), from: 1}
			o.States, o.StateInterval = st, 5*time.Second
		}
		r := start(t, b, fs, 0, change)
		r.append("a")
		wait(2 * time.Second)
		mark := r.ship.Status().Shipped
		for range 5 {
			st.from = r.log.NextLSN()
			r.append("b")
			wait(20 * time.Second)
		}
		oldest := st.from
		r.stop()
		for _, key := range b.keys(t, manifest.WALPrefix(testNode, testIncarnation)) {
			if k, err := manifest.ParseKey(key); err == nil && k.Kind == manifest.KindWAL && k.End <= oldest {
				if err := b.mem.Delete(t.Context(), []string{key}); err != nil {
					t.Fatal(err)
				}
			}
		}
		r = start(t, b, fs, mark, func(o *Options) {
			change(o)
			st.from = oldest
			o.Log = &shortLog{Log: st.log, oldest: oldest + later}
		})
		defer r.stop()
		lsn := r.append("c")
		if err := r.archived(lsn, 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		if s := r.ship.Status(); s.LastError != "" {
			t.Fatalf("%+v", s)
		}
	})
}

// What is put rarely and much hangs on is read back: a claim, OPEN, a state
// object, an export that the store took and does not have are put again, and
// nothing is answered before.
func TestRareObjectsAreReadBack(t *testing.T) {
	for _, do := range []fault.Action{fault.Pretend, fault.LoseAnswer, fault.Fail} {
		for _, key := range []string{"cluster/*", "*/OPEN", "meta/*", "state/*"} {
			t.Run(fmt.Sprintf("%s %d", key, do), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBucket()
					rule := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: key, Times: 3, Do: do})
					told := 0
					r := start(t, b, vfs.NewMem(), 0, func(o *Options) {
						o.StateInterval = time.Second
						o.States = states{o.Log.(*wal.Log)}
						// Whoever deletes what a state covers relies on this.
						o.OnObject = func(x Object) {
							if x.Key.Kind != manifest.KindState {
								return
							}
							told++
							if !slices.Contains(b.keys(t, "state/"), x.Key.String()) {
								t.Errorf("told of %s, which is not there", x.Key)
							}
						}
					})
					defer r.stop()
					lsn := r.append("x")
					if err := r.archived(lsn, 1, time.Minute); err != nil {
						t.Fatal(err)
					}
					if key != "state/*" && len(b.keys(t, strings.Trim(strings.Replace(key, "*/OPEN", "wal/", 1), "*"))) == 0 {
						t.Fatalf("answered without %s", key)
					}
					for i := range 30 {
						r.append(fmt.Sprint(i))
						wait(time.Second)
					}
					st := r.ship.Status()
					if rule.Hits() == 0 || st.LastError != "" || told == 0 {
						t.Fatalf("%d faults, %+v", rule.Hits(), st)
					}
					for _, prefix := range []string{"cluster/", "meta/", "state/"} {
						if len(b.keys(t, prefix)) == 0 {
							t.Fatalf("nothing under %s", prefix)
						}
					}
				})
			})
		}
	}
}

// An object that the store damaged stays as it is, counts for nothing, and is
// covered by the next one: answers go on by themselves, and a restore has every
// frame twice or once, but never not.
func TestDamagedObjectIsCovered(t *testing.T) {
	for _, do := range []fault.Action{fault.Tear, fault.Flip} {
		synctest.Test(t, func(t *testing.T) {
			b := newBucket()
			r := start(t, b, vfs.NewMem(), 0, nil)
			defer r.stop()
			wait(5 * time.Second)
			b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: walKeys, Times: 1, Do: do})
			lsn := r.append("x")
			// The next object begins where the damaged one does, and ends
			// elsewhere: the log's own mark, or a record, is behind it.
			if err := r.archived(lsn, 1, time.Minute); err != nil {
				t.Fatal(err)
			}
			keys := b.keys(t, "wal/")
			whole := 0
			for _, key := range keys {
				k, err := manifest.ParseKey(key)
				if err != nil || k.Kind != manifest.KindWAL || k.First > lsn || k.End <= lsn {
					continue
				}
				if w, err := archive.DecodeWAL(b.get(t, key)); err == nil && w.Each(func(wal.Frame) error { return nil }) == nil {
					whole++
				}
			}
			if whole != 1 {
				t.Fatalf("answered archived, and %d objects hold frame %d: %v", whole, lsn, keys)
			}
		})
	}
}

// A state object may need the log from the middle of an object on. That is no
// loss of what is in front: nothing is shipped again, and whoever deletes what is
// covered has heard of every object of the log.
func TestStateInTheMiddleOfAnObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		var st *replayFrom
		told, reg := map[string]bool{}, prometheus.NewRegistry()
		r := start(t, b, vfs.NewMem(), 0, func(o *Options) {
			st = &replayFrom{log: o.Log.(*wal.Log), from: 1}
			o.Registerer, o.States, o.StateInterval = reg, st, 2*time.Second
			o.OnObject = func(x Object) { told[x.Key.String()] = true }
		})
		defer r.stop()
		for range 4 {
			for i := range 5 { // one object
				r.append(fmt.Sprint(i))
			}
			wait(1100 * time.Millisecond)
		}
		keys := b.keys(t, manifest.WALPrefix(testNode, testIncarnation))
		k, err := manifest.ParseKey(keys[2])
		if err != nil || k.End-k.First < 4 {
			t.Fatalf("%v %v", keys, err)
		}
		st.from = k.First + 2
		for range 4 {
			r.append("y")
			wait(1100 * time.Millisecond)
		}
		if r.ship.floor != st.from {
			t.Fatalf("no state object from frame %d on, but from %d", st.from, r.ship.floor)
		}
		// What is in front of it goes, as it does when a window has passed.
		if err := b.mem.Delete(context.Background(), keys[:2]); err != nil {
			t.Fatal(err)
		}
		if err := r.archived(r.append("waited for"), 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		all, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if n := f.GetMetric()[0].GetCounter().GetValue(); strings.HasSuffix(f.GetName(), "lost_objects_total") && n != 0 {
				t.Errorf("%v objects count as lost", n)
			}
		}
		end := k.First
		for _, key := range b.keys(t, manifest.WALPrefix(testNode, testIncarnation)) {
			k, err := manifest.ParseKey(key)
			if err != nil || k.Kind != manifest.KindWAL {
				continue
			}
			if k.First != end {
				t.Errorf("%s follows frame %d: shipped again, or lost", key, end)
			}
			if end = k.End; !told[key] {
				t.Errorf("nobody was told of %s", key)
			}
		}
	})
}

// An object whose put failed, or was followed by a failure, may stand although
// the next one has more frames and another key: it is told too, or it would be
// left over when what is around it is covered and deleted.
func TestObjectsOfFailedTriesAreTold(t *testing.T) {
	for name, rule := range map[string]fault.Rule{
		"no answer":        {Ops: []string{fault.Put}, Key: walKeys, Times: 1, Do: fault.LoseAnswer},
		"fence not looked": {Ops: []string{fault.Get}, Key: "*/FENCE", Times: 1, Do: fault.Fail},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				told := map[string]bool{}
				r := start(t, b, vfs.NewMem(), 0, func(o *Options) { o.OnObject = func(x Object) { told[x.Key.String()] = true } })
				defer r.stop()
				wait(5 * time.Second)
				failed := b.fault.Add(rule)
				r.append("a")
				for failed.Hits() == 0 {
					wait(10 * time.Millisecond)
				}
				r.append("b") // the next object has both
				wait(time.Minute)
				two := 0
				for _, key := range b.keys(t, manifest.WALPrefix(testNode, testIncarnation)) {
					if k, err := manifest.ParseKey(key); err == nil && k.Kind == manifest.KindWAL {
						if two++; !told[key] {
							t.Errorf("nobody was told of %s", key)
						}
					}
				}
				if two < 2 {
					t.Fatal("no object was left behind")
				}
			})
		})
	}
}
