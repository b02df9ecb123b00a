package wal

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// promise is what a log has been asked to keep and has said about it.
type promise struct {
	frames map[uint64]reserved // every frame that may be found; a new map for each change
	acked  uint64              // highest LSN that was answered as durable
	wrote  uint64              // highest LSN that was answered as written
	needed uint64              // lowest LSN that somebody still needs
}

// reserved is a frame and the last LSN of those that were reserved with it.
type reserved struct {
	entry
	last uint64
}

// life is one process: it opens what a file system holds, compares it with
// what the processes before it promised, and goes on from there.
type life struct {
	t      *crash.T
	fs     *crash.FS
	depth  int
	killed bool // nothing written may be missing
	log    *opened

	mu     sync.Mutex // guards what follows: shots are taken in any goroutine
	p      promise
	broken bool // a sync is made to fail, or has failed
	armed  int  // syncs until one fails; 0 = none does
}

func (f *life) promise() promise {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.p
}

// fault makes one sync of a log file fail as a kernel's does.
func (f *life) fault(op crash.Op) (crash.Fault, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.armed == 0 || op.Kind != "sync" || !isLogFile(op.Path) {
		return crash.Pass, nil
	}
	if f.armed--; f.armed > 0 {
		return crash.Pass, nil
	}
	f.broken = true
	return crash.Forget, syscall.EIO
}

func (f *life) run() {
	t, rng := f.t, f.t.Rand
	camera := crash.FilmFaults(f.fs, rng, []int{6, 2, 0}[f.depth], f.promise, f.fault)
	o := testOptions(f.fs)
	o.FileSize, o.PoolFiles = 64<<10, rng.IntN(3)-1
	o.TailBytes = []int{0, 5000, 40 << 10}[rng.IntN(3)]
	o.NextNeeded, o.Holds = f.p.needed, map[string]uint64{"state": f.p.needed}
	if rng.IntN(2) == 0 {
		o.KnownDurable = f.p.acked
	}
	l, err := tryOpen(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	f.log = l
	f.verify()
	if f.depth > 0 {
		t.Count()
	}
	f.settle()
	if f.depth < 2 {
		if rng.IntN(5) == 0 {
			f.mu.Lock()
			f.armed = 1 + rng.IntN(4)
			f.mu.Unlock()
		}
		for range []int{4 + rng.IntN(12), 1 + rng.IntN(4)}[f.depth] {
			f.act()
		}
	}
	if rng.IntN(3) > 0 { // most processes do not live to close their log
		f.fs.Hook(nil)
	}
	last := l.NextLSN() - 1
	if err := l.Close(); err == nil {
		f.mu.Lock()
		f.p.acked, f.p.wrote = last, last
		f.mu.Unlock()
	} else if !f.broken {
		t.Fatalf("close: %v", err)
	}
	f.fs.Hook(nil)
	shots := camera.Take()
	if f.depth < 2 {
		shots = append(shots, crash.Shot[promise]{FS: f.fs, State: f.promise(), Op: crash.Op{Kind: "end"}})
	}
	for _, s := range shots {
		f.develop(s)
	}
}

// develop lives on with what the two kinds of crash leave at one moment.
func (f *life) develop(s crash.Shot[promise]) {
	t, rng := f.t, f.t.Rand
	images := s.FS.Losses(rng, []int{4, 2}[f.depth])
	killed := rng.IntN(3) == 0
	if killed {
		images = append(images, s.FS.Kill())
	}
	for i, fs := range images {
		next := &life{t: t, fs: fs, depth: f.depth + 1, p: s.State, killed: killed && i == len(images)-1}
		if !next.killed {
			next.p.wrote = next.p.acked // the rest is lost, or not
		}
		t.Step("%*s crash before change %d, %s %s: image %d of %d, killed %v, acked %d, wrote %d", f.depth, "", s.N, s.Op.Kind, s.Op.Path, i+1, len(images), next.killed, s.State.acked, s.State.wrote)
		next.run()
	}
}

// verify compares what was replayed with the promise: I1, I4.
func (f *life) verify() {
	p, replayed := f.p, f.log.replayed
	if len(replayed) > 0 && replayed[0].lsn > p.needed && p.needed <= p.acked {
		f.t.Fatalf("replay starts at LSN %d, needed is %d", replayed[0].lsn, p.needed)
	}
	end, whole := p.needed-1, uint64(0)
	for _, e := range replayed {
		end = max(end, e.lsn)
		if e.kind == KindMark {
			continue
		}
		want, ok := p.frames[e.lsn]
		if !ok || want.kind != e.kind || !bytes.Equal(want.body, e.body) {
			f.t.Fatalf("LSN %d: invented or changed", e.lsn)
		}
		whole = want.last
	}
	if whole > end { // B38
		f.t.Fatalf("replay ends at LSN %d, inside a reservation up to %d", end, whole)
	}
	if end < p.acked || f.killed && end < p.wrote {
		f.t.Fatalf("replay ends at LSN %d, %d was answered as durable and %d as written", end, p.acked, p.wrote)
	}
	if d := f.log.Durable(); d < end {
		f.t.Fatalf("LSN %d was replayed, %d is durable", end, d)
	}
}

// settle makes what was replayed the truth. What it lost, its LSNs included, may be
// given out again.
func (f *life) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.log.NextLSN()
	f.p.frames = maps.Clone(f.p.frames)
	maps.DeleteFunc(f.p.frames, func(lsn uint64, _ reserved) bool { return lsn >= next-1 }) // the closing mark took next-1
	f.p.acked, f.p.wrote = f.log.Durable(), f.log.Written()
}

// append reserves some frames together and returns the last LSN, or 0 when a
// broken log takes none.
func (f *life) append() uint64 {
	rng := f.t.Rand
	want := make([]Want, 1+rng.IntN(3))
	for i := range want {
		size := rng.IntN(200)
		switch rng.IntN(8) {
		case 0:
			size = 3000 + rng.IntN(3000)
		case 1:
			size = 12000 + rng.IntN(8000)
		}
		want[i] = Want{Kind(1 + rng.IntN(5)), size}
	}
	slots := make([]Slot, len(want))
	if err := f.log.ReserveAll(slots, want); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.broken {
			f.t.Fatalf("reserve: %v", err)
		}
		return 0
	}
	seed := rng.Uint64()
	f.mu.Lock()
	f.p.frames = maps.Clone(f.p.frames)
	for i, s := range slots {
		b := body(seed, s.LSN, want[i].Size)
		copy(s.Body, b)
		f.p.frames[s.LSN] = reserved{entry{s.LSN, want[i].Kind, b}, slots[len(slots)-1].LSN}
	}
	f.mu.Unlock()
	for _, s := range slots {
		s.Done()
	}
	return slots[len(slots)-1].LSN
}

// wait waits for one of the two marks, and holds the log to its answer.
func (f *life) wait(lsn uint64, durable bool) error {
	wait := f.log.WaitWritten
	if durable {
		wait = f.log.WaitDurable
	}
	err := wait(context.Background(), lsn)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.p.wrote = max(f.p.wrote, lsn)
		if durable {
			f.p.acked = max(f.p.acked, lsn)
		}
	case f.broken && (errcode.Is(err, errcode.Poisoned) || errcode.Is(err, errcode.NotConfirmed)):
	default:
		return fmt.Errorf("wait for LSN %d, durable %v: %w", lsn, durable, err)
	}
	return nil
}

func (f *life) act() {
	t, rng := f.t, f.t.Rand
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	switch k := rng.IntN(13); k {
	case 0, 1, 2, 3, 4:
		if lsn := f.append(); lsn > 0 {
			check(f.wait(lsn, k < 3))
		}
	case 5, 6:
		f.append()
	case 7: // three producers at once
		var waits sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			if lsn := f.append(); lsn > 0 {
				waits.Go(func() { errs[i] = f.wait(lsn, true) })
			}
		}
		waits.Wait()
		for _, err := range errs {
			check(err)
		}
	case 8, 9:
		f.log.tick()
	case 10, 12:
		f.mu.Lock()
		if f.p.acked > f.p.needed {
			f.p.needed += 1 + rng.Uint64N(f.p.acked-f.p.needed)
		}
		needed := f.p.needed
		f.mu.Unlock()
		f.log.Hold("state", needed)
		f.log.recycle() // or the janitor does, at a moment of its own
	case 11:
		p := f.promise()
		if p.acked < p.needed {
			return
		}
		from := p.needed + rng.Uint64N(p.acked-p.needed+1)
		run, err := f.log.ReadGroups(from, 1+rng.IntN(64<<10))
		check(err)
		if run.First > from || run.Next <= from || run.Next > f.log.Durable()+1 {
			t.Fatalf("read from %d: [%d, %d), durable %d", from, run.First, run.Next, f.log.Durable())
		}
	}
}

// I1, I2, I4, I5, B38, B45, B47, B50: whatever the order of appends, marks,
// rotations, recycling, failed syncs, deaths and power losses, between any two
// changes of the directory, in a recovery too: a frame that was answered is
// there, frames that were reserved together are not torn apart, none is
// invented, what was replayed once stays, and the log goes on.
func TestHistories(t *testing.T) {
	crash.Run(t, "wal", func(t *crash.T) {
		f := &life{t: t, fs: crash.NewFS(), p: promise{frames: map[uint64]reserved{}, needed: 1}}
		f.run()
	})
}
