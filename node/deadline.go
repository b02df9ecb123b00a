package node

import (
	"context"
	"sync/atomic"
	"time"
)

// deadlines hands out one context for all requests of about the same moment
// that have the same parent and wait the default time: a context and a timer
// for each would cost more than the rest of the wait. A parent is known by its
// Done channel. One that comes twice in a row, as the HTTP server's own context
// does, is taken for a lasting one and gets the shared context.
type deadlines struct {
	current atomic.Pointer[sharedDeadline]
	last    atomic.Value // of <-chan struct{}: the parent of the last call without a shared context
}

type sharedDeadline struct {
	ctx    context.Context
	parent <-chan struct{}
}

// deadline bounds a wait by wait, 0 = the default. ctx may end it earlier.
func (n *Node) deadline(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	if wait == 0 {
		wait = defaultWait
	}
	if ctx.Done() == nil {
		ctx = n.base
	}
	if wait == defaultWait {
		if shared := n.deadlines.get(ctx, n.base); shared != nil {
			return shared, func() {}
		}
	}
	return context.WithTimeout(ctx, wait)
}

// get returns the shared context of the parent, or nil for one that does not
// last.
func (d *deadlines) get(parent, base context.Context) context.Context {
	done := parent.Done()
	s := d.current.Load()
	if s != nil && s.parent == done && s.ctx.Err() == nil {
		return s.ctx
	}
	if s == nil || s.parent != done {
		last, _ := d.last.Load().(<-chan struct{})
		if last != done && parent != base {
			d.last.Store(done)
			return nil
		}
	}
	// The timer ends the context by itself; parent and base end it earlier.
	ctx, cancel := context.WithTimeout(parent, defaultWait+time.Second)
	if parent != base {
		stop := context.AfterFunc(base, cancel)
		context.AfterFunc(ctx, func() { stop() })
	} else {
		context.AfterFunc(ctx, cancel)
	}
	s = &sharedDeadline{ctx, done}
	d.current.Store(s)
	// Requests that come later need a later one.
	time.AfterFunc(time.Second, func() { d.current.CompareAndSwap(s, nil) })
	return ctx
}
