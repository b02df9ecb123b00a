package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/storetest"
)

func open(t *testing.T, dir string, opts Options) *Store {
	t.Helper()
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Proves that the directory store keeps the contract.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objstore.Store { return open(t, t.TempDir(), Options{}) })
}

func put(t *testing.T, s objstore.Store, key, data string) {
	t.Helper()
	if err := s.Put(t.Context(), key, strings.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: true}); err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
}

// Proves that temporary files of a crash are in no list and no read, stay as long
// as somebody may still be writing them, and are removed at Open when old.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	put(t, s, "a/k", "v")
	for _, name := range []string{"OLD", "NEW"} {
		if err := os.WriteFile(filepath.Join(dir, tmpDir, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, tmpDir, "OLD"), past, past); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{})
	page, err := s.List(t.Context(), "", "", 0)
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "a/k" {
		t.Errorf("list: %+v, %v; want a/k alone", page, err)
	}
	left, err := os.ReadDir(filepath.Join(dir, tmpDir))
	if err != nil || len(left) != 1 || left[0].Name() != "NEW" {
		t.Errorf("temporary files after Open: %v, %v; want NEW alone", left, err)
	}
}

// Proves that no put, whatever its end, leaves a temporary file.
func TestPutLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	put(t, s, "k", "v")
	for name, err := range map[string]error{
		"overwrite": s.Put(t.Context(), "k2", strings.NewReader("v"), 1, objstore.PutOptions{}),
		"exists":    s.Put(t.Context(), "k", strings.NewReader("w"), 1, objstore.PutOptions{CreateOnly: true}),
		"corrupt":   s.Put(t.Context(), "c", strings.NewReader("w"), 1, objstore.PutOptions{CRC32C: new(uint32)}),
		"below":     s.Put(t.Context(), "k/below", strings.NewReader("w"), 1, objstore.PutOptions{}),
	} {
		if (err == nil) != (name == "overwrite") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, tmpDir)); err != nil || len(left) != 0 {
		t.Errorf("temporary files: %v, %v", left, err)
	}
}

// Proves that a directory that was emptied or unmounted under the store does not
// answer "no such object": a node that looks for its fence would go on serving.
func TestVanishedRoot(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	put(t, s, "a/k", "v")
	if err := os.RemoveAll(filepath.Join(dir, tmpDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	_, _, get := s.Get(t.Context(), "a/k")
	_, head := s.Head(t.Context(), "a/k")
	_, list := s.List(t.Context(), "", "", 0)
	for op, err := range map[string]error{"get": get, "head": head, "list": list, "delete": s.Delete(t.Context(), []string{"a/k"})} {
		if !errcode.Is(err, errcode.Internal) || !strings.Contains(err.Error(), "unmounted") {
			t.Errorf("%s: %v; want an error that tells what happened to the directory", op, err)
		}
	}
}

// Proves that a directory sync that failed is not followed by one that says all
// is well: the store takes no more writes. I5.
func TestFailedSyncIsFinal(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	put(t, s, "k", "v")
	broken := error(syscall.EIO)
	s.broken.Store(&broken)
	err := s.Put(t.Context(), "k2", strings.NewReader("v"), 1, objstore.PutOptions{})
	if !errcode.Is(err, errcode.Internal) || !errors.Is(err, syscall.EIO) {
		t.Errorf("put: %v", err)
	}
	if err := s.Delete(t.Context(), []string{"k"}); !errcode.Is(err, errcode.Internal) {
		t.Errorf("delete: %v", err)
	}
	if data, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(data) != "v" {
		t.Errorf("reads go on: %q, %v", data, err)
	}
}

// Proves that links, pipes, directories and foreign names in the tree are no
// objects, and that a link does not lead out of it.
func TestForeignFiles(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := open(t, dir, Options{})
	put(t, s, "d/k", "v")
	for _, err := range []error{
		os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link")),
		os.Symlink(outside, filepath.Join(dir, "out")),
		syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.WriteFile(filepath.Join(dir, "d", "k~"), nil, 0o600),
		os.Mkdir(filepath.Join(dir, "empty"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	page, err := s.List(t.Context(), "", "", 0)
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "d/k" {
		t.Errorf("list: %+v, %v; want d/k alone", page, err)
	}
	for _, key := range []string{"link", "out/secret", "pipe", "empty"} {
		if _, _, err := s.Get(t.Context(), key); err == nil {
			t.Errorf("get %s is an object", key)
		}
	}
	if err := s.Put(t.Context(), "out/new", strings.NewReader("v"), 1, objstore.PutOptions{}); err == nil {
		t.Error("a put went through a link that leads out")
	}
	if left, _ := os.ReadDir(outside); len(left) != 1 {
		t.Errorf("outside: %v", left)
	}
}

// Proves that the directories which a delete leaves empty go, up to the root, and
// that the root and its neighbours stay.
func TestDeletePrunes(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	put(t, s, "a/b/c/k1", "v")
	put(t, s, "a/b/k2", "v")
	if err := s.Delete(t.Context(), []string{"a/b/c/k1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a/b/c")); !os.IsNotExist(err) {
		t.Errorf("a/b/c: %v; want it gone", err)
	}
	if err := s.Delete(t.Context(), []string{"a/b/k2"}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != tmpDir {
		t.Errorf("root holds %v, %v; want %s alone", left, err, tmpDir)
	}
}

// Proves that Open makes a root several levels deep and opens it again.
func TestOpenMakesRoot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x", "y", "z")
	put(t, open(t, dir, Options{}), "k", "v")
	if data, _, err := objstore.ReadAll(t.Context(), open(t, dir, Options{}), "k", 10); err != nil || string(data) != "v" {
		t.Errorf("reopened: %q, %v", data, err)
	}
	if _, err := Open(filepath.Join(dir, "k"), Options{}); err == nil {
		t.Error("a file was opened as an archive")
	}
}

// counted is a tree that counts its syncs.
type counted struct {
	tree
	syncs *atomic.Int64
}

func (c counted) OpenFile(name string, flag int, perm fs.FileMode) (handle, error) {
	h, err := c.tree.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return countedFile{h, c.syncs}, nil
}

type countedFile struct {
	handle
	syncs *atomic.Int64
}

// pieces is a tree that notes what is written back, and fails it at an offset.
type pieces struct {
	tree
	back *[][2]int64
	fail int64
	busy *atomic.Int32
}

func (p pieces) OpenFile(name string, flag int, perm fs.FileMode) (handle, error) {
	h, err := p.tree.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return piecesFile{h, p}, nil
}

type piecesFile struct {
	handle
	of pieces
}

func (f piecesFile) WriteBack(off, n int64) error {
	if f.of.busy.Add(1) > 1 {
		return errors.New("two pieces at once")
	}
	defer f.of.busy.Add(-1)
	*f.of.back = append(*f.of.back, [2]int64{off, n})
	if off == f.of.fail {
		return syscall.EIO
	}
	return f.handle.WriteBack(off, n)
}

// Proves that a large object goes to the disk piece by piece, each once, with the
// last one left to the sync, and that a piece which the disk does not take fails
// the put, whose file goes: the system tells of such an error once, so the sync
// at the end would know nothing of it.
func TestLargeObjectsGoToTheDiskInPieces(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	var back [][2]int64
	tr := pieces{rooted{root}, &back, -1, new(atomic.Int32)}
	s, err := openTree(tr, dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data := strings.Repeat("0123456789abcdef", 3*pieceBytes/16+10)
	put(t, s, "large", data)
	put(t, s, "small", data[:pieceBytes])
	want := [][2]int64{{0, pieceBytes}, {pieceBytes, pieceBytes}, {2 * pieceBytes, pieceBytes}}
	if !slices.Equal(back, want) {
		t.Errorf("written back: %v, want %v", back, want)
	}
	var wg sync.WaitGroup
	for i := range 4 { // not two at once
		wg.Go(func() { put(t, s, fmt.Sprint("beside/", i), data) })
	}
	wg.Wait()
	tr.fail = pieceBytes
	s.root = tr
	err = s.Put(t.Context(), "bad", strings.NewReader(data), int64(len(data)), objstore.PutOptions{})
	if !errcode.Is(err, errcode.Transient) {
		t.Errorf("a disk that does not take a piece: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "bad")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is an object: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, tmpDir)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func (f countedFile) Sync() error {
	f.syncs.Add(1)
	return f.handle.Sync()
}

// openCounted opens an archive in dir whose syncs are counted.
func openCounted(tb testing.TB, dir string) (*Store, *atomic.Int64) {
	tb.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		tb.Fatal(err)
	}
	syncs := new(atomic.Int64)
	s, err := openTree(counted{rooted{root}, syncs}, dir, Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	syncs.Store(0)
	return s, syncs
}

// Proves what a put syncs: the object, its directory, and of the directories
// above it only those whose names are not known to be on the disk: after a start
// each once, and again after they were removed and made anew by whomever.
func TestSyncsOfAPut(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir, Options{}), "a/b/old/k", "v") // by another process
	s, syncs := openCounted(t, dir)
	s.names.most = 8
	remake := func(name string) func() {
		return func() {
			if err := errors.Join(os.RemoveAll(filepath.Join(dir, name)), os.MkdirAll(filepath.Join(dir, name), 0o700)); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func() {
		if err := s.Delete(t.Context(), []string{"a/b/c/1", "a/b/c/2"}); err != nil {
			t.Fatal(err)
		}
		syncs.Store(0)
	}
	forget := func() {
		for n := range s.names.most {
			put(t, s, fmt.Sprintf("z/%d/k", n), "v")
		}
		syncs.Store(0)
	}
	for _, c := range []struct {
		before func()
		key    string
		want   int64
	}{
		{nil, "a/b/c/1", 1 + 4},         // c, b, a, root
		{nil, "a/b/c/2", 1 + 1},         // c
		{nil, "a/b/d/1", 1 + 2},         // d, b
		{nil, "a/b/old/1", 1 + 2},       // old, which was there before, b
		{nil, "a/b/1", 1 + 1},           // b
		{nil, "1", 1 + 1},               // root
		{remove, "a/b/c/3", 1 + 2},      // c, which is a new one, b
		{nil, "a/b/c/4", 1 + 1},         // c
		{remake("a"), "a/b/c/5", 1 + 4}, // c, b, a, root
		{remake("a/b/c"), "a/b/c/6", 1 + 2},
		{forget, "a/b/c/7", 1 + 4},
	} {
		if c.before != nil {
			c.before()
		}
		put(t, s, c.key, "v")
		if n := syncs.Swap(0); n != c.want {
			t.Errorf("put %s synced %d times, want %d", c.key, n, c.want)
		}
	}
	if n := s.names.mu.used.Len(); n > s.names.most || n != len(s.names.mu.byName) {
		t.Errorf("%d directories are open, %d known, at most %d wanted", n, len(s.names.mu.byName), s.names.most)
	}
}

// What one small create-only put costs: the sync of the object, link, the sync of
// its directory.
func BenchmarkPut(b *testing.B) {
	s, syncs := openCounted(b, b.TempDir())
	n := 0
	for ; b.Loop(); n++ {
		key := "d/01/topic/0/m/" + strconv.Itoa(n)
		if err := s.Put(b.Context(), key, strings.NewReader("v"), 1, objstore.PutOptions{CreateOnly: true}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(syncs.Load())/float64(n), "syncs/op")
}
