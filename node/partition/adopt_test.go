package partition

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/segment"
)

// A crash between the rename of a sealed file and the local state that names
// it, and another one after the restart that adopted the file, before its first
// checkpoint: the third start has every record once, also when no checkpoint of
// the partition was ever written, and goes on behind them.
func TestCrashAfterASegmentWasAdopted(t *testing.T) {
	for name, checkpoint := range map[string]bool{"never a checkpoint": false, "an older checkpoint": true} {
		t.Run(name, func(t *testing.T) {
			large := func(o *Options) { o.SegmentBytes = 1 << 20 }
			values, want := wants(300)
			fs := vfs.NewCrashableMem()
			r := open(t, fs, large)
			r.create(0)
			for i, v := range values[:200] {
				if _, err := r.produce(0, v); err != nil {
					t.Fatal(err)
				}
				if i == 100 && checkpoint {
					if err := errors.Join(r.engine.flushAll(r.engine.Get(pid(0))), r.engine.Checkpoint(context.Background())); err != nil {
						t.Fatal(err)
					}
				}
			}
			p := r.engine.Get(pid(0))
			if err := r.engine.flushAll(p); err != nil {
				t.Fatal(err)
			}
			first := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
			r.close()
			w, _, err := segment.Recover(first, p.dir, segment.RecoverOptions{Options: p.segmentOptions(0), MinAppend: 1, MaxAppend: 1})
			if err != nil {
				t.Fatal(err)
			}
			if info, err := w.Seal(); err != nil || info.Next != 200 {
				t.Fatalf("sealed %+v %v", info, err)
			}

			r = open(t, first, large)
			equal(t, r.all(0), want[:200])
			second := first.CrashClone(vfs.CrashCloneCfg{})
			r.close()

			r = open(t, second, large)
			equal(t, r.all(0), want[:200])
			for _, v := range values[200:] {
				if _, err := r.produce(0, v); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.engine.Seal(r.engine.Get(pid(0))); err != nil {
				t.Fatal(err)
			}
			if s := r.sealed; len(s) != 2 || s[0].Base != 0 || s[0].Next != 200 || s[1].Base != 200 || s[1].Next != 300 {
				t.Errorf("the adopted segment and the one behind it: %+v", s)
			}
			r.close()
			r = open(t, second, large)
			equal(t, r.all(0), want)
			r.close()
		})
	}
}

// A start that adopts a sealed file, and forgets another one that is gone and that
// the archive has, says both to the local state: a crash right behind it leaves no
// entry that ends below its segments, or the next start would take their records
// out of the log a second time, under offsets that a file has already (I3, I4).
func TestAdoptAndForgetInOneStart(t *testing.T) {
	fs := vfs.NewCrashableMem()
	archive := newMemArchive()
	config := func(o *Options) { o.Archive, o.Compress, o.SegmentBytes = archive, noCompression, 1<<20 }
	r := open(t, fs, config)
	r.create(0)
	values, want := wants(200)
	p := r.engine.Get(pid(0))
	r.produceAll(0, values[:100])
	if err := r.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	r.archiveAll(archive, 0)
	r.checkpoint()
	r.produceAll(0, values[100:150])
	r.flush(0)
	r.checkpoint()
	r.produceAll(0, values[150:])
	r.flush(0)
	first := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	r.close()
	w, _, err := segment.Recover(first, p.dir, segment.RecoverOptions{Options: p.segmentOptions(100), MinAppend: 1, MaxAppend: 1})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := w.Seal(); err != nil || info.Next != 200 {
		t.Fatalf("sealed %+v %v", info, err)
	}
	if err := first.Remove(p.segmentPath(0)); err != nil {
		t.Fatal(err)
	}

	r = open(t, first, config)
	equal(t, r.all(0), want)
	second := first.CrashClone(vfs.CrashCloneCfg{})
	r.close()

	r = open(t, second, config)
	equal(t, r.all(0), want)
	if waits := r.engine.Get(pid(0)).Local().Pieces; len(waits) != 1 || waits[0].Base != 100 || waits[0].Next != 200 {
		t.Errorf("what is here: %+v, want the adopted segment", waits)
	}
	r.close()
}
