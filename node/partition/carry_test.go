package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/wal"
)

// A partition with a few records that never get more does not hold the log's
// oldest file, and costs no segment file: its tail is written into the log once
// more, as often as the log comes round. Whatever a loss of power leaves, the
// records are there, at their offsets, with their append times, and new ones
// follow (I3, I4). A busy partition is flushed as ever.
func TestCarriedTailsFreeTheLog(t *testing.T) {
	mem := vfs.NewCrashableMem()
	config := rigConfig{
		change: func(o *Options) { o.FlushBytes, o.SegmentBytes = 1<<20, 1<<20 },
		wal:    func(o *wal.Options) { o.FileSize, o.PoolFiles = 64<<10, -1 },
	}
	r := openWith(t, mem, config)
	r.create(0, 1)
	var quiet, busy []string
	put := func(n uint32, to *[]string, size int) {
		v := fmt.Sprintf("%d-%s", len(*to), strings.Repeat("x", size))
		if base, err := r.produce(n, v); err != nil || base != int64(len(*to)) {
			t.Fatalf("partition %d: offset %d %v, want %d", n, base, err, len(*to))
		}
		*to = append(*to, fmt.Sprintf("%d=%s", len(*to), v))
	}
	put(0, &quiet, 10)
	put(0, &quiet, 20)
	first := r.engine.Get(pid(0)).mu.tail.at(0).lsn
	for lap := range 12 {
		for range 20 {
			put(1, &busy, 5<<10)
		}
		if lap == 5 {
			put(0, &quiet, 30)
		}
		if err := r.engine.Release(context.Background(), r.log.Durable()); err != nil {
			t.Fatal(err)
		}
		if needed := r.needed(); needed <= first {
			t.Fatalf("lap %d: the log is still needed from LSN %d on, the quiet partition began at %d", lap, needed, first)
		}
		first = r.log.Durable() - 10 // a lap later that is old
		if files, err := mem.List(r.engine.Get(pid(0)).dir); len(files) > 0 || err != nil {
			t.Fatalf("lap %d: the quiet partition has the files %v %v", lap, files, err)
		}
		crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (lap % 3), RNG: rand.New(rand.NewPCG(uint64(lap), 3))})
		again := openWith(t, crashed, config)
		equal(t, again.all(0), quiet)
		equal(t, again.all(1), busy)
		if base, err := again.produce(0, "next"); err != nil || base != int64(len(quiet)) {
			t.Fatalf("lap %d: after the crash offset %d %v, want %d", lap, base, err, len(quiet))
		}
		if err := again.engine.Seal(again.engine.Get(pid(0))); err != nil {
			t.Fatal(err)
		}
		again.close()
	}
	if files, err := mem.List(r.engine.Get(pid(1)).dir); len(files) == 0 || err != nil {
		t.Fatalf("the busy partition was not flushed: %v", err)
	}
	r.close()
}

// A crash between a carry and the checkpoint that stands for it leaves the
// records twice in the log, and a restart has them once. An entry that is
// written in between, as a trim writes it, must not make a restart rely on a
// carry that a loss of power took (I4).
func TestCarryIsNotReliedOnBeforeItIsDurable(t *testing.T) {
	mem := vfs.NewCrashableMem()
	r := open(t, mem, func(o *Options) { o.FlushBytes = 1 << 20 })
	r.create(0)
	var want []string
	for i := range 5 {
		v := fmt.Sprintf("record %d", i)
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("%d=%s", i, v))
	}
	p := r.engine.Get(pid(0))
	n, err := r.engine.carry(p, carryTotal)
	c := p.mu.carried
	if err != nil || n == 0 || c.From != 0 || c.End != 5 {
		t.Fatalf("carry: %d bytes %+v %v", n, c, err)
	}
	if _, err := r.engine.Trim(p, 2); err != nil { // writes an entry; the carry is only staged
		t.Fatal(err)
	}
	lost := openWith(t, mem.CrashClone(vfs.CrashCloneCfg{}), rigConfig{})
	equal(t, lost.all(0), want[2:])
	lost.close()

	if err := r.log.WaitDurable(context.Background(), r.log.NextLSN()-1); err != nil {
		t.Fatal(err)
	}
	run, err := r.log.ReadGroups(c.LSN, 1<<20)
	if err != nil || len(run.Groups) == 0 {
		t.Fatalf("read the carry: %v", err)
	}
	carries := 0
	for _, g := range run.Groups {
		if err := wal.ForEachFrame(g, run.Salt, func(f wal.Frame) error {
			if f.Kind != wal.KindCarry {
				return nil
			}
			carries++
			h, _, err := frame.ParseCommit(f.Body)
			if err == nil && (h.OriginLSN == 0 || h.AppendMS == 0) {
				t.Errorf("the carry says %+v", h)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if carries == 0 {
		t.Fatal("there is no carry in the log")
	}
	twice := openWith(t, mem.CrashClone(vfs.CrashCloneCfg{}), rigConfig{})
	equal(t, twice.all(0), want[2:])
	twice.close()
	r.close()
}

// What is not durable yet is not carried, nor a tail that is worth a flush.
func TestNotCarried(t *testing.T) {
	r := open(t, vfs.NewMem(), func(o *Options) { o.FlushBytes = 1 << 20 })
	r.create(0, 1)
	for range 20 {
		if _, err := r.produce(0, strings.Repeat("x", 4<<10)); err != nil {
			t.Fatal(err)
		}
	}
	parts := []Part{r.part(1, "seen")}
	lsn, err := r.engine.Append(parts, 1)
	if err == nil {
		err = r.log.WaitDurable(context.Background(), lsn)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.engine.Advance(parts)
	unseen := []Part{r.part(1, "not yet")}
	if _, err := r.engine.Append(unseen, 1); err != nil {
		t.Fatal(err)
	}
	for n := range uint32(2) {
		if bytes, err := r.engine.carry(r.engine.Get(pid(n)), carryTotal); bytes != 0 || err != nil {
			t.Fatalf("partition %d: carried %d bytes, %v", n, bytes, err)
		}
	}
	r.close()
}

// A checkpoint that cannot say of a partition that it was carried keeps the log
// from where its records first stood: the local state of a partition that went
// out of service stays as it was, and so must the log behind it.
func TestCarryWithoutACheckpoint(t *testing.T) {
	r := open(t, vfs.NewMem(), func(o *Options) { o.FlushBytes = 1 << 20 })
	r.create(0, 1)
	if _, err := r.produce(0, "a"); err != nil {
		t.Fatal(err)
	}
	p := r.engine.Get(pid(0))
	first := p.mu.tail.at(0).lsn
	for range 3 {
		if _, err := r.produce(1, "b"); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := r.engine.carry(p, carryTotal); n == 0 || err != nil {
		t.Fatalf("carried %d bytes, %v", n, err)
	}
	p.refuse(errors.New("its disk is broken"))
	r.flush(1)
	r.checkpoint()
	if needed := r.needed(); needed > first {
		t.Fatalf("the log is needed from LSN %d on, the local state relies on %d", needed, first)
	}
	r.close()
}

// askedLog does something right behind the next look at what the log's next LSN
// is, which is where a checkpoint draws its line.
type askedLog struct {
	Log
	then func()
}

func (l *askedLog) NextLSN() uint64 {
	next := l.Log.NextLSN()
	if then := l.then; then != nil {
		l.then = nil
		then()
	}
	return next
}

// A carry that is staged while a checkpoint runs, by the log's pressure in another
// goroutine, stands above the line that the checkpoint waits for. The checkpoint
// may rely on it only once it is durable: until then the log's oldest file is the
// only one that has the records (I2, I4).
func TestCarryDuringACheckpoint(t *testing.T) {
	mem := vfs.NewCrashableMem()
	asked := new(askedLog)
	config := rigConfig{
		change: func(o *Options) { o.FlushBytes, o.SegmentBytes = 1<<20, 1<<20 },
		wal: func(o *wal.Options) {
			o.FileSize, o.PoolFiles = 64<<10, -1
			o.AckSyncInterval = time.Hour // nobody else syncs
		},
	}
	racing := config
	racing.log = func(l Log) Log { asked.Log = l; return asked }
	r := openWith(t, mem, racing)
	r.create(0, 1)
	var quiet, busy []string
	put := func(n uint32, to *[]string, size int) {
		v := fmt.Sprintf("%d-%s", len(*to), strings.Repeat("x", size))
		if _, err := r.produce(n, v); err != nil {
			t.Fatal(err)
		}
		*to = append(*to, fmt.Sprintf("%d=%s", len(*to), v))
	}
	put(0, &quiet, 10)
	first := r.engine.Get(pid(0)).mu.tail.at(0).lsn
	for range 20 { // more than a file of the log
		put(1, &busy, 5<<10)
	}
	r.flush(1)
	p := r.engine.Get(pid(0))
	asked.then = func() {
		if n, err := r.engine.carry(p, carryTotal); n == 0 || err != nil {
			t.Errorf("carried %d bytes: %v", n, err)
		}
	}
	r.checkpoint()
	if r.needed() > first && r.log.Durable() < p.mu.carried.LSN {
		t.Errorf("the log may forget LSN %d, its carry at %d is not durable (durable up to %d)", first, p.mu.carried.LSN, r.log.Durable())
	}
	if r.needed() > first {
		within(t, "the log lets its first file go", func() bool {
			_, err := mem.Stat("data/wal/" + wal.FileName(1))
			return err != nil
		})
	}
	lost := openWith(t, mem.CrashClone(vfs.CrashCloneCfg{}), config)
	equal(t, lost.all(0), quiet)
	equal(t, lost.all(1), busy)
	lost.close()
	r.close()
}

// A carry covers what was in no file when it was staged. An entry that is written
// before the next checkpoint, by a trim or an eviction, does not say that those
// files are durable; so it has to go on naming the carry of before, without which
// what the log has left of the records does not begin where they do (I4).
func TestEntryBetweenTwoCarries(t *testing.T) {
	mem := vfs.NewCrashableMem()
	config := rigConfig{
		change: func(o *Options) { o.FlushBytes, o.SegmentBytes = 1<<20, 1<<20 },
		wal:    func(o *wal.Options) { o.FileSize, o.PoolFiles = 64<<10, -1 },
	}
	r := openWith(t, mem, config)
	r.create(0, 1)
	var quiet []string
	put := func() {
		v := fmt.Sprintf("record %d", len(quiet))
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
		quiet = append(quiet, fmt.Sprintf("%d=%s", len(quiet), v))
	}
	fill := func() {
		for range 23 { // some files of the log, and a little of the next
			if _, err := r.produce(1, strings.Repeat("x", 5<<10)); err != nil {
				t.Fatal(err)
			}
		}
		r.flush(1)
	}
	put()
	fill()
	put() // in another file of the log than the first one
	p := r.engine.Get(pid(0))
	if n, err := r.engine.carry(p, carryTotal); n == 0 || err != nil {
		t.Fatalf("carried %d bytes: %v", n, err)
	}
	r.checkpoint()
	within(t, "the log lets its first file go", func() bool {
		_, err := mem.Stat("data/wal/" + wal.FileName(1))
		return err != nil
	})
	r.flush(0) // not synced
	put()
	if n, err := r.engine.carry(p, carryTotal); n == 0 || err != nil {
		t.Fatalf("carried %d bytes: %v", n, err)
	}
	if err := r.log.WaitDurable(context.Background(), r.log.NextLSN()-1); err != nil {
		t.Fatal(err)
	}
	if err := r.engine.commitFiles(p, nil, func(*state.Partition) {}); err != nil {
		t.Fatal(err)
	}
	lost := openWith(t, mem.CrashClone(vfs.CrashCloneCfg{}), config)
	if err := lost.engine.Get(pid(0)).Refused(); err != nil {
		t.Fatal(err)
	}
	equal(t, lost.all(0), quiet)
	lost.close()
	r.close()
}
