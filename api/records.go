package api

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Defaults of a page of the log.
const (
	pageRecords = 100
	pageBytes   = 1 << 20
)

// portion says how much of the log one request wants.
type portion struct {
	records int64
	bytes   int64 // the first record, or stored batch, always comes
	n       int64
	size    int64
}

// takes counts more records in, or says that they are beyond the portion.
func (p *portion) takes(records, size int) bool {
	if p.n > 0 && (p.n+int64(records) > p.records || p.size+int64(size) > p.bytes) {
		return false
	}
	p.n += int64(records)
	p.size += int64(size)
	return true
}

// full says that no record is missing.
func (p *portion) full() bool { return p.n >= p.records }

// readRecords answers with a page of the log as JSON, or with a stream of it in
// one of several forms.
func (s *Server) readRecords(x *exchange) error {
	media, err := answerType(x.r, mediaNDJSON, mediaEvents, mediaFrames, mediaBatch)
	if err != nil {
		return err
	}
	form := streamForms[media] // nil: a page
	want, err := x.portion(form != nil)
	if err != nil {
		return err
	}
	req, wait, err := x.readRequest(form)
	if err != nil {
		return err
	}
	if form != nil && form.end == nil && !x.r.ProtoAtLeast(1, 1) {
		return errcode.New(errcode.UnsupportedType, "a stream of type %s ends with a trailer, which HTTP/1.0 does not have: ask with HTTP/1.1, or for %s", media, mediaNDJSON)
	}
	x.head("Cache-Control", "no-store")
	ctx, cancel := s.readContext(x, req, form != nil)
	defer cancel()
	reader, err := s.broker.ReadLog(ctx, req)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }() // nothing was written
	if wait > 0 {
		if err := s.awaitRecord(x, reader, wait); err != nil {
			return err
		}
	}
	if form != nil {
		return (&logStream{s: s, x: x, form: form, reader: reader, follow: req.Follow, want: want}).run(ctx)
	}
	return s.page(ctx, x, reader, want)
}

// awaitRecord waits at the end of the log. A wait that the server's end cuts
// short has found nothing, as one whose time is over.
func (s *Server) awaitRecord(x *exchange, reader LogReader, wait time.Duration) error {
	ctx, cancel := s.whileServing(x.client())
	defer cancel()
	_, err := reader.Wait(ctx, wait)
	if errcode.Is(err, errcode.Canceled) && x.client().Err() == nil {
		return nil
	}
	return err
}

// readContext ends a page by time; what follows ends when the client goes away
// or the server drains. A stream that does not follow goes on while the server
// drains: cut short it would look like the whole log.
func (s *Server) readContext(x *exchange, req ReadRequest, streamed bool) (context.Context, context.CancelFunc) {
	switch {
	case req.Follow:
		return s.whileServing(x.client())
	case streamed:
		return context.WithCancel(x.client())
	default:
		return s.bounded()
	}
}

// portion reads max and max_bytes. A page has defaults and bounds, a stream
// ends where the log does.
func (x *exchange) portion(streamed bool) (portion, error) {
	most, mostBytes := int64(x.s.limits.PageRecords), x.s.limits.PageBytes
	def, defBytes := min(pageRecords, most), min(pageBytes, mostBytes)
	if streamed {
		most, mostBytes, def, defBytes = math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64
	}
	records, err := x.query.whole("max", def, 1, most)
	if err != nil {
		return portion{}, err
	}
	size, err := x.query.whole("max_bytes", defBytes, 1, mostBytes)
	return portion{records: records, bytes: size}, err
}

// readRequest reads where to begin and end, and how long to wait for the first
// record. form is nil for a page.
func (x *exchange) readRequest(form *streamForm) (req ReadRequest, wait time.Duration, err error) {
	req.Topic = x.topic
	if req.From, err = x.query.whole("from", -1, 0, math.MaxInt64); err != nil {
		return req, 0, err
	}
	if req.To, err = x.query.whole("to", -1, 0, math.MaxInt64); err != nil {
		return req, 0, err
	}
	at, byTime, err := x.query.instant("at")
	if err != nil {
		return req, 0, err
	}
	if byTime && req.From >= 0 {
		return req, 0, errcode.New(errcode.InvalidArgument, "the parameters from and at do not go together")
	}
	if req.Follow, err = x.follows(form); err != nil {
		return req, 0, err
	}
	if _, waits := x.query.get("wait"); waits && req.Follow {
		return req, 0, errcode.New(errcode.InvalidArgument, "the parameters wait and follow do not go together: following waits by itself")
	}
	if wait, err = x.clampedWait(); err != nil {
		return req, 0, err
	}
	if form == eventForm {
		last, ok, err := x.lastEvent()
		if err != nil {
			return req, 0, err
		}
		if ok { // a client that comes again asks with its first query
			req.From, byTime = last+1, false
		}
	}
	if err := x.needTopic(); err != nil {
		return req, 0, err
	}
	if req.Partition, err = x.pathPartition(); err != nil {
		return req, 0, err
	}
	if byTime {
		if req.From, err = x.s.offsetForTime(x, req.Partition, at); err != nil {
			return req, 0, err
		}
	}
	if req.To >= 0 && req.From > req.To {
		return req, 0, errcode.New(errcode.InvalidArgument, "the read begins at offset %d, after its end at %d", req.From, req.To)
	}
	return req, wait, nil
}

// follows reads follow, which an event stream implies and a page refuses.
func (x *exchange) follows(form *streamForm) (bool, error) {
	follow, err := x.query.flag("follow")
	if err != nil {
		return false, err
	}
	_, said := x.query.get("follow")
	switch {
	case follow && form == nil:
		return false, errcode.New(errcode.InvalidArgument, "follow needs a stream: send Accept: %s, %s, %s or %s", mediaNDJSON, mediaEvents, mediaFrames, mediaBatch)
	case said && !follow && form == eventForm:
		return false, errcode.New(errcode.InvalidArgument, "an event stream always follows; leave the parameter follow out, or end it with the parameter to")
	default:
		return follow || form == eventForm, nil
	}
}

// lastEvent is the offset of the last event that a client of an event stream
// says it has, if it says so.
func (x *exchange) lastEvent() (offset int64, ok bool, err error) {
	text := x.r.Header.Get("Last-Event-ID")
	if text == "" {
		return 0, false, nil
	}
	offset, err = parseWhole(text)
	if err != nil || offset == math.MaxInt64 {
		return 0, false, errcode.New(errcode.InvalidArgument, "header Last-Event-ID is %.40q; it is the offset of the last event that came", text)
	}
	return offset, true, nil
}

func (s *Server) offsetForTime(x *exchange, partition uint32, ms int64) (int64, error) {
	ctx, cancel := s.bounded()
	defer cancel()
	return s.broker.OffsetForTime(ctx, x.topic, partition, ms)
}

// page answers {records, resume_offset, high_watermark, oldest_offset}. Once it
// has a record, an error only ends the page: the next one meets it again.
func (s *Server) page(ctx context.Context, x *exchange, reader LogReader, want portion) error {
	out := x.buffer()
	out.b = append(out.b, `{"records":[`...)
	resume := int64(-1)
	for resume < 0 && !want.full() {
		recs, err := reader.Next(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) || want.n > 0 {
				break
			}
			return err
		}
		for i := range recs {
			if !want.takes(1, len(recs[i].Key)+len(recs[i].Value)) {
				resume = recs[i].Offset
				break
			}
			if err := x.large(want.size); err != nil {
				if want.n == 1 {
					return err
				}
				resume = recs[i].Offset // a shorter page is a page
				break
			}
			if want.n > 1 {
				out.b = append(out.b, ',')
			}
			out.b = appendRecord(out.b, &recs[i], false)
		}
	}
	if resume < 0 {
		resume = reader.ResumeOffset()
	}
	oldest, high := reader.Bounds()
	out.b = append(out.b, ']')
	out.b = appendInt(out.b, "resume_offset", resume)
	out.b = appendInt(out.b, "high_watermark", high)
	out.b = appendInt(out.b, "oldest_offset", oldest)
	out.b = append(out.b, "}\n"...)
	x.reply(http.StatusOK, typeJSON, out.b)
	return nil
}

// findOffset answers with the first offset at or after a time.
func (s *Server) findOffset(x *exchange) error {
	at, ok, err := x.query.instant("at")
	if err != nil {
		return err
	}
	if !ok {
		return errcode.New(errcode.InvalidArgument, "the parameter at is missing: a time such as 2026-11-29T08:30:00Z or milliseconds since 1970")
	}
	if err := x.needTopic(); err != nil {
		return err
	}
	partition, err := x.pathPartition()
	if err != nil {
		return err
	}
	offset, err := s.offsetForTime(x, partition, at)
	if err != nil {
		return err
	}
	out := x.buffer()
	out.b = append(out.b, `{"topic":`...)
	out.b = appendText(out.b, x.topic)
	out.b = appendInt(out.b, "partition", int64(partition))
	out.b = appendInt(out.b, "offset", offset)
	out.b = append(out.b, "}\n"...)
	x.reply(http.StatusOK, typeJSON, out.b)
	return nil
}
