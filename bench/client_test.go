package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/bench/rawhttp"
	"github.com/tidemark-mq/tidemark/internal/broker"
)

const (
	clientRounds  = 9
	clientRecords = 48_000 // of recordBytes, each round and way
	clientTake    = 100
)

// BenchmarkClient is what the Go client's producer and consumer reach against a node
// in this process, beside requests that are sent one after the other. Each round
// produces and consumes
//
//	frames    batches of 1,000 that stand ready, by a connection that encodes nothing
//	producer  Send of each record, Linger and batches as by default
//	requests  Consume and AckBatch of 100, one after the other
//	consumer  a Consumer whose 8 handlers do nothing
//
// and reports records/s, producer/frames and consumer/requests.
func BenchmarkClient(b *testing.B) {
	n := bareNode(b)
	for _, topic := range []string{"frames", "producer"} {
		six := uint32(6)
		if _, err := n.CreateTopic(b.Context(), broker.TopicSpec{Name: topic, Partitions: &six}); err != nil {
			b.Fatal(err)
		}
	}
	url := serveNode(b, n)
	c, err := client.New(url, client.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.CloseIdleConnections)
	src := newTexts(3)
	src.batch(b)
	var values [][]byte
	for i := range src.records {
		values = append(values, bytes.Clone(src.records[i].Value))
	}
	total := sized(clientRecords) / len(values) * len(values)
	var frames, producer, requests, consumer, produceX, consumeX series
	for b.Loop() {
		for round := range rounds(clientRounds) {
			f := seconds(func() { sendFrames(b, url, values, total) })
			p := seconds(func() { sendRecords(b, c, values, total) })
			r := seconds(func() { takeRequests(b, c, total) })
			q := seconds(func() { takeHandled(b, c, total) })
			if round == 0 {
				continue // warms
			}
			frames.add(float64(total) / f)
			producer.add(float64(total) / p)
			requests.add(float64(total) / r)
			consumer.add(float64(total) / q)
			produceX.add(f / p)
			consumeX.add(r / q)
		}
	}
	frames.report(b, "frames/s", false)
	producer.report(b, "producer/s", true)
	requests.report(b, "requests/s", false)
	consumer.report(b, "consumer/s", true)
	produceX.report(b, "producer/frames", true)
	consumeX.report(b, "consumer/requests", true)
}

// sendFrames produces total values in batches of all of them.
func sendFrames(b *testing.B, url string, values [][]byte, total int) {
	target, err := rawhttp.NewTarget(url, "", "")
	if err != nil {
		b.Fatal(err)
	}
	conn, err := target.Dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	r := rawhttp.Request{Method: http.MethodPost, Path: "/v1/topics/frames/produce/batch", Type: "application/vnd.tidemark.frames"}
	for _, v := range values {
		r.Body = binary.BigEndian.AppendUint32(r.Body, 0xFFFFFFFF) // no key
		r.Body = append(binary.BigEndian.AppendUint32(r.Body, uint32(len(v))), v...)
	}
	for range total / len(values) {
		a, err := conn.Do(r)
		if err == nil {
			err = a.Refused(r, http.StatusAccepted)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// sendRecords produces total values through a Producer.
func sendRecords(b *testing.B, c *client.Client, values [][]byte, total int) {
	p, err := c.NewProducer("producer", client.ProducerOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range total {
		if _, err := p.Send(b.Context(), client.Record{Value: values[i%len(values)]}); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// takeRequests consumes and acks total records with one request after the other.
func takeRequests(b *testing.B, c *client.Client, total int) {
	for taken := 0; taken < total; {
		msgs, err := c.Consume(b.Context(), "frames", client.ConsumeOptions{Max: clientTake, Wait: 5 * time.Second})
		if err != nil || len(msgs) == 0 {
			b.Fatalf("after %d of %d records: %v", taken, total, err)
		}
		handles := make([]string, len(msgs))
		for i := range msgs {
			handles[i] = msgs[i].Handle
		}
		errs, err := c.AckBatch(b.Context(), "frames", handles)
		if err = errors.Join(append(errs, err)...); err != nil {
			b.Fatal(err)
		}
		taken += len(msgs)
	}
}

// takeHandled consumes total records with a Consumer.
func takeHandled(b *testing.B, c *client.Client, total int) {
	var taken atomic.Int64
	all := make(chan struct{})
	q, err := c.NewConsumer("producer", func(context.Context, client.Message) error {
		if taken.Add(1) == int64(total) {
			close(all)
		}
		return nil
	}, client.ConsumerOptions{InFlight: 4 * clientTake, OnError: func(err error) { b.Error(err) }})
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- q.Run(b.Context()) }()
	select {
	case <-all:
	case err := <-ended:
		b.Fatalf("the consumer ended after %d of %d records: %v", taken.Load(), total, err)
	case <-time.After(time.Minute):
		b.Fatalf("%d of %d records were consumed within a minute", taken.Load(), total)
	}
	if err := q.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
