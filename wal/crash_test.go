package wal

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// image is a directory as a power loss at some moment leaves it, and what had
// been promised by then.
type image struct {
	fs     *vfs.MemFS
	when   string
	acked  uint64 // highest LSN that was acknowledged as durable
	needed uint64 // lowest LSN that must still be there
}

// machine drives a log, and keeps as its model the frames it was given.
type machine struct {
	mem  *vfs.MemFS
	fs   *faultFS
	log  *opened
	rng  *rand.Rand
	seed uint64

	mu     sync.Mutex
	frames map[uint64]entry // every frame reserved and not known lost
	acked  uint64           // highest LSN acknowledged as durable
	wrote  uint64           // highest LSN acknowledged as written
	needed uint64           // the hold
	images []image
}

func newMachine(t *rapid.T) *machine {
	m := &machine{seed: rapid.Uint64().Draw(t, "seed"), frames: map[uint64]entry{}, needed: 1}
	m.rng = rand.New(rand.NewPCG(m.seed, 7))
	m.mem = newFS()
	m.open(t)
	return m
}

func (m *machine) options() Options {
	o := testOptions(m.fs)
	o.FileSize = 64 << 10 // many rotations, and cheap copies in the file system
	o.TailBytes = []int{0, 5000, 40 << 10}[m.rng.IntN(3)]
	o.KnownDurable, o.NextNeeded = m.acked, m.needed
	o.Holds = map[string]uint64{"state": m.needed}
	return o
}

func (m *machine) open(t *rapid.T) {
	m.fs = &faultFS{FS: m.mem}
	m.fs.set(
		func(op, path string) (action, error) { m.photograph("before " + op + " " + path); return pass, nil },
		func(op, path string) { m.photograph("after " + op + " " + path) },
	)
	l, err := tryOpen(m.options())
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m.log = l
}

// photograph keeps, some of the time, what a power loss right now would leave.
// It runs in whatever goroutine makes the call.
func (m *machine) photograph(when string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.images) >= 4 || m.rng.IntN(4) != 0 {
		return
	}
	pct := []int{0, 0, 30, 50, 80, 100}[m.rng.IntN(6)]
	m.images = append(m.images, image{
		fs: m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: pct, RNG: m.rng}), when: when, acked: m.acked, needed: m.needed,
	})
}

// verify checks what a start finds against the model: I4.
func (m *machine) verify(l *opened, acked, needed uint64, strict bool) error {
	if len(l.replayed) > 0 && l.replayed[0].lsn > needed && needed <= acked {
		return fmt.Errorf("replay starts at LSN %d, needed is %d", l.replayed[0].lsn, needed)
	}
	last := uint64(0)
	for _, e := range l.replayed {
		last = e.lsn
		if e.kind == KindMark {
			continue
		}
		want, ok := m.frames[e.lsn]
		if !ok || want.kind != e.kind || !bytes.Equal(want.body, e.body) {
			return fmt.Errorf("LSN %d: invented or changed", e.lsn)
		}
	}
	if last < acked {
		return fmt.Errorf("replay ends at LSN %d, acknowledged was %d", last, acked)
	}
	if strict && last < m.wrote {
		return fmt.Errorf("replay ends at LSN %d, written was %d", last, m.wrote)
	}
	return nil
}

// develop opens every image taken since the last command, twice: what one
// start leaves must be good for the next.
func (m *machine) develop(t *rapid.T) {
	m.mu.Lock()
	images := m.images
	m.images = nil
	m.mu.Unlock()
	for i, img := range images {
		o := testOptions(img.fs)
		o.FileSize, o.PoolFiles = 64<<10, -1
		o.KnownDurable, o.NextNeeded = img.acked, img.needed
		l, err := tryOpen(o)
		if err != nil {
			t.Fatalf("power loss %s: %v", img.when, err)
		}
		if err := m.verify(l, img.acked, img.needed, false); err != nil {
			t.Fatalf("power loss %s: %v", img.when, err)
		}
		first := l.userFrames()
		again := clone(img.fs, []int{0, 50}[i%2], uint64(i))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.FS = again
		second, err := tryOpen(o)
		if err != nil {
			t.Fatalf("second power loss %s: %v", img.when, err)
		}
		if got := second.userFrames(); !slices.Equal(lsns(got), lsns(first)) {
			t.Fatalf("second power loss %s: %v after %v", img.when, lsns(got), lsns(first))
		}
		if err := second.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// crash replaces the log by what pct percent of the un-synced blocks leave.
func (m *machine) crash(t *rapid.T, pct int) {
	m.mu.Lock()
	after := m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: pct, RNG: m.rng})
	m.mu.Unlock()
	_ = m.log.Close() // of the old file system: stops its goroutines
	m.develop(t)      // what is lost below is still in these
	m.mem = after
	m.open(t)
	if err := m.verify(m.log, m.acked, m.needed, pct == 100); err != nil {
		t.Fatalf("crash with %d %%: %v", pct, err)
	}
	m.develop(t)
	m.settle()
}

// settle makes what was replayed the truth: it is durable now.
func (m *machine) settle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.log.NextLSN()
	for lsn := range m.frames {
		if lsn >= next-1 { // the closing mark has taken that LSN
			delete(m.frames, lsn)
		}
	}
	m.acked, m.wrote = m.log.Durable(), m.log.Written()
}

func (m *machine) append(t *rapid.T, sizes []int) uint64 {
	slots, want := make([]Slot, len(sizes)), make([]Want, len(sizes))
	for i, n := range sizes {
		want[i] = Want{Kind(1 + (i*3+n)%5), n}
	}
	if err := m.log.ReserveAll(slots, want); err != nil {
		t.Fatalf("reserve: %v", err)
	}
	m.mu.Lock()
	for i, s := range slots {
		b := body(m.seed^m.rng.Uint64(), s.LSN, want[i].Size)
		copy(s.Body, b)
		m.frames[s.LSN] = entry{s.LSN, want[i].Kind, b}
	}
	m.mu.Unlock()
	for _, s := range slots {
		s.Done()
	}
	return slots[len(slots)-1].LSN
}

func (m *machine) actions(t *rapid.T) map[string]func(*rapid.T) {
	size := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(3000, 6000), rapid.IntRange(12000, 20000))
	sizes := rapid.SliceOfN(size, 1, 3)
	return map[string]func(*rapid.T){
		"durable": func(t *rapid.T) {
			lsn := m.append(t, sizes.Draw(t, "sizes"))
			if err := m.log.WaitDurable(context.Background(), lsn); err != nil {
				t.Fatal(err)
			}
			m.mu.Lock()
			m.acked, m.wrote = max(m.acked, lsn), max(m.wrote, lsn)
			m.mu.Unlock()
		},
		"written": func(t *rapid.T) {
			lsn := m.append(t, sizes.Draw(t, "sizes"))
			if err := m.log.WaitWritten(context.Background(), lsn); err != nil {
				t.Fatal(err)
			}
			m.mu.Lock()
			m.wrote = max(m.wrote, lsn)
			m.mu.Unlock()
		},
		"staged": func(t *rapid.T) { m.append(t, sizes.Draw(t, "sizes")) },
		"mark":   func(*rapid.T) { m.log.tick() },
		"hold": func(t *rapid.T) {
			m.mu.Lock()
			m.needed = max(m.needed, rapid.Uint64Range(m.needed, max(m.needed, m.acked)).Draw(t, "next"))
			m.mu.Unlock()
			m.log.Hold("state", m.needed)
		},
		"read": func(t *rapid.T) { m.read(t) },
		"kill": func(t *rapid.T) { m.crash(t, 100) },
		"power": func(t *rapid.T) {
			m.crash(t, rapid.SampledFrom([]int{0, 10, 50, 90}).Draw(t, "percent"))
		},
		"restart": func(t *rapid.T) {
			last := m.log.NextLSN() - 1
			if err := m.log.Close(); err != nil {
				t.Fatal(err)
			}
			m.acked = max(m.acked, last) // Close has synced all that was staged
			m.crash(t, 0)
		},
		"": func(t *rapid.T) { m.develop(t) },
	}
}

// read compares a run of groups with the model.
func (m *machine) read(t *rapid.T) {
	if m.acked < m.needed {
		return
	}
	from := rapid.Uint64Range(m.needed, m.acked).Draw(t, "from")
	run, err := m.log.ReadGroups(from, rapid.IntRange(1, 1<<20).Draw(t, "max"))
	if err != nil {
		t.Fatalf("read from %d: %v", from, err)
	}
	if run.First > from || run.Next <= from || run.Next > m.log.Durable()+1 {
		t.Fatalf("read from %d: [%d, %d), durable %d", from, run.First, run.Next, m.log.Durable())
	}
	next := run.First
	err = ForEachFrame(slices.Concat(run.Groups...), run.Salt, func(f Frame) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if f.LSN != next || (f.Kind != KindMark && !bytes.Equal(f.Body, m.frames[f.LSN].body)) {
			return fmt.Errorf("LSN %d differs from what was appended", f.LSN)
		}
		next++
		return nil
	})
	if err != nil || next != run.Next {
		t.Fatalf("read [%d, %d): ends at %d, %v", run.First, run.Next, next, err)
	}
}

// I1, I4: whatever the order of appends, marks, rotations, recycling, kills
// and power losses, also at every single file system call: an acknowledged
// frame is there, none is invented, none changes its place.
func TestCrashMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		defer func() { _ = m.log.Close() }()
		t.Repeat(m.actions(t))
	})
}
