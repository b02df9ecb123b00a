package restore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
)

// A log with a gap, which a restore leaves, is read over it as one, decoded and as
// it is stored: a read from the gap's start goes on at its end, one from inside is a
// Conflict with its bounds, and where to read on is never the gap's start.
func TestReadingOverAGap(t *testing.T) {
	w := newWorld(t, 1)
	w.segments(0, 1, 10)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	wr.records(w.id(0), 1, 10, 4)
	wr.ship()
	dir, _ := w.restore()
	n, err := node.Open(context.Background(), node.Options{Dir: dir, NodeID: nodeID, RaftAddr: "127.0.0.1:0", DiskReserve: 1, WALFileSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx := context.Background()
	const gap, end = int64(14), 14 + skip
	// read returns the offsets from from on and where the reader stands in the end.
	read := func(from, to int64, stored bool) (offsets []int64, resume int64) {
		t.Helper()
		r, err := n.ReadLog(ctx, broker.ReadRequest{Topic: "t", From: from, To: to})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for {
			var recs []broker.Record
			if stored {
				var batches []broker.StoredBatch
				batches, err = r.NextBatches(ctx)
				for _, b := range batches {
					if b.Resume == gap {
						t.Fatal("a batch says to read on at the gap's start")
					}
					more, err := segment.DecodeBatch(nil, b.Bytes, nil)
					if err != nil {
						t.Fatal(err)
					}
					recs = append(recs, more...)
				}
			} else {
				recs, err = r.Next(ctx)
			}
			if errors.Is(err, io.EOF) {
				return offsets, r.ResumeOffset()
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range recs {
				if rec.Offset >= from && (to < 0 || rec.Offset < to) {
					offsets = append(offsets, rec.Offset)
				}
			}
		}
	}
	for _, stored := range []bool{false, true} {
		// Nothing stands behind the gap yet: the high watermark is its end.
		if got, resume := read(12, -1, stored); !slices.Equal(got, []int64{12, 13}) || resume != end {
			t.Errorf("stored %v, before the first record behind the gap: %d, resume %d", stored, got, resume)
		}
	}
	for i := range 3 {
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Ack: broker.AckCommitted, Records: []broker.NewRecord{{Value: fmt.Append(nil, i)}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, stored := range []bool{false, true} {
		for _, c := range []struct {
			from, to int64
			want     []int64
			resume   int64
		}{
			{10, -1, []int64{10, 11, 12, 13, end, end + 1, end + 2}, end + 3},
			{12, gap, []int64{12, 13}, end},
			{12, end, []int64{12, 13}, end},
			{12, gap + 5, []int64{12, 13}, end},
			{gap, -1, []int64{end, end + 1, end + 2}, end + 3},
			{gap, end + 1, []int64{end}, end + 1},
			{end, -1, []int64{end, end + 1, end + 2}, end + 3},
		} {
			got, resume := read(c.from, c.to, stored)
			if !slices.Equal(got, c.want) || resume != c.resume {
				t.Errorf("stored %v, [%d, %d): %d resume %d, want %d resume %d", stored, c.from, c.to, got, resume, c.want, c.resume)
			}
		}
	}
	for _, from := range []int64{gap + 1, end - 1} {
		_, err := n.ReadLog(ctx, broker.ReadRequest{Topic: "t", From: from, To: -1})
		var e *errcode.Error
		if !errcode.Is(err, errcode.Conflict) || !errors.As(err, &e) || e.Facts["gap_from"] != gap || e.Facts["gap_to"] != end {
			t.Errorf("inside the gap: %v", err)
		}
	}
}
