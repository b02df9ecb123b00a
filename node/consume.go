package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/queue"
)

// Consume leases up to req.Max records.
func (n *Node) Consume(ctx context.Context, req broker.ConsumeRequest) ([]broker.Message, error) {
	t, err := n.topic(req.Topic)
	if err != nil {
		return nil, err
	}
	want := queue.Request{Topic: t.ID, Group: req.Group, Partition: queue.AnyPartition, Max: req.Max, Wait: req.Wait}
	if req.Partition >= 0 {
		if _, err := t.partition(int64(req.Partition)); err != nil {
			return nil, err
		}
		want.Partition = int(req.Partition)
	}
	// What a consumer is given it must be able to settle.
	if err := n.log.Err(); errcode.Is(err, errcode.Poisoned) {
		return nil, err
	}
	end := time.Now().Add(req.Wait)
	for {
		got, err := n.reserve(ctx, want)
		if gone := n.refusal(); gone != nil { // while it waited
			n.queue.Release(got...)
			return nil, gone
		}
		if err != nil {
			return nil, n.unserved(t, req.Partition, err)
		}
		if len(got) == 0 {
			return nil, nil
		}
		msgs, err := n.messages(ctx, t, got, req.MaxBytes)
		if err != nil || len(msgs) > 0 {
			n.traffic.delivered(t, msgs)
			return msgs, err
		}
		// None of them has a record, or can be read: go on waiting.
		want.Wait = max(0, time.Until(end))
	}
}

// reserve leases what is there, or waits. A wait ends when the node serves no
// more; who need not wait does not pay for that.
func (n *Node) reserve(ctx context.Context, want queue.Request) ([]queue.Delivery, error) {
	wait := want.Wait
	want.Wait = 0
	got, err := n.queue.Reserve(ctx, want)
	if err != nil || len(got) > 0 || wait <= 0 {
		return got, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.serving, cancel)()
	want.Wait = wait
	return n.queue.Reserve(ctx, want)
}

// unserved gives the reason why the queue does not have a partition: it is out
// of service, or the node is.
func (n *Node) unserved(t *topic, index int32, err error) error {
	if errcode.Is(err, errcode.Closed) || !errcode.Is(err, errcode.Unavailable) {
		return err
	}
	for i, p := range t.partitions {
		if p != nil && (index < 0 || int(index) == i) && p.Refused() != nil {
			return p.Refused()
		}
	}
	return err
}

// failingFor is how long a consume goes on to other partitions after reads of
// some have failed; each may have waited for a store that does not answer.
const failingFor = 2 * time.Second

// messages reads the records of deliveries. What exceeds maxBytes, and what
// cannot be read, goes back; the error is given when there is nothing else. A
// partition that cannot be read does not stand in the way of the others: they
// are read first here, and come first the next time.
func (n *Node) messages(ctx context.Context, t *topic, got []queue.Delivery, maxBytes int64) ([]broker.Message, error) {
	out := make([]broker.Message, 0, len(got))
	size := int64(0)
	began := time.Now()
	var failed []queue.Delivery // of partitions whose reads fail now
	var failure error           // of the first of them
	for i := range got {
		d := &got[i]
		if slices.ContainsFunc(failed, func(f queue.Delivery) bool { return f.Partition == d.Partition }) {
			failed = append(failed, *d) // it would fail too, or overtake the one before
			continue
		}
		rec, err := n.record(ctx, t, d)
		if errors.Is(err, errNoRecord) {
			continue
		}
		if err != nil {
			if failure == nil {
				failure = err
			}
			failed = append(failed, *d)
			if ctx.Err() != nil || time.Since(began) > failingFor {
				n.queue.Release(got[i+1:]...)
				break
			}
			continue
		}
		size += int64(len(rec.Key) + len(rec.Value))
		if maxBytes > 0 && size > maxBytes && len(out) > 0 {
			n.queue.Release(got[i:]...)
			break
		}
		out = append(out, broker.Message{Record: rec, Partition: d.Partition, Attempt: d.Attempt, Handle: d.Handle})
	}
	n.queue.Release(failed...)
	if len(out) > 0 {
		return out, nil
	}
	return nil, failure
}

// errNoRecord says that a delivery names no record that anybody gets.
var errNoRecord = errors.New("no record")

// record reads the record of a delivery.
func (n *Node) record(ctx context.Context, t *topic, d *queue.Delivery) (broker.Record, error) {
	p, err := t.partition(int64(d.Partition))
	if err != nil {
		return broker.Record{}, err
	}
	rec, err := p.Record(ctx, d.Offset)
	switch {
	case err == nil:
		return rec, nil
	case p.Refused() != nil:
		// Out of service until a restart: it must not stand in the way of the
		// topic's other partitions. Its groups stay as the last checkpoint and
		// the log say.
		n.queue.Detach(p.ID)
		return rec, errNoRecord
	case errcode.Is(err, errcode.Gone):
		// No record stands there and never will: it counts as settled.
		if _, err := n.queue.Skip(p.ID, d.Offset, d.Offset+1); err != nil {
			return rec, err
		}
		return rec, errNoRecord
	}
	return rec, err
}

// Release gives leases back whose answer did not reach the client.
func (n *Node) Release(name, group string, msgs []broker.Message) {
	t, err := n.topic(name)
	if err != nil {
		return // its leases are gone with it
	}
	for i := range msgs {
		if err := n.queue.ReleaseHandle(t.ID, group, msgs[i].Handle); err != nil {
			n.opts.Logger.Debug("a lease could not be given back, it expires", "topic", name, "error", err)
		}
	}
}

// Settle applies one action to each handle. Acks, nacks and extensions answer
// when their log entries are in the file: they survive a crash of the process,
// and a power loss after at most the log's sync interval.
func (n *Node) Settle(ctx context.Context, req broker.SettleRequest) ([]error, error) {
	t, err := n.topic(req.Topic)
	if err != nil {
		return nil, err
	}
	var errs []error
	var lsn uint64
	if req.Action == broker.SettleAck && len(req.Handles) > 1 {
		errs, lsn = n.queue.AckMany(t.ID, req.Group, req.Handles)
	} else {
		errs = make([]error, len(req.Handles))
		for i, h := range req.Handles {
			var at uint64
			at, errs[i] = n.settleOne(t, &req, h)
			lsn = max(lsn, at)
		}
	}
	if lsn == 0 {
		return errs, nil
	}
	ctx, cancel := n.deadline(ctx, 0)
	defer cancel()
	if err := n.log.WaitWritten(ctx, lsn); err != nil {
		return nil, err
	}
	return errs, nil
}

func (n *Node) settleOne(t *topic, req *broker.SettleRequest, handle string) (uint64, error) {
	switch req.Action {
	case broker.SettleAck:
		return n.queue.Ack(t.ID, req.Group, handle)
	case broker.SettleNack:
		return n.queue.Nack(t.ID, req.Group, handle, req.Delay)
	case broker.SettleExtend:
		return n.queue.Extend(t.ID, req.Group, handle, req.For)
	default:
		return 0, errcode.New(errcode.InvalidArgument, "action %q is not ack, nack or extend", req.Action)
	}
}
