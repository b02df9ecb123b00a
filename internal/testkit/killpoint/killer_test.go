package killpoint

import (
	"context"
	"io"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// point is where a process dies.
type point struct {
	Op    string // write, sync, create, rename, remove; put, get, delete
	Path  string // regexp of the path below the data directory's parent, or of the key
	After bool   // behind the call instead of before it
	Skip  int    // so many matching calls pass
	Arm   string // from when on calls count: "" from the start, or what the child says it has begun
}

// killer ends its process at its point.
type killer struct {
	point point
	path  *regexp.Regexp
	root  string // cut off paths
	seen  atomic.Int64
	armed atomic.Bool
}

func newKiller(p point, root string) *killer {
	k := &killer{point: p, path: regexp.MustCompile(p.Path), root: root}
	k.begin("")
	return k
}

// begin arms the killer when its point waits for that.
func (k *killer) begin(what string) {
	if k.point.Arm == what {
		k.armed.Store(true)
	}
}

// call runs fn, which is the call op on path, and lets the process die before
// or after it when that is the point.
func (k *killer) call(op, path string, fn func()) {
	hit := false
	if k.point.Op == op && k.armed.Load() && k.path.MatchString(strings.TrimPrefix(path, k.root+"/")) {
		hit = k.seen.Add(1) == int64(k.point.Skip)+1
	}
	if hit && !k.point.After {
		k.die()
	}
	fn()
	if hit {
		k.die()
	}
}

// die returns never: nothing of this goroutine may go on while the kernel ends
// the others.
func (k *killer) die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // a process may kill itself
	select {}
}

// killFS is the operating system's file system, with a killer.
type killFS struct {
	vfs.FS
	k *killer
}

func (f *killFS) Create(name string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	f.k.call("create", name, func() { file, err = f.FS.Create(name, c) })
	return f.wrap(file, err, name)
}

func (f *killFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (file vfs.File, err error) {
	f.k.call("create", name, func() { file, err = f.FS.OpenReadWrite(name, c, o...) })
	return f.wrap(file, err, name)
}

func (f *killFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	f.k.call("rename", from+" "+to, func() { file, err = f.FS.ReuseForWrite(from, to, c) })
	return f.wrap(file, err, to)
}

func (f *killFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.wrap(file, err, name+"/")
}

func (f *killFS) Rename(from, to string) (err error) {
	f.k.call("rename", from+" "+strings.TrimPrefix(to, f.k.root+"/"), func() { err = f.FS.Rename(from, to) })
	return err
}

func (f *killFS) Remove(name string) (err error) {
	f.k.call("remove", name, func() { err = f.FS.Remove(name) })
	return err
}

func (f *killFS) wrap(file vfs.File, err error, name string) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &killFile{file, f.k, name}, nil
}

type killFile struct {
	vfs.File
	k    *killer
	name string
}

func (f *killFile) Write(p []byte) (n int, err error) {
	f.k.call("write", f.name, func() { n, err = f.File.Write(p) })
	return n, err
}

func (f *killFile) WriteAt(p []byte, off int64) (n int, err error) {
	f.k.call("write", f.name, func() { n, err = f.File.WriteAt(p, off) })
	return n, err
}

func (f *killFile) Sync() (err error) {
	f.k.call("sync", f.name, func() { err = f.File.Sync() })
	return err
}

func (f *killFile) SyncData() (err error) {
	f.k.call("sync", f.name, func() { err = f.File.SyncData() })
	return err
}

func (f *killFile) SyncTo(n int64) (full bool, err error) {
	f.k.call("sync", f.name, func() { full, err = f.File.SyncTo(n) })
	return full, err
}

// killStore is a store with a killer.
type killStore struct {
	objstore.Store
	k *killer
}

func (s *killStore) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) (err error) {
	s.k.call("put", key, func() { err = s.Store.Put(ctx, key, body, size, o) })
	return err
}

func (s *killStore) Get(ctx context.Context, key string) (body io.ReadCloser, info objstore.Info, err error) {
	s.k.call("get", key, func() { body, info, err = s.Store.Get(ctx, key) })
	return body, info, err
}

func (s *killStore) Delete(ctx context.Context, keys []string) (err error) {
	s.k.call("delete", strings.Join(keys, " "), func() { err = s.Store.Delete(ctx, keys) })
	return err
}
