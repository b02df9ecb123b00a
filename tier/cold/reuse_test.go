package cold

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/segment"
)

// scribble overwrites memory that lies in the cache's pools, as the next
// downloads would: whoever still reads it sees rubbish, and the race detector
// sees whoever reads it meanwhile.
func scribble(c *Cache) {
	for n := 1; n <= maxGet; n++ {
		var all []*block
		for range 4 {
			b := c.blocks.get(n * ChunkSize)
			for at := 0; at < len(b.buf); at += len(rubbish) {
				copy(b.buf[at:], rubbish)
			}
			all = append(all, b)
		}
		for _, b := range all {
			b.release()
		}
	}
}

var rubbish = bytes.Repeat([]byte{0xdb}, ChunkSize)

// same holds a run against the object's bytes.
func same(t *testing.T, r *Run, x segment.Index, data []byte) {
	t.Helper()
	for _, raw := range r.Batches {
		h, err := segment.ParseHeader(raw)
		if err != nil {
			t.Error(err)
			return
		}
		e := x.At(x.SeekOffset(h.BaseOffset))
		if e.Base != h.BaseOffset || !bytes.Equal(raw, data[e.Position:e.End()]) {
			t.Errorf("the batch at offset %d is not the one that was archived", h.BaseOffset)
		}
	}
}

// A run keeps its bytes until Release, whatever happens to the scan, the window
// and the cache meanwhile; from memory and from disk, within chunks and across
// their borders.
func TestRunOutlivesScan(t *testing.T) {
	st := newStore()
	seg, data := archived(t, st, 0, repeat(120, 100_000)...)
	c := open(t, crash.NewFS(), st, nil)
	for _, from := range []string{"store", "disk"} {
		r, err := c.Open(context.Background(), seg)
		if err != nil {
			t.Fatal(err)
		}
		b := r.Batches(0)
		var runs []*Run
		for next := int64(0); ; {
			run, err := b.Run(context.Background(), 1<<20)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			size := 0
			for _, raw := range run.Batches {
				size += len(raw)
			}
			h, err := segment.ParseHeader(run.Batches[0])
			if err != nil || h.BaseOffset != next || size > 1<<20 {
				t.Fatalf("run from offset %d with %d bytes, want %d and at most 1 MiB: %v", h.BaseOffset, size, next, err)
			}
			next = run.Next
			runs = append(runs, run)
		}
		if last := runs[len(runs)-1]; last.Next != seg.Next {
			t.Fatalf("the last run ends at %d, want %d", last.Next, seg.Next)
		}
		b.Close()
		settle(t, c)
		if from == "disk" {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		scribble(c)
		for _, run := range runs {
			same(t, run, r.Index(), data)
			run.Release()
			run.Release() // does nothing
			if run.Batches != nil {
				t.Error("a released run still shows its batches")
			}
		}
	}
}

// Batches across chunks that one request brought are not copied: in the runs of a
// scan from the store, every batch lies right behind the one before it, but for
// one break at most where the next request's data begin.
func TestBordersAreNotCopied(t *testing.T) {
	st := newStore()
	seg, data := archived(t, st, 0, repeat(160, 100_000)...)
	c := open(t, crash.NewFS(), st, func(c *Config) { c.MaxBytes = 1 })
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(0)
	defer b.Close()
	breaks := 0
	for {
		run, err := b.Run(context.Background(), 64<<20)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		same(t, run, r.Index(), data)
		for i, raw := range run.Batches[1:] {
			// Addresses as numbers: a pointer behind the end is none.
			if before := run.Batches[i]; uintptr(unsafe.Pointer(&raw[0])) != uintptr(unsafe.Pointer(&before[0]))+uintptr(len(before)) {
				breaks++
			}
		}
		run.Release()
	}
	// Before and behind a batch that two requests brought; the first call is the index's.
	if most := 2 * (len(st.gets()) - 2); breaks > most {
		t.Errorf("%d batches do not lie behind the one before, want at most %d: %v", breaks, most, st.gets())
	}
}

// The batch that Next returned stays until the following call although the
// download it came from has ended, and nothing else holds it.
func TestBatchStaysUntilNextCall(t *testing.T) {
	st := newStore()
	seg, data := archived(t, st, 0, repeat(40, 100_000)...)
	c := open(t, crash.NewFS(), st, func(c *Config) { c.MaxBytes = 1 })
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(0)
	defer b.Close()
	for i := range r.Index().Len() {
		raw, _, err := b.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if i%12 == 0 {
			settle(t, c)
			scribble(c)
		}
		if e := r.Index().At(i); !bytes.Equal(raw, data[e.Position:e.End()]) {
			t.Fatalf("batch %d changed under its reader", i)
		}
	}
}

// Memory that a failed request was given is nobody's any more: a store that
// writes to it late damages nothing.
func TestLateStoreWrites(t *testing.T) {
	st := newStore()
	seg, data := archived(t, st, 0, repeat(8, 1000)...)
	var late []byte
	st.hook = func(_ context.Context, n int, p []byte, got int, err error) (int, error) {
		switch n {
		case 2:
			late = p
			return 0, errcode.New(errcode.Transient, "injected")
		case 3:
			for i := range late {
				late[i] = 0xdb
			}
		}
		return got, err
	}
	c := open(t, crash.NewFS(), st, nil)
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Batches(0)
	defer b.Close()
	run, err := b.Run(context.Background(), 1<<20)
	if err != nil || late == nil {
		t.Fatalf("late request seen: %v, %v", late != nil, err)
	}
	for range 100 {
		if got := c.blocks.get(ChunkSize); &got.buf[0] == &late[0] {
			t.Fatal("the pool hands out memory that a failed request may still write to")
		}
	}
	same(t, run, r.Index(), data)
	run.Release()
	if len(st.gets()) != 3 {
		t.Errorf("%d requests, want index, chunk, chunk again", len(st.gets()))
	}
}

// Readers that come, leave while they wait, hold runs for long and close early,
// over a store that cuts, flips and breaks off, a cache that is too small, and a thief of
// whatever is given back: no reader ever sees a byte that is not the object's.
func TestReuseUnderLoad(t *testing.T) {
	st := &pieces{store: newStore()}
	seg, data := archived(t, st.store, 0, repeat(100, 90_000)...)
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(1, 2))
	chance := func(n int) bool { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) == 0 }
	st.hook = func(int64, int, []byte) error {
		if chance(40) {
			return errcode.New(errcode.Transient, "injected")
		}
		return nil
	}
	st.store.hook = func(_ context.Context, _ int, p []byte, got int, err error) (int, error) {
		switch {
		case chance(20):
			return got / 2, err
		case chance(10):
			p[got/3] ^= 1
		}
		return got, err
	}
	c := open(t, crash.NewFS(), st, func(c *Config) { c.MaxBytes = 5 << 20 })
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	stop := make(chan struct{})
	var thief, readers sync.WaitGroup
	thief.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				scribble(c)
			}
		}
	})
	for range 4 {
		readers.Go(func() {
			for range rounds {
				r, err := c.Open(context.Background(), seg)
				if err != nil {
					continue // the index was bad twice
				}
				loiter(t, r, data, chance)
			}
		})
	}
	readers.Wait()
	close(stop)
	thief.Wait()
	settle(t, c)
	if n := c.ahead.Load(); n != 0 {
		t.Errorf("%d bytes of read-ahead are not given back", n)
	}
}

// loiter is one reader of TestReuseUnderLoad.
func loiter(t *testing.T, r *Reader, data []byte, chance func(int) bool) {
	t.Helper()
	b := r.Batches(0)
	defer b.Close()
	var held []*Run
	for !chance(30) {
		ctx, cancel := context.WithCancel(context.Background())
		if chance(5) {
			cancel() // leaves wherever it would wait
		}
		run, err := b.Run(ctx, 300_000)
		cancel()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			continue // bad twice, or left: the scan may go on
		}
		held = append(held, run)
		if len(held) > 5 {
			same(t, held[0], r.Index(), data)
			held[0].Release()
			held = held[1:]
		}
	}
	for _, run := range held {
		same(t, run, r.Index(), data)
		run.Release()
	}
}

// A scan of 48 MB from the store, and one from disk, take little new memory
// once the pools are warm.
func TestScanReusesMemory(t *testing.T) {
	st := newStore()
	seg, _ := archived(t, st, 0, repeat(160, 300_000)...)
	for name, limit := range map[string]int64{"store": 1, "disk": 1 << 30} {
		c := open(t, crash.NewFS(), st, func(c *Config) { c.MaxBytes = limit })
		taken := func() uint64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := scan(t, c, seg, 0); err != nil {
				t.Fatal(err)
			}
			settle(t, c)
			runtime.ReadMemStats(&after)
			return after.TotalAlloc - before.TotalAlloc
		}
		taken()
		// The race detector makes a pool forget one of four.
		if n := taken(); n > 36<<20 {
			t.Errorf("from %s: a second scan took %d bytes of new memory for %d bytes of data", name, n, seg.DataLength)
		}
	}
}
