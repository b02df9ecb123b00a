package api

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// conn gives every piece of an answer its own time to leave, lingers before it
// closes on a client that still sends, turns the plain answers that net/http
// writes by itself into JSON (plain.go), and spares requests what net/http does for
// every one and few need: the watch for the client's end (watch.go), and answers
// that are put together in maps (answer.go).
type conn struct {
	net.Conn
	l       *listener
	closed  atomic.Bool
	reads   readDeadline
	ahead   []byte    // what a watch has read of the next request, one byte at most
	writeBy time.Time // the armed deadline; only the serving goroutine writes
	now     time.Time // when the running request's handler ended; zero before
	large   bool      // the running request takes of the budget of large answers
	next    nextAnswer

	phase    phase
	turn     atomic.Int32 // whose the connection is: resting, serving or leaving
	requests *common      // nil before the first one
}

// The values of conn.turn.
const (
	resting = iota // net/http may close it
	serving        // a common request is being answered
	leaving        // and then it is closed
)

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

// Read reads what net/http asks for.
func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 1 && c.reads.want.Load() == 0 {
		return 0, nil // it watches; see watch
	}
	if c.phase == waits && len(b) == readAhead {
		return c.readNext(b)
	}
	return c.readOn(b)
}

// readOn reads what a watch has read, or from the connection.
func (c *conn) readOn(b []byte) (int, error) {
	if len(c.ahead) == 0 {
		return c.read(b)
	}
	n := copy(b, c.ahead)
	c.ahead = c.ahead[n:]
	return n, nil
}

func (c *conn) read(b []byte) (int, error) {
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
	if c.phase == answered {
		c.phase = waits
	} else {
		c.phase = inRequest
	}
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
	ended bool // a watch is to end: its read has no time left, whatever was asked for
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
	if d.ended {
		want = longAgo
	}
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

// end breaks the read of a watch off, or lets reads be again.
func (d *readDeadline) end(nc net.Conn, on bool) {
	d.mu.Lock()
	d.ended = on
	d.mu.Unlock()
	if on {
		_ = d.arm(nc) // fails on a closed connection, whose reads have ended
	}
}

// longAgo is a deadline that is over, see sinceEpoch.
const longAgo = -int64(time.Hour)

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

// writeStep is how much must leave within Limits.WriteStep.
const writeStep = 64 << 10

// Write writes what net/http has for the client.
func (c *conn) Write(b []byte) (int, error) {
	var err error
	if c.next.set() {
		err = c.next.write(c, b)
	} else if status, f, ok := plainAnswer(b); ok {
		c.l.metrics.refused(areaConnection, f.code)
		_, err = c.write(rawAnswer(status, f))
	} else {
		return c.write(b)
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// SetWriteDeadline does nothing: write sets the deadlines, and net/http, which
// clears them after each request, would clear one that is to be used again.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// write writes b in steps, each with its time to leave.
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

// Close closes the connection. Between two requests of its own net/http may do so
// while a common one is answered: then it is closed behind that answer.
func (c *conn) Close() error {
	if c.l.server.late.puts(c) {
		return nil
	}
	return c.end()
}

// end closes the connection and counts it out, once.
func (c *conn) end() error {
	if c.closed.CompareAndSwap(false, true) {
		c.l.open.Add(-1)
		c.l.metrics.connections.Dec()
	}
	return c.Conn.Close()
}
