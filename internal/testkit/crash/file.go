package crash

import (
	"io"
	"os"
	"path"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// file is an open file or directory.
type file struct {
	fs    *FS
	n     *inode
	name  string
	pos   int64 // guarded by fs.mu
	write bool
}

var _ vfs.File = (*file)(nil)

// Close implements vfs.File.
func (*file) Close() error { return nil }

// Read implements vfs.File.
func (f *file) Read(b []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n := f.n.read(b, f.pos)
	f.pos += int64(n)
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// ReadAt implements vfs.File.
func (f *file) ReadAt(b []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n := f.n.read(b, off)
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// Write implements vfs.File.
func (f *file) Write(b []byte) (int, error) {
	n, err := f.put(b, -1)
	return n, err
}

// WriteAt implements vfs.File.
func (f *file) WriteAt(b []byte, off int64) (int, error) { return f.put(b, off) }

// put writes at off, or with off < 0 at the file's position.
func (f *file) put(b []byte, off int64) (int, error) {
	if !f.write || f.n.dir {
		return 0, &os.PathError{Op: "write", Path: f.name, Err: os.ErrPermission}
	}
	fault, err := f.fs.ask("write", f.name)
	switch fault {
	case Refuse, Forget:
		return 0, err
	case Tear:
		b = b[:len(b)/2]
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if off < 0 {
		off = f.pos
		f.pos += int64(len(b))
	}
	f.n.write(b, off)
	return len(b), err
}

// Sync implements vfs.File.
func (f *file) Sync() error {
	kind := "sync"
	if f.n.dir {
		kind = "syncdir"
	}
	fault, err := f.fs.ask(kind, f.name)
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	switch fault {
	case Pass:
		f.n.sync()
	case Forget:
		f.n.forget()
	}
	return err
}

// SyncData implements vfs.File.
func (f *file) SyncData() error { return f.Sync() }

// SyncTo implements vfs.File: it promises nothing.
func (*file) SyncTo(int64) (bool, error) { return false, nil }

// Preallocate implements vfs.File.
func (*file) Preallocate(int64, int64) error { return nil }

// Prefetch implements vfs.File.
func (*file) Prefetch(int64, int64) error { return nil }

// Fd implements vfs.File.
func (*file) Fd() uintptr { return vfs.InvalidFd }

// Stat implements vfs.File.
func (f *file) Stat() (vfs.FileInfo, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return &info{path.Base(f.name), f.n.size, f.n.dir, f.n}, nil
}

type info struct {
	name string
	size int64
	dir  bool
	n    *inode
}

func (i *info) Name() string       { return i.name }
func (i *info) Size() int64        { return i.size }
func (i *info) ModTime() time.Time { return time.Time{} }
func (i *info) IsDir() bool        { return i.dir }

// Sys is equal for two descriptions of one file, as an inode's number is while
// the file is open.
func (i *info) Sys() any { return i.n }

func (i *info) Mode() os.FileMode {
	if i.dir {
		return os.ModeDir | 0o755
	}
	return 0o644
}

// DeviceID implements vfs.FileInfo.
func (*info) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
