package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// defaultProduceWait is how long a produce waits for its ack level when the
// request does not say.
const defaultProduceWait = 10 * time.Second

// shortestProduceWait is what a shorter wait, 0 too, counts as.
const shortestProduceWait = time.Millisecond

// headerPrefix begins the request headers that become record headers. Bytes of
// the broker's own begin with ownHeader, so no client may use those.
const (
	headerPrefix = "Tidemark-Header-"
	ownHeader    = "tm-"
)

// produce appends one record: the body, byte for byte.
func (s *Server) produce(x *exchange) error {
	req, err := x.produceRequest()
	if err != nil {
		return err
	}
	partition, err := x.partition()
	if err != nil {
		return err
	}
	if req.ExpectedOffset, err = x.expectedOffset(partition); err != nil {
		return err
	}
	if err := x.recordHeaders(); err != nil {
		return err
	}
	value, err := x.readBody(x.recordBytes(), "the record")
	if err != nil {
		return err
	}
	rec := NewRecord{Partition: partition, Value: value, Headers: x.headers}
	if key, ok := x.query.get("key"); ok {
		rec.Key = x.keep(key)
	}
	x.records = append(x.records, rec)
	req.Records = x.records
	got, err := s.broker.Produce(s.base, req)
	if err != nil {
		return notConfirmed(err, got, false)
	}
	return x.produced(&got)
}

// produceRequest reads what single and batch produce have in common, and looks
// the topic up before anything of the body is read.
func (x *exchange) produceRequest() (ProduceRequest, error) {
	req := ProduceRequest{Topic: x.topic}
	if x.r.Header["Idempotency-Key"] != nil {
		return req, laterf(errcode.InvalidArgument, "header", "Idempotency-Key")
	}
	if text, ok := x.query.get("ack"); ok {
		switch a := Ack(text); a {
		case AckAccepted, AckCommitted, AckArchived:
			req.Ack = a
		default:
			return req, errcode.New(errcode.InvalidArgument, "parameter ack is %.40q; it is accepted, committed or archived", text)
		}
	}
	var err error
	longest := x.s.limits.ProduceWait
	if req.Wait, err = x.query.duration("wait", min(defaultProduceWait, longest)); err != nil {
		return req, err
	}
	if req.Wait > longest {
		return req, errcode.New(errcode.InvalidArgument, "parameter wait is %v; the longest is %v", req.Wait, longest)
	}
	req.Wait = max(req.Wait, shortestProduceWait) // 0 would be the broker's default
	return req, x.needTopic()
}

// expectedOffset reads where the records have to begin. Without a partition that
// would be a question of luck.
func (x *exchange) expectedOffset(partition int32) (*int64, error) {
	if _, ok := x.query.get("expected_offset"); !ok {
		return nil, nil
	}
	offset, err := x.query.whole("expected_offset", 0, 0, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	if partition < 0 {
		return nil, errcode.New(errcode.InvalidArgument, "parameter expected_offset needs the parameter partition: each partition counts its own offsets")
	}
	return &offset, nil
}

// recordBytes is the bound of one value: the topic's, else the node's.
func (x *exchange) recordBytes() int64 {
	if x.info.MaxRecordBytes > 0 {
		return x.info.MaxRecordBytes
	}
	return x.s.limits.RecordBytes
}

// keep copies a string into pooled bytes that live as long as the exchange.
func (x *exchange) keep(text string) []byte {
	buf := x.buffer()
	buf.b = append(buf.b, text...)
	return buf.b
}

// recordHeaders collects the request headers that belong to the record, by
// name, so that equal requests make equal records.
func (x *exchange) recordHeaders() error {
	for name, values := range x.r.Header {
		if !strings.HasPrefix(name, headerPrefix) {
			continue
		}
		for _, value := range values {
			// A header lives as long as its record, which is copied before
			// Produce returns.
			x.headers = append(x.headers, broker.Header{Name: strings.ToLower(name[len(headerPrefix):]), Value: []byte(value)})
		}
	}
	if kind := x.r.Header.Get("Content-Type"); kind != "" && !plainMedia(mediaType(kind)) {
		x.headers = append(x.headers, broker.Header{Name: "content-type", Value: []byte(kind)})
	}
	if len(x.headers) == 0 {
		return nil
	}
	slices.SortStableFunc(x.headers, func(a, b broker.Header) int { return strings.Compare(a.Name, b.Name) })
	return x.checkHeaders(x.headers)
}

// plainMedia are the types that say nothing about a record.
func plainMedia(kind string) bool { return kind == mediaJSON || kind == mediaBytes }

func (x *exchange) checkHeaders(headers []broker.Header) error {
	if most := x.s.limits.RecordHeaders; len(headers) > most {
		return errcode.New(errcode.InvalidArgument, "the record has %d headers; the most is %d", len(headers), most)
	}
	for _, h := range headers {
		if h.Name == "" {
			return errcode.New(errcode.InvalidArgument, "a record header has no name")
		}
		if strings.HasPrefix(h.Name, ownHeader) {
			return errcode.New(errcode.InvalidArgument, "record header %.60q: names that begin with %s are the broker's own", h.Name, ownHeader)
		}
	}
	return nil
}

// produced answers a single produce.
func (x *exchange) produced(got *Produced) error {
	if len(got.Placements) != 1 {
		return errcode.New(errcode.Internal, "a produce of one record to topic %q has %d placements", x.topic, len(got.Placements))
	}
	place := &got.Placements[0]
	if got.Ack == AckAccepted {
		x.accepted(place)
		return nil
	}
	out := x.buffer()
	out.b = append(appendPlacement(out.b, x.topic, place, got.Archived), '\n')
	x.reply(http.StatusOK, typeJSON, out.b)
	return nil
}

// accepted answers 202 with the place in two headers.
func (x *exchange) accepted(place *Placement) {
	x.headInt("Tidemark-Partition", int64(place.Partition))
	if place.FirstOffset >= 0 {
		x.headInt("Tidemark-Offset", place.FirstOffset)
	}
	x.WriteHeader(http.StatusAccepted)
}

// notConfirmed adds to an error of Produce what was assigned before it.
func notConfirmed(err error, got Produced, batch bool) error {
	var e *errcode.Error
	if !errors.As(err, &e) || len(got.Placements) == 0 {
		return err
	}
	out := *e
	out.Msg = err.Error()
	if batch {
		return out.With("partitions", got.Placements)
	}
	p := got.Placements[0]
	with := out.With("topic", got.Topic).With("partition", p.Partition)
	if p.FirstOffset >= 0 {
		with = with.With("offset", p.FirstOffset)
	}
	return with
}

// bounded returns a context for calls that have no deadline of their own. It
// does not end with the client's connection: a client that has closed its
// sending side still reads.
func (s *Server) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.base, s.limits.AdminTime)
}
