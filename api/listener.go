package api

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// listener bounds how many connections are open, and wraps each in a conn.
type listener struct {
	net.Listener
	limits  *Limits
	metrics *metrics
	open    atomic.Int64
	turning chan struct{}  // one place per connection that is being turned away
	turned  sync.WaitGroup // those connections
}

func newListener(ln net.Listener, limits *Limits, m *metrics) *listener {
	return &listener{Listener: ln, limits: limits, metrics: m, turning: make(chan struct{}, limits.RefusalsAtATime)}
}

// Accept returns the next connection within the bound. Those beyond it are
// answered and closed on the side; where even that is at its bound they are
// only closed.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= int64(l.limits.Connections) {
			l.metrics.connections.Inc()
			return &conn{Conn: nc, l: l}, nil
		}
		l.open.Add(-1)
		l.metrics.turnedAway.Inc()
		l.metrics.refused(errcode.Overloaded)
		l.turnAway(nc)
	}
}

func (l *listener) turnAway(nc net.Conn) {
	select {
	case l.turning <- struct{}{}:
	default:
		_ = nc.Close()
		return
	}
	l.turned.Add(1)
	go func() {
		defer l.turned.Done()
		defer func() { <-l.turning }()
		defer func() { _ = nc.Close() }()
		f := failureOf(errcode.New(errcode.Overloaded, "this node has %d connections, which is the most; try again later, or another node", l.limits.Connections))
		if nc.SetDeadline(time.Now().Add(time.Second)) != nil {
			return
		}
		if _, err := nc.Write(rawAnswer("503 Service Unavailable", f)); err == nil {
			linger(nc, bodyStep, time.Second)
		}
	}()
}

// rawAnswer is a whole answer for a connection that no handler will see.
func rawAnswer(status string, f failure) []byte {
	body := append(f.appendJSON(nil), '\n')
	b := append([]byte("HTTP/1.1 "), status...)
	b = append(b, "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	if after := f.retryAfter(); after > 0 {
		b = append(b, "\r\nRetry-After: "...)
		b = strconv.AppendInt(b, after, 10)
	}
	b = append(b, "\r\n\r\n"...)
	return append(b, body...)
}

// linger closes the sending side and reads what still comes, so that the peer
// is not reset before it has read the answer.
func linger(nc net.Conn, most int64, longest time.Duration) {
	if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return
	}
	if nc.SetReadDeadline(time.Now().Add(longest)) != nil {
		return
	}
	// However it ends, the connection is closed next.
	_, _ = io.CopyN(io.Discard, nc, most)
}

// conn gives every piece of an answer its own time to leave, lingers before it
// closes on a client that still sends, and turns the plain answers that
// net/http writes by itself into JSON.
type conn struct {
	net.Conn
	l      *listener
	closed atomic.Bool
}

// writeStep is how much must leave within Limits.WriteStep.
const writeStep = 64 << 10

// Write writes b in steps, each with a deadline of its own.
func (c *conn) Write(b []byte) (int, error) {
	if status, f, ok := plainAnswer(b); ok {
		c.l.metrics.refused(f.code)
		if _, err := c.write(rawAnswer(status, f)); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return c.write(b)
}

func (c *conn) write(b []byte) (written int, err error) {
	for {
		piece := b[written:min(len(b), written+writeStep)]
		if err := c.SetWriteDeadline(time.Now().Add(c.l.limits.WriteStep)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(piece)
		written += n
		if err != nil || written >= len(b) {
			return written, err
		}
	}
}

// CloseWrite is called by net/http before it closes on a client that is still
// sending: after a body or headers over the bound.
func (c *conn) CloseWrite() error {
	linger(c.Conn, c.l.limits.LingerBytes, c.l.limits.LingerTime)
	return nil
}

// Close counts the connection out, once.
func (c *conn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.l.open.Add(-1)
		c.l.metrics.connections.Dec()
	}
	return c.Conn.Close()
}

// plainHead ends the head of the answers that net/http gives to what it cannot
// parse. Answers of handlers never look so: theirs have a length or a Date.
var plainHead = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// plainAnswer recognises such an answer and says it anew.
func plainAnswer(b []byte) (status string, f failure, ok bool) {
	const version = "HTTP/1.1 "
	if len(b) > 512 || !bytes.HasPrefix(b, []byte(version)) || b[len(version)] != '4' && b[len(version)] != '5' {
		return "", failure{}, false
	}
	end := bytes.IndexByte(b, '\r')
	if end < 0 || !bytes.HasPrefix(b[end:], plainHead) {
		return "", failure{}, false
	}
	status = string(b[len(version):end])
	switch status[:min(3, len(status))] {
	case "431":
		f = failureOf(errcode.New(errcode.HeaderTooLarge, "the request line and headers are larger than this server reads; send fewer or shorter ones"))
	case "501":
		f = failureOf(errcode.New(errcode.UnsupportedType, "the transfer encoding is not accepted; send chunked, or a Content-Length"))
	default:
		f = failureOf(errcode.New(errcode.InvalidArgument, "the request is not HTTP as this server reads it: %s", status))
	}
	return status, f, true
}
