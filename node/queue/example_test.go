package queue_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/queue"
)

// The whole life of a record in a group: visible, leased, settled.
func Example() {
	e := queue.New(queue.Options{Secret: []byte("the cluster's handle key")})
	defer e.Close()
	p := broker.PartitionID{Topic: 1, Partition: 0}
	if err := e.Attach(p, queue.PartitionConfig{Generation: 1}, nil); err != nil {
		fmt.Println(err)
		return
	}
	e.Advance(p, 2) // offsets 0 and 1 are durable

	ctx := context.Background()
	ds, _ := e.Reserve(ctx, queue.Request{Topic: p.Topic, Partition: queue.AnyPartition, Wait: time.Second})
	fmt.Println("leased", ds[0].Offset, "attempt", ds[0].Attempt)
	_, err := e.Ack(p.Topic, "", ds[0].Handle)
	fmt.Println("acked", err)

	desc, _ := e.Describe(p.Topic, "")
	fmt.Println("committed", desc[0].Committed, "lag", desc[0].Lag)
	// Output:
	// leased 0 attempt 1
	// acked <nil>
	// committed 1 lag 1
}
