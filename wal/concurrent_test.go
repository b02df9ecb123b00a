package wal

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Proves that those who wait for the write at the same time share one, once the last
// group had several frames, and that a group of one ends that. Who comes when is the
// scheduler's: with one processor, and nobody who lets others go first, each of 32
// callers writes a block of its own, round after round.
func TestWritesAreShared(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // who yields is overtaken by all
	const callers, rounds = 32, 100
	round := func() (groups int) {
		fs := newFS()
		o := testOptions(fs)
		o.PoolFiles = -1 // the janitor has nothing to do
		l := mustOpen(t, o)
		l.several.Store(true)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				s, err := l.Reserve(KindCommit, 10)
				if err == nil {
					s.Done()
					err = l.WaitWritten(context.Background(), s.LSN)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		l.several.Store(true)
		write(t, l.Log, 1, 10)
		if l.several.Load() {
			t.Error("a group of one frame counts as one of several")
		}
		mustClose(t, l)
		for _, name := range logFiles(t, fs) {
			groups += len(spansOf(t, read(t, fs, name)))
		}
		return groups
	}
	groups := 0
	for range rounds {
		if groups = round(); groups <= callers/2 { // with those of the single caller and of the close
			return
		}
	}
	t.Errorf("%d callers wrote %d groups, in the last of %d rounds", callers, groups, rounds)
}

// 64 goroutines append, wait for one mark or the other, read and hold, over
// rotations and recycling; then a restart has every acknowledged frame that a
// hold protects, each with its own bytes.
func TestConcurrentAppends(t *testing.T) {
	mem := newFS()
	o := testOptions(mem)
	l := mustOpen(t, o)
	var mu sync.Mutex
	acked := map[uint64]entry{}
	held := uint64(1)
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for w := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 30 {
				n := (w*131 + i*977) % 3000
				if w == 0 {
					n = 40 << 10
				}
				s, err := l.Reserve(KindCommit, n)
				if err != nil {
					errs <- err
					return
				}
				b := body(uint64(w), s.LSN, n)
				copy(s.Body, b)
				s.Done()
				wait := l.WaitDurable
				if i%3 == 0 && i < 29 {
					wait = l.WaitWritten
				}
				if err := wait(context.Background(), s.LSN); err != nil {
					errs <- err
					return
				}
				mu.Lock()
				acked[s.LSN] = entry{s.LSN, KindCommit, b}
				mu.Unlock()
				if w == 1 && i%10 == 9 && s.LSN > 400 {
					mu.Lock()
					held = s.LSN - 400
					mu.Unlock()
					l.Hold("state", s.LSN-400)
				}
				if w == 2 {
					if _, err := l.ReadGroups(s.LSN, 64<<10); err != nil && !errcode.Is(err, errcode.Gone) {
						errs <- fmt.Errorf("read %d: %w", s.LSN, err)
						return
					}
				}
			}
		}()
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	mustClose(t, l)
	o.FS = clone(mem, 0, 1)
	o.NextNeeded = held
	again := mustOpen(t, o)
	found := map[uint64]entry{}
	for _, e := range again.userFrames() {
		found[e.lsn] = e
	}
	for lsn, want := range acked {
		if got, ok := found[lsn]; lsn >= held && (!ok || !bytes.Equal(got.body, want.body)) {
			t.Fatalf("LSN %d is missing or changed", lsn)
		}
	}
	if len(acked) != 64*30 {
		t.Fatalf("%d frames acknowledged", len(acked))
	}
	mustClose(t, again)
}

// Close while others append: everybody gets an answer, and what was
// acknowledged is there.
func TestCloseDuringAppends(t *testing.T) {
	mem := newFS()
	l := mustOpen(t, testOptions(mem))
	var wg sync.WaitGroup
	var last atomic.Uint64
	started := make(chan struct{}, 16)
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				s, err := l.Reserve(KindCommit, 100)
				if errcode.Is(err, errcode.Closed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				s.Done()
				err = l.WaitDurable(context.Background(), s.LSN)
				if err != nil && !errcode.Is(err, errcode.NotConfirmed) {
					t.Error(err)
					return
				}
				for old := last.Load(); err == nil && s.LSN > old && !last.CompareAndSwap(old, s.LSN); old = last.Load() {
				}
				if i == 3 {
					started <- struct{}{}
				}
			}
		}()
	}
	for range 16 {
		<-started
	}
	mustClose(t, l)
	wg.Wait()
	again := mustOpen(t, testOptions(clone(mem, 0, 1)))
	if end := again.replayed[len(again.replayed)-1].lsn; end < last.Load() {
		t.Fatalf("log ends at %d, acknowledged was %d", end, last.Load())
	}
	mustClose(t, again)
}

// With every buffer in use an appender waits for a write instead of growing
// memory without bound. I12.
func TestStagingIsBounded(t *testing.T) {
	o := testOptions(newFS())
	o.FileSize, o.MaxBytes = 16<<20, 1<<30
	l := mustOpen(t, o)
	for range 40 {
		stage(t, l.Log, 1, 900<<10) // nobody waits
	}
	for range 5 {
		stage(t, l.Log, 1, 3<<20)
	}
	l.mu.Lock()
	made, big, full := l.mu.made, l.mu.big, len(l.mu.full)
	l.mu.Unlock()
	if made > Groups || big > bigGroups || full > Groups+bigGroups {
		t.Fatalf("%d groups, %d large, %d staged", made, big, full)
	}
	if l.Written() < 30 {
		t.Fatalf("written %d of 45", l.Written())
	}
	mustClose(t, l)
}

// An append with its wait allocates at most once.
func TestAppendAllocates(t *testing.T) {
	o := testOptions(nullFS{newFS()})
	o.FileSize, o.MaxBytes, o.PoolFiles = 1<<30, 2<<30, -1
	l := mustOpen(t, o)
	ctx := t.Context()
	n := testing.AllocsPerRun(2000, func() {
		s, err := l.Reserve(KindCommit, 1024)
		if err != nil {
			t.Fatal(err)
		}
		s.Done()
		if err := l.WaitDurable(ctx, s.LSN); err != nil {
			t.Fatal(err)
		}
	})
	if n > 1 {
		t.Fatalf("%v allocations", n)
	}
	t.Logf("%v allocations", n)
	mustClose(t, l)
}
