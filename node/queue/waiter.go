package queue

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// waiter is a parked consume call. It stands in exactly one list of its group,
// until somebody hands it something, ends it, or it leaves by itself.
type waiter struct {
	max     int
	arrival uint64
	place   node[waiter]
	out     []Delivery    // handed to it, leased
	err     error         // why it was sent away
	wake    chan struct{} // capacity 1; a token is put in when it is taken from its list
	timer   *time.Timer
}

// leave takes w out of its list and wakes its goroutine; under the group's lock.
func (w *waiter) leave() {
	w.place.unlink()
	w.wake <- struct{}{} // never blocks: only who takes it from the list does this, once
}

func (e *Engine) newWaiter() *waiter {
	if w, ok := e.waiters.Get().(*waiter); ok {
		return w
	}
	w := &waiter{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.place.owner = w
	w.timer.Stop()
	return w
}

func (e *Engine) freeWaiter(w *waiter) {
	w.out, w.err = nil, nil
	e.waiters.Put(w)
}

// park waits for a record. The group's lock is held when it is called, and
// not when it returns.
func (g *group) park(ctx context.Context, req *Request) ([]Delivery, error) {
	e := g.e
	if e.parked.Add(1) > int64(e.opt.MaxWaiters) {
		e.parked.Add(-1)
		g.mu.Unlock()
		return nil, errcode.New(errcode.Overloaded, "%d consume calls wait on this node already; try again, or ask with a shorter wait", e.opt.MaxWaiters).After(time.Second)
	}
	defer e.parked.Add(-1)
	w := e.newWaiter()
	g.arrival++
	w.max, w.arrival = req.Max, g.arrival
	if req.Partition == AnyPartition {
		g.anyone.pushBack(&w.place)
	} else {
		g.cursors[req.Partition].pinned.pushBack(&w.place)
	}
	g.mu.Unlock()

	w.timer.Reset(req.Wait)
	select {
	case <-w.wake:
		w.timer.Stop()
	case <-ctx.Done():
		w.timer.Stop()
		g.withdraw(w)
	case <-w.timer.C:
		g.withdraw(w)
	}
	out, err := w.out, w.err
	e.freeWaiter(w)
	if cause := ctx.Err(); cause != nil && err == nil {
		// The caller left; whatever was handed to it in the same moment goes
		// to the next one as if it had never been (B84).
		g.release(out)
		return nil, errcode.Wrap(errcode.Canceled, cause, "wait for a record of topic %v, group %s", g.topic, g.name)
	}
	return out, err
}

// withdraw takes w out of its list, or, when somebody was faster, takes the
// token that says so.
func (g *group) withdraw(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.place.in != nil {
		w.place.unlink()
		return
	}
	<-w.wake
}

// sendAway ends every waiter of the list with err; under the group's lock.
func sendAway(l *list[waiter], err error) {
	for w := l.front(); w != nil; w = l.front() {
		w.err = err
		w.leave()
	}
}
