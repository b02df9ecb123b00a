package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

// rawLog reads stored batches to the end and checks what a reader relies on:
// each verifies, they ascend without overlap, and the last says where to go on.
// It returns the offsets in them and their runs.
func rawLog(t *testing.T, n *Node, req broker.ReadRequest, step func()) (offsets []int64, first, resume int64) {
	t.Helper()
	ctx := context.Background()
	r, err := n.ReadLog(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	first = -1
	for {
		step()
		batches, err := r.NextBatches(ctx)
		if errors.Is(err, io.EOF) {
			if last := r.ResumeOffset(); len(offsets) > 0 && last != resume {
				t.Fatalf("the reader goes on at %d, its last batch says %d", last, resume)
			}
			return offsets, first, r.ResumeOffset()
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(batches) == 0 {
			t.Fatal("no batches and no end")
		}
		for _, b := range batches {
			h, err := segment.VerifyBatch(b.Bytes)
			if err != nil || int(h.Records) != b.Records || h.Size != len(b.Bytes) {
				t.Fatalf("batch at %d: %d records in %d bytes: %v", h.BaseOffset, b.Records, len(b.Bytes), err)
			}
			recs, err := segment.DecodeBatch(nil, b.Bytes, nil)
			if err != nil {
				t.Fatal(err)
			}
			if first < 0 {
				first = recs[0].Offset
			}
			for _, rec := range recs {
				if len(offsets) > 0 && rec.Offset <= offsets[len(offsets)-1] {
					t.Fatalf("offset %d after %d", rec.Offset, offsets[len(offsets)-1])
				}
				if !strings.HasPrefix(string(rec.Value), fmt.Sprintf("%d ", rec.Offset)) {
					t.Fatalf("offset %d has the value %.10q", rec.Offset, rec.Value)
				}
				offsets = append(offsets, rec.Offset)
			}
			resume = b.Resume
		}
	}
}

// Stored batches come from the bucket, from files and from memory as one log:
// the first holds the offset asked for, every offset comes once, the end is where
// the request says, and tiers may move meanwhile (B207).
func TestStoredBatchesOfAllTiers(t *testing.T) {
	c := newColdNode(t, 3)
	for from := int64(0); from < coldRecords; from++ {
		for _, to := range []int64{-1, from, from + 1, min(from+13, coldRecords), coldRecords} {
			end := to
			if to < 0 {
				end = coldRecords
			}
			got, first, resume := rawLog(t, c.Node, broker.ReadRequest{Topic: "t", From: from, To: to}, func() {})
			got = slices.DeleteFunc(got, func(o int64) bool { return o < from || o >= end })
			if int64(len(got)) != end-from || end > from && (got[0] != from || first > from) || resume != end {
				t.Fatalf("[%d, %d): %d records from %d on, the first batch begins at %d, resume %d", from, to, len(got), from, first, resume)
			}
		}
	}
	steps := 0
	if got, _, _ := rawLog(t, c.Node, broker.ReadRequest{Topic: "t", From: 0, To: -1}, func() {
		if steps++; steps == 2 {
			c.dropLocal()
			c.merge(0, 20)
		}
	}); len(got) != coldRecords {
		t.Fatalf("%d records while tiers move", len(got))
	}
}

// A reader that follows stands at the high watermark without records and without
// error, waits there, and reads on; one that does not follow reads up to what came
// while it waited, and does not wait behind an end that was asked for.
func TestReadersWait(t *testing.T) {
	n := openNode(t, testOptions(t.TempDir(), nil))
	defer func() { closeNode(t, n) }()
	createTopic(t, n, "t", 1)
	put := func(v string) {
		produce(t, n, "t", broker.AckCommitted, broker.NewRecord{Partition: 0, Value: []byte(v)})
	}
	put("0 ")
	ctx := context.Background()
	open := func(req broker.ReadRequest) broker.LogReader {
		req.Topic = "t"
		r, err := n.ReadLog(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	follower, raw := open(broker.ReadRequest{From: 0, To: 3, Follow: true}), open(broker.ReadRequest{From: 0, To: 3, Follow: true})
	for i := range 3 {
		if more, err := follower.Wait(ctx, 0); !more || err != nil {
			t.Fatalf("there is a record: %v %v", more, err)
		}
		recs, err := follower.Next(ctx)
		if err != nil || len(recs) != 1 || recs[0].Offset != int64(i) {
			t.Fatalf("%v %v", recs, err)
		}
		batches, err := raw.NextBatches(ctx)
		if err != nil || len(batches) != 1 || batches[0].Resume != int64(i+1) {
			t.Fatalf("%v %v", batches, err)
		}
		if i == 2 {
			break
		}
		for _, r := range []broker.LogReader{follower, raw} {
			recs, err := r.Next(ctx)
			if len(recs) > 0 || err != nil {
				t.Fatalf("at the high watermark: %v %v", recs, err)
			}
			if more, err := r.Wait(ctx, time.Millisecond); more || err != nil {
				t.Fatalf("nothing came: %v %v", more, err)
			}
		}
		waited := make(chan error, 1)
		go func() {
			more, err := follower.Wait(ctx, 0)
			if !more && err == nil {
				err = errors.New("a wait without bound ended")
			}
			waited <- err
		}()
		put(fmt.Sprintf("%d ", i+1))
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []broker.LogReader{follower, raw} {
		if _, err := r.Next(ctx); !errors.Is(err, io.EOF) {
			t.Fatalf("behind To: %v", err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	page, bound := open(broker.ReadRequest{From: 3, To: -1}), open(broker.ReadRequest{From: 3, To: 4})
	if _, err := page.Wait(ended, 0); !errcode.Is(err, errcode.Canceled) {
		t.Errorf("a context that is over: %v", err)
	}
	if more, err := bound.Wait(ctx, 0); more || err != nil {
		t.Errorf("a reader with an end waits: %v %v", more, err)
	}
	if _, err := bound.Next(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("its end is not written: %v", err)
	}
	put("3 ")
	if more, err := page.Wait(ctx, time.Minute); !more || err != nil {
		t.Errorf("%v %v", more, err)
	}
	if recs, err := page.Next(ctx); err != nil || len(recs) != 1 || recs[0].Offset != 3 {
		t.Errorf("what came while it waited: %v %v", recs, err)
	}
}

// A reader that waits holds no more than a small part of what its reads needed.
func TestWaitingReadersAreSmall(t *testing.T) {
	n := openNode(t, testOptions(t.TempDir(), nil))
	defer func() { closeNode(t, n) }()
	createTopic(t, n, "t", 1)
	var recs []broker.NewRecord
	for range 1000 {
		recs = append(recs, broker.NewRecord{Partition: 0, Value: []byte(strings.Repeat("x", 500))})
	}
	for range 4 {
		produce(t, n, "t", broker.AckCommitted, recs...)
	}
	p := n.engine.All()[0]
	if err := n.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, raw := range []bool{false, true} {
		r, err := n.ReadLog(ctx, broker.ReadRequest{Topic: "t", From: 0, To: -1, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		for r.ResumeOffset() < 4000 {
			if raw {
				_, err = r.NextBatches(ctx)
			} else {
				_, err = r.Next(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Wait(ctx, time.Nanosecond); err != nil {
			t.Fatal(err)
		}
		l := r.(*logReader)
		if l.recs != nil || l.stored != nil || l.run != nil {
			t.Errorf("raw %v: room for %d records, %d and %d batches", raw, cap(l.recs), cap(l.stored), cap(l.run))
		}
		_ = r.Close()
	}
}
