package main

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/api"
)

// Bounds of the lobby: its answers are short and need nothing, so whoever is
// slower than this, or beyond the number, is no health check.
const (
	lobbyConns = 256
	lobbyTime  = 2 * time.Second
)

// lobby answers on a listener until there is a node behind it, and hands the
// listener on: the port stays open in between, and who connects then waits for
// the node's answer.
type lobby struct {
	ln   *net.TCPListener
	tls  *tls.Config // nil: plain HTTP
	http *http.Server
	done chan struct{}

	conns     atomic.Int64
	closing   atomic.Bool
	closeOnce sync.Once
}

func openLobby(ln net.Listener, secured *tls.Config, progress func() string) *lobby {
	l := &lobby{ln: ln.(*net.TCPListener), tls: secured, done: make(chan struct{})}
	l.http = &http.Server{
		Handler: api.Starting(progress), ReadTimeout: lobbyTime, WriteTimeout: lobbyTime, MaxHeaderBytes: 16 << 10,
		ConnState: func(c net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				if l.conns.Add(1) > lobbyConns {
					_ = c.Close() // its client tries again, as one that is told to
				}
			case http.StateClosed, http.StateHijacked:
				l.conns.Add(-1)
			}
		},
	}
	l.http.SetKeepAlivesEnabled(false) // the next request may be the node's
	go func() {
		defer close(l.done)
		// It ends when close says so; a listener that breaks by itself is
		// found by the server that gets it.
		_ = l.http.Serve(lobbyDoor{l})
	}()
	return l
}

// close lets the answers under way end and gives the listener back.
func (l *lobby) close() error {
	if l == nil {
		return nil
	}
	var err error
	l.closeOnce.Do(func() {
		err = lobbyDoor{l}.Close()
		<-l.done
		// Not Shutdown, which drops requests that it has just read.
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(2 * lobbyTime); l.conns.Load() > 0 && time.Now().Before(end); {
			<-tick.C
		}
		err = errors.Join(err, l.http.Close(), l.ln.SetDeadline(time.Time{}))
	})
	return err
}

// lobbyDoor is the listener as the lobby's server sees it: closing it ends the
// wait for connections, and leaves the listener open.
type lobbyDoor struct{ l *lobby }

// Accept implements net.Listener.
func (d lobbyDoor) Accept() (net.Conn, error) {
	c, err := d.l.ln.Accept()
	switch {
	case err != nil && d.l.closing.Load():
		return nil, net.ErrClosed
	case err != nil || d.l.tls == nil:
		return c, err
	}
	return tls.Server(c, d.l.tls), nil
}

// Close implements net.Listener.
func (d lobbyDoor) Close() error {
	d.l.closing.Store(true)
	return d.l.ln.SetDeadline(time.Now())
}

// Addr implements net.Listener.
func (d lobbyDoor) Addr() net.Addr { return d.l.ln.Addr() }
