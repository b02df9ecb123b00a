package api

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// kafkaBatch takes the body as one batch in Kafka's format. The broker checks it,
// since it knows the format, and stores it as it is.
func (x *exchange) kafkaBatch(req *ProduceRequest) error {
	partition, err := x.partition()
	if err != nil {
		return err
	}
	if err := x.withoutFields(mediaBatch); err != nil {
		return err
	}
	if partition < 0 {
		return errcode.New(errcode.InvalidArgument, "parameter partition is missing: a body of type %s is stored as it is, into one partition", mediaBatch)
	}
	l := &x.s.limits
	body, err := x.readBatch(l.BatchBytes)
	if err != nil {
		return err
	}
	req.Encoded = &broker.EncodedBatch{Data: body, Partition: uint32(partition), Bounds: broker.RecordBounds{
		Records: l.BatchRecords, Value: int(x.recordBytes()), Key: int(l.KeyBytes),
		Headers: l.RecordHeaders, HeaderBytes: l.HeaderBytes, Decoded: int(l.BatchBytes),
	}}
	return nil
}

// withoutFields refuses the pointers into lines on a body that has none.
func (x *exchange) withoutFields(kind string) error {
	if kind == mediaNDJSON {
		return nil
	}
	for _, name := range []string{"key_field", "value_field"} {
		if _, ok := x.query.get(name); ok {
			return errcode.New(errcode.InvalidArgument, "parameter %s goes with Content-Type %s only", name, mediaNDJSON)
		}
	}
	return nil
}
