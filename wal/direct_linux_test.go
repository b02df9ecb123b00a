package wal

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// cachedPages is how many pages of a file the page cache has.
func cachedPages(t *testing.T, name string) (n int) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	in := make([]byte, (len(m)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&in[0]))); e != 0 {
		t.Fatal(e)
	}
	for _, b := range in {
		n += int(b & 1)
	}
	return n
}

// evicts asks the file system of the test's directory itself.
func evicts(t *testing.T) bool {
	t.Helper()
	name := filepath.Join(diskDir(t), "probe")
	f, err := vfs.Default.Create(name, writeCategory)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(alignedBytes(blockSize)); err != nil {
		t.Fatal(err)
	}
	if err := f.SyncData(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	return cachedPages(t, name) == 0
}

// Spares take no memory of the page cache, neither when they are new nor when
// they were log files whose small groups went through it: the direct writes of
// their next life would have to evict every page.
func TestSparesLeaveThePageCache(t *testing.T) {
	if !evicts(t) {
		t.Log("a file system that is its page cache: nothing can leave it")
		return
	}
	o := diskOptions(t, vfs.Default)
	o.PoolFiles, o.Holds = 4, map[string]uint64{"state": 1}
	l := mustOpen(t, o)
	for range 4 * int(o.FileSize) / (10 << 10) {
		put(t, l.Log, 3, 10<<10)
	}
	l.Hold("state", math.MaxUint64)
	for deadline := time.Now().Add(20 * time.Second); l.Stats().Files > 1 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	mustClose(t, l) // the janitor has ended
	spares, err := filepath.Glob(filepath.Join(o.Dir, "spare-*"))
	if err != nil || len(spares) < 3 {
		t.Fatalf("spares %v, %v; want those that were log files", spares, err)
	}
	for _, name := range spares {
		if n := cachedPages(t, name); n > 0 {
			t.Errorf("%s has %d pages in the cache", filepath.Base(name), n)
		}
	}
}
