package wal

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// fillFiles appends until the log has n files.
func fillFiles(t *testing.T, l *opened, n int) []entry {
	t.Helper()
	var out []entry
	for l.Stats().Files < n {
		out = append(out, put(t, l.Log, 1, 30<<10))
	}
	return out
}

// Files are recycled oldest first, only below the lowest hold, and not at all
// while nobody has said what is needed.
func TestHoldBoundsRecycling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, testOptions(newFS()))
		fillFiles(t, l, 5)
		synctest.Wait()
		if s := l.Stats(); s.Oldest != 1 || s.LowWater != 0 {
			t.Fatalf("recycled without a hold: %+v", s)
		}
		firsts := []uint64{}
		for _, n := range logFiles(t, l.o.FS) {
			first, _ := parseFileName(n)
			firsts = append(firsts, first)
		}
		l.Hold("ship", firsts[1])
		l.Hold("state", firsts[3])
		synctest.Wait()
		if s := l.Stats(); s.Oldest != firsts[1] || s.LowWater != firsts[1] {
			t.Fatalf("oldest %d, low water %d, want %d", s.Oldest, s.LowWater, firsts[1])
		}
		if _, err := l.ReadGroups(firsts[1]-1, 1); !errcode.Is(err, errcode.Gone) {
			t.Fatalf("read what is recycled: %v", err)
		}
		l.Hold("ship", firsts[3]-1) // one frame of the third file is still needed
		synctest.Wait()
		if s := l.Stats(); s.Oldest != firsts[2] {
			t.Fatalf("oldest %d, want %d", s.Oldest, firsts[2])
		}
		l.Hold("ship", math.MaxUint64)
		l.Hold("state", math.MaxUint64)
		synctest.Wait()
		s := l.Stats()
		if s.Oldest != firsts[4] || s.Files != 1 || s.Spares > l.o.PoolFiles {
			t.Fatalf("after release: %+v", s)
		}
		mustClose(t, l)
	})
}

// What a recycled file still holds never comes back: after a power loss at any
// call of its new life, replay has the acknowledged frames and nothing older
// in their place. This is also the trap of a rename without a directory sync.
func TestRecycledBytesNeverVerify(t *testing.T) {
	mem := newFS()
	fs := &faultFS{FS: mem}
	o := testOptions(fs)
	l := mustOpen(t, o)
	var mu sync.Mutex
	var images []image
	var acked, needed uint64 = 0, 1
	fs.set(nil, func(op, path string) {
		mu.Lock()
		defer mu.Unlock()
		if op != "write" || acked%5 == 0 {
			seed := uint64(len(images))
			images = append(images, image{clone(mem, int(seed%5)*25, seed), op + " " + path, acked, needed})
		}
		if len(images) > 400 {
			images = slices.Delete(images, 0, 100)
		}
	})
	var all []entry
	for i := range 60 {
		e := put(t, l.Log, uint64(i), 30<<10)
		all = append(all, e)
		mu.Lock()
		acked = e.lsn
		if e.lsn > 10 {
			needed = e.lsn - 10
		}
		mu.Unlock()
		l.Hold("state", needed)
	}
	mustClose(t, l)
	if reuse := slices.IndexFunc(images, func(i image) bool { return strings.HasPrefix(i.when, "rename") }); reuse < 0 {
		t.Fatal("no rename among the images: this test proves nothing")
	}
	for _, img := range images {
		o := testOptions(img.fs)
		o.KnownDurable, o.NextNeeded = img.acked, img.needed
		got, err := tryOpen(o)
		if err != nil {
			t.Fatalf("power loss after %s: %v", img.when, err)
		}
		frames := got.userFrames()
		if len(frames) > 0 {
			from := frames[0].lsn - 1
			wantFrames(t, frames, all[from:from+uint64(len(frames))])
		}
		mustClose(t, got)
	}
}

// A spare may hold, at the very place, a group of the very LSN that is expected
// there: of an attempt that a power loss undid. The new salt keeps it dead.
func TestSpareHoldsTheExpectedLSN(t *testing.T) {
	first := newFS()
	l := mustOpen(t, oneFile(first))
	put(t, l.Log, 1, 100)
	write(t, l.Log, 1, 200<<10)
	mustClose(t, l)
	content := read(t, first, fileName(1))
	content = append(content, make([]byte, 256<<10-len(content))...)
	mem := newFS()
	_ = mem.MkdirAll("wal", 0o755)
	overwrite(t, mem, "spare-1", content)
	second := mustOpen(t, testOptions(mem))
	if got := read(t, mem, fileName(1)); len(got) != len(content) || string(got[blockSize:]) != string(content[blockSize:]) {
		t.Fatal("the spare was not used: this test proves nothing")
	}
	mustClose(t, second)
	again := mustOpen(t, testOptions(killed(mem)))
	wantFrames(t, again.userFrames(), nil)
	mustClose(t, again)
}

// Spares that a process left are adopted when they are of use and removed when
// not, and files that are not the log's are left alone.
func TestStraySpares(t *testing.T) {
	mem := newFS()
	_ = mem.MkdirAll("wal", 0o755)
	full := []byte(strings.Repeat("x", 256<<10))
	for name, content := range map[string][]byte{
		"spare-3": full, "spare-4": full[:8192], "spare-9": full, "spare-11": full, "spare-x": full, "README": full[:3],
	} {
		overwrite(t, mem, name, content)
	}
	o := testOptions(mem)
	l := mustOpen(t, o)
	put(t, l.Log, 1, 10)
	mustClose(t, l)
	names, _ := mem.List("wal")
	slices.Sort(names)
	if !slices.Contains(names, "README") || !slices.Contains(names, "spare-x") || slices.Contains(names, "spare-4") {
		t.Fatalf("directory %v", names)
	}
	spares := slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := spareNumber(n); return !ok })
	if len(spares) > 2 {
		t.Fatalf("spares %v, want at most 2", spares)
	}
	if got := len(read(t, mem, fileName(1))); got != 256<<10 {
		t.Fatalf("the first file has %d bytes: no spare was used", got)
	}
	again := mustOpen(t, testOptions(killed(mem)))
	if got := again.userFrames(); len(got) != 1 {
		t.Fatalf("frames %v", lsns(got))
	}
	mustClose(t, again)
}

// Above MaxBytes the owner is asked to free the oldest files, one call at a
// time, and what it frees is recycled.
func TestPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(newFS())
		o.MaxBytes = 1 << 20
		var l *opened
		var mu sync.Mutex
		var asked []uint64
		o.Holds = map[string]uint64{"state": 1}
		o.OnPressure = func(upTo uint64) {
			mu.Lock()
			asked = append(asked, upTo)
			mu.Unlock()
			l.Hold("state", upTo+1)
		}
		l = mustOpen(t, o)
		for range 200 {
			put(t, l.Log, 1, 30<<10)
			synctest.Wait()
			if s := l.Stats(); s.Bytes > o.MaxBytes+2*o.FileSize {
				t.Fatalf("log grew to %d bytes", s.Bytes)
			}
		}
		if len(asked) < 5 || !slices.IsSorted(asked) {
			t.Fatalf("asked for %v", asked)
		}
		mustClose(t, l)
	})
}

// An owner that could not free anything, because it was not started yet or its disk
// was full, is asked again although nothing is appended meanwhile, ever more rarely;
// once the log is within its size nobody is asked any more (I12, I15).
func TestPressureIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(newFS())
		o.MaxBytes = 1 << 20
		var l *opened
		var ready atomic.Bool
		var asked atomic.Int64
		o.Holds = map[string]uint64{"state": 1}
		o.OnPressure = func(upTo uint64) {
			asked.Add(1)
			if ready.Load() {
				l.Hold("state", upTo+1)
			}
		}
		l = mustOpen(t, o)
		for range 100 {
			put(t, l.Log, 1, 30<<10)
		}
		synctest.Wait()
		before := asked.Load()
		time.Sleep(10 * time.Minute)
		if n := asked.Load() - before; n < 20 || n > 30 {
			t.Fatalf("asked %d times in ten minutes", n)
		}
		ready.Store(true)
		time.Sleep(mostPress + time.Second)
		if s := l.Stats(); s.Bytes > o.MaxBytes {
			t.Fatalf("the log has %d bytes still", s.Bytes)
		}
		before = asked.Load()
		time.Sleep(10 * time.Minute)
		if n := asked.Load() - before; n != 0 {
			t.Fatalf("asked %d times by a log within its size", n)
		}
		mustClose(t, l)
	})
}

// A reader that has a file open keeps it from being recycled under it.
func TestReaderPinsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, testOptions(newFS()))
		fillFiles(t, l, 3)
		f, _, err := l.files.pin(1)
		if err != nil {
			t.Fatal(err)
		}
		l.Hold("state", math.MaxUint64)
		synctest.Wait()
		if s := l.Stats(); s.Oldest != 1 {
			t.Fatalf("oldest %d while it is read", s.Oldest)
		}
		l.files.unpin(f)
		poke(l.chores)
		synctest.Wait()
		if s := l.Stats(); s.Files != 1 {
			t.Fatalf("%d files after the reader has gone", s.Files)
		}
		mustClose(t, l)
	})
}

// A file that cannot be renamed or removed stays the start of the chain.
func TestRecycleFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newFS()
		fs := &faultFS{FS: mem}
		l := mustOpen(t, testOptions(fs))
		fillFiles(t, l, 4)
		fs.set(func(op, path string) (action, error) {
			if op == "rename" || op == "remove" {
				return fail, vfs.ErrUnsupported
			}
			return pass, nil
		}, nil)
		l.Hold("state", math.MaxUint64)
		synctest.Wait()
		if s := l.Stats(); s.Oldest != 1 || s.Files != 4 {
			t.Fatalf("%+v", s)
		}
		mustClose(t, mustOpen(t, testOptions(clone(mem, 0, 1))))
		fs.set(nil, nil)
		poke(l.chores)
		synctest.Wait()
		if s := l.Stats(); s.Files != 1 {
			t.Fatalf("%+v", s)
		}
		mustClose(t, l)
	})
}

// Who finds a file free and comes second frees nothing in its place: the file
// behind it is needed (I4).
func TestFreedOnce(t *testing.T) {
	l := mustOpen(t, testOptions(newFS()))
	fillFiles(t, l, 3)
	l.files.mu.Lock()
	first, second := l.files.mu.list[0], l.files.mu.list[1].first
	l.files.mu.holds["state"] = second // not by Hold: the janitor need not come
	l.files.mu.Unlock()
	for range 2 {
		if err := l.free(first); err != nil {
			t.Fatal(err)
		}
		if s := l.Stats(); s.Oldest != second {
			t.Fatalf("the log begins at LSN %d, LSN %d is needed", s.Oldest, second)
		}
	}
	if _, err := l.ReadGroups(second, 1); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
}

// Two that recycle at once free no file before the one in front of it is gone
// for good: what a crash leaves in between would have a gap, and not start (I4).
func TestRecycledInTurn(t *testing.T) {
	fs := crash.NewFS()
	o := testOptions(fs)
	o.PoolFiles = -1 // so that files are removed, not renamed
	l := mustOpen(t, o)
	fillFiles(t, l, 4)
	l.files.mu.Lock()
	first := l.files.mu.list[0].first
	l.files.mu.holds["state"] = l.files.mu.list[3].first // not by Hold: the janitor need not come
	l.files.mu.Unlock()

	var second sync.WaitGroup
	early := make(chan string, 4)
	fs.Hook(func(op crash.Op) (crash.Fault, error) {
		switch {
		case op.Kind != "remove":
		case op.Path == l.path(fileName(first)):
			second.Go(l.recycle)
			select { // all is well when nothing comes, so this waits in vain
			case path := <-early:
				t.Errorf("%s goes while %s is there", path, op.Path)
			case <-time.After(20 * time.Millisecond):
			}
		default:
			early <- op.Path
		}
		return crash.Pass, nil
	})
	l.recycle()
	second.Wait()
	fs.Hook(nil)
	if n := len(early); n != 2 {
		t.Errorf("%d files went behind the first, want 2", n)
	}
	mustClose(t, l)
}
