package restore

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// The memory of an object may be used again once the object counts as done, and
// not before: whoever overwrites it there finds the records unchanged in the
// files, large batches that are written where they stand and small ones that are
// merged, over more partitions than there are lanes.
func TestObjectsAreReadUntilTheyAreDone(t *testing.T) {
	const partitions, objects = 3 * lanes, 6
	fs := vfs.NewMem()
	db, err := state.Open(fs, "state", nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := partition.New(partition.Options{FS: fs, Dir: "topics", State: db})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	parts := map[broker.PartitionID]*restored{}
	for n := range uint32(partitions) {
		id := broker.PartitionID{Topic: 1, Partition: n}
		p, err := e.Import(id, state.Partition{})
		if err != nil {
			t.Fatal(err)
		}
		parts[id] = &restored{Partition: p, id: id}
	}
	value := func(id broker.PartitionID, offset int64) []byte {
		size := 50
		if (offset+int64(id.Partition))%2 == 0 {
			size = 40 << 10
		}
		return fmt.Appendf(nil, "%s/%0*d", id, size, offset)
	}
	im := newImporters(parts)
	defer im.stop()
	done := 0
	for o := range int64(objects) {
		var object []byte
		var batches [][2]int
		var of []*restored
		for id, p := range parts {
			from := len(object)
			object, err = segment.AppendBatch(object, []broker.Record{{Value: value(id, o)}}, segment.BatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			segment.Stamp(object[from:], o, 1)
			batches, of = append(batches, [2]int{from, len(object)}), append(of, p)
		}
		for i, b := range batches {
			im.add(of[i], 1, object[b[0]:b[1]])
		}
		err := im.objectDone(func() {
			done++
			clear(object)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := im.finish(); err != nil {
		t.Fatal(err)
	}
	if done != objects {
		t.Fatalf("%d objects of %d are done", done, objects)
	}
	for id, p := range parts {
		for at := int64(0); at < objects; at++ {
			run, err := p.Read(t.Context(), at, 1, nil)
			if err != nil || len(run) != 1 {
				t.Fatalf("partition %s at %d: %d batches, %v", id, at, len(run), err)
			}
			recs, err := segment.DecodeBatch(nil, run[0], nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range recs {
				if rec.Offset == at && string(rec.Value) != string(value(id, at)) {
					t.Fatalf("partition %s at %d: %.30q", id, at, rec.Value)
				}
			}
		}
	}
}
