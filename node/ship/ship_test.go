package ship

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/wal"
)

// What is shipped is the log: in LSN order, without a hole, equal frames, marks
// that only rise, whatever the sizes and the pauses (commits, group entries and
// the log's own marks).
func TestShipsTheLogInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newBucket(), vfs.NewMem(), 0, func(o *Options) { o.ObjectBytes = 64 << 10 })
		defer r.stop()
		rng := rand.New(rand.NewPCG(1, 2))
		last := uint64(0)
		for i := range 300 {
			if rng.IntN(2) == 0 {
				last = r.append(strings.Repeat("g", rng.IntN(5000)))
			} else {
				last = r.appendCommit(int64(i), bytes.Repeat([]byte{byte(i)}, rng.IntN(20000)))
			}
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
		}
		if err := r.archived(last, 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		r.sameLog()
		if !slices.IsSorted(r.marks) || r.marks[len(r.marks)-1] < last {
			t.Fatalf("marks %v, last frame %d", r.marks, last)
		}
		if n := r.bucket.count.Count("list"); n != 2 {
			t.Fatalf("%d lists, want the one of the start and that of the answer", n)
		}
	})
}

// The answer of a put is lost: the object counts after it was read and found
// equal, also when more frames came meanwhile and the next object overlaps it.
func TestLostAnswerOfAPut(t *testing.T) {
	for _, more := range []bool{false, true} {
		t.Run(fmt.Sprintf("more=%v", more), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, newBucket(), vfs.NewMem(), 0, nil)
				defer r.stop()
				wait(3 * time.Second)
				lost := r.bucket.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "*.ship", Times: 1, Do: fault.LoseAnswer})
				lsn := r.append("one")
				for lost.Hits() == 0 {
					wait(10 * time.Millisecond)
				}
				if more {
					lsn = r.append("two")
				}
				if err := r.archived(lsn, 1, 10*time.Second); err != nil {
					t.Fatal(err)
				}
				r.sameLog()
				if len(r.fences()) != 0 {
					t.Fatalf("fenced: %v", r.fences())
				}
			})
		})
	}
}

// An object with other frames under the key that is next means that this
// directory is an old copy: it is fenced, says so once, answers nothing, and
// the object stays as it is.
func TestAnotherObjectUnderTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		// Somebody else's log of the same incarnation, with other frames.
		other := start(t, newBucket(), vfs.NewMem(), 0, nil)
		other.append("theirs")
		wait(2 * time.Second)
		taken := ""
		for _, k := range other.bucket.keys(t, "wal/") {
			if taken == "" && strings.HasSuffix(k, ".ship") {
				taken = k
			}
		}
		theirs := other.bucket.get(t, taken)
		other.stop()

		r := start(t, b, vfs.NewMem(), 0, nil)
		defer r.stop()
		b.put(t, taken, theirs) // it arrives after the list of the start
		lsn := r.append("mine")
		wait(2 * time.Second)
		err := r.archived(lsn, 0, 10*time.Second)
		if !errcode.Is(err, errcode.Fenced) || !strings.Contains(err.Error(), "older than the archive") {
			t.Fatalf("answer: %v", err)
		}
		if n := len(r.fences()); n != 1 {
			t.Fatalf("OnFenced was called %d times", n)
		}
		if !bytes.Equal(b.get(t, taken), theirs) {
			t.Fatal("the object was overwritten")
		}
		calls := b.count.Count("put")
		r.append("later")
		wait(time.Hour)
		if got := b.count.Count("put"); got != calls || r.ship.Status().Shipped != 0 {
			t.Fatalf("a fenced shipper goes on: %d puts, mark %d", got-calls, r.ship.Status().Shipped)
		}
	})
}

// Bytes under the key that are no object, or say they are another range, count
// for nothing: no answer, no fence (it may be the store's fault), an error in
// the status.
func TestDamagedObjectUnderTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		// One group is one object, so that a repeated put has the same key.
		r := start(t, b, vfs.NewMem(), 0, func(o *Options) { o.ObjectBytes = 1 })
		defer r.stop()
		r.append("first")
		wait(5 * time.Second)
		mark := r.ship.Status().Shipped
		good := b.get(t, manifest.WALKey(testNode, testIncarnation, 1, 2))
		for i, bad := range [][]byte{nil, good[:len(good)/2], good} {
			lost := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "*.ship", Times: 1, Do: fault.Fail})
			lsn := r.append(fmt.Sprint("more ", i))
			for lost.Hits() == 0 {
				wait(time.Millisecond)
			}
			key := manifest.WALKey(testNode, testIncarnation, lsn, lsn+1)
			if lsn != mark+1 {
				t.Fatalf("frame %d behind mark %d", lsn, mark)
			}
			b.put(t, key, bad)
			if err := r.archived(lsn, 0, 5*time.Second); !errcode.Is(err, errcode.NotConfirmed) {
				t.Fatalf("%d: answer %v", i, err)
			}
			if st := r.ship.Status(); st.Shipped != mark || !strings.Contains(st.LastError, key) {
				t.Fatalf("%d: %+v, want an error about %s", i, st, key)
			}
			if err := b.fault.Lose(context.Background(), key); err != nil {
				t.Fatal(err)
			}
			if err := r.archived(lsn, 0, time.Minute); err != nil {
				t.Fatal(err)
			}
			wait(5 * time.Second)
			mark = r.ship.Status().Shipped
		}
		r.sameLog()
	})
}

// FENCE appears between the put and the check: the object is in the bucket, and
// yet nothing is answered, because whoever fenced may have listed before it
// came. It is reported once.
func TestFenceBetweenPutAndCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		r := start(t, b, vfs.NewMem(), 0, nil)
		defer r.stop()
		wait(time.Second)
		hold := make(chan struct{})
		check := b.fault.Add(fault.Rule{Ops: []string{fault.Get}, Key: "*/FENCE", Wait: hold})
		lsn := r.append("x")
		answer := make(chan error, 1)
		go func() { answer <- r.archived(lsn, 0, time.Minute) }()
		for check.Hits() == 0 {
			wait(10 * time.Millisecond)
		}
		if len(b.shippedFrames(t)) == 0 {
			t.Fatal("the check came before the put")
		}
		b.fence(t)
		close(hold)
		if err := <-answer; !errcode.Is(err, errcode.Fenced) {
			t.Fatalf("answer: %v", err)
		}
		wait(time.Hour)
		if n := len(r.fences()); n != 1 || r.ship.Status().Shipped != 0 || !r.ship.Status().Fenced {
			t.Fatalf("OnFenced %d times, status %+v", n, r.ship.Status())
		}
		if err := r.archived(1, 0, time.Second); !errcode.Is(err, errcode.Fenced) {
			t.Fatalf("a fenced shipper answers %v", err)
		}
	})
}

// Only the store's own "this key does not exist" is absence. A FENCE that
// cannot be read, whatever the reason, moves nothing and answers nothing; a 404
// of another kind reaches the shipper as denied or internal.
func TestFenceThatCannotBeReadIsNotAbsent(t *testing.T) {
	for _, code := range []errcode.Code{
		errcode.Denied, errcode.Transient, errcode.Throttled, errcode.Internal, errcode.Canceled,
		errcode.ArchiveUnavailable, errcode.Corrupt, errcode.InvalidArgument,
	} {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				r := start(t, b, vfs.NewMem(), 0, nil)
				defer r.stop()
				wait(time.Second)
				b.fault.Add(fault.Rule{Ops: []string{fault.Get}, Key: "*/FENCE", Do: fault.Fail, Err: errcode.New(code, "404 or so")})
				lsn := r.append("x")
				if err := r.archived(lsn, 0, time.Minute); !errcode.Is(err, errcode.NotConfirmed) || !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("answer: %v", err)
				}
				if st := r.ship.Status(); st.Shipped != 0 || st.LastError == "" || st.Fenced {
					t.Fatalf("status %+v", st)
				}
				b.fault.Clear()
				if err := r.archived(lsn, 0, time.Minute); err != nil {
					t.Fatal(err)
				}
				r.sameLog()
				synctest.Wait() // the answer comes before the step's end, which clears the error
				if st := r.ship.Status(); st.LastError != "" {
					t.Fatalf("status %+v after it works again", st)
				}
			})
		})
	}
}

// lateAnswers asks the store at once and gives the answer when hold lets it:
// the answer may be old by then.
type lateAnswers struct {
	objstore.Store
	hold func(op, key string)
}

func (s lateAnswers) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	body, info, err := s.Store.Get(ctx, key)
	s.hold("get", key)
	return body, info, err
}

// A fence check that began before an export stood proves nothing about it: the
// one who takes over may have fenced and listed the exports in between. Neither
// a running check nor one that ended before counts for the answer.
func TestWaitArchivedChecksTheFenceAfterTheExport(t *testing.T) {
	t.Run("running check", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBucket()
			hold, asked := make(chan struct{}), make(chan struct{}, 100)
			armed := false
			r := start(t, b, vfs.NewMem(), 0, func(o *Options) {
				o.Store = lateAnswers{b.count, func(_, key string) {
					if armed && strings.HasSuffix(key, "/FENCE") {
						asked <- struct{}{}
						<-hold
					}
				}}
			})
			defer r.stop()
			lsn := r.append("x")
			wait(5 * time.Second)
			export := make(chan struct{})
			b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "meta/*", Wait: export})
			index := r.meta.change()
			armed = true
			answer := make(chan error, 1)
			go func() { answer <- r.archived(lsn, index, time.Minute) }()
			r.append("y") // makes a ship, and so a check
			<-asked       // which was answered "absent", and that answer is on its way
			b.fence(t)    // who takes over fences and lists, and sees no such export
			close(export)
			synctest.Wait()
			if len(b.keys(t, "meta/")) != 2 {
				t.Fatal("the export is not there")
			}
			close(hold)
			if err := <-answer; !errcode.Is(err, errcode.Fenced) {
				t.Fatalf("answer: %v", err)
			}
		})
	})
	t.Run("earlier check", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBucket()
			r := start(t, b, vfs.NewMem(), 0, nil)
			defer r.stop()
			lsn := r.append("x")
			wait(15 * time.Second)
			export := make(chan struct{})
			held := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "meta/*", Wait: export})
			index := r.meta.change()
			for held.Hits() == 0 {
				wait(time.Millisecond)
			}
			b.fence(t)
			close(export)
			synctest.Wait()
			if st := r.ship.Status(); st.Exported != index || st.Shipped < lsn || st.Fenced {
				t.Fatalf("status %+v", st)
			}
			if err := r.archived(lsn, index, time.Minute); !errcode.Is(err, errcode.Fenced) {
				t.Fatalf("answer: %v", err)
			}
		})
	})
	t.Run("export late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBucket()
			r := start(t, b, vfs.NewMem(), 0, nil)
			defer r.stop()
			lsn := r.append("x")
			wait(5 * time.Second)
			fails := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "meta/*", Do: fault.Fail})
			index := r.meta.change()
			if err := r.archived(lsn, index, 30*time.Second); !errcode.Is(err, errcode.NotConfirmed) {
				t.Fatalf("answer without the export: %v", err)
			}
			if st := r.ship.Status(); st.LastError == "" {
				t.Fatal("the status does not say that exports fail")
			}
			if n := fails.Hits(); n < 3 || n > 30 {
				t.Fatalf("%d tries to export in 30 s", n)
			}
			fails.Remove()
			if err := r.archived(lsn, index, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(b.count.Transcript(), "\n")
			put := slices.IndexFunc(lines, func(l string) bool {
				return strings.HasPrefix(l, "put "+manifest.MetaKey(1, index)) && strings.HasSuffix(l, ": ok")
			})
			get := slices.IndexFunc(lines[put:], func(l string) bool { return strings.HasPrefix(l, "get ") && strings.Contains(l, "/FENCE: not_found") })
			if put < 0 || get < 0 {
				t.Fatalf("no check behind the export:\n%s", strings.Join(lines, "\n"))
			}
		})
	})
}

// The store is down for an hour, from the start or later: the RPO grows with
// the clock, requests come at the rate of the backoff, and afterwards everything
// is shipped without a hole.
func TestStoreDownForAnHour(t *testing.T) {
	for _, early := range []bool{true, false} {
		t.Run(fmt.Sprintf("from the start=%v", early), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				var down *fault.Handle
				if early {
					down = b.fault.Down(errcode.Transient)
				}
				r := start(t, b, vfs.NewMem(), 0, func(o *Options) { o.ObjectBytes = 32 << 10 })
				defer r.stop()
				if !early {
					r.append("before")
					wait(10 * time.Second)
					down = b.fault.Down(errcode.Transient)
				}
				b.count.Reset()
				from := r.ship.Status().Shipped
				lsn := uint64(0)
				for i := range 600 {
					lsn = r.append(fmt.Sprintf("%d %s", i, strings.Repeat("z", 1000)))
					wait(6 * time.Second)
				}
				st := r.ship.Status()
				if st.RPO < 59*time.Minute || st.RPO > 61*time.Minute || st.LastError == "" || st.Shipped != from {
					t.Fatalf("status after an hour: %+v", st)
				}
				requests := b.count.Count("put") + b.count.Count("get") + b.count.Count("list")
				if requests < 100 || requests > 1500 {
					t.Fatalf("%d requests in an hour without an answer", requests)
				}
				if err := r.archived(lsn, 0, time.Second); !errcode.Is(err, errcode.NotConfirmed) {
					t.Fatalf("answer: %v", err)
				}
				down.Remove()
				if err := r.archived(lsn, 1, 2*time.Minute); err != nil {
					t.Fatal(err)
				}
				wait(3 * time.Second)
				r.sameLog()
				if st := r.ship.Status(); st.RPO != 0 || st.LastError != "" || st.Shipped < lsn {
					t.Fatalf("status after it caught up: %+v", st)
				}
			})
		})
	}
}

// While it catches up, the RPO does not pretend that what is left is young.
func TestRPOWhileCatchingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		r := start(t, b, vfs.NewMem(), 0, func(o *Options) { o.ObjectBytes = 8 << 10 })
		defer r.stop()
		wait(time.Second)
		down := b.fault.Down(errcode.Transient)
		for range 50 {
			r.append(strings.Repeat("z", 4000))
			wait(time.Second)
		}
		hold := make(chan struct{})
		held := b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "*.ship", Skip: 2, Times: 1, Wait: hold})
		down.Remove()
		for held.Hits() == 0 {
			wait(100 * time.Millisecond)
		}
		if st := r.ship.Status(); st.Shipped == 0 || st.RPO < 40*time.Second {
			t.Fatalf("two objects shipped of fifty seconds: %+v", st)
		}
		close(hold)
		wait(time.Minute)
		if st := r.ship.Status(); st.RPO != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// A restart finds the contiguous end with one LIST from the known mark, also
// when the mark is old, and ships what is missing.
func TestRestartFindsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, fs := newBucket(), vfs.NewMem()
		r := start(t, b, fs, 0, nil)
		middle := uint64(0)
		for i := range 20 {
			r.append(fmt.Sprint(i))
			wait(1100 * time.Millisecond)
			if i == 10 {
				middle = r.ship.Status().Shipped
			}
		}
		r.stop()
		for _, mark := range []uint64{middle, 0} {
			b.count.Reset()
			r = start(t, b, fs, mark, nil)
			wait(time.Millisecond)
			if n := b.count.Count("list"); n != 1 {
				t.Fatalf("mark %d: %d lists", mark, n)
			}
			lsn := r.append("again")
			if err := r.archived(lsn, 1, time.Minute); err != nil {
				t.Fatal(err)
			}
			r.sameLog()
			r.stop()
		}
	})
}

// An object in the middle was lost: a start goes on before the hole and closes
// it, and what stands behind it is compared, not overwritten.
func TestRestartClosesAHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, fs := newBucket(), vfs.NewMem()
		r := start(t, b, fs, 0, nil)
		for i := range 12 {
			r.append(fmt.Sprint(i))
			wait(1100 * time.Millisecond)
		}
		r.stop()
		keys := slices.DeleteFunc(b.keys(t, "wal/"), func(k string) bool { return !strings.HasSuffix(k, ".ship") })
		if err := b.fault.Lose(context.Background(), keys[len(keys)/2]); err != nil {
			t.Fatal(err)
		}
		before := b.content(t)
		r = start(t, b, fs, 0, nil)
		defer r.stop()
		wait(30 * time.Second)
		lsn := r.append("end")
		if err := r.archived(lsn, 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		r.sameLog()
		after := b.content(t)
		for k, v := range before {
			if after[k] != v {
				t.Fatalf("%s changed", k)
			}
		}
	})
}

func copyDir(t testing.TB, from vfs.FS) vfs.FS {
	t.Helper()
	to := vfs.NewMem()
	if ok, err := vfs.Clone(from, to, "wal", "wal"); err != nil || !ok {
		t.Fatal(ok, err)
	}
	return to
}

// stuckStates captures what never becomes durable: the log's disk takes nothing.
type stuckStates struct{ log *wal.Log }

func (s stuckStates) Capture() (*archive.State, error) {
	next := s.log.NextLSN()
	return &archive.State{LSN: next + 100, ReplayFrom: next}, nil
}

// A node whose log cannot be written, and that has a state object to write, hears
// of its fence all the same: it may still answer reads (I8).
func TestFenceIsHeardWhileTheLogIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		r := start(t, b, vfs.NewMem(), 0, func(o *Options) {
			o.States, o.StateInterval = stuckStates{o.Log.(*wal.Log)}, time.Second
		})
		defer r.stop()
		r.append("a")
		wait(5 * time.Second)
		b.fence(t)
		wait(time.Minute)
		if f := r.fences(); len(f) != 1 {
			t.Fatalf("the node heard %v", f)
		}
		if keys := b.keys(t, "state/"); len(keys) > 0 {
			t.Fatalf("states ahead of the log: %v", keys)
		}
	})
}

// A directory that is a copy from before is refused, whether it ends below what
// the archive knows of it or has grown past that with other frames while the
// archive was away. Nothing is written.
func TestOldCopyIsRefused(t *testing.T) {
	for _, grown := range []bool{false, true} {
		t.Run(fmt.Sprintf("grown=%v", grown), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, fs := newBucket(), vfs.NewMem()
				r := start(t, b, fs, 0, nil)
				r.append("a")
				wait(3 * time.Second)
				mark := r.ship.Status().Shipped
				old := copyDir(t, fs)
				for range 5 {
					r.append("later")
					wait(2 * time.Second)
				}
				r.stop()
				before := b.content(t)

				if grown {
					b.fault.Down(errcode.Transient)
				}
				r = start(t, b, old, mark, nil)
				defer r.stop()
				if grown {
					for range 30 {
						r.append("other")
					}
					b.fault.Clear()
				}
				err := r.archived(r.log.NextLSN()-1, 1, time.Minute)
				if !errcode.Is(err, errcode.Fenced) || !strings.Contains(err.Error(), "older than the archive") || !strings.Contains(err.Error(), "tidemark restore") {
					t.Fatalf("answer: %v", err)
				}
				wait(time.Hour)
				if len(r.fences()) != 1 || !maps.Equal(before, b.content(t)) {
					t.Fatal("an old copy wrote into the archive")
				}
			})
		})
	}
}

// Two processes run on copies of one directory. They ship other frames under
// one key, so only one is answered, and the other one is fenced.
func TestTwoCopiesOfOneDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, fs := newBucket(), vfs.NewMem()
		r := start(t, b, fs, 0, nil)
		r.append("common")
		wait(3 * time.Second)
		mark := r.ship.Status().Shipped
		r.stop()
		one := start(t, b, copyDir(t, fs), mark, nil)
		defer one.stop()
		two := start(t, b, copyDir(t, fs), mark, nil)
		defer two.stop()
		answers := make(chan error, 2)
		for i, p := range []*rig{one, two} {
			go func() {
				lsn := p.stage(wal.KindGroup, fmt.Appendf(nil, "process %d", i))
				answers <- errors.Join(p.log.WaitDurable(t.Context(), lsn), p.archived(lsn, 1, time.Minute))
			}()
		}
		var good, fenced int
		for range 2 {
			switch err := <-answers; {
			case err == nil:
				good++
			case errcode.Is(err, errcode.Fenced):
				fenced++
			default:
				t.Fatal(err)
			}
		}
		if good != 1 || fenced != 1 {
			t.Fatalf("%d answered archived, %d fenced", good, fenced)
		}
	})
}

// An archive of another cluster, or one without the claim of this generation,
// is left exactly as it is: no OPEN, no export (it would be taken for that
// cluster's newest), no WAL.
func TestForeignArchiveIsNotTouched(t *testing.T) {
	for name, prepare := range map[string]func(*bucket, *Options){
		"other cluster": func(b *bucket, _ *Options) {
			b.put(t, manifest.ClusterKey(1), archive.Claim{ClusterID: "00000000000000ff", Generation: 1}.Encode())
		},
		"no claim": func(_ *bucket, o *Options) { o.ClusterGeneration = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				var before map[string]string
				r := start(t, b, vfs.NewMem(), 0, func(o *Options) { prepare(b, o); before = b.content(t) })
				r.append("x")
				wait(time.Minute)
				if !errcode.Is(r.ship.Fenced(), errcode.Conflict) || len(r.fences()) != 1 {
					t.Fatalf("%v", r.fences())
				}
				r.stop()
				if err := r.ship.Finish(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !maps.Equal(before, b.content(t)) {
					t.Fatalf("the archive holds %v", b.keys(t, ""))
				}
			})
		})
	}
}

// A node that stops before it could register, because the store was down,
// writes nothing on its way out either.
func TestFinishRegistersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		b.put(t, manifest.ClusterKey(1), archive.Claim{ClusterID: "00000000000000ff", Generation: 1}.Encode())
		before := b.content(t)
		down := b.fault.Down(errcode.Transient)
		r := start(t, b, vfs.NewMem(), 0, nil)
		r.append("x")
		wait(time.Minute)
		r.stop()
		down.Remove()
		if err := r.ship.Finish(t.Context()); !errcode.Is(err, errcode.Conflict) {
			t.Fatalf("Finish: %v", err)
		}
		if !maps.Equal(before, b.content(t)) {
			t.Fatalf("the archive holds %v", b.keys(t, ""))
		}
	})
}

// A later cluster generation ends an idle node within the distance of its
// checks, and ends its exports, also those that were failing.
func TestLaterClusterEndsAnIdleNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		r := start(t, b, vfs.NewMem(), 0, nil)
		defer r.stop()
		wait(30 * time.Second)
		b.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "meta/*", Do: fault.Fail})
		r.meta.change()
		wait(time.Second)
		b.put(t, manifest.ClusterKey(2), archive.Claim{ClusterID: testCluster, Generation: 2, Node: "n9"}.Encode())
		wait(idleCheck + time.Second)
		if err := r.ship.Fenced(); !errcode.Is(err, errcode.Fenced) || !strings.Contains(err.Error(), "node n9") {
			t.Fatalf("%v", err)
		}
		wait(maxBackoff)
		puts := b.count.Count("put")
		r.meta.change()
		wait(time.Hour)
		if n := b.count.Count("put") - puts; n != 0 || len(r.fences()) != 1 {
			t.Fatalf("%d puts after the fence, OnFenced %d times", n, len(r.fences()))
		}
	})
}

// A state object is put only after all that it knows was shipped (I16), also
// when the log's objects fail meanwhile and when the capture holds what is only
// staged.
func TestStateObjectsFollowTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		checked := 0
		noted := map[string]bool{}
		r := start(t, b, vfs.NewMem(), 0, func(o *Options) {
			o.StateInterval = 5 * time.Second
			o.OnObject = func(x Object) {
				if x.Key.Kind == manifest.KindState {
					noted[x.Key.String()] = true
				}
			}
			o.States = states{o.Log.(*wal.Log)}
			o.Store = onPut{b.count, func(key string) {
				k, err := manifest.ParseKey(key)
				if err != nil || k.Kind != manifest.KindState {
					return
				}
				if n := len(b.shippedFrames(t)); uint64(n) < k.First {
					t.Errorf("%s is put, %d frames are shipped", key, n)
				}
				checked++
			}}
		})
		rng := rand.New(rand.NewPCG(3, 4))
		b.fault.Add(fault.Rule{Ops: []string{fault.Put, fault.Get}, Chance: 0.15, Do: fault.LoseAnswer})
		for i := range 400 {
			lsn := r.stage(wal.KindGroup, fmt.Append(nil, i))
			if rng.IntN(3) == 0 {
				if err := r.log.WaitDurable(t.Context(), lsn); err != nil {
					t.Fatal(err)
				}
			} else if err := r.log.WaitWritten(t.Context(), lsn); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		}
		b.fault.Clear()
		wait(10 * time.Second)
		r.sameLog()
		r.stop()
		if checked < 5 {
			t.Fatalf("only %d state objects", checked)
		}
		for _, key := range b.keys(t, "state/") {
			// What deletes the log asks what every state object needs: it has to
			// know of each one, also when the answer to its put was lost (I7).
			if !noted[key] {
				t.Errorf("%s stands in the archive and nobody was told", key)
			}
			st, err := archive.DecodeState(b.get(t, key))
			if err != nil || st.Node != testNode || st.Incarnation != testIncarnation {
				t.Fatalf("%s: %+v %v", key, st, err)
			}
		}
	})
}

// onPut sees every put before it is made.
type onPut struct {
	objstore.Store
	see func(key string)
}

func (s onPut) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	s.see(key)
	return s.Store.Put(ctx, key, body, size, o)
}

// Finish ships the rest and writes a last state object.
func TestFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		fs := vfs.NewMem()
		r := start(t, b, fs, 0, func(o *Options) { o.States = states{o.Log.(*wal.Log)} })
		r.append("a")
		wait(3 * time.Second)
		r.stop()
		log := openLog(t, fs)
		defer func() { _ = log.Close() }()
		o := r.opts
		o.Log, o.States, o.Shipped = log, states{log}, r.ship.Status().Shipped
		s := New(o)
		slot, err := log.Reserve(wal.KindGroup, 4)
		if err != nil {
			t.Fatal(err)
		}
		slot.Done()
		if err := log.WaitDurable(t.Context(), slot.LSN); err != nil {
			t.Fatal(err)
		}
		if err := s.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		last := log.Durable()
		if st := s.Status(); st.Shipped != last || st.RPO != 0 {
			t.Fatalf("%+v, log ends at %d", st, last)
		}
		keys := b.keys(t, "state/")
		if want := manifest.StateKey(testNode, testIncarnation, last); len(keys) != 1 || keys[0] != want {
			t.Fatalf("%v, want %s", keys, want)
		}
	})
}

// Whatever the store hangs in, Run ends with its context, and a waiter with
// its own.
func TestStopWhileTheStoreHangs(t *testing.T) {
	for _, pattern := range []string{"cluster/*", "*/OPEN", "wal/*", "*.ship", "*/FENCE", "meta/*"} {
		t.Run(pattern, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				hangs := b.fault.Add(fault.Rule{Key: pattern, Do: fault.Hang})
				r := start(t, b, vfs.NewMem(), 0, nil)
				lsn := r.append("x")
				if err := r.archived(lsn, 1, time.Minute); !errcode.Is(err, errcode.NotConfirmed) {
					t.Fatalf("answer: %v", err)
				}
				begin := time.Now()
				r.stop()
				if hangs.Hits() == 0 || time.Since(begin) > time.Second {
					t.Fatalf("%d calls hung, the stop took %v", hangs.Hits(), time.Since(begin))
				}
			})
		})
	}
}
