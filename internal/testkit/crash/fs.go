package crash

import (
	"errors"
	"io"
	iofs "io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Op is one change of a file system.
type Op struct {
	Kind string // "create", "open", "write", "sync", "syncdir", "rename", "remove", "link", "mkdir"
	Path string // of a rename the new one
}

// Fault is what becomes of a change.
type Fault int

// Faults. All but Pass return the error that the hook gave.
const (
	Pass   Fault = iota
	Refuse       // nothing happens
	Tear         // a write does its first half
	Forget       // a sync loses what was dirty, and later ones say that all is well
)

// FS is an in-memory vfs.FS that knows what is on disk and what is only in the
// page cache. It is safe for concurrent use; cloning it is cheap, because pages
// are shared until they are written.
type FS struct {
	// Journal is the base name of directories whose names become durable in the
	// order of their changes, as all file systems with a journal have it. In
	// other directories any part survives a loss of power. Set it first.
	Journal string

	mu    sync.Mutex
	root  *inode
	locks map[string]bool
	hook  func(Op) (Fault, error)
}

// NewFS returns an empty file system.
func NewFS() *FS { return &FS{root: newDir()} }

// Hook makes f hear of every change before it happens and decide about it; nil
// ends that. f runs in the goroutine that makes the change, without any lock
// of the file system.
func (fs *FS) Hook(f func(Op) (Fault, error)) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.hook = f
}

func (fs *FS) ask(kind, name string) (Fault, error) {
	fs.mu.Lock()
	hook := fs.hook
	fs.mu.Unlock()
	if hook == nil {
		return Pass, nil
	}
	return hook(Op{kind, name})
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// find returns the inode of a name, or nil. fs.mu is held.
func (fs *FS) find(name string) *inode {
	n := fs.root
	for rest := clean(name); rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		if !n.dir {
			return nil
		}
		if n = n.names[part]; n == nil {
			return nil
		}
	}
	return n
}

// parent returns the directory that a name stands in, and its last part. fs.mu is held.
func (fs *FS) parent(name string) (*inode, string, error) {
	name = clean(name)
	dir, base := path.Split(name)
	d := fs.find(dir)
	if d == nil || !d.dir || base == "" {
		return nil, "", notExist("open", name)
	}
	return d, base, nil
}

func notExist(op, name string) error {
	return &os.PathError{Op: op, Path: name, Err: iofs.ErrNotExist}
}

// change asks the hook and then does one change under the lock.
func (fs *FS) change(kind, name string, do func() error) error {
	if fault, err := fs.ask(kind, name); fault != Pass {
		return err
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return do()
}

// Create implements vfs.FS: a file of that name gives way to a new one.
func (fs *FS) Create(name string, _ vfs.DiskWriteCategory) (f vfs.File, err error) {
	err = fs.change("create", name, func() error {
		d, base, err := fs.parent(name)
		if err != nil {
			return err
		}
		if old := d.names[base]; old != nil && old.dir {
			return &os.PathError{Op: "create", Path: name, Err: syscall.EISDIR}
		}
		n := newFile()
		d.set(base, n)
		f = &file{fs: fs, n: n, name: name, write: true}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Open implements vfs.FS.
func (fs *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n := fs.find(name)
	if n == nil {
		return nil, notExist("open", name)
	}
	f := &file{fs: fs, n: n, name: name}
	for _, o := range opts {
		o.Apply(f)
	}
	return f, nil
}

// OpenReadWrite implements vfs.FS: a missing file is created.
func (fs *FS) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (f vfs.File, err error) {
	err = fs.change("open", name, func() error {
		d, base, err := fs.parent(name)
		if err != nil {
			return err
		}
		n := d.names[base]
		if n == nil {
			n = newFile()
			d.set(base, n)
		}
		f = &file{fs: fs, n: n, name: name, write: true}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenDir implements vfs.FS.
func (fs *FS) OpenDir(name string) (vfs.File, error) { return fs.Open(name) }

// Link implements vfs.FS.
func (fs *FS) Link(from, to string) error {
	return fs.change("link", to, func() error {
		n := fs.find(from)
		d, base, err := fs.parent(to)
		switch {
		case n == nil:
			return notExist("link", from)
		case err != nil:
			return err
		case d.names[base] != nil:
			return &os.LinkError{Op: "link", Old: from, New: to, Err: iofs.ErrExist}
		}
		d.set(base, n)
		return nil
	})
}

// Rename implements vfs.FS.
func (fs *FS) Rename(from, to string) error {
	return fs.change("rename", to, func() error {
		old, base, err := fs.parent(from)
		if err != nil {
			return err
		}
		n := old.names[base]
		if n == nil {
			return notExist("rename", from)
		}
		d, name, err := fs.parent(to)
		if err != nil {
			return err
		}
		old.set(base, nil)
		d.set(name, n)
		return nil
	})
}

// Remove implements vfs.FS.
func (fs *FS) Remove(name string) error {
	return fs.change("remove", name, func() error {
		d, base, err := fs.parent(name)
		if err != nil {
			return err
		}
		n := d.names[base]
		switch {
		case n == nil:
			return notExist("remove", name)
		case n.dir && len(n.names) > 0:
			return &os.PathError{Op: "remove", Path: name, Err: syscall.ENOTEMPTY}
		}
		d.set(base, nil)
		return nil
	})
}

// RemoveAll implements vfs.FS.
func (fs *FS) RemoveAll(name string) error {
	return fs.change("remove", name, func() error {
		if d, base, err := fs.parent(name); err == nil {
			d.set(base, nil)
		}
		return nil
	})
}

// ReuseForWrite implements vfs.FS.
func (fs *FS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Rename(from, to); err != nil {
		return nil, err
	}
	return fs.OpenReadWrite(to, c)
}

// MkdirAll implements vfs.FS.
func (fs *FS) MkdirAll(name string, _ os.FileMode) error {
	fs.mu.Lock()
	n := fs.find(name)
	fs.mu.Unlock()
	if n != nil && n.dir {
		return nil
	}
	return fs.change("mkdir", name, func() error {
		n := fs.root
		for part := range strings.SplitSeq(clean(name), "/") {
			if !n.dir {
				return &os.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
			}
			if n.names[part] == nil {
				n.set(part, newDir())
			}
			n = n.names[part]
		}
		return nil
	})
}

// Lock implements vfs.FS. Locks are the process's: no crash leaves one.
func (fs *FS) Lock(name string) (io.Closer, error) {
	fs.mu.Lock()
	taken := fs.locks[clean(name)]
	if !taken {
		if fs.locks == nil {
			fs.locks = map[string]bool{}
		}
		fs.locks[clean(name)] = true
	}
	fs.mu.Unlock()
	if taken {
		return nil, syscall.EAGAIN
	}
	l := &lock{fs, clean(name)}
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, f.Close()
}

type lock struct {
	fs   *FS
	name string
}

// Close gives the lock back.
func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	delete(l.fs.locks, l.name)
	return nil
}

// List implements vfs.FS; the names are sorted.
func (fs *FS) List(name string) ([]string, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	d := fs.find(name)
	if d == nil || !d.dir {
		return nil, notExist("list", name)
	}
	out := make([]string, 0, len(d.names))
	for name := range d.names {
		out = append(out, name)
	}
	slices.Sort(out)
	return out, nil
}

// Stat implements vfs.FS.
func (fs *FS) Stat(name string) (vfs.FileInfo, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, notExist("stat", name)
	}
	return f.Stat()
}

// PathBase implements vfs.FS.
func (*FS) PathBase(name string) string { return path.Base(name) }

// PathJoin implements vfs.FS.
func (*FS) PathJoin(parts ...string) string { return path.Join(parts...) }

// PathDir implements vfs.FS.
func (*FS) PathDir(name string) string { return path.Dir(name) }

// GetDiskUsage implements vfs.FS: the disk is large.
func (*FS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41, UsedBytes: 1 << 40}, nil
}

// Unwrap implements vfs.FS.
func (*FS) Unwrap() vfs.FS { return nil }
