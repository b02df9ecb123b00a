package node

import (
	"bytes"
	"slices"
	"sync"

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

// encoder makes the parts of one produce; pooled.
type encoder struct {
	part  [1]partition.Part // of a single record
	batch [1]partition.Batch
	buf   []byte // its batch, when that is small

	// Of a produce of many records.
	parts   []partition.Part
	batches []partition.Batch // of all parts, one behind the other
	places  []uint32          // the partition of each record
	order   []int32           // indexes of records, by partition
	ends    []int32           // of each partition's indexes in order
	plain   []byte            // a batch before it is compressed
}

var encoders = sync.Pool{New: func() any { return &encoder{buf: make([]byte, 0, partition.SmallBatch)} }}

// What an encoder keeps for the next produce.
const (
	keptPlain   = splitBatch + splitBatch/2
	keptIndexes = 16 << 10
)

// release forgets the parts, which nobody uses any more.
func (e *encoder) release() {
	e.part[0], e.batch[0] = partition.Part{}, partition.Batch{}
	clear(e.parts)
	clear(e.batches)
	e.parts, e.batches = e.parts[:0], e.batches[:0]
	if cap(e.plain) > keptPlain {
		e.plain = nil
	}
	if cap(e.order) > keptIndexes || cap(e.ends) > keptIndexes {
		e.places, e.order, e.ends = nil, nil, nil
	}
	encoders.Put(e)
}

// encode places the records and encodes each partition's part. The parts are
// valid until release.
func (e *encoder) encode(t *topic, records []broker.NewRecord, now int64) ([]partition.Part, error) {
	if len(records) == 1 {
		return e.encodeOne(t, &records[0], now)
	}
	if err := e.sort(t, records); err != nil {
		return nil, err
	}
	begin := int32(0)
	for at, end := range e.ends {
		if end == begin {
			continue
		}
		p, err := t.partition(int64(at))
		if err != nil {
			return nil, err
		}
		first := len(e.batches)
		if err := e.encodePart(t, records, e.order[begin:end], now); err != nil {
			return nil, err
		}
		// The list may move when it grows: parts that have their batches keep
		// the old one, which holds the same.
		e.parts = append(e.parts, partition.Part{Partition: p, Batches: e.batches[first:len(e.batches):len(e.batches)]})
		begin = end
	}
	return e.parts, nil
}

// sort places the records and orders their indexes by partition, and within one
// as they came.
func (e *encoder) sort(t *topic, records []broker.NewRecord) error {
	sticky := t.nextTurn()
	e.places = slices.Grow(e.places[:0], len(records))[:len(records)]
	e.order = slices.Grow(e.order[:0], len(records))[:len(records)]
	e.ends = slices.Grow(e.ends[:0], len(t.partitions))[:len(t.partitions)]
	clear(e.ends)
	for i := range records {
		at, err := t.place(&records[i], sticky)
		if err != nil {
			return errcode.Wrap(errcode.InvalidArgument, err, "message %d", i)
		}
		e.places[i] = uint32(at)
		e.ends[at]++
	}
	begin := int32(0)
	for at, n := range e.ends {
		e.ends[at] = begin // moves to the end as indexes are put there
		begin += n
	}
	for i, at := range e.places {
		e.order[e.ends[at]] = int32(i)
		e.ends[at]++
	}
	return nil
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

// encodePart encodes the records at indexes into batches of about splitBatch,
// which it adds to e.batches. Each becomes memory of its own, that the tail keeps.
func (e *encoder) encodePart(t *topic, records []broker.NewRecord, indexes []int32, now int64) error {
	total := 0
	for _, i := range indexes {
		total += sizeOf(&records[i])
	}
	codec := t.codec(total)
	for len(indexes) > 0 {
		n, size := 0, 0
		for n < len(indexes) && (n == 0 || size < splitBatch) {
			size += sizeOf(&records[indexes[n]])
			n++
		}
		var b segment.Builder
		b.Reset(slices.Grow(e.plain[:0], segment.HeaderSize+size))
		for k, i := range indexes[:n] {
			r := &records[i]
			rec := broker.Record{Offset: int64(k), Timestamp: now, Key: r.Key, Value: r.Value, Headers: r.Headers}
			if err := b.Add(&rec); err != nil {
				return errcode.Wrap(errcode.InvalidArgument, err, "message %d", i)
			}
		}
		data, err := b.Finish(segment.BatchOptions{Codec: codec})
		if err != nil {
			return err
		}
		e.plain = data[:0]
		e.batches = append(e.batches, partition.Batch{Data: bytes.Clone(data), Span: int64(n)})
		indexes = indexes[n:]
	}
	return nil
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
