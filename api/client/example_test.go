package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
)

// connect returns a client of a node that has a topic with one partition.
func connect(ctx context.Context, topic string) *client.Client {
	c, err := client.New(client.NodeAddress(), client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	one := uint32(1)
	if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: topic, Partitions: &one}); err != nil {
		log.Fatal(err)
	}
	return c
}

// A record goes in, and its receipt says where it stands.
func Example() {
	ctx := context.Background()
	c := connect(ctx, "greetings")
	defer c.CloseIdleConnections()

	got, err := c.Produce(ctx, "greetings", client.Record{Key: []byte("en"), Value: []byte("hello")}, client.ProduceOptions{Ack: client.AckCommitted})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("partition", got.Partition, "offset", got.Offset)
	// Output: partition 0 offset 0
}

// Many records go in as batches. Every record has a delivery; Close waits for all
// and says when some failed.
func ExampleProducer() {
	ctx := context.Background()
	c := connect(ctx, "clicks")
	defer c.CloseIdleConnections()

	p, err := c.NewProducer("clicks", client.ProducerOptions{Ack: client.AckCommitted})
	if err != nil {
		log.Fatal(err)
	}
	var last client.Delivery
	for i := range 1000 {
		user := fmt.Sprintf("user-%d", i%10)
		if last, err = p.Send(ctx, client.Record{Key: []byte(user), Value: []byte(`{"page":"/"}`)}); err != nil {
			log.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}
	where, err := last.Wait(ctx)
	fmt.Println(where.Partition, where.Offset, err)
	// Output: 0 999 <nil>
}

// A consumer hands each record to a handler and acks it when that returns nil. An
// error gives the record back, to be delivered again.
func ExampleConsumer() {
	ctx := context.Background()
	c := connect(ctx, "orders")
	defer c.CloseIdleConnections()
	for _, order := range []string{"tea", "milk"} {
		if _, err := c.Produce(ctx, "orders", client.Record{Value: []byte(order)}, client.ProduceOptions{}); err != nil {
			log.Fatal(err)
		}
	}

	done := make(chan struct{}, 2)
	failed := false
	handler := func(ctx context.Context, m client.Message) error {
		if string(m.Value) == "tea" && !failed {
			failed = true
			return errors.New("the kettle is empty")
		}
		fmt.Printf("served %s, delivery %d\n", m.Value, m.Attempt)
		done <- struct{}{}
		return nil
	}
	consumer, err := c.NewConsumer("orders", handler, client.ConsumerOptions{
		Handlers:  1,
		NackDelay: func(client.Message, error) time.Duration { return 300 * time.Millisecond },
		OnError:   func(err error) { fmt.Println(err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	<-done
	<-done
	if err := consumer.Close(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-ended)
	// Output:
	// topic "orders", partition 0, offset 0: the handler failed: the kettle is empty
	// served milk, delivery 1
	// served tea, delivery 2
	// <nil>
}

// A replay reads a partition's log without leases. It can be told where to begin
// and to end, and to go on with what is still to come.
func ExampleClient_Replay() {
	ctx := context.Background()
	c := connect(ctx, "readings")
	defer c.CloseIdleConnections()
	for i := range 5 {
		if _, err := c.Produce(ctx, "readings", client.Record{Value: []byte(fmt.Sprintf("%d°", 20+i))}, client.ProduceOptions{}); err != nil {
			log.Fatal(err)
		}
	}

	from := int64(2)
	for rec, err := range c.Replay(ctx, "readings", 0, client.ReplayOptions{From: &from}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(rec.Offset, string(rec.Value))
	}
	// Output:
	// 2 22°
	// 3 23°
	// 4 24°
}

// Errors carry a code for programs, and a class that says whether the same call
// can succeed later.
func ExampleCodeOf() {
	ctx := context.Background()
	c, err := client.New(client.NodeAddress(), client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.CloseIdleConnections()

	_, err = c.Topic(ctx, "nowhere")
	fmt.Println(client.CodeOf(err), client.CodeOf(err).Retry())
	var e *client.Error
	fmt.Println(errors.As(err, &e), e.Code == client.NotFound)
	// Output:
	// not_found never
	// true true
}
