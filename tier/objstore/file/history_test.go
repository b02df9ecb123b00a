package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// crashTree is a tree that loses what was not synced.
type crashTree struct{ fs *crash.FS }

func (c crashTree) Link(from, to string) error   { return c.fs.Link(from, to) }
func (c crashTree) Rename(from, to string) error { return c.fs.Rename(from, to) }
func (c crashTree) Remove(name string) error     { return c.fs.Remove(name) }
func (crashTree) Close() error                   { return nil }

func (c crashTree) Mkdir(name string, perm fs.FileMode) error {
	if _, err := c.fs.Stat(name); err == nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
	}
	return c.fs.MkdirAll(name, perm)
}

func (c crashTree) MkdirAll(name string, perm fs.FileMode) error { return c.fs.MkdirAll(name, perm) }
func (c crashTree) Lstat(name string) (fs.FileInfo, error)       { return c.Stat(name) }

func (c crashTree) Stat(name string) (fs.FileInfo, error) {
	st, err := c.fs.Stat(name)
	if err != nil {
		return nil, err
	}
	return st, nil
}

func (c crashTree) OpenFile(name string, flag int, _ fs.FileMode) (handle, error) {
	open := func() (vfs.File, error) { return c.fs.Open(name) }
	if flag&os.O_CREATE != 0 {
		open = func() (vfs.File, error) { return c.fs.Create(name, vfs.WriteCategoryUnspecified) }
	}
	f, err := open()
	if err != nil {
		return nil, err
	}
	return crashFile{File: f, tree: c, name: name}, nil
}

func (crashTree) SameFile(a, b fs.FileInfo) bool { return a.Sys() == b.Sys() }

type crashFile struct {
	vfs.File
	tree crashTree
	name string
}

// WriteBack promises nothing that a crash would have to keep.
func (crashFile) WriteBack(int64, int64) error { return nil }

func (f crashFile) Stat() (fs.FileInfo, error) {
	st, err := f.File.Stat()
	if err != nil {
		return nil, err
	}
	return st, nil
}

func (f crashFile) ReadDir(int) ([]fs.DirEntry, error) {
	names, err := f.tree.fs.List(f.name)
	var out []fs.DirEntry
	for _, name := range names {
		if st, err := f.tree.Stat(f.name + "/" + name); err == nil {
			out = append(out, fs.FileInfoToDirEntry(st))
		}
	}
	return out, cmp.Or(err, errors.New("no more"))
}

// promises says of keys whether their objects must be there (true) or must not.
type promises map[string]bool

// writers are two processes with one archive, and somebody who makes and
// removes directories in it. While one of them makes a change, another one may
// do something from its begin to its end.
type writers struct {
	t        *crash.T
	fs       *crash.FS
	stores   []*Store
	promised promises
	byKey    map[string]*ops
	depth    int
	last     string // directory of the newest operation
}

// ops counts the puts and the deletes of a key.
type ops struct{ begun, active [2]int }

func (w *writers) ops(key string) *ops {
	if w.byKey[key] == nil {
		w.byKey[key] = &ops{}
	}
	return w.byKey[key]
}

// openArchive opens an archive twice, as two processes do.
func openArchive(t *crash.T, fs *crash.FS, promised promises) *writers {
	w := &writers{t: t, fs: fs, promised: promised, byKey: map[string]*ops{}}
	for range 2 {
		s, err := openTree(crashTree{fs}, "archive", Options{})
		if err != nil {
			t.Fatal(err)
		}
		w.stores = append(w.stores, s)
	}
	w.stores[1].names.most = 2 // which forgets all the time
	return w
}

var testDirs = []string{"a", "a/b", "a/b/c", "a/d", "e/b"}

// dir picks a directory, while something goes on often the one that it is about.
func (w *writers) dir() string {
	if w.depth == 0 || w.t.Rand.IntN(3) == 0 {
		w.last = testDirs[w.t.Rand.IntN(len(testDirs))]
	}
	return w.last
}

func (w *writers) key() string { return fmt.Sprintf("%s/k%d", w.dir(), w.t.Rand.IntN(2)) }

// content of an object is more than a page, so that it can be there in part.
func content(key string) string { return strings.Repeat(key+" ", 700) }

// act does one thing.
func (w *writers) act() {
	store := w.t.Rand.IntN(len(w.stores))
	switch w.t.Rand.IntN(8) {
	case 0:
		dir := w.dir()
		w.t.Step("%*ssomebody makes %s", w.depth, "", dir)
		if err := w.fs.MkdirAll(dir, dirMode); err != nil {
			w.t.Fatal(err)
		}
	case 1:
		dir := w.dir()
		w.t.Step("%*ssomebody removes %s: %v", w.depth, "", dir, w.fs.Remove(dir))
	case 2, 3, 4:
		w.delete(store, w.key())
	default:
		w.put(store, w.key(), w.t.Rand.IntN(4) > 0)
	}
}

// span is a put or delete of a key while it goes on: what it promises counts
// when nothing of the other kind overlapped with it.
type span struct{ others int }

// begin notes that an operation on a key begins; kind is 0 for puts, 1 for deletes.
func (w *writers) begin(key string, kind int) span {
	if there, ok := w.promised[key]; ok && there == (kind == 1) {
		delete(w.promised, key)
	}
	o := w.ops(key)
	o.begun[kind]++
	o.active[kind]++
	return span{o.begun[1-kind]}
}

// end notes that it ended, and whether what it did holds from now on.
func (w *writers) end(key string, kind int, s span, done bool) {
	o := w.ops(key)
	o.active[kind]--
	if done && o.active[1-kind] == 0 && o.begun[1-kind] == s.others {
		w.promised[key] = kind == 0
	}
}

func (w *writers) put(store int, key string, createOnly bool) {
	w.t.Step("%*s%d puts %s", w.depth, "", store, key)
	s := w.begin(key, 0)
	data := content(key)
	err := w.stores[store].Put(context.Background(), key, strings.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: createOnly})
	// Directories that come and go may wear a put out; then it promises nothing.
	w.end(key, 0, s, err == nil || errcode.Is(err, errcode.Exists))
	w.t.Step("%*s%d has put %s: %v", w.depth, "", store, key, err)
}

func (w *writers) delete(store int, key string) {
	w.t.Step("%*s%d deletes %s", w.depth, "", store, key)
	s := w.begin(key, 1)
	err := w.stores[store].Delete(context.Background(), []string{key})
	w.end(key, 1, s, err == nil)
	w.t.Step("%*s%d has deleted %s: %v", w.depth, "", store, key, err)
}

// between is called before each change of the tree.
func (w *writers) between(crash.Op) (crash.Fault, error) {
	if w.depth < 3 && w.t.Rand.IntN(5) == 0 {
		w.depth++
		w.act()
		w.depth--
	}
	return crash.Pass, nil
}

// check holds a disk against the promises.
func check(t testing.TB, disk *crash.FS, promised promises) {
	t.Helper()
	s, err := openTree(crashTree{disk}, "archive", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range testDirs {
		for n := range 2 {
			key := fmt.Sprintf("%s/k%d", dir, n)
			must, known := promised[key]
			data, _, err := objstore.ReadAll(context.Background(), s, key, 1<<20)
			switch {
			case err != nil && !errcode.Is(err, errcode.NotFound):
				t.Fatalf("get %s: %v", key, err)
			case err == nil && string(data) != content(key):
				t.Fatalf("%s is there in part", key)
			case known && must != (err == nil):
				t.Fatalf("%s must be there: %v; get says %v", key, must, err)
			}
		}
	}
}

// I1, I5: two processes put and delete objects in directories that come and go
// under them, one inside of the other. The power fails before any change of the
// tree, or the processes die and the power fails later. What was answered holds,
// and every object is whole.
func TestHistories(t *testing.T) {
	crash.Run(t, "objects", func(t *crash.T) {
		disk, promised := crash.NewFS(), promises{}
		for range 3 {
			w := openArchive(t, disk, promised)
			camera := crash.FilmFaults(disk, t.Rand, 6, func() promises { return maps.Clone(w.promised) }, w.between)
			for range 2 + t.Rand.IntN(8) {
				w.act()
			}
			disk.Hook(nil)
			shots := append(camera.Take(), crash.Shot[promises]{FS: disk.Kill(), State: w.promised, Op: crash.Op{Kind: "end"}})
			for _, s := range shots {
				t.Step("crash before change %d, %s %s", s.N, s.Op.Kind, s.Op.Path)
				for _, d := range s.FS.Losses(t.Rand, 4) {
					check(t, d, s.State)
					t.Count()
				}
			}
			next := shots[t.Rand.IntN(len(shots))]
			disk, promised = next.FS, maps.Clone(next.State)
			if t.Rand.IntN(2) == 0 {
				disk = disk.Loss(t.Rand)
			}
			t.Step("on it goes from change %d", next.N)
		}
	})
}

// Every promise of an operation that begins and ends while another one of the
// same directory is before any of its changes: the one that comes later must not
// count on syncs that the other one still has to make (I1).
func TestOneInsideAnother(t *testing.T) {
	put := func(key string) func(*writers, int) {
		return func(w *writers, store int) { w.put(store, key, true) }
	}
	remove := func(w *writers, store int) { w.delete(store, "a/b/c/k0") }
	for name, c := range map[string]struct {
		first        bool // the object is there, durably
		outer, inner func(*writers, int)
	}{
		"put beside a put":       {false, put("a/b/c/k0"), put("a/b/c/k1")},
		"put of the same":        {false, put("a/b/c/k0"), put("a/b/c/k0")},
		"put above":              {false, put("a/b/c/k0"), put("a/b/k0")},
		"delete inside a delete": {true, remove, remove},
		"put beside a delete":    {true, remove, put("a/b/c/k1")},
		"delete inside a put":    {true, put("a/b/c/k1"), remove},
	} {
		t.Run(name, func(t *testing.T) {
			tried := 0
			for at, more := 0, true; more; at++ {
				for store := range 2 {
					more = inside(t, at, store, c.first, c.outer, c.inner)
					tried++
				}
			}
			if tried < 8 {
				t.Fatalf("only %d were tried", tried)
			}
		})
	}
}

// inside runs inner before change number at of outer, and says whether there was one.
func inside(t *testing.T, at, store int, first bool, outer, inner func(*writers, int)) bool {
	t.Helper()
	w := openArchive(&crash.T{TB: t, Rand: rand.New(rand.NewPCG(1, 1))}, crash.NewFS(), promises{})
	if first {
		w.put(0, "a/b/c/k0", true)
	}
	var disks []*crash.FS
	n := 0
	w.fs.Hook(func(crash.Op) (crash.Fault, error) {
		if n++; n == at+1 {
			w.fs.Hook(nil)
			inner(w, store)
			disks = w.fs.Losses(w.t.Rand, 64)
			for _, d := range disks {
				check(t, d, w.promised)
			}
		}
		return crash.Pass, nil
	})
	outer(w, 0)
	return len(disks) > 0
}
