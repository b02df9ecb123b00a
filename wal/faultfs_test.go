package wal

import (
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// action is what a faultFS does with one call.
type action int

const (
	pass      action = iota
	fail             // return the error, do nothing
	shorten          // write the first half, return no error
	loseSyncs        // return the error; from now on syncs of this file return nil and persist nothing
)

// faultFS asks a function before each changing call on a log's directory. It
// models what errorfs does not: a kernel that reports a failed write-back once
// and then forgets the pages.
type faultFS struct {
	vfs.FS
	mu     sync.Mutex
	decide func(op, path string) (action, error) // nil = pass
	after  func(op, path string)                 // nil = nothing
}

// set replaces both functions.
func (f *faultFS) set(decide func(op, path string) (action, error), after func(op, path string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide, f.after = decide, after
}

func (f *faultFS) ask(op, path string) (action, error) {
	f.mu.Lock()
	decide := f.decide
	f.mu.Unlock()
	if decide == nil {
		return pass, nil
	}
	return decide(op, path)
}

func (f *faultFS) done(op, path string) {
	f.mu.Lock()
	after := f.after
	f.mu.Unlock()
	if after != nil {
		after(op, path)
	}
}

// do runs one call that can only pass or fail.
func (f *faultFS) do(op, path string, call func() error) error {
	if a, err := f.ask(op, path); a != pass {
		return err
	}
	err := call()
	f.done(op, path)
	return err
}

func (f *faultFS) wrap(file vfs.File, err error, path string) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{File: file, fs: f, path: path}, nil
}

func (f *faultFS) Create(name string, c vfs.DiskWriteCategory) (out vfs.File, err error) {
	err = f.do("create", name, func() error { out, err = f.FS.Create(name, c); return err })
	return f.wrap(out, err, name)
}

func (f *faultFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (out vfs.File, err error) {
	err = f.do("open", name, func() error { out, err = f.FS.OpenReadWrite(name, c, o...); return err })
	return f.wrap(out, err, name)
}

func (f *faultFS) OpenDir(name string) (vfs.File, error) {
	d, err := f.FS.OpenDir(name)
	return f.wrap(d, err, name)
}

func (f *faultFS) Rename(from, to string) error {
	return f.do("rename", to, func() error { return f.FS.Rename(from, to) })
}

func (f *faultFS) Remove(name string) error {
	return f.do("remove", name, func() error { return f.FS.Remove(name) })
}

type faultFile struct {
	vfs.File
	fs   *faultFS
	path string
	mu   sync.Mutex
	lost bool
}

func (f *faultFile) WriteAt(b []byte, off int64) (int, error) {
	switch a, err := f.fs.ask("write", f.path); a {
	case fail:
		return 0, err
	case shorten:
		return f.File.WriteAt(b[:len(b)/2], off)
	}
	n, err := f.File.WriteAt(b, off)
	f.fs.done("write", f.path)
	return n, err
}

func (f *faultFile) Sync() error     { return f.sync(f.File.Sync) }
func (f *faultFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *faultFile) sync(call func() error) error {
	f.mu.Lock()
	lost := f.lost
	f.mu.Unlock()
	if lost {
		return nil
	}
	switch a, err := f.fs.ask("sync", f.path); a {
	case fail:
		return err
	case loseSyncs:
		f.mu.Lock()
		f.lost = true
		f.mu.Unlock()
		return err
	}
	err := call()
	f.fs.done("sync", f.path)
	return err
}

// isLogFile reports whether path is a log file or a spare, not the directory.
func isLogFile(path string) bool { return strings.HasPrefix(path, "wal/") }

// nullFS is a file system whose writes go nowhere, so that a test sees the
// log's own allocations.
type nullFS struct{ vfs.FS }

type nullFile struct{ vfs.File }

func (f nullFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return nullFile{file}, err
}

func (nullFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (nullFile) SyncData() error                        { return nil }
