package client

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Handler works on one record. When it returns nil the record is acked; an error,
// a panic and runtime.Goexit give it back. Its context ends when the lease is
// lost, with an error of code Gone as its cause, and when the Consumer has to
// stop at once.
type Handler func(ctx context.Context, m Message) error

// Consumer leases the records of a topic and hands each to a handler. It renews
// the leases meanwhile and settles the records afterwards: delivery is at least
// once, so a handler must bear to see a record again.
//
// Run owns its goroutines: the handlers', one that renews and one that settles.
type Consumer struct {
	c       *Client
	topic   string
	handler Handler
	o       ConsumerOptions

	used      atomic.Bool
	stop      chan struct{} // closed when Close begins
	stopOnce  sync.Once
	abort     chan struct{} // closed when Close may not wait longer
	abortOnce sync.Once
	ended     chan struct{} // closed when Run has ended

	visibility atomic.Int64 // of the topic, in nanoseconds
	stale      atomic.Bool  // the visibility timeout has to be asked again
	stopping   atomic.Bool  // records that wait for a handler go back
	queue      chan *lease  // capacity InFlight
	workers    sync.WaitGroup
	keeper     keeper
	settler    settler

	mu       sync.Mutex
	inFlight int
	freed    chan struct{} // capacity 1
}

// NewConsumer returns a consumer of a topic. Nothing happens before Run.
func (c *Client) NewConsumer(topic string, h Handler, o ConsumerOptions) (*Consumer, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if h == nil {
		return nil, errcode.New(errcode.InvalidArgument, "a consumer of %q needs a handler", topic)
	}
	q := &Consumer{
		c: c, topic: topic, handler: h, o: o,
		stop: make(chan struct{}), abort: make(chan struct{}), ended: make(chan struct{}),
		queue: make(chan *lease, o.InFlight), freed: make(chan struct{}, 1),
	}
	visibility := func() time.Duration { return time.Duration(q.visibility.Load()) }
	q.keeper = keeper{
		visibility: visibility, lostLease: q.lose, wake: make(chan struct{}, 1),
		settle: func(ctx context.Context, handles []string, patience time.Duration) ([]error, error) {
			return q.settle(ctx, handles, SettleExtend, 0, patience)
		},
	}
	q.settler = settler{
		settle: q.settle, settled: q.settled, retry: c.retry, wake: make(chan struct{}, 1),
		patience: func() time.Duration { return visibility() / 6 },
	}
	return q, nil
}

// settle is one try, which ends in time for another.
func (q *Consumer) settle(ctx context.Context, handles []string, action SettleAction, d, patience time.Duration) ([]error, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	errs, err := q.c.settleBatch(bounded, q.topic, handles, action, d, Retry{Tries: 1})
	return errs, err
}

// Run takes records until Close is called or ctx ends, and then returns nil; or
// until the node says that it never can: the topic is not there, the credentials
// are wrong. It may be called once.
//
// When ctx ends the contexts of the handlers end with it. Run returns when every
// handler has, and what they have done is settled.
func (q *Consumer) Run(ctx context.Context) error {
	if q.used.Swap(true) {
		return errcode.New(errcode.InvalidArgument, "this consumer of %q has run already", q.topic)
	}
	defer close(q.ended)
	handling, cancel := context.WithCancel(ctx)
	defer cancel()
	polling, stop := context.WithCancel(handling)
	defer stop()
	settling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-q.stop:
			stop()
		case <-polling.Done():
			return
		}
		select {
		case <-q.abort:
			cancel()
		case <-handling.Done():
		}
	}()
	if err := q.askVisibility(polling); err != nil {
		cancel()
		<-watched
		if polling.Err() != nil && errcode.Is(err, errcode.Canceled) {
			return nil
		}
		return err
	}
	var background sync.WaitGroup
	keeping, endKeeping := context.WithCancel(settling)
	background.Go(func() { q.keeper.run(keeping) })
	background.Go(func() { q.settler.run(settling) })
	for range q.o.Handlers {
		q.workers.Go(q.work)
	}
	err := q.poll(polling, handling)
	q.stopping.Store(true)
	close(q.queue)
	for l := range q.queue {
		q.finish(l, errNotHandled)
	}
	q.workers.Wait()
	q.settler.close()
	if handling.Err() != nil {
		grace := time.AfterFunc(settleGrace, giveUp)
		defer grace.Stop()
	} else {
		defer context.AfterFunc(handling, giveUp)()
	}
	endKeeping()
	background.Wait()
	cancel()
	<-watched
	return err
}

// Close takes no more records, gives back those that wait for a handler, lets the
// running handlers end, settles what they have done, and waits for Run to return.
// When ctx ends first, the handlers' contexts end; Close still waits for them.
func (q *Consumer) Close(ctx context.Context) error {
	q.stopOnce.Do(func() { close(q.stop) })
	if !q.used.Swap(true) {
		close(q.ended) // Run was never called, and cannot be now
		return nil
	}
	select {
	case <-q.ended:
		return nil
	case <-ctx.Done():
	}
	q.abortOnce.Do(func() { close(q.abort) })
	<-q.ended
	return errcode.Wrap(errcode.Canceled, ctx.Err(), "close the consumer of %q", q.topic)
}

// askVisibility reads how long a lease of the topic lasts.
func (q *Consumer) askVisibility(ctx context.Context) error {
	for try := 1; ; try++ {
		info, err := q.c.Topic(ctx, q.topic)
		if err == nil {
			q.visibility.Store(max(info.VisibilityTimeoutMS, 1) * int64(time.Millisecond))
			return nil
		}
		if ctx.Err() != nil || !harmless.may(err) {
			return errcode.Wrap(errcode.Internal, err, "consume %q", q.topic)
		}
		q.report(nil, err, "ask for the topic")
		if !q.pause(ctx, try, err) {
			return errcode.Wrap(errcode.Canceled, ctx.Err(), "consume %q", q.topic)
		}
	}
}

// pause waits as the node asks for, however often it was tried: a Consumer goes
// on until it is closed.
func (q *Consumer) pause(ctx context.Context, try int, err error) bool {
	r := q.c.retry
	r.patient = true
	d, _ := r.pause(try, err)
	return sleep(ctx, d)
}

// poll takes records as long as there is room for them.
func (q *Consumer) poll(ctx, handling context.Context) error {
	o := ConsumeOptions{Partition: q.o.Partition, Wait: q.o.Wait}
	for try := 0; ; {
		o.Max = q.free(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if q.stale.Swap(false) {
			if err := q.askVisibility(ctx); err != nil {
				return q.ending(ctx, err)
			}
		}
		asked := time.Now()
		msgs, err := q.c.consume(ctx, q.topic, o, Retry{Tries: 1})
		for i := range msgs {
			q.accept(handling, msgs[i])
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !harmless.may(err):
			return q.ending(ctx, err)
		case err != nil:
			q.report(nil, err, "consume")
		case len(msgs) > 0 || time.Since(asked) >= q.o.Wait/2:
			try = 0
			continue
		}
		// It failed, or came back empty at once as from a node that stops.
		try++
		q.pause(ctx, try, err)
	}
}

// ending is the error with which a Consumer ends by itself.
func (q *Consumer) ending(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return errcode.Wrap(errcode.Internal, err, "consume %q", q.topic)
}

// free waits until some more records may be in flight and says how many. Waiting
// for half of those that would wait for a handler makes for fewer requests, and
// no handler waits meanwhile.
func (q *Consumer) free(ctx context.Context) int {
	least := max(1, (q.o.InFlight-q.o.Handlers)/2)
	for {
		q.mu.Lock()
		n := q.o.InFlight - q.inFlight
		q.mu.Unlock()
		if n >= least {
			return min(n, maxHandles)
		}
		select {
		case <-q.freed:
		case <-ctx.Done():
			return 0
		}
	}
}

// accept puts a record into the queue, which has room for all that are in flight.
func (q *Consumer) accept(handling context.Context, m Message) {
	l := &lease{m: m}
	l.ctx, l.cancel = context.WithCancelCause(handling)
	q.mu.Lock()
	q.inFlight++
	q.mu.Unlock()
	q.keeper.hold(l)
	q.queue <- l
}

// leave counts a record out.
func (q *Consumer) leave() {
	q.mu.Lock()
	q.inFlight--
	q.mu.Unlock()
	select {
	case q.freed <- struct{}{}:
	default:
	}
}

var (
	errNotHandled = errors.New("not handled")
	errExited     = errcode.New(errcode.Internal, "the handler ended its goroutine (runtime.Goexit)")
)

// work handles records until the queue is closed. A handler that ends the
// goroutine gets another in its place.
func (q *Consumer) work() {
	whole := false
	defer func() {
		if !whole {
			q.workers.Go(q.work)
		}
	}()
	for l := range q.queue {
		q.handle(l)
	}
	whole = true
}

func (q *Consumer) handle(l *lease) {
	err := error(errExited)
	defer func() {
		if p := recover(); p != nil {
			err = errcode.New(errcode.Internal, "the handler panicked: %v\n%s", p, debug.Stack())
		}
		q.finish(l, err)
	}()
	if q.stopping.Load() || l.ctx.Err() != nil {
		err = errNotHandled
		return
	}
	err = q.handler(l.ctx, l.m)
}

// finish decides what becomes of a record.
func (q *Consumer) finish(l *lease, err error) {
	stopped := l.ctx.Err() != nil || q.stopping.Load()
	expires, held := q.keeper.release(l)
	l.cancel(nil)
	if !held {
		q.leave() // that the lease is lost has been reported
		return
	}
	x := settlement{l: l, action: SettleAck, expires: expires}
	switch {
	case err == nil:
	case errors.Is(err, errNotHandled), stopped && errcode.Of(err) == errcode.Canceled:
		x.action = SettleNack // at once, for others
	default:
		x.action, x.delay = SettleNack, max(0, q.o.NackDelay(l.m, err))
		q.report(l, err, "the handler failed")
	}
	q.settler.put(x)
}

// settled is called once a record is out of this Consumer's hands.
func (q *Consumer) settled(x settlement, err error) {
	if err != nil {
		q.stale.Store(q.stale.Load() || errcode.Is(err, errcode.Gone))
		what := "the record was handled, its ack failed; it may come again"
		if x.action == SettleNack {
			what = "give the record back; it comes again when its lease ends"
		}
		q.report(x.l, err, what)
	}
	q.leave()
}

// lose tells a handler that its record may be in other hands now.
func (q *Consumer) lose(l *lease, err error) {
	q.stale.Store(true)
	err = errcode.New(errcode.Gone, "the lease is lost; the record may be delivered again: %w", err)
	l.cancel(err)
	q.report(l, err, "renew a lease")
}

func (q *Consumer) report(l *lease, err error, what string) {
	e := errcode.New(errcode.Of(err), "topic %q: %s: %w", q.topic, what, err)
	if l != nil {
		e = errcode.New(e.Code, "topic %q, partition %d, offset %d: %s: %w", q.topic, l.m.Partition, l.m.Offset, what, err).
			With("partition", l.m.Partition).With("offset", l.m.Offset)
	}
	q.o.OnError(e.With("topic", q.topic))
}
