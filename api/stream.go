package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// streamChunk is about how much of a stream is collected before it is written.
// Stored batches of this size and more are written from where they are.
const streamChunk = 64 << 10

// logStream is the answer to one request that reads the log as a stream. An
// error after the first byte aborts the connection (see fail), so that a stream
// without its end is never taken for a whole one.
//
// A stream that reads or writes has one of the server's turns, and a bounded
// part of the log in memory. One that waits at the high watermark has neither.
type logStream struct {
	s      *Server
	x      *exchange
	form   *streamForm
	reader LogReader
	follow bool
	want   portion
	out    *buffer
	resume int64 // where to read on, once the end is reached
	turn   bool  // it has one of the server's turns
}

// run writes the stream. ctx ends with the client and, for a stream that
// follows, when the server drains: then it ends as it should.
func (t *logStream) run(ctx context.Context) error {
	if t.x.r.Method == http.MethodHead {
		t.begin()
		return nil
	}
	t.out = t.x.buffer()
	if err := t.takeTurn(ctx); err != nil {
		return err
	}
	defer t.giveTurn()
	if t.follow {
		// Who follows wants to know at once that the read has begun.
		t.begin()
		t.flush()
	}
	for {
		n, err := t.step(ctx)
		if err == nil && n == 0 {
			err = t.idle(ctx)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return t.end()
		case t.follow && t.s.draining.Err() != nil && t.x.client().Err() == nil:
			t.resume = t.reader.ResumeOffset()
			return t.end()
		default:
			return err
		}
	}
}

// begin sends the head of the answer, once.
func (t *logStream) begin() {
	if t.x.wroteHeader {
		return
	}
	h := t.x.Header()
	h["Content-Type"] = t.form.contentType
	if t.form.end == nil {
		h["Trailer"] = resumeTrailer
		// The bytes are whatever a producer sent: no browser may guess their type.
		h["X-Content-Type-Options"] = noSniff
	}
	t.x.WriteHeader(http.StatusOK)
}

// step reads and writes one run and says how many records or batches it had:
// none at the high watermark. io.EOF: the stream is at its end.
func (t *logStream) step(ctx context.Context) (int, error) {
	if t.form.record == nil {
		return t.batches(ctx)
	}
	return t.records(ctx)
}

func (t *logStream) records(ctx context.Context) (int, error) {
	recs, err := t.reader.Next(ctx)
	if err != nil {
		t.resume = t.reader.ResumeOffset()
		return 0, err
	}
	var size int64
	for i := range recs {
		size += int64(len(recs[i].Key) + len(recs[i].Value))
	}
	if err := t.x.largeSoon(ctx, size); err != nil {
		return 0, err
	}
	for i := range recs {
		if !t.want.takes(1, len(recs[i].Key)+len(recs[i].Value)) {
			t.resume = recs[i].Offset
			return i, io.EOF
		}
		t.out.b = t.form.record(t.out.b, &recs[i])
		if len(t.out.b) >= streamChunk {
			t.put()
		}
	}
	t.resume = t.reader.ResumeOffset()
	return t.written(len(recs))
}

func (t *logStream) batches(ctx context.Context) (int, error) {
	batches, err := t.reader.NextBatches(ctx)
	if err != nil {
		t.resume = t.reader.ResumeOffset()
		return 0, err
	}
	var size int64
	for i := range batches {
		size += int64(len(batches[i].Bytes))
	}
	if err := t.x.largeSoon(ctx, size); err != nil {
		return 0, err
	}
	for i := range batches {
		b := &batches[i]
		if !t.want.takes(b.Records, len(b.Bytes)) {
			return i, io.EOF
		}
		t.resume = b.Resume
		if len(b.Bytes) < streamChunk {
			if t.out.b = append(t.out.b, b.Bytes...); len(t.out.b) >= streamChunk {
				t.put()
			}
			continue
		}
		t.put()
		t.write(b.Bytes)
	}
	return t.written(len(batches))
}

// written ends a step of n records or batches.
func (t *logStream) written(n int) (int, error) {
	t.x.notLarge()
	if t.want.full() {
		return n, io.EOF
	}
	return n, nil
}

// idle hands everything to the client and waits at the high watermark, without
// a turn and without much memory.
func (t *logStream) idle(ctx context.Context) error {
	t.put()
	t.flush()
	if cap(t.out.b) > 2*streamChunk {
		t.out.b = nil
	}
	t.giveTurn()
	if err := t.await(ctx); err != nil {
		return err
	}
	return t.takeTurn(ctx)
}

// await returns when there is a record. Meanwhile the form's sign of life is
// written now and then.
func (t *logStream) await(ctx context.Context) error {
	var every time.Duration
	if t.form.alive != nil {
		every = t.s.limits.KeepAlive
	}
	for {
		more, err := t.reader.Wait(ctx, every)
		if err != nil || more {
			return err
		}
		t.write(t.form.alive)
		t.flush()
	}
}

// end says where to read on, in the stream or behind it.
func (t *logStream) end() error {
	if t.form.end != nil {
		t.out.b = t.form.end(t.out.b, t.resume)
	} else {
		t.begin() // what is set from here on is a trailer
		t.x.Header()[resumeTrailer[0]] = []string{strconv.FormatInt(t.resume, 10)}
	}
	t.put()
	return nil
}

// put writes what is collected.
func (t *logStream) put() {
	if len(t.out.b) > 0 {
		t.write(t.out.b)
		t.out.b = t.out.b[:0]
	}
}

// write hands b to the connection. A client that does not take it has gone.
func (t *logStream) write(b []byte) {
	t.begin()
	if _, err := t.x.Write(b); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (t *logStream) flush() {
	if err := t.x.flush(); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// takeTurn waits for one of the server's turns, as long as a slow client may
// take for a step.
func (t *logStream) takeTurn(ctx context.Context) error {
	most := t.s.limits.WriteStep
	select {
	case t.s.turns <- struct{}{}:
		t.turn = true
		return nil
	default:
	}
	timeout := time.NewTimer(most)
	defer timeout.Stop()
	select {
	case t.s.turns <- struct{}{}:
		t.turn = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return errcode.New(errcode.Overloaded, "%d streams of the log are at work on this node and none of them ended within %v; try again later", cap(t.s.turns), most).After(time.Second)
	}
}

func (t *logStream) giveTurn() {
	if t.turn {
		<-t.s.turns
		t.turn = false
	}
}

// budgetStep is how often a stream looks whether its large run fits.
const budgetStep = 10 * time.Millisecond

// largeSoon is large for a stream, which cannot say 503 any more once it has
// begun: it waits for others to end, as long as a slow client may take for a
// step.
func (x *exchange) largeSoon(ctx context.Context, size int64) error {
	err := x.large(size)
	if err == nil {
		return nil
	}
	timeout, look := time.NewTimer(x.s.limits.WriteStep), time.NewTicker(budgetStep)
	defer timeout.Stop()
	defer look.Stop()
	for err != nil {
		select {
		case <-look.C:
			err = x.large(size)
		case <-timeout.C:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// notLarge gives back what large took.
func (x *exchange) notLarge() {
	if x.charged > 0 {
		x.s.largeBodies.Add(-x.charged)
		x.charged = 0
	}
}
