package api

import (
	"context"
	"sync/atomic"
)

// While a handler runs, net/http watches the connection for its end with a read of
// one byte, on a goroutine of its own, and breaks that off with two deadlines: an
// eighth of what a produce costs, and most requests are answered before anybody
// could leave. It reads requests under a deadline and watches under none, so
// conn.Read knows the watch and answers it at once, with nothing. A request that
// waits watches by itself.

// client returns a context that ends when the client goes away. A client that has
// closed its sending side counts as gone, one that has sent its next request as
// present. The first call begins the watch, which lasts until the handler returns.
func (x *exchange) client() context.Context {
	switch {
	case x.conn == nil: // the listener is not ours: net/http watches
		return x.r.Context()
	case x.here == nil:
		ctx, cancel := context.WithCancel(x.r.Context())
		end := x.conn.watch(cancel)
		x.here, x.unwatch = ctx, func() { end(); cancel() }
	}
	return x.here
}

// watch calls gone when the connection ends before the watch does.
func (c *conn) watch(gone func()) (stop func()) {
	if len(c.ahead) > 0 {
		return func() {}
	}
	var stopped atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		var b [1]byte
		switch n, err := c.read(b[:]); {
		case n == 1:
			c.ahead = append(c.ahead[:0], b[0])
		case err != nil && !stopped.Load():
			gone()
		}
	}()
	return func() {
		stopped.Store(true)
		c.reads.end(c.Conn, true)
		<-done
		c.reads.end(c.Conn, false)
	}
}
