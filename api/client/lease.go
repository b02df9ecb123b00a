package client

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// lease is one record in a Consumer's hands.
type lease struct {
	m      Message
	ctx    context.Context // of its handler
	cancel context.CancelCauseFunc

	// The keeper's, under its lock.
	expires time.Time // when the record goes to others, as far as is known here
	due     time.Time // when to renew
	place   *list.Element
	lost    bool
}

// keeper renews the leases of a Consumer from their arrival until their handler
// has ended: after a third of the visibility timeout, all that are due in one
// request. A lease that is gone is given up, and its handler is told. It has one
// goroutine, run.
type keeper struct {
	settle     func(ctx context.Context, handles []string, patience time.Duration) ([]error, error) // extends
	lostLease  func(*lease, error)
	visibility func() time.Duration
	wake       chan struct{} // capacity 1

	mu   sync.Mutex
	held list.List // of *lease, by due; bounded by the Consumer's records in flight
}

// hold begins to renew a lease that arrived now.
func (k *keeper) hold(l *lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, v := time.Now(), k.visibility()
	l.expires, l.due = now.Add(v), now.Add(v/3)
	k.putLocked(l)
}

// putLocked keeps the order: nearly always the new lease is due last.
func (k *keeper) putLocked(l *lease) {
	at := k.held.Back()
	for at != nil && at.Value.(*lease).due.After(l.due) {
		at = at.Prev()
	}
	if at != nil {
		l.place = k.held.InsertAfter(l, at)
		return
	}
	l.place = k.held.PushFront(l)
	select {
	case k.wake <- struct{}{}: // it is due first
	default:
	}
}

// release ends the renewing and says until when the lease holds; false: it is
// lost already.
func (k *keeper) release(l *lease) (expires time.Time, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.place != nil {
		k.held.Remove(l.place)
		l.place = nil
	}
	ok = !l.lost
	l.lost = true // a renewal under way does not bring it back
	return l.expires, ok
}

// run renews until ctx ends.
func (k *keeper) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(k.untilDue())
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
			k.renew(ctx)
		}
	}
}

func (k *keeper) untilDue() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if front := k.held.Front(); front != nil {
		return time.Until(front.Value.(*lease).due)
	}
	return time.Hour
}

// renew extends what is due, in turns of as many as one request takes.
func (k *keeper) renew(ctx context.Context) {
	v := k.visibility()
	for ctx.Err() == nil {
		due := k.due(time.Now().Add(v / 24))
		if len(due) == 0 {
			return
		}
		handles := make([]string, len(due))
		for i, l := range due {
			handles[i] = l.m.Handle
		}
		sent := time.Now()
		errs, err := k.settle(ctx, handles, v/6)
		for i, l := range due {
			one := err
			if err == nil {
				one = errs[i]
			}
			k.renewed(l, one, sent, v)
		}
	}
}

// due takes the leases out that have to be renewed by a time.
func (k *keeper) due(by time.Time) (due []*lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for front := k.held.Front(); front != nil && len(due) < maxHandles; front = k.held.Front() {
		l := front.Value.(*lease)
		if l.due.After(by) {
			break
		}
		k.held.Remove(front)
		l.place = nil
		due = append(due, l)
	}
	return due
}

// renewed puts a lease back, or gives it up. A renewal that failed for now is
// tried again while the lease may hold.
func (k *keeper) renewed(l *lease, err error, sent time.Time, v time.Duration) {
	now := time.Now()
	k.mu.Lock()
	switch {
	case l.lost: // released meanwhile
		k.mu.Unlock()
		return
	case err == nil:
		l.expires, l.due = sent.Add(v), sent.Add(v/3)
	case !harmless.may(err):
		l.lost = true
	case !now.Before(l.expires):
		l.lost = true
		err = errcode.New(errcode.Gone, "the lease could not be renewed in time: %w", err)
	default:
		l.due = now.Add(v / 12)
		if l.due.After(l.expires) {
			l.due = l.expires
		}
	}
	if l.lost {
		k.mu.Unlock()
		k.lostLease(l, err)
		return
	}
	k.putLocked(l)
	k.mu.Unlock()
}
