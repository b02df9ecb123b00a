package steady

import (
	"errors"
	"io"
	iofs "io/fs"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// faulty is a file system whose changes fail on demand. A write that fails
// leaves half of its bytes, as on a disk that is just full.
type faulty struct {
	vfs.FS
	mu    sync.Mutex
	err   error
	calls int
}

func (f *faulty) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *faulty) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *faulty) ask() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return f.err
}

func (f *faulty) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.ask(); err != nil {
		return nil, err
	}
	inner, err := f.FS.Create(name, c)
	return &faultyFile{inner, f}, err
}

func (f *faulty) Rename(from, to string) error {
	if err := f.ask(); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

type faultyFile struct {
	vfs.File
	f *faulty
}

func (f *faultyFile) Write(b []byte) (int, error) {
	if err := f.f.ask(); err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, err
	}
	return f.File.Write(b)
}

func (f *faultyFile) Sync() error {
	if err := f.f.ask(); err != nil {
		return err
	}
	return f.File.Sync()
}

func create(t *testing.T, f *FS, name string) vfs.File {
	t.Helper()
	file, err := f.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func content(t *testing.T, fs vfs.FS, name string) string {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A write that the disk does not take waits, says why, and is complete once,
// whatever part of it each try wrote, as soon as the disk takes it (B155).
func TestWriteWaits(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO, syscall.EROFS, &iofs.PathError{Op: "write", Err: syscall.EDQUOT}} {
		synctest.Test(t, func(t *testing.T) {
			bad := &faulty{FS: vfs.NewMem()}
			f := New(bad, "the test's database", nil, nil)
			f.Patient()
			file := create(t, f, "a")
			bad.set(cause)
			done := make(chan error, 1)
			go func() {
				n, err := file.Write([]byte("0123456789abcdef"))
				if err == nil && n != 16 {
					err = io.ErrShortWrite
				}
				done <- err
			}()
			time.Sleep(100 * time.Millisecond) // of the bubble's clock
			synctest.Wait()
			var e *errcode.Error
			if err := f.Err(); !errcode.Is(err, errcode.Storage) || !errors.Is(err, cause) || !errors.As(err, &e) || e.Wait == 0 {
				t.Fatalf("while it waits: %v", err)
			}
			if len(done) != 0 {
				t.Fatal("the write ended")
			}
			bad.set(nil)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if err := f.Err(); err != nil || f.Waits() != 1 {
				t.Fatalf("afterwards: %v, %d waits", err, f.Waits())
			}
			if got := content(t, bad.FS, "a"); got != "0123456789abcdef" {
				t.Fatalf("the file holds %q", got)
			}
		})
	}
}

// Out of descriptors, or out of space for a name: creating and renaming wait
// as well (B61).
func TestNamesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := &faulty{FS: vfs.NewMem()}
		f := New(bad, "the test's database", nil, nil)
		f.Patient()
		create(t, f, "a")
		bad.set(syscall.EMFILE)
		done := make(chan error, 2)
		go func() { done <- f.Rename("a", "b") }()
		go func() { _, err := f.Create("c", vfs.WriteCategoryUnspecified); done <- err }()
		time.Sleep(time.Minute)
		if n := bad.count(); n > 200 {
			t.Fatalf("%d calls in a minute", n)
		}
		bad.set(nil)
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if f.Err() != nil || f.Waits() != 2 {
			t.Fatalf("%v, %d waits", f.Err(), f.Waits())
		}
	})
}

// A failed sync is told at once and never repeated (I5).
func TestSyncNeverWaits(t *testing.T) {
	bad := &faulty{FS: vfs.NewMem()}
	lost := 0
	f := New(bad, "the test's database", nil, func(err error) { lost++ })
	f.Patient()
	file := create(t, f, "a")
	bad.set(syscall.EIO)
	before := bad.calls
	if err := file.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v", err)
	}
	if bad.calls != before+1 || f.Err() != nil || lost != 1 {
		t.Fatalf("%d syncs, %v, the owner heard %d times", bad.calls-before, f.Err(), lost)
	}
}

// What cannot pass is told at once, and so is everything before Patient and
// after Hasten, which also ends what waits: a start and a stop end (I14).
func TestWaitingHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := &faulty{FS: vfs.NewMem()}
		lost := 0
		f := New(bad, "the test's database", nil, func(error) { lost++ })
		bad.set(syscall.ENOSPC)
		if _, err := f.Create("early", vfs.WriteCategoryUnspecified); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("before Patient: %v", err)
		}
		f.Patient()
		bad.set(iofs.ErrNotExist)
		if err := f.Rename("none", "b"); !errors.Is(err, iofs.ErrNotExist) {
			t.Fatalf("a name that does not exist: %v", err)
		}
		bad.set(syscall.ENOSPC)
		done := make(chan error, 1)
		go func() { _, err := f.Create("a", vfs.WriteCategoryUnspecified); done <- err }()
		synctest.Wait()
		if f.Err() == nil {
			t.Fatal("it does not wait")
		}
		if lost != 1 {
			t.Fatalf("%d changes were lost: a change that waits may still be done", lost)
		}
		f.Hasten()
		f.Hasten()
		if err := <-done; !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("after Hasten: %v", err)
		}
		if _, err := f.Create("late", vfs.WriteCategoryUnspecified); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("a change after Hasten: %v", err)
		}
		if lost != 3 {
			t.Fatalf("%d changes were lost, 3 failed", lost)
		}
	})
}
