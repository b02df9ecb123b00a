package node

import (
	"context"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// A log that begins inside of an archived batch: the records of the batch that
// are left are delivered to groups, though the archive knows nothing any more at
// the offset where the batch begins (B102).
func TestDeliveryFromABatchThatIsTrimmedInPart(t *testing.T) {
	t.Parallel()
	keep := int64(0)
	r := newRetaining(t, nil, broker.TopicSpec{RetentionMS: &keep})
	defer func() { closeNode(t, r.Node) }()
	batch := numbered(0, 10)
	produce(t, r.Node, "logs", broker.AckAccepted, batch...)
	r.archived()
	if _, err := r.engine.Evict(r.part(), 10); err != nil {
		t.Fatal(err)
	}
	if start, err := r.Trim(context.Background(), "logs", 0, 5); err != nil || start != 5 {
		t.Fatalf("trim: %d, %v", start, err)
	}
	within(t, "the chain begins at 5", func() bool { return r.chain().Start() == 5 })
	closeNode(t, r.Node) // with what it had in memory
	r.Node = openNode(t, r.o)
	msgs, err := r.Consume(context.Background(), broker.ConsumeRequest{Topic: "logs", Partition: -1, Max: 10})
	if got := valuesOf(msgs); err != nil || got != "5 6 7 8 9" {
		t.Fatalf("delivered %q, %v", got, err)
	}
}
