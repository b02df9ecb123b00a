package partition

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/frame"
)

// Whoever had a partition in hand when its topic was deleted, an upload that ends
// or retention, may still note something of it. It comes to nothing: no frame of a
// deleted topic keeps the log, which would grow without a bound (I12).
func TestNewsOfADroppedPartition(t *testing.T) {
	groups := newTally()
	r := open(t, vfs.NewMem(), func(o *Options) { o.FlushBytes, o.Groups = 1<<20, groups })
	r.create(0)
	id := broker.PartitionID{Topic: 0xdef}
	if err := r.engine.Create(t.Context(), []frame.Base{{Partition: id, Generation: 1}}); err != nil {
		t.Fatal(err)
	}
	gone, stays := r.engine.Get(pid(0)), r.engine.Get(id)
	settle := func(n uint64) {
		if _, err := groups.settle(r.engine, pid(0), n); err != nil {
			t.Fatal(err)
		}
	}
	settle(1)
	caught := r.engine.capture(gone) // by a checkpoint that does not get to its end
	settle(2)
	if err := r.engine.Drop(gone.ID.Topic); err != nil {
		t.Fatal(err)
	}
	caught.giveBack()
	for range 2 {
		gone.SetArchived(1, 1)
		parts := []Part{{Partition: stays, Batches: []Batch{encode(t, "a")}}}
		lsn, err := r.engine.Append(parts, 1)
		if err == nil {
			err = r.log.WaitDurable(t.Context(), lsn)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.engine.Advance(parts)
		if err := r.engine.flushAll(stays); err != nil {
			t.Fatal(err)
		}
		r.checkpoint()
		if needed := r.needed(); needed <= lsn {
			t.Fatalf("the log is needed from LSN %d on, files have everything up to %d", needed, lsn)
		}
	}
	r.close()
}
