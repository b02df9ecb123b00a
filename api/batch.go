package api

import (
	"net/http"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// batch decodes the body of a batch produce into the exchange's records. Its
// slices point into the body, or into arena where escapes had to be undone.
type batch struct {
	x         *exchange
	partition int32 // of records that name none
	valueMax  int64
	keyMax    int64
	arena     *buffer
}

// produceBatch appends the records of the body, all or none.
func (s *Server) produceBatch(x *exchange) error {
	req, err := x.produceRequest()
	if err != nil {
		return err
	}
	if err := x.batchOffset(&req); err != nil {
		return err
	}
	if mediaType(x.r.Header.Get("Content-Type")) == mediaBatch {
		err = x.kafkaBatch(&req)
	} else {
		err = x.decodedBatch(&req)
	}
	if err != nil {
		return err
	}
	got, err := s.broker.Produce(s.base, req)
	if err != nil {
		return notConfirmed(err, got, true)
	}
	out := x.buffer()
	if got.Ack == AckAccepted {
		out.b = append(out.b, `{"accepted":`...)
		out.b = strconv.AppendInt(out.b, countOf(got.Placements), 10)
		out.b = append(out.b, "}\n"...)
		x.reply(http.StatusAccepted, typeJSON, out.b)
		return nil
	}
	out.b = append(appendPlacements(out.b, got.Placements, got.Archived), '\n')
	x.reply(http.StatusOK, typeJSON, out.b)
	return nil
}

// batchOffset reads where the batch has to begin. Only messages of a JSON body can
// name a partition themselves; the broker holds them to one.
func (x *exchange) batchOffset(req *ProduceRequest) error {
	partition, err := x.partition()
	if err != nil {
		return err
	}
	if partition < 0 && mediaType(x.r.Header.Get("Content-Type")) == mediaJSON {
		partition = 0
	}
	req.ExpectedOffset, err = x.expectedOffset(partition)
	return err
}

func countOf(places []Placement) (n int64) {
	for i := range places {
		n += int64(places[i].Count)
	}
	return n
}

// decodedBatch decodes the body into the exchange's records.
func (x *exchange) decodedBatch(req *ProduceRequest) error {
	decode, err := x.batchDecoder()
	if err != nil {
		return err
	}
	body, err := x.readBatch(x.s.limits.BatchBytes)
	if err != nil {
		return err
	}
	if err := decode(body); err != nil {
		return err
	}
	if len(x.records) == 0 {
		return errcode.New(errcode.InvalidArgument, "the batch has no messages")
	}
	req.Records = x.records
	return nil
}

// batchDecoder chooses the decoder by the body's type.
func (x *exchange) batchDecoder() (func([]byte) error, error) {
	partition, err := x.partition()
	if err != nil {
		return nil, err
	}
	b := &batch{x: x, partition: partition, valueMax: x.recordBytes(), keyMax: x.s.limits.KeyBytes, arena: x.buffer()}
	kind := mediaType(x.r.Header.Get("Content-Type"))
	if err := x.withoutFields(kind); err != nil {
		return nil, err
	}
	switch kind {
	case mediaJSON:
		return b.decodeJSON, nil
	case mediaFrames:
		return b.decodeFrames, nil
	case mediaNDJSON:
		lines, err := newLines(b, &x.query)
		if err != nil {
			return nil, err
		}
		return lines.decode, nil
	default:
		return nil, errcode.New(errcode.UnsupportedType, "a batch is %s, %s, %s or %s, not %.60q", mediaJSON, mediaNDJSON, mediaFrames, mediaBatch, kind)
	}
}

// room is checked before a record is decoded: the first beyond the bound ends
// the work.
func (b *batch) room() error {
	if most := b.x.s.limits.BatchRecords; len(b.x.records) >= most {
		return errcode.New(errcode.TooLarge, "the batch has more than %d messages; nothing was stored", most).With("limit", most)
	}
	return nil
}

// add checks a record's bounds and takes it.
func (b *batch) add(partition int32, key, value []byte, headers []broker.Header) error {
	if int64(len(value)) > b.valueMax {
		return b.tooLarge("payload", len(value), b.valueMax)
	}
	if int64(len(key)) > b.keyMax {
		return b.tooLarge("key", len(key), b.keyMax)
	}
	b.x.records = append(b.x.records, NewRecord{Partition: partition, Key: key, Value: value, Headers: headers})
	return nil
}

func (b *batch) tooLarge(what string, size int, limit int64) error {
	return b.fault(errcode.TooLarge, "the %s has %d bytes, the most is %d; nothing was stored", what, size, limit)
}

// fault is an error of the record that is being decoded.
func (b *batch) fault(code errcode.Code, format string, args ...any) *errcode.Error {
	e := errcode.New(code, format, args...)
	index := len(b.x.records)
	e.Msg = "message " + strconv.Itoa(index) + ": " + e.Msg
	return e.With("message", index)
}

// bad is a fault of the client's.
func (b *batch) bad(format string, args ...any) error {
	return b.fault(errcode.InvalidArgument, format, args...)
}
