package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/api/client"
)

// An expected offset of a record, of a batch and of lines holds, or nothing is
// stored and the refusal says where the log goes on, from which a writer takes it
// up. Other errors have no such offset.
func TestExpectedOffset(t *testing.T) {
	ctx := context.Background()
	c := connect(ctx, "expected")
	defer c.CloseIdleConnections()
	at := func(offset int64) client.ProduceOptions {
		return client.ProduceOptions{Partition: new(uint32), Ack: client.AckCommitted, ExpectedOffset: &offset}
	}
	two := []client.Record{{Value: []byte("a")}, {Key: []byte("k"), Value: []byte("b")}}
	single := func(offset int64) error {
		_, err := c.Produce(ctx, "expected", client.Record{Value: []byte("x")}, at(offset))
		return err
	}
	batch := func(offset int64) error {
		_, err := c.ProduceBatch(ctx, "expected", two, at(offset))
		return err
	}
	lines := func(offset int64) error {
		_, err := c.ProduceNDJSON(ctx, "expected", strings.NewReader("1\n2\n"), at(offset))
		return err
	}
	end := int64(0)
	for _, call := range []struct {
		name  string
		do    func(int64) error
		count int64
	}{{"single", single, 1}, {"batch", batch, 2}, {"lines", lines, 2}} {
		err := call.do(end + 7)
		next, ok := client.NextOffset(err)
		if !client.Is(err, client.PreconditionFailed) || !ok || next != end {
			t.Errorf("%s: next offset %d %v, want %d: %v", call.name, next, ok, end, err)
		}
		if err := call.do(next); err != nil {
			t.Errorf("%s at %d: %v", call.name, next, err)
		}
		end += call.count
	}
	if info, err := c.Topic(ctx, "expected"); err != nil || info.PartitionStats[0].HighWatermark != end {
		t.Errorf("%+v, want %d records: %v", info.PartitionStats, end, err)
	}
	_, err := c.Produce(ctx, "nowhere", client.Record{}, at(0))
	for _, other := range []error{nil, errors.New("x"), err} {
		if next, ok := client.NextOffset(other); ok {
			t.Errorf("%v has the next offset %d", other, next)
		}
	}
}
