package wal

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// outage makes writes to log files fail with err while it is on.
type outage struct {
	on  atomic.Bool
	err error
}

func (o *outage) decide(op, path string) (action, error) {
	if o.on.Load() && (op == "write" || op == "create") && isLogFile(path) {
		return fail, o.err
	}
	return pass, nil
}

// B53: while the disk is full nothing is acknowledged and nothing reserved,
// every wait ends at once, Err says why; when there is room again the log
// heals without a restart, and the frames that were caught are there. I1, I12.
func TestB53FullDisk(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		synctest.Test(t, func(t *testing.T) {
			mem := newFS()
			fs := &faultFS{FS: mem}
			l := mustOpen(t, testOptions(fs))
			want := []entry{put(t, l.Log, 1, 100)}
			out := &outage{err: cause}
			fs.set(out.decide, nil)
			out.on.Store(true)

			caught := stage(t, l.Log, 1, 100)
			late := stage(t, l.Log, 1, 100) // reserved before anybody knows
			want = append(want, caught, late)
			for _, wait := range []func(context.Context, uint64) error{l.WaitDurable, l.WaitWritten} {
				for _, e := range []entry{caught, late} {
					err := wait(t.Context(), e.lsn)
					if !errcode.Is(err, errcode.NotConfirmed) || !errors.Is(err, cause) {
						t.Fatalf("wait during %v: %v", cause, err)
					}
				}
			}
			_, err := l.Reserve(KindCommit, 1)
			var e *errcode.Error
			if !errcode.Is(err, errcode.Storage) || !asError(err, &e) || e.Wait <= 0 {
				t.Fatalf("reserve during %v: %v", cause, err)
			}
			if err := l.Err(); !errcode.Is(err, errcode.Storage) {
				t.Fatalf("Err during %v: %v", cause, err)
			}
			time.Sleep(time.Minute) // of the test's clock: many retries, no change
			if l.Durable() != want[0].lsn || l.NextLSN() != late.lsn+1 {
				t.Fatalf("durable %d, next %d", l.Durable(), l.NextLSN())
			}

			out.on.Store(false)
			time.Sleep(2 * retryMost)
			synctest.Wait()
			if err := l.Err(); err != nil {
				t.Fatalf("after the outage: %v", err)
			}
			if err := l.WaitDurable(t.Context(), late.lsn); err != nil {
				t.Fatal(err)
			}
			want = append(want, put(t, l.Log, 1, 100))
			mustClose(t, l)
			again := mustOpen(t, testOptions(clone(mem, 0, 1)))
			wantFrames(t, again.userFrames(), want)
			mustClose(t, again)
		})
	}
}

// A disk that fills up during a rotation heals the same way, and a close
// during the outage says what it could not write.
func TestFullDiskAtRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newFS()
		fs := &faultFS{FS: mem}
		o := testOptions(fs)
		o.PoolFiles = -1 // growing files only
		l := mustOpen(t, o)
		var want []entry
		for range 3 {
			want = append(want, put(t, l.Log, 1, 60<<10))
		}
		out := &outage{err: syscall.ENOSPC}
		fs.set(func(op, path string) (action, error) {
			if op == "create" {
				return out.decide(op, path)
			}
			return pass, nil
		}, nil)
		out.on.Store(true)
		e := stage(t, l.Log, 1, 100<<10)
		if err := l.WaitDurable(t.Context(), e.lsn); !errcode.Is(err, errcode.NotConfirmed) {
			t.Fatalf("wait: %v", err)
		}
		out.on.Store(false)
		time.Sleep(2 * retryMost)
		if err := l.WaitDurable(t.Context(), e.lsn); err != nil {
			t.Fatal(err)
		}
		want = append(want, e)
		out.err = syscall.EIO
		fs.set(out.decide, nil)
		out.on.Store(true)
		lost := stage(t, l.Log, 1, 10)
		if err := l.WaitWritten(t.Context(), lost.lsn); !errcode.Is(err, errcode.NotConfirmed) {
			t.Fatalf("wait: %v", err)
		}
		if err := l.Close(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("close with unwritten frames: %v", err)
		}
		again := mustOpen(t, testOptions(clone(mem, 0, 1)))
		wantFrames(t, again.userFrames(), want)
		mustClose(t, again)
	})
}

// A rotation that fails at any of its calls but a sync leaves no half-made
// file behind and is done again.
func TestRotationIsRetried(t *testing.T) {
	for _, op := range []string{"create", "open", "write", "rename"} {
		for _, pool := range []int{-1, 1} {
			synctest.Test(t, func(t *testing.T) {
				mem := newFS()
				fs := &faultFS{FS: mem}
				o := testOptions(fs)
				o.PoolFiles = pool
				l := mustOpen(t, o)
				want := []entry{put(t, l.Log, 1, 200<<10)}
				synctest.Wait()
				var failed atomic.Bool
				fs.set(func(now, path string) (action, error) {
					if now == op && failed.CompareAndSwap(false, true) {
						return fail, syscall.ENOSPC
					}
					return pass, nil
				}, nil)
				e := stage(t, l.Log, 1, 100<<10)
				err := l.WaitDurable(t.Context(), e.lsn)
				if failed.Load() && err != nil && !errcode.Is(err, errcode.NotConfirmed) {
					t.Fatalf("%s failed: %v", op, err)
				}
				time.Sleep(2 * retryMost)
				if err := l.WaitDurable(t.Context(), e.lsn); err != nil {
					t.Fatalf("%s failed once: %v", op, err)
				}
				want = append(want, e)
				mustClose(t, l)
				again := mustOpen(t, testOptions(clone(mem, 0, 1)))
				wantFrames(t, again.userFrames(), want)
				mustClose(t, again)
			})
		}
	}
}

// B65: a write that stops half way leaves no residue: the retry writes the
// same group at the same place, and after a restart exactly what was
// acknowledged is there.
func TestB65ShortWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newFS()
		fs := &faultFS{FS: mem}
		o := testOptions(fs)
		o.PoolFiles = -1 // the failure must meet the log, not a spare
		l := mustOpen(t, o)
		var want []entry
		for i := range 10 {
			if i == 4 {
				var once atomic.Bool
				fs.set(func(op, path string) (action, error) {
					if op == "write" && isLogFile(path) && once.CompareAndSwap(false, true) {
						return shorten, nil
					}
					return pass, nil
				}, nil)
				e := stage(t, l.Log, 1, 9000)
				if err := l.WaitDurable(t.Context(), e.lsn); !errcode.Is(err, errcode.NotConfirmed) {
					t.Fatalf("wait: %v", err)
				}
				half := mustOpen(t, testOptions(clone(mem, 50, 3))) // power loss now: the half is cut
				wantFrames(t, half.userFrames(), want)
				mustClose(t, half)
				time.Sleep(2 * retryFirst)
				want = append(want, e)
				continue
			}
			want = append(want, put(t, l.Log, 1, 9000))
		}
		l.Close()
		again := mustOpen(t, testOptions(clone(mem, 0, 1)))
		wantFrames(t, again.userFrames(), want)
		mustClose(t, again)
	})
}

// B63: one failed fsync, and a kernel that has forgotten the pages: neither
// that frame nor a later one is acknowledged until a restart, which finds all
// that was. I5.
func TestB63FailedSync(t *testing.T) {
	mem := newFS()
	fs := &faultFS{FS: mem}
	o := testOptions(fs)
	o.PoolFiles = -1 // the failure must meet the log, not a spare
	l := mustOpen(t, o)
	want := []entry{put(t, l.Log, 1, 100), put(t, l.Log, 1, 100)}
	var once atomic.Bool
	fs.set(func(op, path string) (action, error) {
		if op == "sync" && isLogFile(path) && once.CompareAndSwap(false, true) {
			return loseSyncs, syscall.EIO
		}
		return pass, nil
	}, nil)
	lost := stage(t, l.Log, 1, 100)
	after := stage(t, l.Log, 1, 100)
	for range 3 {
		for _, e := range []entry{lost, after} {
			err := l.WaitDurable(t.Context(), e.lsn)
			if !errcode.Is(err, errcode.NotConfirmed) || !errors.Is(err, syscall.EIO) {
				t.Fatalf("wait after a failed fsync: %v", err)
			}
		}
	}
	if _, err := l.Reserve(KindCommit, 1); !errcode.Is(err, errcode.Poisoned) {
		t.Fatalf("reserve: %v", err)
	}
	l.tick()
	if err := l.Err(); !errcode.Is(err, errcode.Poisoned) {
		t.Fatalf("Err: %v", err)
	}
	if l.Durable() != want[1].lsn {
		t.Fatalf("durable %d, want %d", l.Durable(), want[1].lsn)
	}
	if err := l.Close(); !errcode.Is(err, errcode.Poisoned) {
		t.Fatalf("close: %v", err)
	}
	again := mustOpen(t, testOptions(clone(mem, 0, 1)))
	wantFrames(t, again.userFrames(), want)
	mustClose(t, again)
}

// The failure may come while a file is finished, a new one made, or the
// directory synced: each poisons, and none loses an acknowledged frame.
func TestFailedSyncAtRotation(t *testing.T) {
	for nth := range 4 {
		mem := newFS()
		fs := &faultFS{FS: mem}
		o := testOptions(fs)
		o.PoolFiles = -1
		l := mustOpen(t, o)
		var want []entry
		for range 3 {
			want = append(want, put(t, l.Log, 1, 70<<10))
		}
		var syncs atomic.Int32
		fs.set(func(op, path string) (action, error) {
			if op == "sync" && int(syncs.Add(1)) == nth+1 {
				return loseSyncs, syscall.EIO
			}
			return pass, nil
		}, nil)
		write := stage(t, l.Log, 1, 10)
		if err := l.WaitWritten(t.Context(), write.lsn); err != nil {
			t.Fatal(err) // so that the rotation has something to sync
		}
		e := stage(t, l.Log, 1, 70<<10)
		if err := l.WaitDurable(t.Context(), e.lsn); !errcode.Is(err, errcode.NotConfirmed) {
			t.Fatalf("sync %d failed: %v", nth, err)
		}
		if err := l.Err(); !errcode.Is(err, errcode.Poisoned) {
			t.Fatalf("sync %d failed: %v", nth, err)
		}
		l.Close()
		for pct := range 3 {
			again := mustOpen(t, testOptions(clone(mem, 50*pct, 1)))
			if got := again.userFrames(); len(got) < len(want) {
				t.Fatalf("sync %d failed: %v", nth, lsns(got))
			} else {
				wantFrames(t, got[:len(want)], want)
			}
			mustClose(t, again)
		}
	}
}

// Frames of many kinds of wrong sizes are refused, and nothing is reserved.
func TestReserveRefuses(t *testing.T) {
	l := mustOpen(t, testOptions(newFS()))
	for _, c := range []struct {
		kind Kind
		n    int
		want errcode.Code
	}{
		{0, 1, errcode.InvalidArgument}, {KindMark, 16, errcode.InvalidArgument}, {10, 1, errcode.InvalidArgument},
		{KindCommit, -1, errcode.InvalidArgument}, {KindCommit, 256 << 10, errcode.TooLarge}, {KindCommit, math.MaxInt, errcode.TooLarge},
	} {
		if _, err := l.Reserve(c.kind, c.n); !errcode.Is(err, c.want) {
			t.Errorf("%v of %d bytes: %v", c.kind, c.n, err)
		}
	}
	half := Want{KindCommit, 130 << 10}
	if err := l.ReserveAll(make([]Slot, 2), []Want{half, half}); !errcode.Is(err, errcode.TooLarge) {
		t.Errorf("two halves: %v", err)
	}
	if err := l.ReserveAll(nil, nil); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("nothing: %v", err)
	}
	if err := l.WaitDurable(t.Context(), 1); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("wait for what nobody reserved: %v", err)
	}
	if l.NextLSN() != 1 {
		t.Errorf("next LSN %d after refusals", l.NextLSN())
	}
	most := l.o.MaxGroup - groupHeaderSize - frameHeaderSize
	put(t, l.Log, 1, most)
	mustClose(t, l)
	if _, err := l.Reserve(KindCommit, 1); !errcode.Is(err, errcode.Closed) {
		t.Errorf("after close: %v", err)
	}
}

// A wait ends with its context, even behind a sync that hangs. I14.
func TestWaitEndsWithContext(t *testing.T) {
	mem := newFS()
	fs := &faultFS{FS: mem}
	o := testOptions(fs)
	o.PoolFiles = -1 // no other syncs
	l := mustOpen(t, o)
	hang, entered := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	var syncs atomic.Int32
	fs.set(func(op, path string) (action, error) {
		if op == "sync" && isLogFile(path) && once.CompareAndSwap(false, true) {
			close(entered)
			<-hang
		}
		return pass, nil
	}, func(op, path string) {
		if op == "sync" {
			syncs.Add(1)
		}
	})
	first := stage(t, l.Log, 1, 10)
	led := make(chan error, 1)
	go func() { led <- l.WaitDurable(context.Background(), first.lsn) }()
	<-entered
	second := stage(t, l.Log, 1, 10)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for _, lsn := range []uint64{first.lsn, second.lsn} {
		if err := l.WaitDurable(ctx, lsn); !errors.Is(err, context.DeadlineExceeded) || !errcode.Is(err, errcode.NotConfirmed) {
			t.Errorf("LSN %d: %v", lsn, err)
		}
	}
	// A write overlaps the running sync.
	if err := l.WaitWritten(t.Context(), second.lsn); err != nil {
		t.Error(err)
	}
	if d := l.Durable(); d != 0 {
		t.Errorf("durable %d while the first sync runs", d)
	}
	close(hang)
	if err := <-led; err != nil {
		t.Error(err)
	}
	// What was written during that sync is not covered by it, only by one more.
	if err := l.WaitDurable(t.Context(), second.lsn); err != nil {
		t.Error(err)
	}
	if n := syncs.Load(); n < 2 {
		t.Errorf("LSN %d is durable after %d syncs", second.lsn, n)
	}
	mustClose(t, l)
}
