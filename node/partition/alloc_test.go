package partition

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/segment"
)

// What the hot paths allocate, so that no change makes it more unnoticed: a
// batch of 100 records from the append to the flush behind it, a raw read from
// memory, and one of up to a MiB from segment files.
func TestAllocations(t *testing.T) {
	encoded, err := segment.AppendBatch(nil, benchRecords(100, 256), segment.BatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, voidFS{vfs.NewMem()}, benchOptions)
	r.create(0)
	p := r.engine.Get(pid(0))
	// The buffer of the batch is the caller's, one allocation of these.
	atMost(t, "append of a batch", 9, func() { appendBatch(t, r, p, bytes.Clone(encoded)) })
	r.close()

	r = open(t, vfs.NewMem(), func(o *Options) {
		benchOptions(o)
		o.Compress, o.CheckpointInterval = noCompression, time.Hour
		o.HotBytes = o.MemoryBudget
	})
	r.create(0)
	p = r.engine.Get(pid(0))
	for size := 0; size < 4<<20; size += len(encoded) {
		appendBatch(t, r, p, bytes.Clone(encoded))
	}
	var buf Buffer
	read := func() {
		run, err := p.Read(context.Background(), 100, 1<<20, &buf)
		if err != nil || len(run) < 10 {
			t.Errorf("%d batches: %v", len(run), err)
		}
	}
	atMost(t, "read from memory", 0, read)
	r.flush(0)
	r.checkpoint()
	p.evict(1 << 40)
	atMost(t, "read from a segment file", 20, read)
	r.close()
}

func atMost(t *testing.T, what string, most float64, f func()) {
	t.Helper()
	if got := testing.AllocsPerRun(500, f); got > most {
		t.Errorf("%s: %.0f allocations, at most %.0f", what, got, most)
	}
}

func appendBatch(t *testing.T, r *rig, p *Partition, data []byte) {
	t.Helper()
	parts := []Part{{Partition: p, Batches: []Batch{{Data: data, Span: 100}}}}
	lsn, err := r.engine.Append(parts, 1)
	if err == nil {
		err = r.log.WaitDurable(context.Background(), lsn)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.engine.Advance(parts)
}
