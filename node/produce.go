package node

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
)

// defaultWait bounds a produce that does not say how long it waits.
const defaultWait = 10 * time.Second

// Produce appends the records, all or none.
func (n *Node) Produce(ctx context.Context, req broker.ProduceRequest) (broker.Produced, error) {
	t, err := n.topic(req.Topic)
	if err != nil {
		return broker.Produced{}, err
	}
	ack := req.Ack
	if ack == broker.AckDefault {
		ack = broker.Ack(t.DefaultAck)
	}
	if ack == broker.AckArchived && n.shipper == nil {
		return broker.Produced{}, errcode.New(errcode.InvalidArgument, "ack=archived needs an archive, this node runs without one: set --archive, or ask for accepted or committed")
	}
	if err := n.accept(); err != nil {
		return broker.Produced{}, err
	}
	if len(req.Records) == 0 && req.Encoded == nil {
		return broker.Produced{}, errcode.New(errcode.InvalidArgument, "there are no records to append")
	}
	if err := req.CheckExpected(); err != nil {
		return broker.Produced{}, err
	}
	began := n.opts.Now()
	now := began.UnixMilli()
	e := encoders.Get().(*encoder)
	defer e.release()
	wait := req.Wait
	if ack == broker.AckAccepted {
		wait = 0 // it bounds the other levels; this one ends with the sync
	}
	ctx, cancel := n.deadline(ctx, wait)
	defer cancel()
	var parts []partition.Part
	if req.Encoded != nil {
		parts, err = t.encoded(ctx, req.Encoded, now)
	} else {
		parts, err = e.encode(t, req.Records, now)
	}
	if err != nil {
		return broker.Produced{}, err
	}
	parts[0].Expected = req.ExpectedOffset // there is one part, when it is not nil
	free, err := n.engine.Admit(ctx, parts)
	if err != nil {
		return broker.Produced{}, err
	}
	lsn, err := n.engine.Append(parts, now)
	if err != nil {
		free()
		return broker.Produced{}, n.refusedAppend(ctx, lsn, err)
	}
	out := broker.Produced{Topic: t.Name, Ack: ack, Placements: placements(parts, now)}
	err = n.log.WaitDurable(ctx, lsn)
	free()
	if err != nil {
		n.engine.Late(parts)
		return out, err
	}
	n.engine.Advance(parts)
	if ack == broker.AckArchived {
		if err := n.shipper.WaitArchived(ctx, lsn, t.ChangedIndex); err != nil {
			return out, notArchived(err)
		}
		out.Archived = true
	}
	n.traffic.produced(t, ack, out.Placements, sizeOfProduce(&req, parts), n.opts.Now().Sub(began))
	return out, nil
}

// sizeOfProduce is the keys and values of a produce; of batches that came
// encoded, their bytes.
func sizeOfProduce(req *broker.ProduceRequest, parts []partition.Part) (size int) {
	for i := range req.Records {
		size += len(req.Records[i].Key) + len(req.Records[i].Value)
	}
	if req.Encoded != nil {
		for i := range parts {
			for _, b := range parts[i].Batches {
				size += len(b.Data)
			}
		}
	}
	return size
}

// refusedAppend gives an append's error. That the log ends elsewhere than was
// expected is told only when what it ends with is durable: else a crash could
// take that back, and the offset that was refused would be free again.
func (n *Node) refusedAppend(ctx context.Context, lsn uint64, err error) error {
	if !errcode.Is(err, errcode.PreconditionFailed) {
		return err
	}
	if wait := n.log.WaitDurable(ctx, lsn); wait != nil {
		if errcode.Is(wait, errcode.NotConfirmed) || errcode.Is(wait, errcode.Canceled) {
			// Nothing of this request was stored, so it is not left in doubt.
			return errcode.New(errcode.Unavailable, "the end of the log is not durable yet, so nobody can tell whether the expected offset is free; nothing was stored: %v", wait).After(time.Second)
		}
		return wait
	}
	return err
}

// notArchived keeps the reason of a fenced node: the record may have been
// shipped before the fence, so the answer is that nobody knows.
func notArchived(err error) error {
	if errcode.Is(err, errcode.Fenced) {
		return errcode.New(errcode.NotConfirmed, "the record is on this node's disk, but not confirmed in the archive: %w", err)
	}
	return err
}

func placements(parts []partition.Part, now int64) []broker.Placement {
	out := make([]broker.Placement, len(parts))
	for i := range parts {
		p := &parts[i]
		span := int64(0)
		for _, b := range p.Batches {
			span += b.Span
		}
		out[i] = broker.Placement{
			Partition: p.Partition.ID.Partition, FirstOffset: p.Base, LastOffset: p.Base + span - 1,
			Count: int(span), TimestampMS: now, Generation: p.Generation,
		}
	}
	return out
}
