package state

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// guard stands between the node and a Pebble that calls its fatal hook: when a
// sync of its log or manifest failed, or a file of it is damaged. Pebble goes on
// as if nothing had happened when the hook returns, so it does not: the calling
// goroutine stays in it until the database is closed, and callers outside get
// the error. That is final until a restart (I5).
type guard struct {
	tripped chan struct{} // closed by the first fatal error
	closed  chan struct{} // closed by release

	mu struct {
		sync.Mutex
		err      *errcode.Error
		released bool
	}
}

func newGuard() *guard { return &guard{tripped: make(chan struct{}), closed: make(chan struct{})} }

// err returns the first fatal error, or nil.
func (g *guard) err() error {
	select {
	case <-g.tripped:
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.mu.err
	default:
		return nil
	}
}

func (g *guard) trip(msg string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.err == nil {
		g.mu.err = errcode.New(errcode.Poisoned, "the local state failed on disk, nothing is accepted until the process is restarted; look at the disk first: %s", msg)
		close(g.tripped)
	}
}

// release ends the goroutines that are inside the hook, now and later.
func (g *guard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.mu.released {
		g.mu.released = true
		close(g.closed)
	}
}

// run calls fn, which uses Pebble, on a goroutine of its own. It returns fn's
// error, or the fatal one: then fn may still be inside Pebble.
func (g *guard) run(fn func() error) error {
	if err := g.err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		if fatal := g.err(); fatal != nil {
			return fatal
		}
		return err
	case <-g.tripped:
		return g.err()
	}
}

// pebbleLogger keeps Pebble's routine messages at debug level and its fatal
// ones in the guard.
type pebbleLogger struct {
	l *slog.Logger
	g *guard
}

func (p pebbleLogger) Infof(format string, args ...any) {
	p.l.Debug("pebble: " + fmt.Sprintf(format, args...))
}

func (p pebbleLogger) Errorf(format string, args ...any) {
	p.l.Error("pebble: " + fmt.Sprintf(format, args...))
}

func (p pebbleLogger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	p.l.Error("the local state failed on disk, nothing is accepted until a restart", "error", msg)
	p.g.trip(msg)
	<-p.g.closed
	runtime.Goexit()
}
