package node

import (
	"context"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/segment"
)

const (
	// splitBatch is where a partition's part of a produce is cut into batches.
	splitBatch = 256 << 10
	// compressFrom is the size of a part from which on it is compressed by the
	// request's goroutine, so that log, tail, segment and shipped log carry
	// those bytes and nobody encodes them again. Smaller ones stay raw until
	// the flusher merges them.
	compressFrom = 32 << 10
	// recordOverhead is about what a record adds to its key and value.
	recordOverhead = 32
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

// encoder makes the parts of one produce; pooled.
type encoder struct {
	part  [1]partition.Part // of a single record
	batch [1]partition.Batch
	buf   []byte // its batch, when that is small
}

var encoders = sync.Pool{New: func() any { return &encoder{buf: make([]byte, 0, partition.SmallBatch)} }}

// release forgets the parts, which nobody uses any more.
func (e *encoder) release() {
	e.part[0], e.batch[0] = partition.Part{}, partition.Batch{}
	encoders.Put(e)
}

// encode places the records and encodes each partition's part. The parts are
// valid until release.
func (e *encoder) encode(t *topic, records []broker.NewRecord, now int64) ([]partition.Part, error) {
	if len(records) == 1 {
		return e.encodeOne(t, &records[0], now)
	}
	sticky := t.nextTurn()
	byPartition := make([][]int, len(t.partitions))
	used := 0
	for i := range records {
		at, err := t.place(&records[i], sticky)
		if err != nil {
			return nil, errcode.Wrap(errcode.InvalidArgument, err, "message %d", i)
		}
		if len(byPartition[at]) == 0 {
			used++
		}
		byPartition[at] = append(byPartition[at], i)
	}
	parts := make([]partition.Part, 0, used)
	for at, indexes := range byPartition {
		if len(indexes) == 0 {
			continue
		}
		p, err := t.partition(int64(at))
		if err != nil {
			return nil, err
		}
		batches, err := t.encodePart(records, indexes, now)
		if err != nil {
			return nil, err
		}
		parts = append(parts, partition.Part{Partition: p, Batches: batches})
	}
	return parts, nil
}

// encodeOne is encode for one record. Unless that is large, it allocates
// nothing.
func (e *encoder) encodeOne(t *topic, r *broker.NewRecord, now int64) ([]partition.Part, error) {
	at, err := t.place(r, -1)
	if err != nil {
		return nil, err
	}
	p, err := t.partition(at)
	if err != nil {
		return nil, err
	}
	rec := broker.Record{Timestamp: now, Key: r.Key, Value: r.Value, Headers: r.Headers}
	size := sizeOf(r)
	buf := e.buf
	if segment.HeaderSize+size > partition.SmallBatch {
		buf = make([]byte, 0, segment.HeaderSize+size)
	}
	var b segment.Builder
	b.Reset(buf)
	if err := b.Add(&rec); err != nil {
		return nil, err
	}
	data, err := b.Finish(segment.BatchOptions{Codec: t.codec(size)})
	if err != nil {
		return nil, err
	}
	e.batch[0] = partition.Batch{Data: data, Span: 1}
	e.part[0] = partition.Part{Partition: p, Batches: e.batch[:]}
	return e.part[:], nil
}

func (t *topic) codec(size int) segment.Codec {
	if size >= compressFrom && t.Compression != "none" {
		return segment.CodecZstd
	}
	return segment.CodecNone
}

func sizeOf(r *broker.NewRecord) int {
	size := recordOverhead + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		size += 10 + len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	return size
}

// encodePart encodes the records at indexes into batches of about splitBatch.
func (t *topic) encodePart(records []broker.NewRecord, indexes []int, now int64) ([]partition.Batch, error) {
	total := 0
	for _, i := range indexes {
		total += sizeOf(&records[i])
	}
	codec := t.codec(total)
	var batches []partition.Batch
	for len(indexes) > 0 {
		n, size := 0, 0
		for n < len(indexes) && (n == 0 || size < splitBatch) {
			size += sizeOf(&records[indexes[n]])
			n++
		}
		var b segment.Builder
		b.Reset(make([]byte, 0, segment.HeaderSize+size))
		for k, i := range indexes[:n] {
			r := &records[i]
			rec := broker.Record{Offset: int64(k), Timestamp: now, Key: r.Key, Value: r.Value, Headers: r.Headers}
			if err := b.Add(&rec); err != nil {
				return nil, errcode.Wrap(errcode.InvalidArgument, err, "message %d", i)
			}
		}
		data, err := b.Finish(segment.BatchOptions{Codec: codec})
		if err != nil {
			return nil, err
		}
		if cap(data) > 2*len(data) {
			data = append(make([]byte, 0, len(data)), data...) // the tail keeps it: no slack
		}
		batches = append(batches, partition.Batch{Data: data, Span: int64(n)})
		indexes = indexes[n:]
	}
	return batches, nil
}

// place chooses a record's partition: the one it names, by its key, or the
// sticky one of keyless records (-1: the next in turn).
func (t *topic) place(r *broker.NewRecord, sticky int64) (int64, error) {
	switch {
	case r.Partition >= 0:
		if _, err := t.partition(int64(r.Partition)); err != nil {
			return 0, err
		}
		return int64(r.Partition), nil
	case r.Key != nil:
		return int64(broker.PartitionForKey(r.Key, t.Partitions)), nil
	case sticky >= 0:
		return sticky, nil
	default:
		return t.nextTurn(), nil
	}
}

func (t *topic) nextTurn() int64 { return int64(t.turn.Add(1) % t.Partitions) }
