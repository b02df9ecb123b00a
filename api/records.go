package api

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Defaults of a page of the log, and how much of a stream is collected before
// it is written.
const (
	pageRecords = 100
	pageBytes   = 1 << 20
	streamChunk = 64 << 10
)

// portion says how much of the log one request wants.
type portion struct {
	records int64
	bytes   int64 // of keys and values; the first record always comes
	n       int64
	size    int64
}

// takes counts one more record in, or says that it is beyond the portion.
func (p *portion) takes(size int) bool {
	if p.n >= p.records || p.n > 0 && p.size+int64(size) > p.bytes {
		return false
	}
	p.n++
	p.size += int64(size)
	return true
}

// readRecords answers with a page of the log as JSON, or with a stream of it
// as NDJSON.
func (s *Server) readRecords(x *exchange) error {
	form, err := answerType(x.r, mediaNDJSON)
	if err != nil {
		return err
	}
	streamed := form == mediaNDJSON
	want, err := x.portion(streamed)
	if err != nil {
		return err
	}
	req, err := x.readRequest(streamed)
	if err != nil {
		return err
	}
	x.Header()["Cache-Control"] = noStore
	ctx, cancel := s.readContext(x, req, streamed)
	defer cancel()
	reader, err := s.broker.ReadLog(ctx, req)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }() // nothing was written
	if streamed {
		return s.stream(ctx, x, reader, req, want)
	}
	return s.page(ctx, x, reader, req, want)
}

// readContext ends a page by time; what waits or follows ends when the client
// goes away or the server drains. A stream without follow goes on while the
// server drains: cut short it would look like the whole log.
func (s *Server) readContext(x *exchange, req ReadRequest, streamed bool) (context.Context, context.CancelFunc) {
	switch {
	case req.Follow || req.Wait > 0:
		return s.whileServing(x.r.Context())
	case streamed:
		return context.WithCancel(x.r.Context())
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

// readRequest reads where to begin and end.
func (x *exchange) readRequest(streamed bool) (ReadRequest, error) {
	req := ReadRequest{Topic: x.topic}
	var err error
	if req.From, err = x.query.whole("from", -1, 0, math.MaxInt64); err != nil {
		return req, err
	}
	if req.To, err = x.query.whole("to", -1, 0, math.MaxInt64); err != nil {
		return req, err
	}
	at, byTime, err := x.query.instant("at")
	if err != nil {
		return req, err
	}
	if byTime && req.From >= 0 {
		return req, errcode.New(errcode.InvalidArgument, "the parameters from and at do not go together")
	}
	if req.Follow, err = x.query.flag("follow"); err != nil {
		return req, err
	}
	if req.Follow && !streamed {
		return req, errcode.New(errcode.InvalidArgument, "follow needs a stream: send Accept: %s", mediaNDJSON)
	}
	if _, waits := x.query.get("wait"); waits && req.Follow {
		return req, errcode.New(errcode.InvalidArgument, "the parameters wait and follow do not go together: following waits by itself")
	}
	if req.Wait, err = x.clampedWait(); err != nil {
		return req, err
	}
	if err := x.needTopic(); err != nil {
		return req, err
	}
	if req.Partition, err = x.pathPartition(); err != nil {
		return req, err
	}
	if byTime {
		if req.From, err = x.s.offsetForTime(x, req.Partition, at); err != nil {
			return req, err
		}
	}
	if req.To >= 0 && req.From > req.To {
		return req, errcode.New(errcode.InvalidArgument, "the read begins at offset %d, after its end at %d", req.From, req.To)
	}
	return req, nil
}

func (s *Server) offsetForTime(x *exchange, partition uint32, ms int64) (int64, error) {
	ctx, cancel := s.bounded()
	defer cancel()
	return s.broker.OffsetForTime(ctx, x.topic, partition, ms)
}

// page answers {records, resume_offset, high_watermark, oldest_offset}. Once it
// has a record, an error only ends the page: the next one meets it again.
func (s *Server) page(ctx context.Context, x *exchange, reader LogReader, req ReadRequest, want portion) error {
	out := x.buffer()
	out.b = append(out.b, `{"records":[`...)
	resume := int64(-1)
	for resume < 0 && want.n < want.records {
		recs, err := reader.Next(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) || want.n > 0 || req.Wait > 0 && errcode.Is(err, errcode.Canceled) {
				break
			}
			return err
		}
		for i := range recs {
			if !want.takes(len(recs[i].Key) + len(recs[i].Value)) {
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

// stream writes one record a line and ends with a line that says where to go
// on. An error after the first byte aborts the connection (see fail), so a
// stream without its end marker is never taken for a whole one.
func (s *Server) stream(ctx context.Context, x *exchange, reader LogReader, req ReadRequest, want portion) error {
	x.Header()["Content-Type"] = typeNDJSON
	if x.r.Method == http.MethodHead {
		x.WriteHeader(http.StatusOK)
		return nil
	}
	out := x.buffer()
	if req.Follow {
		// Who follows wants to know at once that the read has begun.
		x.WriteHeader(http.StatusOK)
		if err := x.flush(); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	for {
		recs, err := reader.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return x.endStream(out, reader.ResumeOffset())
		case err != nil && s.draining.Err() != nil && x.r.Context().Err() == nil && (req.Follow || req.Wait > 0):
			return x.endStream(out, reader.ResumeOffset())
		case err != nil:
			return err
		}
		for i := range recs {
			if !want.takes(len(recs[i].Key) + len(recs[i].Value)) {
				return x.endStream(out, recs[i].Offset)
			}
			out.b = append(appendRecord(out.b, &recs[i], true), '\n')
			if len(out.b) >= streamChunk {
				x.put(out)
			}
		}
		if want.n == want.records {
			return x.endStream(out, reader.ResumeOffset())
		}
		if req.Follow {
			x.put(out)
			if err := x.flush(); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
	}
}

// put writes what is collected. A client that does not take it has gone.
func (x *exchange) put(out *buffer) {
	if _, err := x.Write(out.b); err != nil {
		panic(http.ErrAbortHandler)
	}
	out.b = out.b[:0]
}

func (x *exchange) endStream(out *buffer, resume int64) error {
	out.b = append(out.b, `{"end":true,"resume_offset":`...)
	out.b = strconv.AppendInt(out.b, resume, 10)
	out.b = append(out.b, "}\n"...)
	x.put(out)
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
