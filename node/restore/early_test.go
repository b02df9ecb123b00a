package restore

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// Batches that come before those in front of them wait, in whatever order they
// come, and each one takes its turn: when the one in front came, or when it begins
// a generation behind a gap. One that comes again as a part of a larger one, or
// larger than before, counts once. What is early is counted, and nothing is left (I4).
func TestEarlyBatchesTakeTheirTurn(t *testing.T) {
	id := broker.PartitionID{Topic: 1}
	batch := func(base int64, n int) []byte {
		recs := make([]broker.Record, n)
		for i := range recs {
			recs[i] = broker.Record{Offset: int64(i), Value: fmt.Appendf(nil, "v%d", base+int64(i))}
		}
		b, err := segment.AppendBatch(nil, recs, segment.BatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		segment.Stamp(b, base, 1)
		return b
	}
	p := &restored{id: id, fences: []manifest.Fence{{Generation: 1}, {Generation: 2, PreviousEnd: 10, Start: 100}, {Generation: 3, PreviousEnd: 104, Start: 200}}}
	r := &replay{parts: map[broker.PartitionID]*restored{id: p}, report: &Replayed{}}
	put := func(base int64, n int) {
		t.Helper()
		b := batch(base, n)
		if err := r.cutBatch(p, 1, 5, base, b); err != nil {
			t.Fatal(err)
		}
		clear(b) // the memory of an object is used again
		sum := int64(0)
		for _, e := range p.early {
			sum += int64(len(e.data))
		}
		if sum != r.early {
			t.Fatalf("%d bytes are early, %d are counted", sum, r.early)
		}
	}
	put(200, 2) // behind two gaps
	put(102, 2) // behind one
	put(8, 1)   // a part of what comes next
	put(8, 2)   // larger
	put(8, 1)   // again
	put(4, 2)   // in the middle
	put(2, 2)   // and before that
	put(4, 2)   // twice
	put(100, 1) // the generation begins
	put(101, 1) //
	put(6, 3)   // overlaps what waits at 8
	if p.next != 0 || len(p.early) != 8 {
		t.Fatalf("next is %d with %d early", p.next, len(p.early))
	}
	if !slices.IsSortedFunc(p.early, func(a, b earlyBatch) int { return int(a.base - b.base) }) {
		t.Fatal("they are not in order")
	}
	put(0, 2)
	if p.next != 202 || len(p.early) != 0 || r.early != 0 {
		t.Fatalf("next is %d with %d early, %d bytes", p.next, len(p.early), r.early)
	}
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
	if r.report.TailRecords != 16 {
		t.Fatalf("%d records", r.report.TailRecords)
	}
}
