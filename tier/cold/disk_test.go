package cold

import (
	"slices"
	"sync"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// The chunks of one download share a file: damage in one is found by the batches
// in it, costs the file and one download, and is never served.
func TestDamageInSharedFile(t *testing.T) {
	fs, st := crash.NewFS(), newStore()
	seg, _ := archived(t, st, 0, repeat(240, 100_000)...)
	c := open(t, fs, st, nil)
	if _, err := scan(t, c, seg, 0); err != nil {
		t.Fatal(err)
	}
	settle(t, c)
	chunks, _ := c.Usage()
	names, err := fs.List("cache")
	if err != nil || len(names) > 1+(chunks+1)/2 {
		t.Fatalf("%d files for %d chunks: %v", len(names), chunks, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	largest := ""
	for _, name := range names {
		if s, err := fs.Stat("cache/" + name); err != nil {
			t.Fatal(err)
		} else if s.Size() == chunkTrailer+maxGet*ChunkSize {
			largest = name
		}
	}
	first, ok := parseFile(largest)
	if !ok {
		t.Fatalf("no file of %d chunks in %q", maxGet, names)
	}
	rewrite(t, fs, "cache/"+largest, func(b []byte) []byte { b[2*ChunkSize+77] ^= 1; return b })
	c = open(t, fs, st, nil)
	for i := range maxGet {
		if !c.disk.has(first.plus(i)) {
			t.Errorf("chunk %d of the file is not there", i)
		}
	}
	before := len(st.gets())
	if got, err := scan(t, c, seg, 0); err != nil || !slices.Equal(got, offsets(0, 240)) {
		t.Fatalf("%d batches: %v", len(got), err)
	}
	if n := len(st.gets()) - before; n < 2 || n > 4 {
		t.Errorf("%d requests, want the index and the file's chunks from the bad one on", n)
	}
	settle(t, c)
	if got, err := scan(t, c, seg, 0); err != nil || len(got) != 240 { // the chunks before it went with the file
		t.Fatalf("%d batches: %v", len(got), err)
	}
	settle(t, c)
	if n, _ := c.Usage(); n != chunks {
		t.Errorf("%d chunks on disk afterwards, want %d", n, chunks)
	}
}

// Two writers never write one file, a chunk is listed once, and the directory
// stays within its bound while many are written at once.
func TestPutsSideBySide(t *testing.T) {
	const limit = 6 * (chunkTrailer + ChunkSize)
	fs := crash.NewFS()
	d, err := openDisk(fs, "cache", limit)
	if err != nil {
		t.Fatal(err)
	}
	flights := []*flight{{done: landed, data: make([]byte, ChunkSize)}, {done: landed, data: []byte("end")}}
	var mem blocks
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := range uint32(40) {
				id := idOf("k", 2*(n/2))
				if err := d.put(id, ChunkSize+3, flights); err != nil {
					continue // no room beside what others write
				}
				if f := d.get(id.plus(1), &mem); f != nil {
					if string(f.data) != "end" {
						t.Errorf("chunk %d holds %d other bytes", n, len(f.data))
					}
					f.release()
				}
				if _, bytes := d.usage(); bytes > limit {
					t.Errorf("%d bytes are on disk, the bound is %d", bytes, int64(limit))
				}
			}
		})
	}
	wg.Wait()
	chunks, bytes := d.usage()
	names, err := fs.List("cache")
	if err != nil || chunks != 2*len(names) || bytes != int64(len(names))*(chunkTrailer+ChunkSize+3) {
		t.Errorf("%d files, %d chunks and %d bytes are listed: %v", len(names), chunks, bytes, err)
	}
	if err := d.put(idOf("large", 0), limit, []*flight{{done: landed, data: make([]byte, limit)}}); err == nil {
		t.Error("a file above the bound was written")
	}
}
