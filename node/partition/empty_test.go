package partition

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/segment"
)

// A crash right after a segment file was created leaves it empty, also when the
// batch that it was made for fills a segment alone. It takes that batch after
// the restart: a file without records is never sealed, and never stands in the
// way of a flush.
func TestCrashBeforeTheFirstBatchOfALargeSegment(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := open(t, fs, func(o *Options) { o.FlushBytes = 1 << 20 })
	r.create(0)
	rng := rand.New(rand.NewPCG(1, 1))
	noise := make([]byte, 3*r.opts.SegmentBytes) // stays that large when it is compressed
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	large := string(noise)
	if _, err := r.produce(0, large); err != nil {
		t.Fatal(err)
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	r.close()
	p := r.engine.Get(pid(0))
	empty, err := segment.Create(crashed, p.dir, p.segmentOptions(0))
	if err := errors.Join(err, empty.Close()); err != nil {
		t.Fatal(err)
	}

	r = open(t, crashed, nil)
	p = r.engine.Get(pid(0))
	r.engine.SealOld() // nothing, or the batch: not the empty file
	for range 2 {
		if err := r.engine.Seal(p); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.sealed) != 1 || r.sealed[0].Next != 1 {
		t.Errorf("sealed %+v", r.sealed)
	}
	if _, err := r.produce(0, large); err != nil {
		t.Fatal(err)
	}
	if err := r.engine.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	equal(t, r.all(0), []string{"0=" + large, "1=" + large})
	r.close()
}
