package ship

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/wal"
)

// gaugedLog counts the looks that showed something, and fails those that a test
// wants to fail, in their middle.
type gaugedLog struct {
	*wal.Log
	looks  atomic.Int32
	broken atomic.Int32 // looks that fail behind their first group
}

func (l *gaugedLog) EachGroup(from uint64, most int, fn func(wal.Group, []byte) error) (wal.GroupRun, error) {
	some, fail := false, false
	return l.Log.EachGroup(from, most, func(g wal.Group, raw []byte) error {
		if fail {
			return errcode.New(errcode.Storage, "the disk does not give it back")
		}
		fail = l.broken.Add(-1) >= 0
		if !some {
			some = true
			l.looks.Add(1)
		}
		return fn(g, raw)
	})
}

// Proves that the log of an interval is compressed while it passes, for one object
// at its end, also where the log goes on in another file and where a look at it
// fails in the middle. Failed with a look at the interval's end alone,
// and with objects that go on behind the end of a file.
func TestGathersWhileTheIntervalPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &gaugedLog{}
		r := start(t, newBucket(), vfs.NewMem(), 0, func(o *Options) {
			log.Log = o.Log.(*wal.Log)
			o.Log = log
			o.Interval, o.ObjectBytes = 8*time.Second, 4<<20
		})
		defer r.stop()
		wait(20 * time.Second)
		const seconds, each = 40, 32 << 10 // 640 KiB a second, files have 1 MiB
		rng := rand.New(rand.NewPCG(3, 4))
		value := make([]byte, each)
		last := uint64(0)
		begun := time.Now()
		for i := int64(0); time.Since(begun) < seconds*time.Second; i++ {
			for at := range value { // nothing makes it smaller
				value[at] = byte(rng.Uint32())
			}
			last = r.appendCommit(i, value)
			if i == seconds/2*20 {
				// Two and a half intervals and 12 files, each with one look at least: 7. Between
				// them one each half second or second, but behind a file that ended early.
				if looks := log.looks.Load(); looks < 14 {
					t.Errorf("%d looks showed something", looks)
				}
				log.broken.Store(1)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err := r.archived(last, 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		r.sameLog()
		objects := len(r.bucket.keys(t, manifest.WALPrefix(testNode, testIncarnation)))
		if most := seconds/8 + 2*seconds*640/1024 + 3; objects > most { // intervals, files and what follows them
			t.Errorf("%d objects, at most %d are needed", objects, most)
		}
	})
}

// Proves that the object is put before its interval is over when it is full.
func TestFullObjectIsNotHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, newBucket(), vfs.NewMem(), 0, func(o *Options) { o.Interval, o.ObjectBytes = time.Minute, 256<<10 })
		defer r.stop()
		wait(2 * time.Minute)
		for i := range int64(60) {
			r.appendCommit(i, bytes.Repeat([]byte{byte(i)}, 128<<10))
			time.Sleep(time.Second / 2)
		}
		// 7.5 MiB in half a minute, of which a look each 3.75 s shows 960 KiB.
		if st := r.ship.Status(); st.Shipped < 40 {
			t.Errorf("%d frames of %d are shipped", st.Shipped, st.Durable)
		}
		r.sameLog()
	})
}
