package api

import (
	"context"
	"sync"
	"time"
)

// late are the connections whose end waits for the answer to a common request, of
// which net/http does not know.
type late struct {
	mu    sync.Mutex
	conns map[*conn]struct{}
}

// puts puts the end of c off, if it is serving.
func (l *late) puts(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.turn.CompareAndSwap(serving, leaving) {
		return false
	}
	if l.conns == nil {
		l.conns = make(map[*conn]struct{})
	}
	l.conns[c] = struct{}{}
	return true
}

// left is called when the answer has been given: c ends now.
func (l *late) left(c *conn) {
	_ = c.end() // nobody waits for what it says
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// wait returns when none is left, or with ctx's error.
func (l *late) wait(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for l.count() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (l *late) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// close ends them as they are.
func (l *late) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.end() // the answer is lost either way
	}
}
