package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
)

// waitLog calls hook before each wait for durability, as long as there is one.
type waitLog struct {
	Log
	hook func()
}

func (l *waitLog) WaitDurable(ctx context.Context, lsn uint64) error {
	if hook := l.hook; hook != nil {
		l.hook = nil
		hook()
	}
	return l.Log.WaitDurable(ctx, lsn)
}

// A segment is sealed between the moment when a checkpoint captured its
// partition and the one when it is written. The checkpoint does not put the
// file back as active: after a crash nothing is adopted twice, the next flush
// finds its file, and no group entry counts as captured before it is.
func TestSealDuringACheckpoint(t *testing.T) {
	fs := vfs.NewCrashableMem()
	var log *waitLog
	groups := newTally()
	c := groups.config(func(o *Options) { o.FlushBytes = 1 << 20 })
	c.log = func(l Log) Log { log = &waitLog{Log: l}; return log }
	r := openWith(t, fs, c)
	r.create(0)
	values, want := wants(40)
	for _, v := range values[:20] {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	if _, err := groups.settle(r.engine, pid(0), 0); err != nil {
		t.Fatal(err)
	}
	var between *vfs.MemFS
	log.hook = func() {
		for _, v := range values[20:30] {
			if _, err := r.produce(0, v); err != nil {
				t.Error(err)
			}
		}
		if err := r.engine.Seal(r.engine.Get(pid(0))); err != nil {
			t.Error(err)
		}
		between = fs.CrashClone(vfs.CrashCloneCfg{})
		for _, v := range values[30:] { // and a new file is begun
			if _, err := r.produce(0, v); err != nil {
				t.Error(err)
			}
		}
		r.flush(0)
	}
	r.checkpoint()
	if e := r.entry(0); e.Active != nil && e.Active.Base != 30 || e.Flushed < 30 {
		t.Errorf("the local state went back: %+v", e)
	}
	after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	r.close()
	for i, crashed := range []*vfs.MemFS{between, after} {
		again := newTally()
		r := openWith(t, crashed, again.config(nil))
		again.has(t, pid(0), 1)
		equal(t, r.all(0), want[:30+10*i])
		if _, err := r.produce(0, "next"); err != nil {
			t.Fatal(err)
		}
		if err := r.engine.Release(context.Background(), r.log.NextLSN()); err != nil {
			t.Fatal(err)
		}
		r.contiguous(0)
		equal(t, r.all(0)[:30], want[:30])
		r.close()
	}
}

// A checkpoint that cannot capture one partition keeps the log for its group
// entries and goes on with the others; so does every later one while the
// partition is out of service, and a restart has the entries.
func TestFailedCaptureKeepsGroupEntries(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fs := &faultFS{FS: mem}
	groups := newTally()
	r := openWith(t, fs, groups.config(func(o *Options) { o.FlushBytes = 1 << 20 }))
	r.create(0, 1)
	for _, n := range []uint32{0, 1} {
		if _, err := r.produce(n, "a"); err != nil {
			t.Fatal(err)
		}
		r.flush(n)
	}
	r.checkpoint()
	settled, err := groups.settle(r.engine, pid(0), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.produce(0, "b"); err != nil {
		t.Fatal(err)
	}
	r.flush(0)
	fs.set(func(op, path string) (verdict, error) {
		if op == "sync" && strings.Contains(path, "/0/") {
			return loseSync, errIO
		}
		return pass, nil
	})
	for i := range 3 {
		if _, err := r.produce(1, "more"); err != nil {
			t.Fatal(err)
		}
		if _, err := groups.settle(r.engine, pid(1), uint64(i)); err != nil {
			t.Fatal(err)
		}
		r.checkpoint()
		if got := r.needed(); got > settled {
			t.Fatalf("checkpoint %d lets the log forget LSN %d, the group entry has %d", i, got-1, settled)
		}
	}
	if r.engine.Get(pid(0)).Refused() == nil {
		t.Fatal("a lost sync is not noticed")
	}
	if got := r.entry(1); len(got.Groups) != 1 || len(got.Groups[0]) != 3*8 {
		t.Fatalf("the other partition's groups are not captured: %x", got.Groups)
	}
	if _, err := groups.settle(r.engine, pid(0), 1); !errcode.Is(err, errcode.Poisoned) {
		t.Fatalf("settled in a partition that is out of service: %v", err)
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	r.close()
	again := newTally()
	r = openWith(t, crashed, again.config(nil))
	again.has(t, pid(0), 1)
	again.has(t, pid(1), 3)
	equal(t, r.all(0), []string{"0=a", "1=b"})
	r.close()
}

// A checkpoint that cannot capture a partition which no checkpoint has written
// yet leaves the local state without an entry of it: the log keeps the frame that
// it began with, or a restart would not know whose its records are (I4).
func TestFailedCaptureOfANewPartition(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fs := &faultFS{FS: mem}
	r := openWith(t, fs, rigConfig{})
	r.create(0, 1)
	begun := r.log.NextLSN() - 2
	for _, n := range []uint32{0, 1} {
		if _, err := r.produce(n, "a"); err != nil {
			t.Fatal(err)
		}
		r.flush(n)
	}
	fs.set(func(op, path string) (verdict, error) {
		if op == "sync" && strings.Contains(path, "/0/") {
			return loseSync, errIO
		}
		return pass, nil
	})
	for range 2 {
		r.checkpoint()
		if got := r.needed(); got > begun {
			t.Fatalf("the log may forget LSN %d, the partition begins with LSN %d", got-1, begun)
		}
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	r.close()
	r = openWith(t, crashed, rigConfig{})
	equal(t, r.all(0), []string{"0=a"})
	equal(t, r.all(1), []string{"0=a"})
	r.checkpoint()
	if got := r.needed(); got <= begun {
		t.Fatalf("the log keeps LSN %d, which the local state covers", got)
	}
	r.close()
}

// A partition that is out of service from the start keeps what only the log
// has of it: once its file is put back, everything is there.
func TestRefusedPartitionKeepsTheLog(t *testing.T) {
	fs := vfs.NewMem()
	groups := newTally()
	r := openWith(t, fs, groups.config(func(o *Options) { o.FlushBytes = 1 << 20 }))
	r.create(0, 1)
	values, want := wants(40)
	for _, v := range values[:20] {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	r.checkpoint()
	first, err := groups.settle(r.engine, pid(0), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values[20:] {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.log.WaitDurable(context.Background(), r.log.NextLSN()-1); err != nil {
		t.Fatal(err)
	}
	path := r.engine.Get(pid(0)).files.active.Path()
	killed := vfs.NewMem()
	if _, err := vfs.Clone(fs, killed, "data", "data"); err != nil {
		t.Fatal(err)
	}
	r.close()

	if err := killed.Rename(path, "elsewhere"); err != nil {
		t.Fatal(err)
	}
	lost := newTally()
	r = openWith(t, killed, lost.config(nil))
	if err := r.engine.Get(pid(0)).Refused(); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("refusal does not name the file: %v", err)
	}
	for i := range 2000 { // several log files
		if _, err := r.produce(1, fmt.Sprintf("%d-%0200d", i, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.engine.Release(context.Background(), r.log.NextLSN()); err != nil {
		t.Fatal(err)
	}
	if got := r.needed(); got > first {
		t.Fatalf("the log may forget LSN %d, it has entries from %d on", got-1, first)
	}
	r.close()

	if err := killed.Rename("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	again := newTally()
	r = openWith(t, killed, again.config(nil))
	equal(t, r.all(0), want)
	again.has(t, pid(0), 1)
	r.close()
}

// The log may ask for room before the engine has groups to capture, and after
// it has closed its files: both are refused and change nothing.
func TestReleaseOutsideOfService(t *testing.T) {
	fs := vfs.NewMem()
	r := open(t, fs, nil)
	r.create(0)
	values, want := wants(10)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	if err := r.engine.Close(); err != nil {
		t.Fatal(err)
	}
	before := r.entry(0)
	r.engine.Get(pid(0)).SetArchived(3, 1)
	if err := r.engine.Release(context.Background(), 100); !errcode.Is(err, errcode.Unavailable) {
		t.Fatalf("release after close: %v", err)
	}
	if err := r.engine.Checkpoint(context.Background()); !errcode.Is(err, errcode.Closed) {
		t.Fatalf("checkpoint after close: %v", err)
	}
	if e := r.entry(0); e.Active == nil || *e.Active != *before.Active {
		t.Fatalf("the active file is forgotten: %+v, was %+v", e, before)
	}
	if err := r.log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.db.Close(); err != nil {
		t.Fatal(err)
	}

	e, err := New(Options{FS: fs, Dir: "data/topics", State: r.db})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Release(context.Background(), 100); !errcode.Is(err, errcode.Unavailable) {
		t.Fatalf("release before the log is connected: %v", err)
	}
	r = open(t, fs, nil)
	equal(t, r.all(0), want)
	r.close()
}

// Small tails of many partitions together exceed the memory budget, while none
// of them is large enough to be flushed by itself. Appends go on.
func TestSmallTailsWithinTheBudget(t *testing.T) {
	r := open(t, vfs.NewMem(), func(o *Options) { o.FlushBytes, o.MemoryBudget = 1<<20, 64<<10 })
	ids := make([]uint32, 64)
	for i := range ids {
		ids[i] = uint32(i)
	}
	r.create(ids...)
	value := strings.Repeat("x", 1000)
	for i := range 1000 { // 1 MB in all, 16 KiB a partition
		if _, err := r.produce(uint32(i%len(ids)), value); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range ids {
		if got := len(r.all(n)); got < 15 {
			t.Fatalf("partition %d has %d records", n, got)
		}
	}
	r.close()
}

// At twice the budget appends are refused with a time to wait, nothing is
// changed by them, and when the disk is back they go on (I12, I15).
func TestOverloadedAtTheMemoryBound(t *testing.T) {
	full := errcode.New(errcode.Storage, "the disk is full")
	var ok atomic.Bool
	r := open(t, vfs.NewMem(), func(o *Options) {
		o.FlushBytes, o.MemoryBudget = 4<<10, 48<<10
		o.DiskOK = func() error {
			if ok.Load() {
				return nil
			}
			return full
		}
	})
	r.create(0)
	value := strings.Repeat("x", 1000)
	n := 0
	var err error
	for ; err == nil && n < 1000; n++ {
		_, err = r.produce(0, value)
	}
	var e *errcode.Error
	if !errcode.Is(err, errcode.Overloaded) || !errors.As(err, &e) || e.Wait == 0 {
		t.Fatalf("after %d records: %v", n, err)
	}
	if held := r.engine.memory.Load(); held < 96<<10 || held > 128<<10 {
		t.Fatalf("%d bytes held, the bound is 96 KiB and a chunk", held)
	}
	if got := len(r.all(0)); got != n-1 {
		t.Fatalf("%d records, %d were taken", got, n-1)
	}
	ok.Store(true)
	r.engine.retryFlushes() // the tick
	within(t, "the flush", func() bool { return r.engine.flushAll(r.engine.Get(pid(0))) == nil })
	r.checkpoint()
	base, err := r.produce(0, value)
	if err != nil || base != int64(n-1) {
		t.Fatalf("base %d %v", base, err)
	}
	r.close()
}

// A new partition is not begun over files that the local state does not know:
// its offsets would be given out a second time (I3).
func TestCreateBesideFiles(t *testing.T) {
	fs := vfs.NewMem()
	r := open(t, fs, nil)
	r.create(0)
	if _, err := r.produce(0, "a"); err != nil {
		t.Fatal(err)
	}
	r.close()
	for _, dir := range []string{"data/state", "data/wal"} {
		if err := fs.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	r = open(t, fs, nil)
	err := r.engine.Create(context.Background(), []frame.Base{{Partition: pid(0), Generation: 1}})
	if !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), ".log") {
		t.Fatalf("created over files: %v", err)
	}
	if r.engine.Get(pid(0)) != nil {
		t.Fatal("the partition is there")
	}
	r.close()
}

// A topic is dropped while a checkpoint that captured it waits for the log:
// the local state does not have it afterwards, and its descriptors are closed.
func TestDropDuringACheckpoint(t *testing.T) {
	fs := &faultFS{FS: vfs.NewMem()}
	var log *waitLog
	r := openWith(t, fs, rigConfig{log: func(l Log) Log { log = &waitLog{Log: l}; return log }})
	r.create(0)
	values, _ := wants(400)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	p := r.engine.Get(pid(0))
	p.evict(1 << 30)
	r.all(0) // opens segments
	changed := p.Changed()
	r.engine.dirty.add(p)
	log.hook = func() {
		if err := r.engine.Drop(broker.TopicID(0xabc)); err != nil {
			t.Error(err)
		}
	}
	r.checkpoint()
	entries, err := r.db.Load()
	if err != nil || len(entries) != 0 {
		t.Fatalf("the local state has %+v %v", entries, err)
	}
	if n := fs.openFiles(); n != 0 {
		t.Errorf("%d files are open", n)
	}
	if _, err := fs.Stat("data/topics/0000000000000abc"); err == nil {
		t.Error("the directory is there")
	}
	<-changed
	<-p.Changed() // for good
	if _, err := p.Read(context.Background(), 0, 1, nil); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("read: %v", err)
	}
	if _, err := p.FindTime(context.Background(), 0); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("find time: %v", err)
	}
	if _, err := r.engine.Append([]Part{{Partition: p, Batches: []Batch{encode(t, "x")}}}, 1); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("append: %v", err)
	}
	if m := r.engine.memory.Load(); m != 0 {
		t.Errorf("%d bytes of memory are still counted", m)
	}
	r.create(0) // the directory is free again
	if base, err := r.produce(0, "anew"); err != nil || base != 0 {
		t.Fatalf("base %d %v", base, err)
	}
	r.close()
}

// Sealing closes the file that was written: a node seals for ever.
func TestSealClosesTheWriter(t *testing.T) {
	fs := &faultFS{FS: vfs.NewMem()}
	r := open(t, fs, func(o *Options) { o.FlushBytes = 1 << 20 })
	r.create(0)
	for range 20 {
		if _, err := r.produce(0, "a"); err != nil {
			t.Fatal(err)
		}
		if err := r.engine.Seal(r.engine.Get(pid(0))); err != nil {
			t.Fatal(err)
		}
	}
	if n := fs.openFiles(); n > 1 {
		t.Fatalf("%d files are open after 20 seals", n)
	}
	r.close()
}
