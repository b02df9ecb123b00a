package steady

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Pauses between the tries of a change.
const (
	retryFirst = 20 * time.Millisecond
	retryMost  = time.Second
)

// pace is how long a failed change that does not wait takes to say so: Pebble
// tries a failed flush again at once, for ever.
const pace = 20 * time.Millisecond

// retryAdvice is what a caller is told to wait while a change waits.
const retryAdvice = time.Second

// FS is a file system whose changes wait for the disk. All methods are safe for
// concurrent use.
type FS struct {
	vfs.FS
	what   string
	logger *slog.Logger
	lost   func(error)

	waits atomic.Uint64
	err   atomic.Pointer[errcode.Error]
	hurry chan struct{} // closed by Hasten

	mu struct {
		sync.Mutex
		patient bool
		hasty   bool
		waiting int // changes that wait now
	}
}

// New returns fs for the database that what names, for example "local state in
// /data/state". Nothing waits until Patient. logger nil means that nothing is
// logged. lost, if it is not nil, hears of what is final: each sync that failed,
// though Pebble itself may pass over it, and each change that failed but might
// have waited, before Patient or after Hasten: Pebble may wait for ever then for
// a flush that does not succeed, and its caller must not. After it Pebble is of
// no use, and may panic over the error: lost had better not return to it.
func New(fs vfs.FS, what string, logger *slog.Logger, lost func(error)) *FS {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if lost == nil {
		lost = func(error) {}
	}
	return &FS{FS: fs, what: what, logger: logger, lost: lost, hurry: make(chan struct{})}
}

// Patient makes changes wait from now on.
func (f *FS) Patient() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.patient = true
}

// Hasten ends all waiting for good: what waits fails with the disk's error.
func (f *FS) Hasten() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.hasty {
		f.mu.hasty = true
		close(f.hurry)
	}
}

// Err returns why changes wait now (errcode.Storage), or nil. It takes no lock.
func (f *FS) Err() error {
	if err := f.err.Load(); err != nil {
		return err
	}
	return nil
}

// Waits returns how many changes had to wait so far.
func (f *FS) Waits() uint64 { return f.waits.Load() }

// passing are errors that end by themselves or by an operator's hand, after
// which the same change succeeds.
var passing = []error{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN,
}

func mayPass(err error) bool {
	for _, e := range passing {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// try does the change until it succeeds, fails for a reason that stays, or
// nobody wants to wait.
func (f *FS) try(op, name string, change func() error) error {
	err := change()
	if err == nil || !mayPass(err) {
		return err
	}
	if !f.begin(op, name, err) {
		return f.fail(err)
	}
	defer f.end()
	pause := retryFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-f.hurry:
			return f.fail(err)
		case <-timer.C:
		}
		if err = change(); err == nil || !mayPass(err) {
			return err
		}
		pause = min(2*pause, retryMost)
		timer.Reset(pause)
	}
}

// fail tells what is final.
func (f *FS) fail(err error) error {
	f.lost(err)
	time.Sleep(pace)
	return err
}

// begin counts a change that waits; false means that it must not.
func (f *FS) begin(op, name string, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.patient || f.mu.hasty {
		return false
	}
	f.waits.Add(1)
	f.mu.waiting++
	if f.mu.waiting == 1 {
		f.err.Store(errcode.New(errcode.Storage, "%s cannot be written, it waits for the disk: free space or repair the disk, it goes on by itself: %s %s: %w", f.what, op, name, err).After(retryAdvice))
		f.logger.Error("the disk does not take a write, it is tried again until it does", "database", f.what, "op", op, "file", name, "error", err)
	}
	return true
}

func (f *FS) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.waiting--; f.mu.waiting == 0 {
		f.err.Store(nil)
		if !f.mu.hasty {
			f.logger.Info("the disk takes writes again", "database", f.what)
		}
	}
}

// open does a change that gives a file, and wraps the file.
func (f *FS) open(op, name string, open func() (vfs.File, error)) (vfs.File, error) {
	var out vfs.File
	err := f.try(op, name, func() (err error) {
		out, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &file{File: out, fs: f, name: name}, nil
}

// markerPrefix begins the names of the empty files that say which manifest counts.
const markerPrefix = "marker."

// settle makes what was done to names in the directory durable before a marker is
// made or goes. Pebble syncs the directory once, behind all of it. Where a file
// system may keep a later name and lose an earlier one, a marker could point to a
// manifest that is not there, or the old marker be gone and the new one not there.
func (f *FS) settle(name string) error {
	if !strings.HasPrefix(f.PathBase(name), markerPrefix) {
		return nil
	}
	dir, err := f.OpenDir(f.PathDir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	if err := f.settle(name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// Create implements vfs.FS.
func (f *FS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.settle(name); err != nil {
		return nil, err
	}
	return f.open("create", name, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

// OpenReadWrite implements vfs.FS.
func (f *FS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return f.open("open", name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, o...) })
}

// ReuseForWrite implements vfs.FS.
func (f *FS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open("reuse", to, func() (vfs.File, error) {
		out, err := f.FS.ReuseForWrite(from, to, c)
		if err != nil && mayPass(err) {
			// The rename may be done and only the descriptor be missing: a new
			// file of that name is as good.
			if _, gone := f.FS.Stat(from); gone != nil {
				return f.FS.Create(to, c)
			}
		}
		return out, err
	})
}

// OpenDir implements vfs.FS. A directory is opened to sync a change in it.
func (f *FS) OpenDir(name string) (vfs.File, error) {
	return f.open("open", name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

// Link implements vfs.FS.
func (f *FS) Link(from, to string) error {
	return f.try("link", to, func() error { return f.FS.Link(from, to) })
}

// Rename implements vfs.FS.
func (f *FS) Rename(from, to string) error {
	return f.try("rename", from, func() error { return f.FS.Rename(from, to) })
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string, perm os.FileMode) error {
	return f.try("create", dir, func() error { return f.FS.MkdirAll(dir, perm) })
}

// Unwrap implements vfs.FS.
func (f *FS) Unwrap() vfs.FS { return f.FS }

// file is a file whose writes wait. Its syncs do not.
type file struct {
	vfs.File
	fs   *FS
	name string
}

// Write implements vfs.File. What a try wrote stays written: the next one goes
// on behind it.
func (f *file) Write(b []byte) (int, error) {
	done := 0
	err := f.fs.try("write", f.name, func() error {
		n, err := f.File.Write(b[done:])
		done += n
		return err
	})
	return done, err
}

// WriteAt implements vfs.File.
func (f *file) WriteAt(b []byte, at int64) (int, error) {
	done := 0
	err := f.fs.try("write", f.name, func() error {
		n, err := f.File.WriteAt(b[done:], at+int64(done))
		done += n
		return err
	})
	return done, err
}

// Sync implements vfs.File.
func (f *file) Sync() error { return f.synced(f.File.Sync()) }

// SyncData implements vfs.File.
func (f *file) SyncData() error { return f.synced(f.File.SyncData()) }

// SyncTo implements vfs.File.
func (f *file) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.synced(err)
}

func (f *file) synced(err error) error {
	if err == nil {
		return nil
	}
	return f.fs.fail(fmt.Errorf("sync %s: %w", f.name, err))
}

// Preallocate implements vfs.File. It is a hint: the write itself says whether
// there is room.
func (f *file) Preallocate(offset, length int64) error {
	if err := f.File.Preallocate(offset, length); err != nil && !mayPass(err) {
		return err
	}
	return nil
}
