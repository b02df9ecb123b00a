package client

import (
	"context"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxHandles of one request, which is the node's bound.
const maxHandles = 100

// settlement is what to do with a lease whose handler has ended.
type settlement struct {
	l       *lease
	action  SettleAction
	delay   time.Duration
	expires time.Time
	doubt   bool // an earlier try may have arrived
}

// settler acks and nacks for a Consumer: whatever has come together while one
// request was under way goes into the next. What fails for now is tried again
// until the lease ends. It has one goroutine, run.
type settler struct {
	settle   func(ctx context.Context, handles []string, action SettleAction, d, patience time.Duration) ([]error, error)
	settled  func(settlement, error) // once for each, with the last error
	patience func() time.Duration    // of one request
	retry    Retry
	wake     chan struct{} // capacity 1

	mu     sync.Mutex
	queue  []settlement // bounded by the Consumer's records in flight
	closed bool
}

func (s *settler) put(x settlement) {
	s.mu.Lock()
	s.queue = append(s.queue, x)
	s.mu.Unlock()
	s.look()
}

// close lets run end when the queue is empty.
func (s *settler) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.look()
}

func (s *settler) look() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run settles until close was called and all is done. When ctx ends, what is
// left is given up.
func (s *settler) run(ctx context.Context) {
	for try := 0; ; {
		batch, end := s.take()
		if end {
			return
		}
		if len(batch) == 0 {
			<-s.wake // close ends this wait, if nothing else does
			continue
		}
		left, err := s.send(ctx, batch)
		if len(left) < len(batch) {
			try = 0
		}
		if len(left) == 0 {
			continue
		}
		s.putBack(left)
		if try++; len(left) == len(batch) {
			d, ok := s.retry.pause(try, err)
			if !ok || d > s.patience() {
				d = s.patience() // the lease does not wait longer
			}
			sleep(ctx, d)
		}
	}
}

// take returns the next settlements that fit one request.
func (s *settler) take() (batch []settlement, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return nil, s.closed
	}
	first, rest := s.queue[0], s.queue[:0]
	for _, x := range s.queue {
		if len(batch) < maxHandles && x.action == first.action && x.delay == first.delay {
			batch = append(batch, x)
		} else {
			rest = append(rest, x)
		}
	}
	clear(s.queue[len(rest):])
	s.queue = rest
	return batch, false
}

func (s *settler) putBack(left []settlement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, left...)
}

// send settles a batch once and returns what has to be tried again, with an
// error of it.
func (s *settler) send(ctx context.Context, batch []settlement) (left []settlement, why error) {
	handles := make([]string, len(batch))
	for i := range batch {
		handles[i] = batch[i].l.m.Handle
	}
	errs, err := s.settle(ctx, handles, batch[0].action, batch[0].delay, s.patience())
	for i, x := range batch {
		one := err
		if err == nil {
			one = errs[i]
		}
		class := errcode.Of(one).Retry()
		switch {
		case one == nil:
			s.settled(x, nil)
		case errcode.Is(one, errcode.Gone) && x.doubt:
			s.settled(x, errcode.New(errcode.Gone, "an earlier try, whose answer was lost, may have settled it: %w", one))
		case class == errcode.RetryNever:
			s.settled(x, one)
		case ctx.Err() != nil || !time.Now().Before(x.expires):
			s.settled(x, errcode.Wrap(errcode.Internal, one, "could not be settled before its lease ended"))
		default:
			x.doubt = x.doubt || class == errcode.RetryUnknown
			left, why = append(left, x), one
		}
	}
	return left, why
}
