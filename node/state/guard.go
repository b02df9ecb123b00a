package state

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// guard stands between the node and a Pebble that has failed: a sync of one of its
// files failed, or a file of it is damaged. Pebble goes on as if nothing had
// happened when its fatal hook returns, and panics over some errors of the file
// system, so neither returns: the calling goroutine stays there until the
// process ends, and callers outside get the error. That is final until a restart
// (I5).
type guard struct {
	tripped chan struct{} // closed by the first fatal error

	mu struct {
		sync.Mutex
		err *errcode.Error
	}
}

func newGuard() *guard { return &guard{tripped: make(chan struct{})} }

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

// stop records a fatal error and keeps its caller, which is inside Pebble. The
// caller's locks stay locked, so it must not even be unwound.
func (g *guard) stop(msg string) {
	g.trip(msg)
	select {}
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
	p.g.stop(msg)
}
