package segment

import (
	"encoding/binary"
	"math"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Bits of BatchHeader.Attributes that only Kafka's own machinery sets.
const (
	attrTransactional = 0x10
	attrControl       = 0x20
	attrDeleteHorizon = 0x40
	attrKnown         = attrCodec | attrLogAppendTime | attrTransactional | attrControl | attrDeleteHorizon
)

// CheckClient checks b, which a client says is one batch, so well that it can be
// stored as it is, once it was stamped: everything that [Verify] checks deeply,
// and what a log needs besides: no record missing, offset deltas dense from 0, no
// producer id, no transaction, no control records, at most decoded bytes of
// records. Before b is looked into, its records are at most as many as records. Each
// record goes to each, valid during the call, and an error of that ends the check.
//
// Errors are the client's: InvalidArgument, UnsupportedType (compression),
// TooLarge (facts "limit").
func CheckClient(b []byte, records, decoded int, s *Scratch, each func(i int, r *broker.Record) error) (BatchHeader, error) {
	h, err := clientHeader(b)
	if err != nil {
		return h, err
	}
	if int(h.Records) > records {
		return h, errcode.New(errcode.TooLarge, "the batch has %d messages, the most is %d; nothing was stored", h.Records, records).With("limit", records)
	}
	it, err := recordsWithin(b, decoded, s)
	switch {
	case errcode.Is(err, errcode.TooLarge):
		return h, errcode.New(errcode.TooLarge, "the batch decodes to more than %d bytes; nothing was stored", decoded).With("limit", decoded)
	case err != nil:
		return h, refusal("the records do not decode: %v", err)
	}
	highest, n := int64(math.MinInt64), 0
	var rec broker.Record
	for ; it.Next(&rec); n++ {
		if delta := rec.Offset - h.BaseOffset; delta != int64(n) {
			return h, refusal("message %d: its offset delta is %d; they go up by one from 0", n, delta).With("message", n)
		}
		highest = max(highest, rec.Timestamp)
		if err := each(n, &rec); err != nil {
			return h, err
		}
	}
	switch {
	case it.Err() != nil:
		return h, refusal("message %d: %v", n, it.Err()).With("message", n)
	case highest != h.MaxTimestamp:
		return h, refusal("the batch's max timestamp is %d, the highest of its records is %d", h.MaxTimestamp, highest)
	}
	return h, nil
}

// clientHeader checks what can be told without looking into the records.
func clientHeader(b []byte) (BatchHeader, error) {
	if len(b) < HeaderSize {
		return BatchHeader{}, refusal("it has %d bytes, the header alone has %d", len(b), HeaderSize)
	}
	if b[16] != batchMagic {
		return BatchHeader{}, refusal("its magic is %d; batches of magic %d are taken", int8(b[16]), batchMagic)
	}
	size := int64(int32(binary.BigEndian.Uint32(b[8:]))) + 12
	switch {
	case size > int64(len(b)):
		return BatchHeader{}, refusal("it is cut off: its header says %d bytes, %d are there", size, len(b))
	case size >= HeaderSize && size < int64(len(b)):
		return BatchHeader{}, refusal("%d bytes follow it; a body is one batch", int64(len(b))-size)
	}
	h, err := VerifyBatch(b)
	if err != nil {
		return h, refusal("%v", err)
	}
	switch a := h.Attributes; {
	case h.Codec() > CodecZstd:
		return h, errcode.New(errcode.UnsupportedType, "the Kafka batch is refused: its compression is %d; none, gzip, snappy, lz4 and zstd are taken", h.Codec())
	case a&attrControl != 0:
		return h, refusal("it is a control batch")
	case a&attrTransactional != 0:
		return h, refusal("it is part of a transaction; there are none here")
	case a&attrDeleteHorizon != 0 || a&^attrKnown != 0:
		return h, refusal("its attributes are %#04x; only compression and timestamp type are taken", a)
	case h.ProducerID != -1:
		return h, refusal("it has the producer id %d; sequences are not followed here, so encode it without one (-1)", h.ProducerID)
	case h.Records < 1:
		return h, refusal("it has no messages")
	case h.LastOffsetDelta != h.Records-1:
		return h, refusal("it has %d messages and the last offset delta %d; offsets go up by one from 0", h.Records, h.LastOffsetDelta)
	}
	return h, nil
}

func refusal(format string, args ...any) *errcode.Error {
	return errcode.New(errcode.InvalidArgument, "the Kafka batch is refused: "+format, args...)
}
