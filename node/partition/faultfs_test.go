package partition

import (
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// verdict is what a faultFS does with one call.
type verdict int

const (
	pass     verdict = iota
	refuse           // the error, no effect
	tear             // a write: the first half, then the error
	lie              // a write: all of it, then the error
	loseSync         // a sync: the error; later syncs of this file return nil and persist nothing
)

// faultFS asks a function before each changing call below data/topics. It
// models what errorfs does not: torn writes, and a kernel that reports a failed
// write-back once and then forgets the pages.
type faultFS struct {
	vfs.FS
	mu     sync.Mutex
	decide func(op, path string) (verdict, error) // nil = pass
	open   int                                    // files open below data/topics
}

func (f *faultFS) set(decide func(op, path string) (verdict, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide = decide
}

func (f *faultFS) ask(op, path string) (verdict, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.decide == nil || !strings.HasPrefix(path, "data/topics") {
		return pass, nil
	}
	return f.decide(op, path)
}

func (f *faultFS) wrap(file vfs.File, err error, path string) (vfs.File, error) {
	if err != nil || !strings.HasPrefix(path, "data/topics") {
		return file, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	return &faultFile{File: file, fs: f, path: path}, nil
}

func (f *faultFS) openFiles() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

func (f *faultFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if v, err := f.ask("create", name); v != pass {
		return nil, err
	}
	file, err := f.FS.Create(name, c)
	return f.wrap(file, err, name)
}

func (f *faultFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if v, err := f.ask("open", name); v != pass {
		return nil, err
	}
	file, err := f.FS.OpenReadWrite(name, c, o...)
	return f.wrap(file, err, name)
}

func (f *faultFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.Open(name, o...)
	return f.wrap(file, err, name)
}

func (f *faultFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.wrap(file, err, name)
}

func (f *faultFS) Rename(from, to string) error {
	if v, err := f.ask("rename", to); v != pass {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *faultFS) Remove(name string) error {
	if v, err := f.ask("remove", name); v != pass {
		return err
	}
	return f.FS.Remove(name)
}

type faultFile struct {
	vfs.File
	fs   *faultFS
	path string
	lost bool // guarded by faultFS.mu
}

func (f *faultFile) Close() error {
	f.fs.mu.Lock()
	f.fs.open--
	f.fs.mu.Unlock()
	return f.File.Close()
}

func (f *faultFile) Write(b []byte) (int, error) {
	return f.write(b, func(b []byte) (int, error) { return f.File.Write(b) })
}

func (f *faultFile) WriteAt(b []byte, off int64) (int, error) {
	return f.write(b, func(b []byte) (int, error) { return f.File.WriteAt(b, off) })
}

func (f *faultFile) write(b []byte, call func([]byte) (int, error)) (int, error) {
	v, fault := f.fs.ask("write", f.path)
	switch v {
	case pass:
		return call(b)
	case lie:
		n, err := call(b)
		if err != nil {
			return n, err
		}
		return 0, fault
	case tear:
		n, err := call(b[:len(b)/2])
		if err != nil {
			return n, err
		}
		return n, fault
	}
	return 0, fault
}

func (f *faultFile) Sync() error     { return f.sync(f.File.Sync) }
func (f *faultFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *faultFile) sync(call func() error) error {
	f.fs.mu.Lock()
	lost := f.lost
	f.fs.mu.Unlock()
	if lost {
		return nil
	}
	v, err := f.fs.ask("sync", f.path)
	if v == pass {
		return call()
	}
	f.fs.mu.Lock()
	f.lost = v == loseSync
	f.fs.mu.Unlock()
	return err
}

var (
	errFull = syscall.ENOSPC
	errIO   = syscall.EIO
)
