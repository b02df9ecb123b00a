package api

import (
	"crypto/tls"
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
	server  *Server
	tls     *tls.Config // nil: plain
	limits  *Limits
	metrics *metrics
	crowded func() bool // large answers have to hurry
	open    atomic.Int64
	turning chan struct{}  // one place per connection that is being turned away
	turned  sync.WaitGroup // those connections
}

func newListener(ln net.Listener, s *Server) *listener {
	return &listener{
		Listener: ln, server: s, tls: s.opts.TLS, limits: &s.limits, metrics: s.metrics, crowded: s.crowded,
		turning: make(chan struct{}, s.limits.RefusalsAtATime),
	}
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
			return &conn{Conn: l.secured(nc), l: l}, nil
		}
		l.open.Add(-1)
		l.metrics.turnedAway.Inc()
		l.metrics.refused(areaConnection, errcode.Overloaded)
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
		nc := l.secured(nc) // a handshake, within the same second
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
