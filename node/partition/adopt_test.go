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
