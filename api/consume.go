package api

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// consume leases records, or replays one when the query has an offset.
func (s *Server) consume(x *exchange) error {
	if x.r.Method == http.MethodGet && x.r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return errcode.New(errcode.Denied, "a page of another site may not consume")
	}
	if x.r.Method == http.MethodPost {
		if err := x.noBody(); err != nil {
			return err
		}
	}
	if _, ok := x.query.get("offset"); ok {
		return s.replay(x)
	}
	req, many, err := x.consumeRequest()
	if err != nil {
		return err
	}
	form, err := x.messageForm(many)
	if err != nil {
		return err
	}
	if err := s.waiting.enter(x.identity); err != nil {
		return err
	}
	weight := 1
	defer func() { s.waiting.leave(x.identity, weight) }()
	msgs, err := s.lease(x, req)
	if err != nil {
		return err
	}
	if len(msgs) == 0 {
		x.WriteHeader(http.StatusNoContent)
		return nil
	}
	// The wait counted one; while the answer is written it counts the records
	// that would have to be given back.
	weight = len(msgs)
	s.waiting.add(x.identity, weight-1)
	return s.deliver(x, req, msgs, many, form)
}

// consumeRequest reads the query. many says that the answer is a list.
func (x *exchange) consumeRequest() (req ConsumeRequest, many bool, err error) {
	lim := &x.s.limits
	req = ConsumeRequest{Topic: x.topic, Group: broker.DefaultGroup, MaxBytes: lim.ConsumeBytes}
	_, many = x.query.get("max")
	if many && x.r.Method == http.MethodGet && !namesClient(x.r) {
		return req, many, errcode.New(errcode.InvalidArgument, "a GET that leases several records needs a header X-Tidemark-Client with any value, or use POST")
	}
	most, err := x.query.whole("max", 1, 1, int64(lim.ConsumeRecords))
	if err != nil {
		return req, many, err
	}
	req.Max = int(most)
	if req.Wait, err = x.clampedWait(); err != nil {
		return req, many, err
	}
	if err := x.query.group(); err != nil {
		return req, many, err
	}
	if err := x.needTopic(); err != nil {
		return req, many, err
	}
	req.Partition, err = x.partition()
	return req, many, err
}

// clampedWait reads wait; a longer one than the bound is cut, and the answer
// says so in both dialects.
func (x *exchange) clampedWait() (time.Duration, error) {
	wait, err := x.query.duration("wait", 0)
	if longest := x.s.limits.ConsumeWait; err == nil && wait > longest {
		wait = longest
		value := []string{longest.String()}
		x.Header()["Tidemark-Wait-Clamped"] = value
		x.Header()["X-Narad-Wait-Clamped"] = value
	}
	return wait, err
}

// messageForm chooses between JSON, frames and, for one record, its bare value.
func (x *exchange) messageForm(many bool) (string, error) {
	if many {
		return answerType(x.r, mediaFrames)
	}
	return answerType(x.r, mediaBytes, mediaFrames)
}

// lease asks the broker. Without a wait nothing is cancelled: the answer is there
// at once, and a client that has only closed its sending side still reads it. So
// a request that may wait asks without at first, and only a wait that begins is
// watched: it ends when the client goes away or the server drains.
func (s *Server) lease(x *exchange, req ConsumeRequest) ([]Message, error) {
	wait := req.Wait
	req.Wait = 0
	if msgs, err := s.broker.Consume(s.base, req); err != nil || len(msgs) > 0 || wait == 0 {
		return msgs, err
	}
	req.Wait = wait
	ctx, cancel := s.whileServing(x.client())
	defer cancel()
	msgs, err := s.broker.Consume(ctx, req)
	if ctx.Err() == nil {
		return msgs, err
	}
	if x.client().Err() != nil && len(msgs) > 0 {
		// The client went away while its records were on their way: they go
		// back now, not when their leases end.
		s.giveBack(req, msgs)
		msgs = nil
	}
	if errcode.Is(err, errcode.Canceled) {
		err = nil // a wait that was cut short found nothing
	}
	return msgs, err
}

// whileServing returns a context that ends with parent and when the server
// begins to shut down.
func (s *Server) whileServing(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	stop := context.AfterFunc(s.draining, cancel)
	return ctx, func() { stop(); cancel() }
}

func (s *Server) giveBack(req ConsumeRequest, msgs []Message) {
	s.broker.Release(req.Topic, req.Group, msgs)
	s.metrics.unreturned.Add(float64(len(msgs)))
}

// deliver writes the leased records. Those that do not fit, and all of them
// when the answer cannot be built or written, go back at once.
func (s *Server) deliver(x *exchange, req ConsumeRequest, msgs []Message, many bool, form string) error {
	fit, size := fitting(msgs, s.limits.ConsumeBytes)
	if fit < len(msgs) {
		s.broker.Release(req.Topic, req.Group, msgs[fit:])
		msgs = msgs[:fit]
	}
	if err := x.large(size); err != nil {
		s.giveBack(req, msgs)
		return err
	}
	x.head("Cache-Control", "no-store")
	if err := x.writeMessages(msgs, many, form, true); err != nil {
		s.giveBack(req, msgs)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// fitting is how many messages stay within most bytes, and how many bytes they
// have; the first always fits.
func fitting(msgs []Message, most int64) (fit int, size int64) {
	for i := range msgs {
		more := int64(len(msgs[i].Key) + len(msgs[i].Value))
		if i > 0 && size+more > most {
			return i, size
		}
		size += more
	}
	return len(msgs), size
}

// writeMessages writes the answer and waits until the connection has taken it.
func (x *exchange) writeMessages(msgs []Message, many bool, form string, lease bool) error {
	switch form {
	case mediaBytes:
		return x.writeBare(&msgs[0], lease)
	case mediaFrames:
		return x.writeFrames(msgs, lease)
	}
	out := x.buffer()
	if many {
		out.b = append(out.b, `{"messages":[`...)
	}
	for i := range msgs {
		if i > 0 {
			out.b = append(out.b, ',')
		}
		out.b = appendMessage(out.b, x.topic, &msgs[i], lease)
	}
	if many {
		out.b = append(out.b, `]}`...)
	}
	out.b = append(out.b, '\n')
	return x.send(typeJSON, out.b)
}

// writeFrames is writeMessages for frames, one record or many.
func (x *exchange) writeFrames(msgs []Message, lease bool) error {
	out := x.buffer()
	for i := range msgs {
		out.b = appendMessageFrame(out.b, x.topic, &msgs[i], lease)
	}
	// The bytes are whatever a producer sent: no browser may guess their type.
	x.head("X-Content-Type-Options", "nosniff")
	return x.send(typeFrames, out.b)
}

// replay answers with one record of the log, without a lease.
func (s *Server) replay(x *exchange) error {
	for _, name := range []string{"max", "wait", "group"} {
		if _, ok := x.query.get(name); ok {
			return errcode.New(errcode.InvalidArgument, "parameter %s does not go with offset: a replay of one record has no lease and no wait", name)
		}
	}
	offset, err := x.query.whole("offset", 0, 0, math.MaxInt64)
	if err != nil {
		return err
	}
	form, err := x.messageForm(false)
	if err != nil {
		return err
	}
	if err := x.needTopic(); err != nil {
		return err
	}
	partition, err := x.partition()
	if err != nil {
		return err
	}
	if partition < 0 {
		return errcode.New(errcode.InvalidArgument, "a replay needs the parameters partition and offset")
	}
	msg, err := s.recordAt(x, uint32(partition), offset)
	if err != nil {
		return err
	}
	x.head("Cache-Control", "no-store")
	// A failed write loses nothing: the connection is closed, the record stays.
	_ = x.writeMessages([]Message{msg}, false, form, false)
	return nil
}

// recordAt reads the record at offset. The record's bytes are copied, since
// the reader's are valid only as long as it is open.
func (s *Server) recordAt(x *exchange, partition uint32, offset int64) (Message, error) {
	ctx, cancel := s.bounded()
	defer cancel()
	req := ReadRequest{Topic: x.topic, Partition: partition, From: offset, To: -1}
	if offset < math.MaxInt64 {
		req.To = offset + 1
	}
	reader, err := s.broker.ReadLog(ctx, req)
	if err != nil {
		return Message{}, err
	}
	defer func() { _ = reader.Close() }() // nothing was written
	recs, err := reader.Next(ctx)
	oldest, high := reader.Bounds()
	switch {
	case errors.Is(err, io.EOF) && offset >= high:
		return Message{}, errcode.New(errcode.OutOfRange, "offset %d of partition %d is not written yet: its end is %d", offset, partition, high).
			With("oldest_offset", oldest).With("high_watermark", high)
	case errors.Is(err, io.EOF), err == nil && recs[0].Offset != offset:
		return Message{}, errcode.New(errcode.Gone, "partition %d has no record at offset %d", partition, offset).
			With("oldest_offset", oldest).With("high_watermark", high)
	case err != nil:
		return Message{}, err
	}
	rec := recs[0]
	buf := x.buffer()
	buf.b = append(append(buf.b, rec.Key...), rec.Value...)
	if rec.Key != nil {
		rec.Key = buf.b[:len(rec.Key):len(rec.Key)]
	}
	rec.Value = buf.b[len(rec.Key):]
	headers := make([]broker.Header, len(rec.Headers))
	for i, h := range rec.Headers {
		headers[i] = broker.Header{Name: h.Name, Value: append([]byte{}, h.Value...)}
	}
	rec.Headers = headers
	return Message{Record: rec, Partition: partition}, nil
}
