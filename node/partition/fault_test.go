package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// faultKind is a way for calls to fail.
type faultKind struct {
	name string
	// verdict of the call that was chosen, and of those after it.
	first, later verdict
	err          error
	later1       int  // how many more calls fail
	heals        bool // the partition must go on by itself, unless a sync failed
}

var faultKinds = []faultKind{
	{"full once", refuse, pass, errFull, 0, true},
	{"torn and full", tear, refuse, errFull, 0, true},
	{"full for a while", refuse, refuse, errFull, 7, true},
	{"torn, then full for a while", tear, refuse, errFull, 4, true},
	{"written, and yet an error", lie, pass, errFull, 0, true},
	{"io error, pages lost", loseSync, pass, errIO, 0, false},
}

// faultWork appends, flushes, seals and checkpoints, whatever of it fails, and
// returns what was acknowledged. Reads in between must always be right.
type faultWork struct {
	t      *testing.T
	r      *rig
	values []string
	want   []string
	done   int
}

func (w *faultWork) append(n int) {
	w.t.Helper()
	for range n {
		base, err := w.r.produce(0, w.values[w.done])
		if err != nil {
			if w.r.engine.Get(pid(0)).Refused() == nil {
				w.t.Fatalf("append: %v", err)
			}
			return
		}
		if base != int64(w.done) {
			w.t.Fatalf("record %d got offset %d", w.done, base)
		}
		w.done++
	}
}

func (w *faultWork) check() {
	w.t.Helper()
	if w.r.engine.Get(pid(0)).Refused() == nil {
		equal(w.t, w.r.all(0), w.want[:w.done])
	}
	w.r.contiguous(0)
}

func (w *faultWork) run() {
	p := w.r.engine.Get(pid(0))
	for round := range 5 {
		w.append(24)
		_ = w.r.engine.flushAll(p) // it may be the one that fails
		w.check()
		w.append(6)
		_ = w.r.engine.Checkpoint(context.Background())
		p.evict(1 << 30)
		w.check()
		if round%2 == 1 {
			_ = w.r.engine.Seal(p)
			w.check()
		}
	}
}

// Every changing call on segment files fails once, or for a while: with a full
// disk, with torn writes, or with an I/O error after which the pages are lost.
// No acknowledged record is lost or changes its offset, reads are right at any
// time, and the partition goes on by itself, or refuses with the reason until a
// restart when a sync failed (I1, I3, I4, I5, B54, B60, B65).
func TestEveryWriteFails(t *testing.T) {
	values, want := wants(200)
	small := func(o *Options) {
		o.FlushBytes, o.SegmentBytes = 1<<20, 2<<10
		o.Compress = noCompression
	}
	calls := 0
	{
		fs := &faultFS{FS: vfs.NewCrashableMem()}
		r := open(t, fs, small)
		r.create(0)
		fs.set(func(string, string) (verdict, error) { calls++; return pass, nil })
		w := &faultWork{t: t, r: r, values: values, want: want}
		w.run()
		fs.set(nil)
		r.close()
	}
	if calls < 40 {
		t.Fatalf("only %d calls to fail", calls)
	}
	for _, kind := range faultKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			hit, step := 0, 1
			if testing.Short() {
				step = 5
			}
			for at := 0; at < calls; at += step {
				if ok := t.Run(fmt.Sprint(at), func(t *testing.T) { hit += failAt(t, kind, at, values, want, small) }); !ok {
					t.FailNow()
				}
			}
			if hit == 0 {
				t.Fatal("nothing failed")
			}
		})
	}
}

func failAt(t *testing.T, kind faultKind, at int, values, want []string, change func(*Options)) (hit int) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	fs := &faultFS{FS: mem}
	r := open(t, fs, change)
	r.create(0)
	n, syncFailed := 0, false
	fs.set(func(op, _ string) (verdict, error) {
		i := n - at
		n++
		v := pass
		switch {
		case i == 0:
			v = kind.first
		case i > 0 && i <= kind.later1:
			v = kind.later
		}
		if v == loseSync && op != "sync" {
			return pass, nil
		}
		if (v == tear || v == lie) && op != "write" {
			v = refuse
		}
		if v != pass {
			hit++
			syncFailed = syncFailed || op == "sync"
		}
		return v, kind.err
	})
	w := &faultWork{t: t, r: r, values: values, want: want}
	w.run()
	fs.set(nil)
	p := r.engine.Get(pid(0))
	if err := p.Refused(); err == nil {
		// Space is back: the next try succeeds, and everything is there.
		if err := r.engine.Release(context.Background(), r.log.NextLSN()); err != nil {
			t.Fatalf("it does not go on: %v", err)
		}
		w.append(10)
		w.check()
	} else if kind.heals && !syncFailed {
		t.Fatalf("out of service after a full disk: %v", err)
	} else if !errcode.Is(err, errcode.Poisoned) {
		t.Fatalf("refused with %v", err)
	}
	rng := rand.New(rand.NewPCG(uint64(at), 7))
	crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	_ = r.engine.Close() // a partition out of service may say so
	if err := r.log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.db.Close(); err != nil {
		t.Fatal(err)
	}
	w.r = open(t, crashed, change)
	w.check()
	w.append(10)
	if err := w.r.engine.Release(context.Background(), w.r.log.NextLSN()); err != nil {
		t.Fatal(err)
	}
	w.check()
	w.r.close()
	return hit
}

// What was flushed but no checkpoint covers stays in memory and in the log: the
// sync that would have made it durable fails, and a restart has it (I1, I5).
func TestEvictionWaitsForTheCheckpoint(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fs := &faultFS{FS: mem}
	r := open(t, fs, func(o *Options) { o.FlushBytes = 1 << 20 })
	r.create(0, 1)
	first := r.log.NextLSN()
	values, want := wants(10)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	r.engine.Get(pid(0)).evict(1 << 30)
	fs.set(func(op, _ string) (verdict, error) {
		if op == "sync" {
			return loseSync, errIO
		}
		return pass, nil
	})
	for range 2 {
		r.checkpoint()
		if got := r.needed(); got > first {
			t.Fatalf("the log may forget LSN %d, the records begin at %d", got-1, first)
		}
	}
	fs.set(nil)
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	r.close()
	r = open(t, crashed, nil)
	equal(t, r.all(0), want)
	r.close()
}

// A disk that takes no flush is asked once a tick, not with each append: else
// every record would cost a try and a line in the log.
func TestFailedFlushWaitsForTheTick(t *testing.T) {
	var asked atomic.Int64
	r := open(t, vfs.NewMem(), func(o *Options) {
		o.FlushBytes = 1 << 10
		o.DiskOK = func() error {
			asked.Add(1)
			return errcode.New(errcode.Storage, "the disk is full")
		}
	})
	r.create(0)
	p := r.engine.Get(pid(0))
	produce := func(n int) {
		for range n {
			if _, err := r.produce(0, strings.Repeat("x", 1000)); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(3)
	settled := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.mu.stuck && !p.mu.queued
	}
	within(t, "the first flush fails", settled)
	before := asked.Load()
	produce(50)
	if got := asked.Load(); got != before {
		t.Fatalf("%d flushes were tried by 50 appends", got-before)
	}
	r.engine.retryFlushes() // the tick
	within(t, "the tick tries again", func() bool { return asked.Load() > before && settled() })
	_ = r.engine.Close() // the disk does not take it at the end either
	if err := errors.Join(r.log.Close(), r.db.Close()); err != nil {
		t.Fatal(err)
	}
}

// Of many seals at once one meets a full disk with its file in a state that only
// a writer over its valid prefix may go on from. The others wait for the disk as
// it does: the partition stays in service and seals when there is room (I1, B54).
func TestSealsBesideAFailedOne(t *testing.T) {
	var full atomic.Bool
	fs := &faultFS{FS: vfs.NewMem()}
	r := open(t, fs, func(o *Options) {
		o.DiskOK = func() error {
			if full.Load() {
				return errcode.New(errcode.Storage, "the disk is full")
			}
			return nil
		}
	})
	r.create(0)
	p := r.engine.Get(pid(0))
	values, want := wants(20)
	for i, value := range values {
		if _, err := r.produce(0, value); err != nil {
			t.Fatal(err)
		}
		r.flush(0)
		full.Store(true)
		fs.set(func(op, _ string) (verdict, error) {
			if op == "write" {
				return tear, errFull
			}
			return pass, nil
		})
		// A lock that was taken away from one who waited is handed on in turn from
		// then on: all have flushed before the first seals.
		p.flush.Lock()
		var seals sync.WaitGroup
		for range 4 {
			seals.Go(func() { _ = r.engine.Seal(p) }) // fails, or finds that another has
		}
		for range 2 {
			<-time.After(5 * time.Millisecond)
			p.flush.Unlock()
			p.flush.Lock()
		}
		p.flush.Unlock()
		seals.Wait()
		full.Store(false)
		fs.set(nil)
		if err := p.Refused(); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
		if err := r.engine.Seal(p); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, r.all(0), want)
	r.close()
}
