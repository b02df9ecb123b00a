package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

// slowDisk is a node whose disk takes the log, and segment files only when it is
// let, with tails that are full.
type slowDisk struct {
	*memNode
	t    *testing.T
	reg  *prometheus.Registry
	let  func() // segment files are written from now on
	full int    // records that were stored
}

func newSlowDisk(t *testing.T) *slowDisk {
	t.Helper()
	d := &slowDisk{t: t, reg: prometheus.NewRegistry()}
	d.memNode = newMemNode(t, func(o *Options) {
		o.MemoryBudget, o.Registerer = 1<<20, d.reg
		o.SegmentBytes, o.FlushBytes, o.WALFileSize = 8<<20, 256<<10, 8<<20
	})
	createTopic(t, d.Node, "t", 1)
	shut := make(chan struct{})
	d.let = sync.OnceFunc(func() { close(shut) })
	t.Cleanup(d.let)
	d.fs.set(func(op, path string) error {
		if op == "write" && strings.Contains(path, "/topics/") {
			<-shut
		}
		return nil
	}, nil)
	for {
		err := d.produce(broker.ProduceRequest{Records: d.one(), Ack: broker.AckCommitted, Wait: 200 * time.Millisecond})
		if errcode.Is(err, errcode.Overloaded) {
			return d
		}
		if err != nil && !errcode.Is(err, errcode.NotConfirmed) { // by then durable all the same
			t.Fatal(err)
		}
		d.full++
	}
}

// one is a record that does not compress.
func (d *slowDisk) one() []broker.NewRecord {
	b := make([]byte, 60<<10)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return []broker.NewRecord{{Partition: 0, Value: b}}
}

func (d *slowDisk) produce(req broker.ProduceRequest) error {
	req.Topic = "t"
	_, err := d.Produce(context.Background(), req)
	return err
}

// wait begins a produce, and returns the channel of its answer when it waits.
func (d *slowDisk) wait(req broker.ProduceRequest) chan error {
	d.t.Helper()
	const waiting = "tidemark_append_waiting_bytes"
	before := value(d.t, d.reg, waiting)
	got := make(chan error, 1)
	go func() { got <- d.produce(req) }()
	within(d.t, "the produce waits", func() bool { return value(d.t, d.reg, waiting) > before })
	return got
}

// While the disk is slower than producers, a produce waits for the flush, whether it
// is a record, a batch, a large one or what a Kafka client encoded; consumers are
// served, and when the disk goes on all are stored (I12, I15).
func TestProduceWaitsForTheFlush(t *testing.T) {
	d := newSlowDisk(t)
	large := []broker.NewRecord{{Partition: 0, Value: make([]byte, 900<<10)}}
	batch := append(append(d.one(), d.one()...), d.one()...)
	kafka := kafkaBatch(t, segment.CodecNone, kafkaRecords(time.Now().UnixMilli(), "k", 5))
	var got []chan error
	for _, req := range []broker.ProduceRequest{
		{Records: numbered(1, 1)}, {Records: large}, {Records: batch}, {Records: numbered(2, 1), Ack: broker.AckCommitted},
		{Encoded: &broker.EncodedBatch{Data: kafka, Bounds: kafkaBounds}},
	} {
		got = append(got, d.wait(req))
	}
	if msgs := d.consume("t", 1); len(msgs) != 1 {
		t.Errorf("%d records are consumed beside those that wait", len(msgs))
	}
	d.let()
	for i, got := range got {
		if err := <-got; err != nil {
			t.Errorf("produce %d: %v", i, err)
		}
	}
	if n := len(readAll(t, d.Node, "t", 0)); n != d.full+1+1+3+1+5 {
		t.Errorf("%d records, %d were there before", n, d.full)
	}
	d.o.Registerer = nil
	d.crash(100, 1)
	if n := len(readAll(t, d.Node, "t", 0)); n != d.full+1+1+3+1+5 {
		t.Errorf("%d records after a crash, %d were there before", n, d.full)
	}
	d.close()
}

// The wait for the flush ends with the time that the produce has, with a refusal
// that says when to come back; with the topic; and with the node. Nothing of it is
// stored.
func TestProduceThatWaitsEnds(t *testing.T) {
	d := newSlowDisk(t)
	err := d.produce(broker.ProduceRequest{Records: numbered(1, 1), Ack: broker.AckCommitted, Wait: 20 * time.Millisecond})
	var e *errcode.Error
	if !errcode.Is(err, errcode.Overloaded) || !errors.As(err, &e) || e.Wait == 0 || !strings.Contains(err.Error(), "nothing was stored") {
		t.Errorf("at the end of its time: %v", err)
	}
	got := d.wait(broker.ProduceRequest{Records: numbered(2, 1)})
	deleted := make(chan error, 1)
	go func() { deleted <- d.DeleteTopic(context.Background(), "t", true) }()
	if err := <-got; !errcode.Is(err, errcode.NotFound) {
		t.Errorf("the topic was deleted: %v", err)
	}
	d.let()
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	d.close()

	d = newSlowDisk(t)
	got = d.wait(broker.ProduceRequest{Records: numbered(3, 1)})
	taken := errcode.New(errcode.Fenced, "another node took over")
	d.fence(taken)
	if err := <-got; !errcode.Is(err, errcode.Fenced) {
		t.Errorf("the node was fenced: %v", err)
	}
	d.let()
	d.close()

	d = newSlowDisk(t)
	got = d.wait(broker.ProduceRequest{Records: numbered(4, 1)})
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	if err := <-got; !errcode.Is(err, errcode.Closed) && !errcode.Is(err, errcode.Canceled) {
		t.Errorf("the node was closed: %v", err)
	}
	d.let()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A disk that is full answers at once, also those who wait already; and when there is
// space again they are taken.
func TestProduceDoesNotWaitForAFullDisk(t *testing.T) {
	d := newSlowDisk(t)
	got := d.wait(broker.ProduceRequest{Records: numbered(1, 1)})
	d.fs.set(func(op, path string) error {
		if op != "sync" && strings.Contains(path, "/topics/") {
			return errNoSpace
		}
		return nil
	}, nil)
	d.let()
	if err := <-got; !errcode.Is(err, errcode.Overloaded) || !strings.Contains(err.Error(), "cannot be flushed") {
		t.Errorf("one that waited: %v", err)
	}
	for range 3 {
		began := time.Now()
		if err := d.produce(broker.ProduceRequest{Records: numbered(2, 1)}); !errcode.Is(err, errcode.Overloaded) || time.Since(began) > 5*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	}
	d.fs.set(nil, nil)
	within(t, "produce goes on", func() bool { return d.tryProduce("t", numbered(3, 1)...) == nil })
	d.close()
}
