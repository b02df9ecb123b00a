package partition

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

// Records read the same from the tail, the active file, sealed segments and
// after a clean restart, and appends go on at the next offset.
func TestLogAcrossTiersAndRestart(t *testing.T) {
	fs := vfs.NewMem()
	r := open(t, fs, nil)
	r.create(0, 1)
	values, want := wants(3000)
	for i, v := range values {
		if base, err := r.produce(0, v); err != nil || base != int64(i) {
			t.Fatalf("record %d: base %d, %v", i, base, err)
		}
	}
	equal(t, r.all(0), want)
	if err := r.engine.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	p := r.engine.Get(pid(0))
	p.evict(1 << 30) // now the files answer
	equal(t, r.all(0), want)
	if len(r.sealed) == 0 {
		t.Fatal("nothing was sealed")
	}
	for i := 0; i < 3000; i += 137 {
		rec, err := p.Record(context.Background(), int64(i))
		if err != nil || string(rec.Value) != values[i] {
			t.Fatalf("record %d: %q %v", i, rec.Value, err)
		}
	}
	r.close()

	r = open(t, fs, nil)
	equal(t, r.all(0), want)
	base, err := r.produce(0, "one more")
	if err != nil || base != 3000 {
		t.Fatalf("base %d %v", base, err)
	}
	equal(t, r.all(0), append(want, "3000=one more"))
	r.close()
}

// After a crash that drops any part of what was not synced, every record whose
// append was durable is there, at its offset, and nothing else (I1, I3, I4);
// appends go on behind them (B45), also after a second crash.
func TestCrashKeepsEveryDurableRecord(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 15 // what a crash leaves is random in space, and no race
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			fs := vfs.NewCrashableMem()
			values, want := wants(600)
			done := 0
			for round := 0; done < len(values); round++ {
				r := open(t, fs, nil)
				if r.engine.Get(pid(0)) == nil {
					r.create(0)
				}
				got := r.all(0)
				if len(got) < done {
					t.Fatalf("round %d: %d records, %d were durable", round, len(got), done)
				}
				equal(t, got, want[:len(got)])
				done = len(got)
				n := min(len(values)-done, 20+rng.IntN(150))
				for range n {
					if _, err := r.produce(0, values[done]); err != nil {
						t.Fatal(err)
					}
					done++
					if rng.IntN(40) == 0 {
						if err := r.engine.Checkpoint(context.Background()); err != nil {
							t.Fatal(err)
						}
					}
				}
				// One more that nobody waits for: it may survive or not.
				if done < len(values) {
					parts := []Part{{Partition: r.engine.Get(pid(0)), Batches: []Batch{encode(t, values[done])}}}
					if _, err := r.engine.Append(parts, 1); err != nil {
						t.Fatal(err)
					}
				}
				crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
				r.close()
				fs = crashed
			}
		})
	}
}

// B46: the local state is a copy from before beside newer segment files. The
// position comes from the files and the log: no old record changes, and
// appends go on behind the newest one. When the part of the log that the old
// state needs was recycled, the start is refused and nothing is changed.
func TestOldCheckpointBesideNewerFiles(t *testing.T) {
	run := func(segmentBytes int64) (*rig, []string, error) {
		fs := vfs.NewMem()
		change := func(o *Options) { o.SegmentBytes = segmentBytes }
		r := open(t, fs, change)
		r.create(0)
		values, want := wants(400)
		produce := func(values []string, recycled uint64) {
			for _, v := range values {
				if _, err := r.produce(0, v); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.engine.Release(context.Background(), r.log.NextLSN()); err != nil {
				t.Fatal(err)
			}
			within(t, "the log is recycled", func() bool { return r.log.Stats().Oldest > recycled })
			r.close()
		}
		produce(values[:50], 0)
		copyTree(t, fs, "data/state", "old-state")
		r = open(t, fs, change)
		recycled := uint64(0)
		if segmentBytes != keepLog {
			recycled = 100
		}
		produce(values[50:], recycled)
		if err := fs.RemoveAll("data/state"); err != nil {
			t.Fatal(err)
		}
		copyTree(t, fs, "old-state", "data/state")
		r, err := tryOpen(t, fs, change)
		return r, want, err
	}
	r, want, err := run(keepLog)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, r.all(0), want)
	for i := range 10 {
		if base, err := r.produce(0, "new"); err != nil || base != int64(400+i) {
			t.Fatalf("base %d %v", base, err)
		}
	}
	if len(r.engine.Get(pid(0)).files.sealed) < 2 {
		t.Fatal("the test needs several sealed segments that the old state does not list")
	}
	if err := r.engine.Release(context.Background(), r.log.NextLSN()); err != nil {
		t.Fatal(err)
	}
	equal(t, r.all(0)[:400], want)
	r.close()
	if _, _, err = run(1 << 10); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("a state whose log is gone: %v", err)
	}
}

func copyTree(t tb, fs vfs.FS, from, to string) {
	t.Helper()
	if _, err := vfs.Clone(fs, fs, from, to); err != nil {
		t.Fatal(err)
	}
}

// A commit over two partitions is whole or absent after a crash at any point
// between append and sync.
func TestCommitOverPartitionsIsWhole(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 2))
		fs := vfs.NewCrashableMem()
		r := open(t, fs, nil)
		r.create(0, 1)
		for i := range 30 {
			v := fmt.Sprintf("v%d", i)
			parts := []Part{
				{Partition: r.engine.Get(pid(0)), Batches: []Batch{encode(t, v)}},
				{Partition: r.engine.Get(pid(1)), Batches: []Batch{encode(t, v)}},
			}
			lsn, err := r.engine.Append(parts, 1)
			if err != nil {
				t.Fatal(err)
			}
			if rng.IntN(3) > 0 {
				if err := r.log.WaitDurable(context.Background(), lsn); err != nil {
					t.Fatal(err)
				}
			} else if err := r.log.WaitWritten(context.Background(), lsn); err != nil {
				t.Fatal(err)
			}
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		r.close()
		r = open(t, crashed, nil)
		a, b := r.all(0), r.all(1)
		if len(a) != len(b) {
			t.Fatalf("seed %d: %d and %d records", seed, len(a), len(b))
		}
		equal(t, a, b)
		r.close()
	}
}

// What a caller that left had appended becomes visible without another append.
func TestLateAppendBecomesVisible(t *testing.T) {
	r := open(t, vfs.NewMem(), nil)
	r.create(0)
	parts := []Part{{Partition: r.engine.Get(pid(0)), Batches: []Batch{encode(t, "late")}}}
	changed := r.engine.Get(pid(0)).Changed()
	lsn, err := r.engine.Append(parts, 1)
	if err != nil {
		t.Fatal(err)
	}
	r.engine.Late(parts)
	if err := r.log.WaitDurable(context.Background(), lsn); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Fatal("record stayed invisible")
	}
	equal(t, r.all(0), []string{"0=late"})
	r.close()
}

// A damaged segment file takes its partition out of service with a message
// that names the file; the other partition serves on.
func TestDamagedFileRefusesOnePartition(t *testing.T) {
	fs := vfs.NewMem()
	r := open(t, fs, nil)
	r.create(0, 1)
	values, want := wants(300)
	for _, v := range values {
		for n := range uint32(2) {
			if _, err := r.produce(n, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.close()
	name := ""
	names, err := fs.List("data/topics/0000000000000abc/0")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if len(n) > 4 && n[len(n)-4:] == ".log" {
			name = "data/topics/0000000000000abc/0/" + n
		}
	}
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{0xff}, 80); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r = open(t, fs, nil)
	err = r.engine.Get(pid(0)).Refused()
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte(".log")) {
		t.Fatalf("refusal does not name the file: %v", err)
	}
	if _, err := r.produce(0, "x"); err == nil {
		t.Fatal("a damaged partition accepted a record")
	}
	if _, err := r.engine.Get(pid(0)).Read(context.Background(), 0, 1, nil); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("read of a damaged partition: %v", err)
	}
	equal(t, r.all(1), want)
	r.close()
}

// The log recycles its files once a checkpoint covers them, and a restart then
// needs only what is left.
func TestCheckpointLetsTheLogGo(t *testing.T) {
	fs := vfs.NewMem()
	r := open(t, fs, nil)
	r.create(0)
	values, want := wants(5000)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	before := r.log.Stats()
	if err := r.engine.Release(context.Background(), before.Next); err != nil {
		t.Fatal(err)
	}
	within(t, "the log is recycled", func() bool { return r.log.Stats().Files <= 2 })
	r.close()
	r = open(t, fs, nil)
	equal(t, r.all(0), want)
	r.close()
}

// FindTime looks at files and tail alike, and inside batches (B119).
func TestFindTime(t *testing.T) {
	r := open(t, vfs.NewMem(), nil)
	r.create(0)
	p := r.engine.Get(pid(0))
	for i := range 200 {
		recs := []broker.Record{
			{Offset: 0, Timestamp: int64(i)*10 + 1, Value: []byte("a")},
			{Offset: 1, Timestamp: int64(i)*10 + 5, Value: bytes.Repeat([]byte("b"), 100)},
		}
		data, err := segment.AppendBatch(nil, recs, segment.BatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		parts := []Part{{Partition: p, Batches: []Batch{{Data: data, Span: 2}}}}
		lsn, err := r.engine.Append(parts, int64(i))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.log.WaitDurable(context.Background(), lsn); err != nil {
			t.Fatal(err)
		}
		r.engine.Advance(parts)
	}
	for _, c := range []struct{ ms, want int64 }{{0, 0}, {1, 0}, {2, 1}, {5, 1}, {6, 2}, {1001, 200}, {1003, 201}, {1995, 399}, {1996, 400}, {1 << 50, 400}} {
		if got, err := p.FindTime(context.Background(), c.ms); err != nil || got != c.want {
			t.Errorf("FindTime(%d) = %d %v, want %d", c.ms, got, err, c.want)
		}
	}
	r.close()
}
