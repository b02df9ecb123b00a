package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// Archived records are read by scans that go on where they were left, from any
// offset in runs of any size. What readers that left keep is bounded, begun
// anew when it is stale, and goes with the topic and with the node.
func TestColdScans(t *testing.T) {
	n := openNode(t, testOptions(t.TempDir(), mem.New("test", nil)))
	defer closeNode(t, n)
	const records = 60
	id := broker.PartitionID{Topic: createTopic(t, n, "t", 1).ID}
	p := n.engine.Get(id)
	for i := range records {
		produce(t, n, "t", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: fmt.Appendf(nil, "%d %s", i, strings.Repeat("0123456789", 300))})
		if i%10 == 9 {
			if err := n.engine.Seal(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	within(t, "everything is archived", func() bool { end, _ := p.ArchivedEnd(); return end == records })
	ctx := context.Background()
	read := func(from int64, maxBytes int) (next int64) {
		t.Helper()
		run, release, err := n.reader.Read(ctx, id, from, maxBytes, records)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		for _, b := range run {
			recs, err := segment.DecodeBatch(nil, b, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range recs {
				if r.Offset < from {
					continue
				}
				if r.Offset != from || !strings.HasPrefix(string(r.Value), fmt.Sprintf("%d ", from)) {
					t.Fatalf("offset %d, %.10q; want %d", r.Offset, r.Value, from)
				}
				from++
			}
		}
		return from
	}
	for from := range int64(records) {
		for _, size := range []int{1, 20 << 10, 1 << 20} {
			next := from
			for next < records {
				next = read(next, size)
			}
		}
	}
	kept := n.reader.scans.len
	read(0, 1) // and leaves
	if k := kept(); k == 0 || k > keptScans {
		t.Fatalf("%d scans are kept", k)
	}
	n.reader.forget(id.Topic)
	if k := kept(); k != 0 {
		t.Fatalf("%d scans of a deleted topic are kept", k)
	}
	if run, _, err := n.reader.Read(ctx, id, records, 1, records); err != nil || len(run) != 0 {
		t.Fatalf("at the end of the archive: %d batches %v", len(run), err)
	}
	n.reader.close()
	read(0, 1)
	if k := kept(); k != 0 {
		t.Fatalf("a closed reader keeps %d scans", k)
	}
}
