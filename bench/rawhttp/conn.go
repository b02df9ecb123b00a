package rawhttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	answerTime = time.Minute      // for a whole answer; no node lets a request wait that long
	idleTime   = 10 * time.Second // after which a connection is opened again
	maxAnswer  = 64 << 20         // of a body that is read whole
	smallBody  = 64 << 10         // bodies up to it go out in one write with the head
)

// Conn is one connection to a target.
type Conn struct {
	target *Target
	ctx    context.Context
	unhook func() bool
	mu     sync.Mutex // guards nc against the end of ctx
	nc     net.Conn
	r      *bufio.Reader
	out    []byte // head, and small bodies behind it
	body   []byte // of the last answer
	last   time.Time
	within time.Duration // for a whole answer
	broken bool          // nothing can be read from it any more
}

// Dial opens a connection. The end of ctx ends whatever it does. The caller
// closes it.
func (t *Target) Dial(ctx context.Context) (*Conn, error) {
	c := &Conn{target: t, ctx: ctx, within: answerTime}
	if err := c.open(); err != nil {
		return nil, err
	}
	c.unhook = context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.nc.SetDeadline(time.Unix(1, 0)) // what waits ends now
	})
	return c, nil
}

func (c *Conn) open() error {
	nc, err := c.target.dial(c.ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nc != nil {
		c.nc.Close()
	}
	c.nc, c.last, c.broken = nc, time.Now(), false
	if c.r == nil {
		c.r = bufio.NewReaderSize(nc, 64<<10)
	} else {
		c.r.Reset(nc)
	}
	return nil
}

// AnswerWithin bounds the time from a request to the end of its answer, which is a
// minute without it.
func (c *Conn) AnswerWithin(d time.Duration) { c.within = d }

// Close closes the connection.
func (c *Conn) Close() {
	if c.unhook != nil {
		c.unhook()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nc.Close()
}

// Request is one call.
type Request struct {
	Method string
	Path   string // with its query, escaped
	Type   string // of the body; "": none is said
	Accept string // "": not said
	Body   []byte
}

// Answer is what came back. Body is valid until the connection's next request.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do sends a request and reads its whole answer, of any status. A request without
// one is a [NoAnswerError]; the next request opens the connection again.
func (c *Conn) Do(r Request) (Answer, error) {
	res, err := c.send(r)
	if err != nil {
		return Answer{}, err
	}
	c.body, err = readInto(c.body[:0], res.Body)
	_ = res.Body.Close() // it was read, or the connection is useless
	if err != nil {
		c.broken = true
		return Answer{}, c.noAnswer(r, "the answer broke off", true, err)
	}
	c.last = time.Now()
	c.broken = res.Close
	return Answer{Status: res.StatusCode, Header: res.Header, Body: c.body}, nil
}

// Stream sends a request and returns its answer with an open body, whose length
// has no bound; the connection can do nothing else afterwards.
func (c *Conn) Stream(r Request) (*http.Response, error) {
	res, err := c.send(r)
	if err == nil {
		err = c.deadline(24 * time.Hour)
	}
	return res, err
}

func (c *Conn) send(r Request) (*http.Response, error) {
	if c.broken || time.Since(c.last) > idleTime {
		c.broken = true // until it is open
		if err := c.open(); err != nil {
			return nil, c.noAnswer(r, "no connection", false, err)
		}
	}
	if err := c.deadline(c.within); err != nil {
		return nil, err
	}
	c.out = c.target.appendHead(c.out[:0], r)
	separate := len(r.Body) > smallBody
	if !separate {
		c.out = append(c.out, r.Body...)
	}
	_, err := c.nc.Write(c.out)
	if err == nil && separate {
		_, err = c.nc.Write(r.Body)
	}
	var res *http.Response
	if err == nil {
		res, err = http.ReadResponse(c.r, &http.Request{Method: r.Method})
	}
	if err != nil {
		c.broken = true
		return nil, c.noAnswer(r, "no answer", true, err)
	}
	return res, nil
}

func (c *Conn) deadline(d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	return c.nc.SetDeadline(time.Now().Add(d))
}

// cause is why an operation failed: the context's end before the closed connection.
func (c *Conn) cause(err error) error {
	if cause := context.Cause(c.ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (t *Target) appendHead(b []byte, r Request) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, t.prefix()...)
	b = append(b, r.Path...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = append(b, t.head...)
	if r.Type != "" {
		b = append(append(append(b, "Content-Type: "...), r.Type...), "\r\n"...)
	}
	if r.Accept != "" {
		b = append(append(append(b, "Accept: "...), r.Accept...), "\r\n"...)
	}
	if r.Body != nil || r.Method == http.MethodPost {
		b = strconv.AppendInt(append(b, "Content-Length: "...), int64(len(r.Body)), 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// readInto reads a body to its end, of bounded length.
func readInto(b []byte, src io.Reader) ([]byte, error) {
	for {
		if len(b) > maxAnswer {
			return b, fmt.Errorf("it is larger than %d bytes", maxAnswer)
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := src.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}
