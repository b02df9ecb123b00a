package partition

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// produceAll appends values one by one to partition n.
func (r *rig) produceAll(n uint32, values []string) {
	r.t.Helper()
	for _, v := range values {
		if _, err := r.produce(n, v); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) trim(n uint32, to int64) Freed {
	r.t.Helper()
	freed, err := r.engine.Trim(r.engine.Get(pid(n)), to)
	if err != nil {
		r.t.Fatal(err)
	}
	return freed
}

// dir lists the segment files of partition n.
func (r *rig) dir(n uint32) (names []string) {
	r.t.Helper()
	all, err := r.fs.List(r.engine.Get(pid(n)).dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range all {
		if _, _, ok := segment.ParseName(name); ok {
			names = append(names, name)
		}
	}
	return names
}

// counterIn reads a counter of a registry.
func counterIn(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// The bound of a trim is exact: up to it and not including it, 0 trims nothing,
// and what is not an offset of the log is refused with both bounds (B99).
func TestTrimBounds(t *testing.T) {
	for _, c := range []struct {
		before int64
		left   int // -1: refused
	}{{0, 10}, {1, 9}, {5, 5}, {10, 0}, {11, -1}, {-1, -1}, {1<<63 - 1, -1}} {
		r := open(t, vfs.NewMem(), nil)
		r.create(0)
		values, want := wants(10)
		r.produceAll(0, values)
		_, err := r.engine.Trim(r.engine.Get(pid(0)), c.before)
		if c.left < 0 {
			var e *errcode.Error
			if !errors.As(err, &e) || e.Code != errcode.InvalidArgument || e.Facts["oldest_offset"] != int64(0) || e.Facts["high_watermark"] != int64(10) {
				t.Errorf("before %d: %v", c.before, err)
			}
			c.left = 10
		} else if err != nil {
			t.Errorf("before %d: %v", c.before, err)
		}
		equal(t, r.all(0), want[10-c.left:])
		r.close()
	}
}

// A trim removes sealed files, the active one, and what waits in memory, when
// nothing in them is above the new start. The log that is left is empty, its
// offsets go on, and a restart finds it so; a later trim to a lower offset
// changes nothing (B112, B117).
func TestTrimEverything(t *testing.T) {
	for _, state := range []string{"in memory", "in an active file", "in both", "in sealed segments"} {
		t.Run(state, func(t *testing.T) {
			fs := vfs.NewMem()
			change := func(o *Options) { o.FlushBytes, o.SegmentBytes = 1<<20, 1<<20 }
			r := open(t, fs, change)
			r.create(0)
			values, want := wants(30)
			r.produceAll(0, values[:10])
			p := r.engine.Get(pid(0))
			if state != "in memory" {
				r.flush(0)
			}
			if state == "in both" {
				r.produceAll(0, values[10:20])
			} else if state == "in sealed segments" {
				if err := r.engine.Seal(p); err != nil {
					t.Fatal(err)
				}
			}
			hw := p.HighWatermark()
			if freed := r.trim(0, hw); freed.Bytes == 0 {
				t.Errorf("nothing was freed")
			}
			if freed := r.trim(0, 3); freed != (Freed{}) || p.Oldest() != hw {
				t.Errorf("a lower trim freed %+v, the log begins at %d", freed, p.Oldest())
			}
			check := func() {
				t.Helper()
				p = r.engine.Get(pid(0))
				if got := r.all(0); len(got) > 0 || p.Oldest() != hw || p.HighWatermark() != hw || len(r.dir(0)) > 0 || len(p.Local().Pieces) > 0 {
					t.Errorf("left: %v, %d to %d, files %v, %+v", got, p.Oldest(), p.HighWatermark(), r.dir(0), p.Local())
				}
				if _, err := p.Read(context.Background(), hw-1, 1, nil); !errcode.Is(err, errcode.Gone) {
					t.Errorf("read below the start: %v", err)
				}
				if at, err := p.FindTime(context.Background(), 1); err != nil || at != hw {
					t.Errorf("the first record by time: %d %v", at, err)
				}
			}
			check()
			if n := r.engine.memory.Load(); n != 0 {
				t.Errorf("the tails hold %d bytes", n)
			}
			r.close()
			r = open(t, fs, change)
			check()
			r.produceAll(0, values[hw:])
			equal(t, r.all(0), want[hw:])
			r.close()
			r = open(t, fs, change)
			equal(t, r.all(0), want[hw:])
			r.close()
		})
	}
}

// What was trimmed needs no flush, and holds the log no longer: the next
// checkpoint lets it go.
func TestTrimLetsTheLogGo(t *testing.T) {
	r := open(t, vfs.NewMem(), func(o *Options) { o.FlushBytes = 1 << 20 })
	r.create(0)
	values, _ := wants(50)
	r.produceAll(0, values)
	r.checkpoint()
	held := r.needed()
	r.trim(0, 50)
	r.checkpoint()
	if now := r.needed(); now <= held || now < r.log.NextLSN() {
		t.Errorf("the log is needed from %d on, before the trim from %d, it ends at %d", now, held, r.log.NextLSN())
	}
	r.close()
}

// The local state refuses: the start did not move, no file went. Then a file
// cannot be removed: the trim stands, and the next start removes the file and
// counts it.
func TestTrimOnABrokenDisk(t *testing.T) {
	fs := &faultFS{FS: vfs.NewMem()}
	r := open(t, fs, func(o *Options) { o.Compress = noCompression })
	r.create(0)
	values, want := wants(400)
	r.produceAll(0, values)
	r.flush(0)
	r.checkpoint()
	files := r.dir(0)
	if len(files) < 3 {
		t.Fatalf("only the files %v", files)
	}
	fs.set(func(op, _ string) (verdict, error) {
		if op == "remove" {
			return refuse, errIO
		}
		return pass, nil
	})
	r.trim(0, 400)
	if got := r.dir(0); len(got) != len(files) {
		t.Fatalf("files %v, before the trim %v", got, files)
	}
	fs.set(nil)
	r.close()
	registry := prometheus.NewRegistry()
	r = open(t, fs, func(o *Options) { o.Registerer = registry })
	if got := r.dir(0); len(got) > 0 {
		t.Errorf("the start left %v", got)
	}
	if got := r.all(0); len(got) > 0 {
		t.Errorf("%d records are back", len(got))
	}
	if got := counterIn(t, registry, "tidemark_segment_leftovers_total"); got != float64(len(files)) {
		t.Errorf("%v files were counted, %d were left", got, len(files))
	}
	values2, _ := wants(500)
	r.produceAll(0, values2[400:])
	if got := r.all(0); len(got) != 100 || len(want) != 400 {
		t.Errorf("%d records", len(got))
	}
	r.close()
}

// A file that neither the local state names nor a trim or the archive explains
// is kept (I10), and one that is empty or foreign does not disturb (B107).
func TestUnexplainedFileIsKept(t *testing.T) {
	fs := vfs.NewMem()
	r := open(t, fs, nil)
	r.create(0)
	values, want := wants(200)
	r.produceAll(0, values)
	r.flush(0)
	dir := r.engine.Get(pid(0)).dir
	r.close()
	odd := fs.PathJoin(dir, segment.SealedName(3))
	f, err := fs.Create(odd, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r = open(t, fs, nil)
	equal(t, r.all(0), want)
	if _, err := fs.Stat(odd); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
	r.trim(0, 150)
	equal(t, r.all(0), want[150:])
	r.close()
	r = open(t, fs, nil)
	equal(t, r.all(0), want[150:])
	if _, err := fs.Stat(odd); err == nil {
		t.Errorf("below the start of the log it is garbage, and still there")
	}
	r.close()
}

// What was flushed and not synced is in the log alone. A trim before the next
// checkpoint does not say that the file has it: after a power failure the records
// above the start come again from the log (I1).
func TestTrimAboveUnsyncedRecords(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := open(t, fs, func(o *Options) { o.SegmentBytes = 1 << 20 })
	r.create(0)
	values, want := wants(20)
	r.produceAll(0, values[:10])
	r.checkpoint()
	r.produceAll(0, values[10:])
	r.flush(0)
	r.trim(0, 3)
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	r.close()
	r = open(t, crashed, func(o *Options) { o.SegmentBytes = 1 << 20 })
	if err := r.engine.Get(pid(0)).Refused(); err != nil {
		t.Fatal(err)
	}
	equal(t, r.all(0), want[3:])
	r.close()
}

// A trim comes between the moment when a checkpoint captured the partition and
// the one when it is written: the checkpoint brings neither the old start nor
// the removed segments back.
func TestTrimDuringACheckpoint(t *testing.T) {
	fs := vfs.NewMem()
	var log *waitLog
	archive := newMemArchive()
	c := rigConfig{change: func(o *Options) { o.Archive, o.Compress = archive, noCompression }, log: func(l Log) Log { log = &waitLog{Log: l}; return log }}
	r := openWith(t, fs, c)
	r.create(0)
	values, want := wants(400)
	r.produceAll(0, values)
	r.flush(0)
	r.archiveAll(archive, 0) // the checkpoint is to write the confirmations
	sealed := len(r.segments(0))
	log.hook = func() {
		r.trim(0, 200)
		if _, err := r.engine.Evict(r.engine.Get(pid(0)), 250); err != nil {
			t.Error(err)
		}
	}
	r.checkpoint()
	e := r.entry(0)
	if left := len(r.segments(0)); e.Oldest != 200 || len(e.Sealed) != left || left >= sealed {
		t.Errorf("the local state: start %d, %d segments; %d files of %d", e.Oldest, len(e.Sealed), left, sealed)
	}
	r.close()
	c.log = nil
	r = openWith(t, fs, c)
	equal(t, r.all(0), want[200:])
	r.close()
}

// Segments that an upload still reads stay on disk while the start is raised
// already, and go with a later call (B104). A start does not offer them to the
// archive again, nor what is trimmed.
func TestTrimSparesWhatAnUploadReads(t *testing.T) {
	fs := vfs.NewMem()
	var mu sync.Mutex
	limit := int64(100)
	change := func(o *Options) {
		o.Compress = noCompression
		o.Dropping = func(_ broker.PartitionID, below int64) int64 {
			mu.Lock()
			defer mu.Unlock()
			return min(below, limit)
		}
	}
	r := open(t, fs, change)
	r.create(0)
	values, want := wants(400)
	r.produceAll(0, values)
	r.flush(0)
	r.checkpoint()
	r.trim(0, 300)
	p := r.engine.Get(pid(0))
	first := p.Local().Pieces[0]
	if p.Oldest() != 300 || first.Next <= 100 || first.Base > 100 {
		t.Fatalf("start %d, the first file %+v", p.Oldest(), first)
	}
	if l := p.Local(); l.Cut != first.Base {
		t.Errorf("the archive goes on at %d, the upload begins at %d", l.Cut, first.Base)
	}
	equal(t, r.all(0), want[300:])
	r.close()
	r = open(t, fs, change)
	for _, s := range r.sealed {
		if s.Next <= 300 {
			t.Errorf("segment %d to %d was trimmed and is offered to the archive", s.Base, s.Next)
		}
	}
	limit = 1000
	r.trim(0, 0)
	p = r.engine.Get(pid(0))
	if l := p.Local(); l.Pieces[0].Next <= 300 || l.Cut > 300 || l.Cut != l.Pieces[0].Base {
		t.Errorf("left: %+v", l)
	}
	r.close()
}

// Records that were trimmed before the archive's chain held them: until it names
// their range, a restore needs the log from their first commit on, or it would
// find a hole; a restart knows it too (T2).
func TestTrimmedBeforeArchived(t *testing.T) {
	fs := vfs.NewMem()
	change := func(o *Options) { o.FlushBytes, o.SegmentBytes = 1<<20, 1<<20 }
	r := open(t, fs, change)
	r.create(0)
	values, _ := wants(30)
	r.produceAll(0, values[:10])
	r.flush(0)
	first, ok := r.engine.Get(pid(0)).UnarchivedFrom()
	if !ok {
		t.Fatal("everything is archived")
	}
	r.produceAll(0, values[10:20])
	r.trim(0, 20)
	r.produceAll(0, values[20:])
	for range 2 {
		p := r.engine.Get(pid(0))
		if at, ok := p.UnarchivedFrom(); !ok || at != first {
			t.Errorf("unarchived from LSN %d (%v), the first record was at %d", at, ok, first)
		}
		if l := p.Local(); l.Cut != 20 || l.Oldest != 20 {
			t.Errorf("the archive goes on at %d", l.Cut)
		}
		r.close()
		r = open(t, fs, change)
	}
	p := r.engine.Get(pid(0))
	p.SetArchived(20, 2) // a gap
	if at, ok := p.UnarchivedFrom(); !ok || at <= first {
		t.Errorf("unarchived from LSN %d (%v) behind the gap", at, ok)
	}
	r.checkpoint()
	if e := r.entry(0); e.SkippedLSN != 0 || e.SkippedEnd != 0 {
		t.Errorf("the local state: %+v", e.Partition)
	}
	r.close()
}

// The range of append times of a segment is that of its records, also when they
// were flushed after the last checkpoint, when the file is begun after it, and
// when a failed write made the writer start over: retention by age stands on it
// (B109, B110).
func TestAppendTimesSurvive(t *testing.T) {
	fs := vfs.NewCrashableMem()
	change := func(o *Options) { o.FlushBytes, o.SegmentBytes = 1<<20, 1<<20 }
	for name, checkpoint := range map[string]bool{"file of the last checkpoint": true, "file behind it": false} {
		t.Run(name, func(t *testing.T) {
			fs = vfs.NewCrashableMem()
			r := open(t, fs, change)
			r.create(0)
			at := func(ms int64) {
				t.Helper()
				parts := []Part{r.part(0, fmt.Sprint(ms))}
				lsn, err := r.engine.Append(parts, ms)
				if err == nil {
					err = r.log.WaitDurable(context.Background(), lsn)
				}
				if err != nil {
					t.Fatal(err)
				}
				r.engine.Advance(parts)
			}
			at(5000)
			if checkpoint {
				r.flush(0)
				r.checkpoint()
			}
			at(9000)
			at(3000)
			r.flush(0)
			if err := r.engine.Get(pid(0)).files.active.Sync(); err != nil {
				t.Fatal(err)
			}
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			r.close()
			r = open(t, crashed, change)
			p := r.engine.Get(pid(0))
			if in := p.files.active.Info(); in.MinAppend != 3000 || in.MaxAppend != 9000 || in.Next != 3 {
				t.Errorf("the active file after a crash: %+v", in)
			}
			if err := r.engine.Seal(p); err != nil {
				t.Fatal(err)
			}
			if s := p.files.sealed[0]; s.MinAppend != 3000 || s.MaxAppend != 9000 {
				t.Errorf("sealed: %d to %d", s.MinAppend, s.MaxAppend)
			}
			r.close()
		})
	}
}

// Replayed frames below the active file do not widen its range.
func TestOlderFramesDoNotWiden(t *testing.T) {
	fs := vfs.NewMem()
	keep := rigConfig{change: func(o *Options) { o.SegmentBytes = 1 << 20 }, wal: func(o *wal.Options) { o.Holds["test"] = 1 }}
	r := openWith(t, fs, keep)
	r.create(0)
	r.produceAll(0, []string{"a"})
	if err := r.engine.Seal(r.engine.Get(pid(0))); err != nil {
		t.Fatal(err)
	}
	parts := []Part{r.part(0, "b")}
	lsn, err := r.engine.Append(parts, 77)
	if err == nil {
		err = r.log.WaitDurable(context.Background(), lsn)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.engine.Advance(parts)
	r.flush(0)
	r.close()
	r = openWith(t, fs, keep)
	if in := r.engine.Get(pid(0)).files.active.Info(); in.MinAppend != 77 || in.MaxAppend != 77 {
		t.Errorf("%+v", in)
	}
	r.close()
}

// A generation begins behind a gap: a trim into the gap means its end, and the
// records of the new generation stay (B102).
func TestTrimIntoAGap(t *testing.T) {
	r := openWith(t, vfs.NewMem(), rigConfig{idle: true})
	if err := r.engine.Create(context.Background(), []frame.Base{{Partition: pid(0), Generation: 1}}); err != nil {
		t.Fatal(err)
	}
	values, _ := wants(20)
	r.produceAll(0, values)
	p := r.engine.Get(pid(0))
	const start = 20 + 1<<32
	p.Rebase(2, 20, start, [][2]int64{{20, start}})
	if _, err := r.produce(0, "new"); err != nil {
		t.Fatal(err)
	}
	r.trim(0, 25)
	if got := r.all(0); p.Oldest() != start || len(got) != 1 || !strings.HasSuffix(got[0], "=new") {
		t.Errorf("start %d: %v", p.Oldest(), got)
	}
	r.close()
}
