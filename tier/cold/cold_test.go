package cold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func offsets(from, to int64) []int64 {
	var out []int64
	for o := from; o < to; o++ {
		out = append(out, o)
	}
	return out
}

func repeat(n, size int) []int { return slices.Repeat([]int{size}, n) }

// A segment of many chunks is read whole and in order; the index costs one
// request, the data few large ones; the second time everything is on disk, and
// a new process finds it there.
func TestReadThrough(t *testing.T) {
	fs, st := crash.NewFS(), newStore()
	seg, _ := archived(t, st, 100, repeat(200, 100_000)...)
	c := open(t, fs, st, func(c *Config) { c.Registry = prometheus.NewRegistry() })
	got, err := scan(t, c, seg, 100)
	if err != nil || !slices.Equal(got, offsets(100, 300)) {
		t.Fatalf("%d batches: %v", len(got), err)
	}
	calls := st.gets()
	chunks := (seg.DataLength + ChunkSize - 1) / ChunkSize
	if calls[0].off != seg.DataLength || len(calls) > 1+int(chunks)/2 {
		t.Errorf("%d requests for %d chunks: %v", len(calls), chunks, calls)
	}
	for _, k := range calls {
		if k.size > maxGet*ChunkSize {
			t.Errorf("request of %d bytes", k.size)
		}
	}
	settle(t, c)
	if n, bytes := c.Usage(); int64(n) != chunks || bytes < seg.DataLength {
		t.Errorf("%d chunks of %d bytes on disk, want %d", n, bytes, chunks)
	}
	if _, err := scan(t, c, seg, 100); err != nil || len(st.gets()) != len(calls) {
		t.Errorf("second read made %d requests: %v", len(st.gets())-len(calls), err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open(t, fs, st, nil)
	if _, err := scan(t, c, seg, 100); err != nil || len(st.gets()) != len(calls)+1 {
		t.Errorf("read after a restart made %d requests, want 1 for the index: %v", len(st.gets())-len(calls), err)
	}
	if ahead := c.ahead.Load(); ahead != 0 {
		t.Errorf("%d bytes of read-ahead are not given back", ahead)
	}
}

// A scan may begin anywhere: in a gap, at the last offset, beyond the end.
func TestScanFrom(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 10, 5, 5, -1, -1, 5)
	c := open(t, crash.NewFS(), st, nil)
	for from, want := range map[int64][]int64{0: {10, 11, 14}, 10: {10, 11, 14}, 11: {11, 14}, 12: {14}, 13: {14}, 14: {14}, 15: nil, 99: nil} {
		if got, err := scan(t, c, seg, from); err != nil || !slices.Equal(got, want) {
			t.Errorf("from %d: %v, want %v: %v", from, got, want, err)
		}
	}
}

// Batches that end at a chunk's border, one byte before and one behind it, and
// a batch over several chunks are read whole (B213).
func TestChunkBorders(t *testing.T) {
	// A batch of one record has a fixed overhead; find it from a first one.
	probe, _ := archived(t, nil, 0, 1000)
	overhead := int(probe.DataLength) - 1000
	for _, d := range []int{-2, -1, 0, 1, 2} {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			st := newStore()
			// Lengths are varints: a value this large has up to 4 bytes more overhead.
			first := ChunkSize - overhead - 4 + d
			for {
				s, _ := archived(t, nil, 0, first)
				if s.DataLength == int64(ChunkSize+d) {
					break
				}
				first += int(int64(ChunkSize+d) - s.DataLength)
			}
			seg, _ := archived(t, st, 0, first, 10, 3*ChunkSize, 10)
			c := open(t, crash.NewFS(), st, nil)
			if got, err := scan(t, c, seg, 0); err != nil || !slices.Equal(got, offsets(0, 4)) {
				t.Fatalf("%v: %v", got, err)
			}
		})
	}
}

// However many readers want a chunk, it is downloaded once; one that leaves
// stops nobody else, and the download is not lost.
func TestOneDownload(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(5, 1000)...)
	c := open(t, crash.NewFS(), st, nil)
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		t.Fatal(err)
	}
	arrived, gate := make(chan struct{}), make(chan struct{})
	st.mu.Lock()
	st.hook = func(ctx context.Context, n int, p []byte, got int, err error) (int, error) {
		close(arrived)
		<-gate
		return got, errors.Join(err, ctx.Err())
	}
	st.mu.Unlock()
	leaver := r.Batches(0)
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error)
	go func() {
		_, _, err := leaver.Next(ctx)
		left <- err
	}()
	<-arrived
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			b := r.Batches(0)
			defer b.Close()
			if _, _, err := b.Next(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that left got %v", err)
	}
	leaver.Close()
	close(gate)
	wg.Wait()
	if n := len(st.gets()); n != 2 {
		t.Errorf("%d requests, want one for the index and one for the chunk", n)
	}
}

// What a store answers wrong once is asked for again, and never served: short
// bodies, flipped bytes, errors (B202). Wrong twice has a code that says what.
func TestBadAnswers(t *testing.T) {
	flip := func(p []byte, got int, err error) (int, error) { p[got/2] ^= 1; return got, err }
	short := func(p []byte, got int, err error) (int, error) { return got * 6 / 10, err }
	fail := func(c errcode.Code) func([]byte, int, error) (int, error) {
		return func([]byte, int, error) (int, error) { return 0, errcode.New(c, "injected") }
	}
	for name, x := range map[string]struct {
		bad  func(p []byte, got int, err error) (int, error)
		code errcode.Code
	}{
		"flipped":   {flip, errcode.Corrupt},
		"short":     {short, errcode.Corrupt},
		"transient": {fail(errcode.Transient), errcode.ArchiveUnavailable},
		"throttled": {fail(errcode.Throttled), errcode.ArchiveUnavailable},
		"denied":    {fail(errcode.Denied), errcode.ArchiveUnavailable},
		"missing":   {fail(errcode.NotFound), errcode.Gone},
	} {
		for _, target := range []int{1, 2} { // the index, the data
			t.Run(fmt.Sprintf("%s-%d", name, target), func(t *testing.T) {
				st := newStore()
				seg, _ := archived(t, st, 40, repeat(8, 1000)...)
				st.hook = func(_ context.Context, n int, p []byte, got int, err error) (int, error) {
					if n == target {
						return x.bad(p, got, err)
					}
					return got, err
				}
				c := open(t, crash.NewFS(), st, nil)
				if got, err := scan(t, c, seg, 40); err != nil || !slices.Equal(got, offsets(40, 48)) {
					t.Fatalf("bad once: %v, %v", got, err)
				}
				st.hook = func(_ context.Context, n int, p []byte, got int, err error) (int, error) {
					if target == 1 || p != nil && int64(len(p)) != seg.Bytes-seg.DataLength {
						return x.bad(p, got, err)
					}
					return got, err
				}
				c = open(t, crash.NewFS(), st, nil)
				_, err := scan(t, c, seg, 40)
				var e *errcode.Error
				if !errors.As(err, &e) || e.Code != x.code {
					t.Fatalf("bad for ever: %v, want %s", err, x.code)
				}
				if x.code == errcode.Gone && (e.Facts["from_offset"] != int64(40) || e.Facts["next_offset"] != int64(48)) {
					t.Errorf("facts %v do not name the range (B210)", e.Facts)
				}
				st.hook = nil
				if got, err := scan(t, c, seg, 40); err != nil || len(got) != 8 {
					t.Errorf("after the store came back: %v, %v", got, err)
				}
			})
		}
	}
}

// A chunk file that is damaged, cut, empty or another one's is a miss.
func TestBadChunkFilesAreMisses(t *testing.T) {
	for name, damage := range map[string]func(b []byte) []byte{
		"flipped data":    func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"flipped trailer": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"zeros":           func(b []byte) []byte { clear(b[1000 : len(b)-chunkTrailer]); return b },
		"no trailer":      func(b []byte) []byte { clear(b[len(b)-chunkTrailer:]); return b },
		"cut":             func(b []byte) []byte { return b[:len(b)/2] },
		"empty":           func(b []byte) []byte { return nil },
		"too long":        func(b []byte) []byte { return append(b, make([]byte, 2*ChunkSize)...) },
		"shorter chunk": func(b []byte) []byte {
			tr := fileTrailer{first: chunkID{[12]byte(b[len(b)-chunkTrailer+8:]), 0}, size: 36}
			raw := tr.encode()
			return append(b[:36], raw[:]...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs, st := crash.NewFS(), newStore()
			seg, _ := archived(t, st, 0, repeat(5, 1000)...)
			c := open(t, fs, st, nil)
			if _, err := scan(t, c, seg, 0); err != nil {
				t.Fatal(err)
			}
			settle(t, c)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			rewrite(t, fs, "cache/"+idOf(seg.Key(), 0).file(), damage)
			before := len(st.gets())
			c = open(t, fs, st, nil)
			if got, err := scan(t, c, seg, 0); err != nil || len(got) != 5 {
				t.Fatalf("%v %v", got, err)
			}
			if n := len(st.gets()) - before; n != 2 {
				t.Errorf("%d requests, want index and chunk", n)
			}
		})
	}
}

func rewrite(t *testing.T, fs vfs.FS, path string, change func([]byte) []byte) {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	w, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(change(b)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// The directory keeps its bound, and the chunk that was used longest ago goes
// first.
func TestEviction(t *testing.T) {
	fs, st := crash.NewFS(), newStore()
	c := open(t, fs, st, func(c *Config) { c.MaxBytes = 3 * (ChunkSize + chunkTrailer) })
	var keys []string
	for i := range int64(5) {
		seg, _ := archived(t, st, 100*i, ChunkSize-200)
		keys = append(keys, seg.Key())
		if _, err := scan(t, c, seg, 0); err != nil {
			t.Fatal(err)
		}
		settle(t, c)
		if i == 2 {
			f := c.disk.get(idOf(keys[0], 0), &c.blocks)
			if f == nil {
				t.Fatal("the first chunk is gone too early")
			}
			f.release()
		}
	}
	for i, want := range []bool{true, false, false, true, true} {
		if got := c.disk.has(idOf(keys[i], 0)); got != want {
			t.Errorf("chunk %d on disk: %v, want %v", i, got, want)
		}
	}
	names, err := fs.List("cache")
	if err != nil || len(names) != 3 {
		t.Errorf("%d files in the directory: %v", len(names), err)
	}
}

// A start takes over what is there, leaves foreign files alone, and brings a
// directory that is too large below its bound.
func TestOpenScansDirectory(t *testing.T) {
	fs, st := crash.NewFS(), newStore()
	seg, _ := archived(t, st, 0, repeat(8, ChunkSize-200)...)
	c := open(t, fs, st, nil)
	if _, err := scan(t, c, seg, 0); err != nil {
		t.Fatal(err)
	}
	settle(t, c)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cache/README", "cache/zz.chunk"} {
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	c = open(t, fs, st, func(c *Config) { c.MaxBytes = 2 * (ChunkSize + chunkTrailer) })
	if n, bytes := c.Usage(); n > 3 || bytes > 2*(ChunkSize+chunkTrailer) {
		t.Errorf("%d chunks, %d bytes", n, bytes)
	}
	names, err := fs.List("cache")
	if err != nil || !slices.Contains(names, "README") || !slices.Contains(names, "zz.chunk") {
		t.Errorf("%q: %v", names, err)
	}
}

// An object of another topic, or one that is not what the entry says, is not
// served, although it verifies in itself.
func TestEntryAndObjectDiffer(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(5, 100)...)
	for i := range 4 {
		s := seg
		switch i {
		case 0:
			s.OriginTopic++
		case 1:
			s.Records--
		case 2:
			s.DataSHA256[0] ^= 1
		case 3:
			s.LastGeneration++
		}
		c := open(t, crash.NewFS(), st, nil)
		if _, err := scan(t, c, s, 0); !errcode.Is(err, errcode.Corrupt) {
			t.Errorf("case %d: %v", i, err)
		}
	}
}

// A full or failing disk costs the cache and no reader.
func TestDiskFails(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(5, 1000)...)
	c := open(t, crash.NewFS(), st, func(c *Config) { c.MaxBytes = 100 })
	for range 2 {
		if got, err := scan(t, c, seg, 0); err != nil || len(got) != 5 {
			t.Fatalf("%v %v", got, err)
		}
		settle(t, c)
	}
	if n, _ := c.Usage(); n != 0 {
		t.Errorf("%d chunks on a disk without room", n)
	}
}

// After Close nothing hangs: readers get Closed.
func TestClosed(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(5, 1000)...)
	c := open(t, crash.NewFS(), st, nil)
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Batches(0).Next(context.Background()); !errcode.Is(err, errcode.Closed) {
		t.Errorf("next after close: %v", err)
	}
}

// The decoder takes whatever ends a chunk file and believes none of it; what it
// accepts is what the encoder writes.
func FuzzChunk(f *testing.F) {
	id := idOf("k", 3)
	h := fileTrailer{first: id, size: ChunkSize + 5}
	raw := h.encode()
	f.Add(raw[:], int64(ChunkSize+5))
	f.Add([]byte(chunkMagic), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		if err := parseTrailer(b, id, size); err != nil {
			return
		}
		h := fileTrailer{first: id, size: size}
		if back := h.encode(); string(back[:]) != string(b) || chunksIn(size) > maxGet {
			t.Fatalf("accepted a file that the encoder does not write")
		}
	})
}
