package rawhttp

import (
	"bufio"
	"context"
	"encoding/json"
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
}

// Dial opens a connection. The end of ctx ends whatever it does. The caller
// closes it.
func (t *Target) Dial(ctx context.Context) (*Conn, error) {
	c := &Conn{target: t, ctx: ctx}
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
	c.nc, c.last = nc, time.Now()
	if c.r == nil {
		c.r = bufio.NewReaderSize(nc, 64<<10)
	} else {
		c.r.Reset(nc)
	}
	return nil
}

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

// Do sends a request and reads its whole answer, of any status.
func (c *Conn) Do(r Request) (Answer, error) {
	res, err := c.send(r)
	if err != nil {
		return Answer{}, err
	}
	c.body, err = readInto(c.body[:0], res.Body)
	_ = res.Body.Close() // it was read, or the connection is useless
	if err != nil {
		return Answer{}, fmt.Errorf("%s %s: the answer broke off: %w", r.Method, r.Path, c.cause(err))
	}
	c.last = time.Now()
	if res.Close {
		if err := c.open(); err != nil {
			return Answer{}, err
		}
	}
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
	if time.Since(c.last) > idleTime {
		if err := c.open(); err != nil {
			return nil, err
		}
	}
	if err := c.deadline(answerTime); err != nil {
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
		return nil, fmt.Errorf("%s %s: no answer: %w", r.Method, r.Path, c.cause(err))
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

// Refused makes an error of an answer that is none of the wanted statuses.
func (a *Answer) Refused(r Request, want ...int) error {
	for _, w := range want {
		if a.Status == w {
			return nil
		}
	}
	var said struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(a.Body, &said) != nil || said.Error == "" {
		said.Error = fmt.Sprintf("%.200q", a.Body)
	}
	return fmt.Errorf("%s %s: status %d: %s", r.Method, r.Path, a.Status, said.Error)
}
