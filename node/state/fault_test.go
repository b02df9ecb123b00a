package state

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// failing returns a database on a disk that fails as cause says, for the kinds
// of calls that match, while the switch is on.
func failing(t *testing.T, fs vfs.FS, cause error, match func(errorfs.OpKind) bool) (*DB, *atomic.Bool) {
	t.Helper()
	on := new(atomic.Bool)
	db := mustOpen(t, errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && match(op.Kind) {
			return cause
		}
		return nil
	})))
	db.Patient()
	return db, on
}

func writes(k errorfs.OpKind) bool {
	return k == errorfs.OpFileWrite || k == errorfs.OpFileWriteAt || k == errorfs.OpCreate || k == errorfs.OpReuseForWrite ||
		k == errorfs.OpRename || k == errorfs.OpLink
}

func syncs(k errorfs.OpKind) bool { return k == errorfs.OpFileSync || k == errorfs.OpFileSyncData }

// everything is a crash of the process alone: nothing is lost.
func everything() vfs.CrashCloneCfg {
	return vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))}
}

// eventually fails unless ok becomes true in time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}

// A disk that is full, broken, read-only or out of descriptors for a while: a
// commit waits, the database says why, the process goes on, and when the disk
// takes writes again so does the database, with every batch in order, over a
// restart too. It ended the process before (B155, B60, B61).
func TestFailedWritesHeal(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO, syscall.EROFS, syscall.EMFILE} {
		t.Run(cause.Error(), func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			db, on := failing(t, fs, cause, writes)
			commit(t, db, 1, 10)
			for n := 2; n < 6; n++ {
				on.Store(true)
				done := make(chan struct{})
				go func() {
					defer close(done)
					// Enough to fill memtables, so that flushes, new logs and
					// the manifest meet the disk as well.
					commit(t, db, n, 1<<20)
				}()
				eventually(t, "the database says what it waits for", func() bool {
					err := db.Err()
					return errcode.Is(err, errcode.Storage) && errors.Is(err, cause)
				})
				if got := load(t, db); len(got) != 3 { // reads go on
					t.Fatalf("%d partitions", len(got))
				}
				on.Store(false)
				<-done
				eventually(t, "the database is well", func() bool { return db.Err() == nil })
			}
			crashed := mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}))
			if n := whole(t, crashed); n != 5 {
				t.Fatalf("after a power loss: batch %d", n)
			}
			mustClose(t, crashed)
			mustClose(t, db)
		})
	}
}

// A sync that failed is final: no commit is answered any more, readers of Err
// hear it, nobody hangs, the process goes on, and a restart has what was
// committed before (I5).
func TestFailedSyncIsFinal(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db, on := failing(t, fs, syscall.EIO, syncs)
	commit(t, db, 1, 10)
	on.Store(true)
	for i := range 3 {
		b := db.NewBatch()
		b.PutMarks(Marks{Durable: 2})
		if err := b.Commit(); !errcode.Is(err, errcode.Poisoned) || !strings.Contains(err.Error(), "restart") {
			t.Fatalf("commit %d: %v", i, err)
		}
		on.Store(false) // the disk would take the next one
	}
	if err := db.Err(); !errcode.Is(err, errcode.Poisoned) {
		t.Fatalf("%v", err)
	}
	if _, err := db.Load(); !errcode.Is(err, errcode.Poisoned) {
		t.Fatalf("load: %v", err)
	}
	if err := db.Close(); !errcode.Is(err, errcode.Poisoned) {
		t.Fatalf("close: %v", err)
	}
	after := mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	defer mustClose(t, after)
	if n := whole(t, after); n != 1 {
		t.Fatalf("batch %d", n)
	}
}

// A stop on a full disk ends: the commit that waits fails, and the next start
// has what was committed before (I14).
func TestStopOnAFullDisk(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db, on := failing(t, fs, syscall.ENOSPC, writes)
	commit(t, db, 1, 10)
	on.Store(true)
	done := make(chan error, 1)
	go func() {
		b := db.NewBatch()
		b.PutMarks(Marks{Durable: 1}) // the same again: it may be there or not
		done <- b.Commit()
	}()
	eventually(t, "the commit waits", func() bool { return db.Err() != nil })
	db.Hasten()
	if err := <-done; err == nil {
		t.Fatal("a commit on a full disk is answered")
	}
	if err := db.Close(); err == nil {
		t.Fatal("the close does not say that something failed")
	}
	after := mustOpen(t, fs.CrashClone(everything()))
	defer mustClose(t, after)
	if n := whole(t, after); n != 1 {
		t.Fatalf("batch %d", n)
	}
}

// A start on a full disk says so, twice the same, and changes nothing that was
// committed (B56).
func TestOpenOnAFullDisk(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db := mustOpen(t, fs)
	commit(t, db, 1, 10)
	mustClose(t, db)
	for range 2 {
		// An opening that failed keeps Pebble's lock until its process ends.
		disk := fs.CrashClone(everything())
		_, err := Open(errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if writes(op.Kind) {
				return syscall.ENOSPC
			}
			return nil
		})), "state", nil)
		if !errors.Is(err, syscall.ENOSPC) && (err == nil || !strings.Contains(err.Error(), syscall.ENOSPC.Error())) {
			t.Fatalf("open on a full disk: %v", err)
		}
		fs = disk.CrashClone(everything())
	}
	db = mustOpen(t, fs)
	defer mustClose(t, db)
	if n := whole(t, db); n != 1 {
		t.Fatalf("batch %d", n)
	}
}
