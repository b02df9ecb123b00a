package segment_test

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
)

// A segment from its first batch to its seal, and one record found by time.
func Example() {
	fs := vfs.NewMem()
	if err := segment.MakeDir(fs, ".", "orders/0"); err != nil {
		fmt.Println(err)
		return
	}
	w, err := segment.Create(fs, "orders/0", segment.Options{Topic: 1, Partition: 0, Base: 0})
	if err != nil {
		fmt.Println(err)
		return
	}
	batch, err := segment.AppendBatch(nil, []broker.Record{
		{Offset: 0, Timestamp: 10, Value: []byte("first")},
		{Offset: 1, Timestamp: 20, Value: []byte("second")},
	}, segment.BatchOptions{Codec: segment.CodecZstd, Generation: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := w.Append(batch, 21, 21); err != nil {
		fmt.Println(err)
		return
	}
	info, err := w.Seal() // durable from here on
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(w.Path(), info.Records, "records, next offset", info.Next)

	r := w.Reader()
	if e, ok := r.SeekTime(15); ok {
		b, _, err := r.ReadBatch(e, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		offset, ms, _, err := segment.FindTime(b, 15, nil)
		fmt.Println("at 15 ms or later: offset", offset, "of", ms, "ms", err)
	}
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// orders/0/00000000000000000000.seg 2 records, next offset 2
	// at 15 ms or later: offset 1 of 20 ms <nil>
}
