package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// bodyStep is how much of a body must arrive within Limits.BodyStep.
const bodyStep = 64 << 10

// brokenLinger is how long a connection whose body stopped arriving is still
// read, so that the answer reaches a client that sends on.
const brokenLinger = 500 * time.Millisecond

// readBody reads the whole body, at most limit bytes; what names it in
// messages. The slice lives until the exchange ends and is never nil.
//
// The buffer grows with what has arrived: a declared length is only ever used
// to refuse early and to stop growing.
func (x *exchange) readBody(limit int64, what string) ([]byte, error) {
	if err := x.plainBody(); err != nil {
		return nil, err
	}
	return x.readRaw(limit, what)
}

// readRaw is readBody for a body that may be encoded.
func (x *exchange) readRaw(limit int64, what string) ([]byte, error) {
	r := x.r
	if r.ContentLength > limit {
		return nil, tooLarge(what, limit)
	}
	if r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody {
		x.bodyDone = true
		return []byte{}, nil
	}
	ceiling := limit + 1 // one byte more than allowed tells "at" from "above"
	if r.ContentLength > 0 {
		ceiling = r.ContentLength + 1
	}
	body, err := x.collect(limit, ceiling, what)
	x.in += int64(len(body))
	if err != nil {
		return nil, err
	}
	// From here on net/http only watches the connection for its end, without a
	// deadline.
	x.bodyDone = true
	return body, nil
}

func (x *exchange) collect(limit, ceiling int64, what string) ([]byte, error) {
	buf := x.buffer()
	room := cap(buf.b) // of the buffer, what the budget covers
	step := 0
	// The first bytes have the server's ReadTimeout, which net/http has armed:
	// most bodies came with their headers.
	for first := true; ; first = false {
		if !first && len(buf.b) >= step {
			// Not every ResponseWriter has deadlines; where Serve runs it has.
			_ = http.NewResponseController(x.w).SetReadDeadline(deadlineIn(x.patience(x.s.limits.BodyStep)))
			step = len(buf.b) + bodyStep
		}
		if len(buf.b) == room {
			var err error
			if room, err = x.grow(buf, ceiling); err != nil {
				return buf.b, err
			}
		}
		n, err := x.r.Body.Read(buf.b[len(buf.b):room])
		buf.b = buf.b[:len(buf.b)+n]
		switch {
		case int64(len(buf.b)) > limit:
			return buf.b, tooLarge(what, limit)
		case errors.Is(err, io.EOF):
			return buf.b, nil
		case err != nil:
			return buf.b, x.bodyError(err)
		}
	}
}

// grow makes room for four times as much as there is, up to ceiling, and
// returns the new room. Room above Limits.LargeBody is taken from the node's
// budget first. A pooled buffer may be larger than its room: the rest of it
// stays unused, so that the budget keeps its meaning.
func (x *exchange) grow(buf *buffer, ceiling int64) (room int, err error) {
	have := int64(len(buf.b))
	size := min(4*have, max(ceiling, have+1))
	if err := x.large(size + x.beside); err != nil {
		return 0, err
	}
	if size > int64(cap(buf.b)) {
		next := pooled(size)
		next.b = append(next.b[:0], buf.b...)
		buf.b, next.b = next.b, buf.b
		next.release()
	}
	return int(size), nil
}

// pooled returns a buffer of at least size bytes.
func pooled(size int64) *buffer {
	if size > smallBufferTo && size <= largeBufferTo {
		big := largeBuffers.Get().(*buffer)
		if int64(cap(big.b)) >= size {
			return big
		}
	}
	return &buffer{b: make([]byte, 0, size)}
}

// large takes size bytes in all, when they are more than Limits.LargeBody, from
// the node's budget, until the exchange ends. Answers share it with bodies.
func (x *exchange) large(size int64) error {
	n := size - x.charged
	if size <= x.s.limits.LargeBody || n <= 0 {
		return nil
	}
	if x.s.largeBodies.Add(n) > x.s.limits.LargeBodyBytes {
		x.s.largeBodies.Add(-n)
		return errcode.New(errcode.Overloaded, "bodies in flight on this node would exceed %d bytes; try again later", x.s.limits.LargeBodyBytes).After(time.Second)
	}
	x.charged += n
	if x.conn != nil {
		x.conn.large = true
	}
	return nil
}

// hurry is how many times faster large bodies and answers must move while half
// of their budget is taken: a few clients that hold all of it and hardly move
// would keep everybody else's large requests out. What waits already has the
// time that it was given.
const hurry = 10

// crowded reports whether large bodies and answers have to hurry.
func (s *Server) crowded() bool { return s.largeBodies.Load() > s.limits.LargeBodyBytes/2 }

// patience is how long a step of the request's body may take.
func (x *exchange) patience(step time.Duration) time.Duration {
	if x.charged > 0 && x.s.crowded() {
		return step / hurry
	}
	return step
}

func (x *exchange) bodyError(err error) error {
	x.bodyBroken = true
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errcode.New(errcode.Canceled, "the body stopped arriving: each %d bytes have %v, a tenth of that while large bodies take half of what they may; nothing was stored", bodyStep, x.s.limits.BodyStep)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errcode.New(errcode.Canceled, "the connection ended before the body was complete; nothing was stored")
	default:
		return errcode.New(errcode.InvalidArgument, "the body cannot be read: %v", err)
	}
}

// giveUpBody prepares an answer to a request whose body was not read to its
// end. What net/http would throw away before it answers gets a deadline; where
// that may be long the connection is closed after the answer instead, and the
// listener's connection lingers so that the client can read it.
func (x *exchange) giveUpBody() {
	r := x.r
	if x.bodyDone || r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody {
		return
	}
	patience := x.s.limits.LingerTime
	if x.bodyBroken {
		// It has been waited for already; this is for the answer's way.
		patience = min(patience, brokenLinger)
	}
	_ = http.NewResponseController(x.w).SetReadDeadline(deadlineIn(patience))
	if x.bodyBroken || r.ContentLength < 0 || r.ContentLength > bodyStep {
		x.Header()["Connection"] = connClose
	}
}

func tooLarge(what string, limit int64) error {
	return errcode.New(errcode.TooLarge, "%s is larger than %d bytes; nothing was stored", what, limit).With("limit", limit)
}

// noBody refuses a body where the query says everything. An empty object
// passes, because some clients cannot send a POST without one. The body is
// read before any wait, since only then the connection is watched for its end.
func (x *exchange) noBody() error {
	body, err := x.readBody(x.s.limits.SmallBody, "the body")
	if err != nil || len(body) == 0 {
		return err
	}
	it, err := oneObject(body)
	if err != nil {
		return err
	}
	if it.next() {
		return errcode.New(errcode.InvalidArgument, "this request has no body fields; %.60s belongs into the query", it.name)
	}
	return endOfObject(body, it.at)
}
