package wal

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// disk is a disk with so many bytes above its reserve.
type disk struct{ free atomic.Int64 }

var errReserve = errors.New("the reserve is reached")

func (d *disk) ok(bytes int64) error {
	if d.free.Load() < bytes {
		return errReserve
	}
	return nil
}

// The janitor leaves the disk's reserve alone: it makes no spare that would
// reach into it, ends the one that it is writing when somebody else takes the
// space, and the log goes on with files that grow. Under pressure it gives back
// all spares but one, and when there is space again makes new ones (I15).
func TestSparesLeaveTheReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, o := &disk{}, testOptions(newFS())
		o.PoolFiles, o.DiskOK = 4, d.ok
		d.free.Store(o.FileSize - 1)
		l := mustOpen(t, o)
		l.Hold("state", 1)
		fillFiles(t, l, 3)
		synctest.Wait()
		if s := l.Stats(); s.Spares != 0 {
			t.Fatalf("%d spares out of the reserve", s.Spares)
		}
		d.free.Store(100 * o.FileSize)
		fillFiles(t, l, 8) // each rotation without a spare asks for one more
		synctest.Wait()
		if s := l.Stats(); s.Spares < 2 {
			t.Fatalf("%d spares with space", s.Spares)
		}
		d.free.Store(-1)
		l.Reconsider()
		synctest.Wait()
		if s := l.Stats(); s.Spares != 1 {
			t.Fatalf("%d spares under pressure", s.Spares)
		}
		l.Hold("state", l.NextLSN()) // files that nobody needs are not kept either
		synctest.Wait()
		if s := l.Stats(); s.Spares != 1 || s.Files != 1 {
			t.Fatalf("%d spares and %d files under pressure", s.Spares, s.Files)
		}
		d.free.Store(100 * o.FileSize)
		fillFiles(t, l, 3)
		synctest.Wait()
		if s := l.Stats(); s.Spares == 0 {
			t.Fatal("no spare once there is space")
		}
		mustClose(t, l)
	})
}

// Another program takes the space while a spare is written: the spare is given
// up, nothing of it stays on disk, and appends go on (I15, B66).
func TestSpareIsGivenUpHalfWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		o := testOptions(newFS())
		o.FileSize, o.MaxGroup, o.MaxBytes = 4<<20, 1<<20, 1<<30
		o.DiskOK = func(bytes int64) error {
			if bytes > 0 && asked.Add(1) > 3 {
				return errReserve
			}
			return nil
		}
		l := mustOpen(t, o)
		synctest.Wait()
		if n := asked.Load(); n != 4 {
			t.Fatalf("asked %d times: the spare was not begun, or not given up", n)
		}
		names, err := o.FS.List(o.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, sparePrefix) {
				t.Fatalf("%s is left", name)
			}
		}
		put(t, l.Log, 1, 100)
		mustClose(t, l)
	})
}

// Out of descriptors at the moment when a file is due, the log stalls and goes on
// when there are some, without losing sight of its spares: they would stay on the
// disk, unused, until a restart (I12). One that does not open by itself is not
// used, and nobody waits for it.
func TestSparesThatDoNotOpen(t *testing.T) {
	for name, only := range map[string]string{"out of descriptors": "", "a damaged spare": "open"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := &faultFS{FS: newFS()}
				o := testOptions(fs)
				l := mustOpen(t, o)
				l.Hold("state", 1)
				fillFiles(t, l, 3)
				synctest.Wait()
				if s := l.Stats(); s.Spares == 0 {
					t.Fatal("no spare to begin with")
				}
				fs.set(func(op, path string) (action, error) {
					if strings.Contains(path, sparePrefix) && (op == only || only == "" && (op == "open" || op == "create")) {
						return fail, syscall.EMFILE
					}
					return pass, nil
				}, nil)
				var err error
				one := func() error {
					slot, err := l.Reserve(KindCommit, 0)
					if err == nil {
						slot.Done()
						err = l.WaitDurable(t.Context(), slot.LSN)
					}
					return err
				}
				for range 2 * o.FileSize / blockSize {
					if err = one(); err != nil {
						break
					}
				}
				if stalled := err != nil; stalled != (only == "") {
					t.Fatalf("appends without a spare that opens: %v", err)
				}
				time.Sleep(time.Minute) // tries again and again
				fs.set(nil, nil)
				time.Sleep(time.Minute)
				synctest.Wait()
				if err := one(); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				names, err := fs.List("wal")
				if err != nil {
					t.Fatal(err)
				}
				onDisk := 0
				for _, n := range names {
					if strings.HasPrefix(n, sparePrefix) {
						onDisk++
					}
				}
				if s := l.Stats(); onDisk != s.Spares {
					t.Errorf("%d spares are on the disk, the log knows of %d", onDisk, s.Spares)
				}
				mustClose(t, l)
			})
		})
	}
}
