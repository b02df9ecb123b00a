package partition

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A partition that gets a record of 1 KiB a minute is sealed so rarely, with the
// defaults, that 3,000 of them cost at most 15,000 PUTs a day beyond shipping:
// each segment is an object and an entry.
func TestSealsOfASlowPartition(t *testing.T) {
	const partitions, most, days, perSegment = 3000, 15_000, 2, 2
	var now atomic.Int64
	now.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	r := openWith(t, vfs.NewMem(), rigConfig{idle: true, change: func(o *Options) {
		o.FlushBytes, o.SegmentBytes = DefaultFlushBytes, DefaultSegmentBytes
		o.Now = func() time.Time { return time.UnixMilli(now.Load()) }
	}})
	r.create(0)
	rng := rand.New(rand.NewPCG(1, 2))
	for range days * 24 * 60 {
		value := make([]byte, 1<<10) // random letters: they compress little
		for i := range value {
			value[i] = byte('a' + rng.IntN(26))
		}
		parts := []Part{r.part(0, string(value))}
		lsn, err := r.engine.Append(parts, now.Load())
		if err == nil {
			err = r.log.WaitDurable(context.Background(), lsn)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.engine.Advance(parts)
		now.Add(time.Minute.Milliseconds())
		r.engine.SealOld()
	}
	perDay := float64(len(r.sealed)) / days * perSegment * partitions
	if len(r.sealed) == 0 || perDay > most {
		t.Errorf("%d segments in %d days: %.0f PUTs a day for %d partitions, at most %d are allowed", len(r.sealed), days, perDay, partitions, most)
	}
	t.Logf("%d segments in %d days: %.0f PUTs a day for %d partitions", len(r.sealed), days, perDay, partitions)
	r.close()
}
