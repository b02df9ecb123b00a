package cold

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// chunkFile is what a file of one whole chunk takes.
const chunkFile = ChunkSize + chunkTrailer

// must scans a segment and returns how many bytes that took from the store.
func must(t *testing.T, c *Cache, st *store, seg manifest.Segment) int64 {
	t.Helper()
	before := len(st.gets())
	if got, err := scan(t, c, seg, seg.Base); err != nil || int64(len(got)) != seg.Records {
		t.Fatalf("%d batches of %d: %v", len(got), seg.Records, err)
	}
	settle(t, c)
	n := int64(0)
	for _, g := range st.gets()[before:] {
		n += int64(g.size)
	}
	return n
}

// A scan of much more than the cache holds, once, does not drive out what is read
// again and again; what the scan brings takes the place of what was read once as
// well. Without admission the second reading of the small segment would cost all
// of its chunks.
func TestScanDoesNotEvict(t *testing.T) {
	fs, st := crash.NewFS(), newStore()
	hot, _ := archived(t, st, 0, repeat(3, ChunkSize-1000)...)
	once, _ := archived(t, st, 100, repeat(3, ChunkSize-1000)...)
	large, _ := archived(t, st, 200, repeat(40, ChunkSize-1000)...)
	c := open(t, fs, st, func(c *Config) { c.MaxBytes = 8 * chunkFile })
	must(t, c, st, once)
	for range 3 {
		must(t, c, st, hot)
	}
	must(t, c, st, large)
	if n := must(t, c, st, hot); n != 0 {
		t.Errorf("%d bytes of the segment that is read again and again were downloaded after a scan", n)
	}
	if n := must(t, c, st, once); n == 0 {
		t.Error("what was read once before the scan is still there: the scan found no room")
	}
	// What is read often from now on finds its place, whatever was before.
	other, _ := archived(t, st, 300, repeat(7, ChunkSize-1000)...)
	for range maxHeat + 1 {
		must(t, c, st, other)
	}
	if n := must(t, c, st, other); n != 0 {
		t.Errorf("%d bytes of a segment that was read %d times were downloaded", n, maxHeat+1)
	}
}

// Counts are bounded, whatever is read, and what was read often long ago cools.
func TestHeatIsBounded(t *testing.T) {
	h := newHeat(1 << 30)
	id := idOf("hot", 0)
	for range 2 * maxHeat {
		h.touch(id)
	}
	if h.of(id) != maxHeat {
		t.Fatalf("count %d, want %d", h.of(id), maxHeat)
	}
	for n := range uint32(20 * h.limit) {
		h.touch(idOf("scan", n))
		if len(h.counts) > 2*h.limit+1 {
			t.Fatalf("%d chunks are counted, the bound is %d", len(h.counts), 2*h.limit)
		}
	}
	if h.of(id) > 1 {
		t.Errorf("a chunk that nobody reads any more still counts %d", h.of(id))
	}
}

// A cache that holds one segment and eight readers on eight: all get to the end,
// and no byte is fetched three times. After that, and after a restart with a
// smaller bound, the directory is below its bound to the byte, and holds nothing
// that is not listed (B204, B205).
func TestThrash(t *testing.T) {
	fs, st := crash.NewFS(), newStore()
	const readers, chunks = 8, 6
	var segs []manifest.Segment
	var total int64
	for i := range int64(readers) {
		s, _ := archived(t, st, 1000*i, repeat(chunks*9, ChunkSize/9)...)
		segs = append(segs, s)
		total += s.Bytes
	}
	limit := int64(chunks * chunkFile)
	c := open(t, fs, st, func(c *Config) { c.MaxBytes = limit })
	for range 2 { // the second time parts are on disk and go while they are wanted
		before := len(st.gets())
		var wg sync.WaitGroup
		for _, s := range segs {
			wg.Go(func() {
				if got, err := scan(t, c, s, s.Base); err != nil || int64(len(got)) != s.Records {
					t.Errorf("%d batches of %d: %v", len(got), s.Records, err)
				}
			})
		}
		wg.Wait()
		settle(t, c)
		var fetched int64
		for _, g := range st.gets()[before:] {
			fetched += int64(g.size)
		}
		if fetched >= 3*total {
			t.Errorf("%d bytes were fetched of %d", fetched, total)
		}
	}
	directory := func(limit int64) {
		t.Helper()
		names, err := fs.List("cache")
		if err != nil {
			t.Fatal(err)
		}
		var bytes int64
		for _, name := range names {
			info, err := fs.Stat("cache/" + name)
			if err != nil {
				t.Fatal(err)
			}
			bytes += info.Size()
		}
		if _, counted := c.Usage(); bytes != counted || bytes > limit {
			t.Errorf("the directory has %d bytes, %d are counted, the bound is %d", bytes, counted, limit)
		}
	}
	directory(limit)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{idOf("cut", 0).file(): 10, idOf("huge", 0).file(): maxGet*ChunkSize + 1000} {
		f, err := fs.Create("cache/"+name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c = open(t, fs, st, func(c *Config) { c.MaxBytes = limit / 2 })
	directory(limit / 2)
	must(t, c, st, segs[0])
	directory(limit / 2)
}

// A disk that does not write, or does not remove, costs the cache and no reader:
// what could not be removed counts until it is gone.
func TestDiskErrors(t *testing.T) {
	var mu sync.Mutex
	const nothing = errorfs.OpKind(-1)
	failing := nothing
	mem := crash.NewFS()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if op.Kind == failing {
			return syscall.ENOSPC
		}
		return nil
	}))
	fail := func(k errorfs.OpKind) { mu.Lock(); failing = k; mu.Unlock() }
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(12, ChunkSize-1000)...)
	c := open(t, fs, st, func(c *Config) { c.MaxBytes = 8 * chunkFile })
	for _, k := range []errorfs.OpKind{errorfs.OpCreate, errorfs.OpFileWriteAt} {
		fail(k)
		must(t, c, st, seg)
	}
	if n, bytes := c.Usage(); n != 0 || bytes != 0 {
		t.Errorf("%d chunks, %d bytes on a disk that takes none", n, bytes)
	}
	fail(nothing)
	must(t, c, st, seg)
	if n, _ := c.Usage(); n == 0 {
		t.Error("nothing is kept once the disk works again")
	}
	other, _ := archived(t, st, 100, repeat(12, ChunkSize-1000)...)
	fail(errorfs.OpRemove)
	for range 3 {
		must(t, c, st, other)
	}
	check := func() {
		t.Helper()
		names, err := mem.List("cache")
		if err != nil {
			t.Fatal(err)
		}
		var bytes int64
		for _, name := range names {
			info, err := mem.Stat("cache/" + name)
			if err != nil {
				t.Fatal(err)
			}
			bytes += info.Size()
		}
		if _, counted := c.Usage(); counted != bytes || bytes > 8*chunkFile {
			t.Errorf("%d bytes are there, %d are counted, the bound is %d", bytes, counted, int64(8*chunkFile))
		}
	}
	check()
	fail(errorfs.OpFileReadAt)
	must(t, c, st, other)
	fail(nothing)
	for range 3 {
		must(t, c, st, other)
	}
	check()
}

// A reader that stands still keeps what it has ahead of it on disk: others may
// fill the cache meanwhile (B204).
func TestAheadIsPinned(t *testing.T) {
	fs, st := crash.NewFS(), newStore()
	seg, _ := archived(t, st, 0, repeat(8, ChunkSize-1000)...)
	c := open(t, fs, st, func(c *Config) { c.MaxBytes = 9 * chunkFile })
	must(t, c, st, seg)
	ctx := context.Background()
	r, err := c.Open(ctx, seg)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(0)
	defer b.Close()
	for range 4 { // by then all that follows is in the window
		if _, _, err := b.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(4) {
		other, _ := archived(t, st, 100*(i+1), repeat(8, ChunkSize-1000)...)
		for range 3 {
			must(t, c, st, other)
		}
	}
	before := len(st.gets())
	for n := 4; ; n++ {
		if _, _, err := b.Next(ctx); errors.Is(err, io.EOF) {
			if n != 8 {
				t.Errorf("%d batches, want 8", n)
			}
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(st.gets()) - before; n != 0 {
		t.Errorf("%d requests for what was on disk and ahead of the reader", n)
	}
}
