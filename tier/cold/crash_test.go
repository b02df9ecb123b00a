package cold

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A crash at any moment of a scan, while files are written, finished and evicted,
// leaves a directory over which a new cache serves what was archived: what is torn, or
// has a trailer and not the bytes before it, is a miss. The directory is within its
// bound then, and lists what it holds (B204, I6).
func TestCrashWhileWriting(t *testing.T) {
	const limit = 24 * chunkFile
	mem := vfs.NewCrashableMem()
	root, err := mem.OpenDir("")
	if err != nil {
		t.Fatal(err)
	}
	if err := mem.MkdirAll("cache", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := root.Sync(); err != nil { // the directory was there before the crash
		t.Fatal(err)
	}
	st := &pieces{store: newStore()}
	seg, _ := archived(t, st.store, 0, repeat(8*40, ChunkSize/8-200)...)
	rnd := rand.New(rand.NewPCG(3, 4))
	most := 8
	if testing.Short() {
		most = 5
	}
	var images []*vfs.MemFS
	var calls atomic.Int64
	take := make(chan struct{}, 1) // one image at a time
	st.hook = func(int64, int, []byte) error {
		if calls.Add(1)%17 != 0 {
			return nil
		}
		take <- struct{}{}
		defer func() { <-take }()
		if len(images) < most {
			images = append(images, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{70, 99, 100}[len(images)%3], RNG: rnd}))
		}
		return nil
	}
	c := open(t, mem, st, func(c *Config) { c.MaxBytes = limit })
	for range 2 {
		if got, err := scan(t, c, seg, 0); err != nil || !slices.Equal(got, offsets(0, 8*40)) {
			t.Fatalf("%d batches: %v", len(got), err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if len(images) < 5 {
		t.Fatalf("%d images", len(images))
	}
	st.hook = nil
	for i, image := range images {
		c := open(t, image, st, func(c *Config) { c.MaxBytes = limit })
		for range 2 {
			if got, err := scan(t, c, seg, 0); err != nil || !slices.Equal(got, offsets(0, 8*40)) {
				t.Errorf("image %d: %d batches: %v", i, len(got), err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		names, err := image.List("cache")
		if err != nil {
			t.Fatal(err)
		}
		var bytes int64
		for _, name := range names {
			info, err := image.Stat("cache/" + name)
			if err != nil {
				t.Fatal(err)
			}
			bytes += info.Size()
		}
		if _, counted := c.Usage(); counted != bytes || bytes > limit {
			t.Errorf("image %d: %d bytes in %d files, %d are counted, the bound is %d", i, bytes, len(names), counted, int64(limit))
		}
	}
}
