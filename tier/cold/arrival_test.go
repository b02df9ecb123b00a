package cold

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// pieces is a store that announces its answers 256 KiB at a time. Before each
// announcement its hook may wait, change the bytes, or end the call.
type pieces struct {
	*store
	hook func(off int64, n int, p []byte) error // n bytes of p, which off is asked for, are about to be announced
	end  func(n int) (int, error)               // what the call returns instead of n
}

const piece = 256 << 10

func (s *pieces) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	arrived := objstore.Arrival(ctx)
	got := make([]byte, len(p))
	n, err := s.store.GetRange(ctx, key, got, off)
	if err != nil {
		return copy(p, got[:n]), err
	}
	for at := 0; at < n; {
		at += copy(p[at:min(n, at+piece)], got[at:])
		if s.hook != nil {
			if err := s.hook(off, at, p); err != nil {
				return at, err
			}
		}
		if arrived != nil {
			arrived(at)
		}
	}
	if s.end != nil {
		return s.end(n)
	}
	return n, nil
}

// A chunk is handed out when its bytes are there, not when the request it is part
// of ends: the request goes on only once the reader has had the batches of each
// chunk that came before.
func TestChunksLandAsTheyArrive(t *testing.T) {
	const each = ChunkSize / 8
	st := &pieces{store: newStore()}
	seg, _ := archived(t, st.store, 0, repeat(8*30, each-200)...)
	var read atomic.Int64 // bytes of batches
	st.hook = func(at int64, n int, _ []byte) error {
		if n%ChunkSize != 0 || n == ChunkSize {
			return nil // the first chunk of a request has nobody to wait for
		}
		for begin := time.Now(); read.Load() < at+int64(n)-2*ChunkSize; time.Sleep(time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				return errors.New("the reader waits for the whole answer")
			}
		}
		return nil
	}
	c := open(t, crash.NewFS(), st, nil)
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(0)
	defer b.Close()
	batches := 0
	for {
		raw, _, err := b.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		read.Add(int64(len(raw)))
		batches++
	}
	if batches != r.Index().Len() {
		t.Errorf("%d batches, want %d", batches, r.Index().Len())
	}
	if !slices.ContainsFunc(st.gets(), func(g call) bool { return g.size == maxGet*ChunkSize }) {
		t.Errorf("no request was large: %v", st.gets())
	}
}

// An answer that breaks off costs the chunks that have not arrived: those that have
// are served, and the second request is for the others alone. What the store writes
// late into the memory of the first one damages nobody.
func TestBrokenAnswerGoesOn(t *testing.T) {
	st := &pieces{store: newStore()}
	seg, data := archived(t, st.store, 0, repeat(8*40, ChunkSize/8-200)...)
	broken, late := int64(0), []byte(nil)
	st.hook = func(off int64, n int, p []byte) error {
		if late == nil && len(p) == maxGet*ChunkSize && n == 3*ChunkSize+2*piece {
			broken, late = off, p
			return errcode.New(errcode.Transient, "injected")
		}
		if late != nil && off == broken+3*ChunkSize {
			for i := 3 * ChunkSize; i < len(late); i++ {
				late[i] = 0xdb
			}
		}
		return nil
	}
	reg := prometheus.NewRegistry()
	c := open(t, crash.NewFS(), st, func(c *Config) { c.Concurrency = 1; c.Registry = reg })
	readThrough(t, c, seg, data)
	i := slices.Index(st.gets(), call{broken, maxGet * ChunkSize})
	if i < 0 {
		t.Fatal("no request was large enough")
	}
	first, again := st.gets()[i], st.gets()[i+1]
	if want := (call{first.off + 3*ChunkSize, first.size - 3*ChunkSize}); again != want {
		t.Errorf("after %+v broke in its fourth chunk %+v was asked for, want %+v", first, again, want)
	}
	settle(t, c)
	for range 100 {
		if got := c.blocks.get(maxGet * ChunkSize); &got.buf[0] == &late[0] {
			t.Fatal("the pool hands out memory that a failed request may still write to")
		}
	}
	// All of it was kept, the file of the broken request included.
	if n, _ := c.Usage(); n != chunksIn(seg.DataLength) {
		t.Errorf("%d chunks are kept, want %d", n, chunksIn(seg.DataLength))
	}
	if n := value(t, reg, "tidemark_cold_chunk_misses_total"); int(n) != chunksIn(seg.DataLength) {
		t.Errorf("%v chunks were downloaded, want %d", n, chunksIn(seg.DataLength))
	}
}

// A batch that arrives damaged is not served, whether its sum was computed when it
// arrived or by the reader, and its file is not kept: the next cache would find it
// there.
func TestDamagedOnArrival(t *testing.T) {
	fs, st := crash.NewFS(), &pieces{store: newStore()}
	seg, data := archived(t, st.store, 0, repeat(8*24, ChunkSize/8-200)...)
	var flipped atomic.Int64
	st.hook = func(off int64, n int, p []byte) error {
		if len(p) == maxGet*ChunkSize && n == 2*ChunkSize && flipped.CompareAndSwap(0, off+ChunkSize) {
			p[n-3000] ^= 4
		}
		return nil
	}
	c := open(t, fs, st, nil)
	readThrough(t, c, seg, data)
	settle(t, c)
	if flipped.Load() == 0 {
		t.Fatal("no request was large enough")
	}
	bad := idOf(seg.Key(), uint32(flipped.Load()/ChunkSize))
	if c.disk.has(bad) {
		f := c.disk.get(bad, &c.blocks)
		if f == nil || !slices.Equal(f.data, data[int64(bad.n)*ChunkSize:int64(bad.n+1)*ChunkSize]) {
			t.Error("the damaged chunk is on disk")
		}
	}
}

// A store that announces all of an answer and says something else in the end, an
// error, fewer bytes or more than it was asked for, costs nothing: the chunks are
// here, and their batches are right.
func TestStoreContradictsItself(t *testing.T) {
	for name, end := range map[string]func(n int) (int, error){
		"error": func(n int) (int, error) { return n, errcode.New(errcode.Internal, "injected") },
		"fewer": func(n int) (int, error) { return n - 1, nil },
		"more":  func(n int) (int, error) { return n + 1000, nil },
	} {
		t.Run(name, func(t *testing.T) {
			st := &pieces{store: newStore()}
			seg, _ := archived(t, st.store, 0, repeat(8*20, ChunkSize/8-200)...)
			c := open(t, crash.NewFS(), st, nil)
			if _, err := c.Open(context.Background(), seg); err != nil { // its index is not announced
				t.Fatal(err)
			}
			st.end = end
			if got, err := scan(t, c, seg, 0); err != nil || int64(len(got)) != seg.Records {
				t.Errorf("%d batches of %d: %v", len(got), seg.Records, err)
			}
			sum := int64(0)
			for _, g := range st.gets()[1:] {
				sum += int64(g.size)
			}
			if sum > seg.Bytes {
				t.Errorf("%d bytes were asked for, of %d", sum, seg.Bytes)
			}
		})
	}
}

// Batches are verified as they arrive: each chunk says which of those that end in it
// have been, and never that of one whose beginning another request brought.
func TestVerifiedOnArrival(t *testing.T) {
	st := &pieces{store: newStore()}
	seg, _ := archived(t, st.store, 0, repeat(8*24, ChunkSize/8-200)...)
	c := open(t, crash.NewFS(), st, nil)
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		t.Fatal(err)
	}
	s := source{&seg, seg.Key()}
	holds, err := c.request(s, 2, 2+maxGet)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range holds {
		if _, err := h.f.wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		for k := range r.Index().Len() {
			e := r.Index().At(k)
			whole := e.Position >= 2*ChunkSize && e.End() <= int64(3+i)*ChunkSize
			if whole && !h.f.good.has(k) || !whole && h.f.good.has(k) && e.Position < 2*ChunkSize {
				t.Errorf("chunk %d: batch %d at %d to %d, verified: %v", 2+i, k, e.Position, e.End(), h.f.good.has(k))
			}
		}
		c.unhold(h)
	}
}

// A disk that fills up or stands still in the middle of a file costs the cache and
// no reader; nothing of the file stays, and its bytes are free again (B204).
func TestDiskEndsInTheMiddle(t *testing.T) {
	for _, how := range []string{"full", "standing"} {
		t.Run(how, func(t *testing.T) {
			var writes atomic.Int64
			gate := make(chan struct{})
			mem := crash.NewFS()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind != errorfs.OpFileWriteAt || writes.Add(1)%5 != 0 {
					return nil
				}
				if how == "standing" {
					<-gate
				}
				return syscall.ENOSPC
			}))
			st := &pieces{store: newStore()}
			seg, _ := archived(t, st.store, 0, repeat(8*40, ChunkSize/8-200)...)
			reg := prometheus.NewRegistry()
			c := open(t, fs, st, func(c *Config) { c.Registry = reg })
			read := make(chan error, 1)
			go func() {
				got, err := scan(t, c, seg, 0)
				if err == nil && int64(len(got)) != seg.Records {
					err = errors.New("not all batches")
				}
				read <- err
			}()
			select {
			case err := <-read:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(20 * time.Second):
				t.Error("a reader waits for the disk")
			}
			close(gate)
			settle(t, c)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
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
			if chunks, counted := c.Usage(); counted != bytes || chunks == chunksIn(seg.DataLength) {
				t.Errorf("%d bytes in %d files, %d are counted; %d chunks", bytes, len(names), counted, chunks)
			}
			if n := c.unsaved.Load(); n != 0 {
				t.Errorf("%d bytes still count as on their way", n)
			}
		})
	}
}

// readThrough reads all batches of seg and holds them against data.
func readThrough(t *testing.T, c *Cache, seg manifest.Segment, data []byte) {
	t.Helper()
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(0)
	defer b.Close()
	for {
		run, err := b.Run(context.Background(), 1<<20)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		same(t, run, r.Index(), data)
		run.Release()
	}
}
