package api

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// conn gives every piece of an answer its own time to leave, lingers before it
// closes on a client that still sends, turns the plain answers that net/http
// writes by itself into JSON, and spares the single produce what net/http does
// for every request and that one does not need.
type conn struct {
	net.Conn
	l       *listener
	closed  atomic.Bool
	deaf    atomic.Bool // the client's end is not looked for; a produce sets it, finish clears it
	reads   readDeadline
	writeBy time.Time // the armed deadline; only the serving goroutine writes
	now     time.Time // when the running request's handler ended; zero before
	large   bool      // the running request takes of the budget of large answers

	// Header lines of the next answer, and what that is put together in.
	lines, whole []byte
}

type connKey struct{}

// withConn lets handlers find their connection.
func withConn(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, nc)
}

// connOf returns the connection of r, nil if the listener is not ours.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// Read reads from the connection. While a handler runs, net/http watches the
// connection for its end with a read of one byte, on a goroutine that it starts
// for the request, and breaks that off with two deadlines: an eighth of what a
// produce costs. A deaf connection answers that read at once, with nothing.
func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 1 && c.deaf.Load() {
		return 0, nil
	}
	c.reads.active.Add(1)
	defer c.reads.active.Add(-1)
	if err := c.reads.arm(c.Conn); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// SetReadDeadline takes effect with the next read, and at once for a read that
// is under way. net/http sets five for every request, and most requests read
// once.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.reads.want.Store(sinceEpoch(t))
	if c.reads.active.Load() > 0 {
		return c.reads.arm(c.Conn)
	}
	return nil
}

// readDeadline is the deadline that was asked for and the one that the
// connection has.
type readDeadline struct {
	want   atomic.Int64 // see sinceEpoch
	active atomic.Int32 // reads under way

	mu    sync.Mutex
	armed int64
}

// An armed deadline that ends up to deadlineSlack before the one that was asked
// for is used again, if it is longDeadline away: an idle connection's.
const (
	deadlineSlack = time.Second
	longDeadline  = 20 * time.Second
)

// arm gives nc the deadline that was asked for.
func (d *readDeadline) arm(nc net.Conn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := d.want.Load()
	if want == d.armed {
		return nil
	}
	if early := want - d.armed; d.armed > 0 && early > 0 && early < int64(deadlineSlack) && d.armed-sinceEpoch(time.Now()) > int64(longDeadline) {
		return nil
	}
	d.armed = want
	if want == 0 {
		return nc.SetReadDeadline(time.Time{})
	}
	return nc.SetReadDeadline(epoch.Add(time.Duration(want)))
}

// epoch is what read deadlines count from, by the clock that never jumps.
var epoch = time.Now()

// sinceEpoch is t in nanoseconds after epoch; 0 stands for no deadline.
func sinceEpoch(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	if d := t.Sub(epoch); d != 0 {
		return int64(d)
	}
	return 1
}

// answerWith puts header lines, each with its end of line, into the head of the
// answer that is about to be written. net/http would take two maps for them and
// sort their names.
func (c *conn) answerWith(lines []byte) { c.lines = lines }

// writeStep is how much must leave within Limits.WriteStep.
const writeStep = 64 << 10

// Write writes b in steps, each with its time to leave.
func (c *conn) Write(b []byte) (int, error) {
	out := b
	if len(c.lines) > 0 {
		head := bytes.IndexByte(b, '\n') + 1 // the status line
		c.whole = append(append(append(c.whole[:0], b[:head]...), c.lines...), b[head:]...)
		out, c.lines = c.whole, c.lines[:0]
	} else if status, f, ok := plainAnswer(b); ok {
		c.l.metrics.refused(areaConnection, f.code)
		out = rawAnswer(status, f)
	}
	n, err := c.write(out)
	if err != nil {
		return min(n, len(b)), err
	}
	return len(b), nil
}

// SetWriteDeadline does nothing: write sets the deadlines, and net/http, which
// clears them after each request, would clear one that is to be used again.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

func (c *conn) write(b []byte) (written int, err error) {
	for {
		// A deadline costs about as much as a small answer's copy: an armed one
		// is used again while at least three quarters of its time are left.
		step, now := c.l.limits.WriteStep, c.now
		if c.large && c.l.crowded() {
			step /= hurry
		}
		if c.now = (time.Time{}); now.IsZero() {
			now = time.Now()
		}
		if left := c.writeBy.Sub(now); left < step-step/4 || left > step {
			c.writeBy = now.Add(step)
			if err := c.Conn.SetWriteDeadline(c.writeBy); err != nil {
				return written, err
			}
		}
		n, err := c.Conn.Write(b[written:min(len(b), written+writeStep)])
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

// expectHead begins the one answer of net/http to a request that it could parse:
// an Expect header that it does not know. No handler answers 417.
var expectHead = []byte("HTTP/1.1 417 ")

// plainAnswer recognises such an answer and says it anew.
func plainAnswer(b []byte) (status string, f failure, ok bool) {
	const version = "HTTP/1.1 "
	if bytes.HasPrefix(b, expectHead) {
		return "417 Expectation Failed", failureOf(errcode.New(errcode.InvalidArgument, "the header Expect is not known here; send 100-continue, or none")), true
	}
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
