package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Producer collects records of one topic into batches and sends them, one batch
// at a time and in the order in which Send took them: records of one partition,
// so those of one key, keep their order. The one exception is a batch whose fate
// is unknown: with AtLeastOnce its records may stand twice, and a node that is
// still at work on the lost try may store them behind later ones.
//
// A record that the node finds fault with fails alone; the rest of its batch is
// sent without it.
//
// It is safe for concurrent use and has one goroutine, which Close waits for.
type Producer struct {
	c       *Client
	topic   string
	o       ProducerOptions
	request request
	safety  safety
	retry   Retry
	records *semaphore.Weighted
	bytes   *semaphore.Weighted

	ctx     context.Context // of requests; ends when Close may not wait longer
	abort   context.CancelFunc
	closing context.Context // of waiting Sends; ends when Close begins
	close   context.CancelFunc
	wake    chan struct{} // capacity 1: the sender looks again
	ended   chan struct{} // closed when the sender has ended

	// The sender's own.
	partitions uint32        // of the topic, 0 = not asked yet
	last       error         // what the last try met
	encoder    *zstd.Encoder // nil: bodies go as they are

	mu struct {
		sync.Mutex
		open    *pending   // takes records
		queue   []*pending // full ones, in order; bounded by the buffer
		sending *pending
		hurry   bool // open is sent without lingering
		closed  bool
		failed  int // records since the last Flush
		failure error
		hint    int // bytes of the last full batch
	}
}

// NewProducer returns a producer to a topic. Nothing is sent yet.
func (c *Client) NewProducer(topic string, o ProducerOptions) (*Producer, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, errcode.Wrap(errcode.InvalidArgument, err, "producer to %q", topic)
	}
	p := &Producer{
		c: c, topic: topic, o: o, retry: c.retry,
		records: semaphore.NewWeighted(int64(o.BufferRecords)), bytes: semaphore.NewWeighted(o.BufferBytes),
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	if o.Compress {
		var err error
		if p.encoder, err = newEncoder(); err != nil {
			return nil, err
		}
	}
	p.retry.patient = true
	po := ProduceOptions{Partition: o.Partition, Ack: o.Ack, Wait: o.AckWait, AtLeastOnce: o.AtLeastOnce}
	p.safety = po.safety()
	p.request = request{path: batchPath(topic), query: po.query(), safety: once}
	p.ctx, p.abort = context.WithCancel(context.Background())
	p.closing, p.close = context.WithCancel(p.ctx)
	go p.run()
	return p, nil
}

// Send takes a record; key, value and headers are copied. An error means that
// the record was not taken: ctx ended before there was room, the buffer is full
// (FullFails), the record can never fit, or the Producer is closed.
func (p *Producer) Send(ctx context.Context, rec Record) (Delivery, error) {
	return p.take(ctx, &rec, nil)
}

// SendFunc is Send with a function that hears of the record's fate, in place of
// a Delivery. It runs on the Producer's goroutine, in the records' order, and must
// not block: the next batch waits for it.
func (p *Producer) SendFunc(ctx context.Context, rec Record, done func(Delivered, error)) error {
	_, err := p.take(ctx, &rec, done)
	return err
}

func (p *Producer) take(ctx context.Context, rec *Record, call func(Delivered, error)) (Delivery, error) {
	cost := cost(rec)
	if limit := min(maxRecordCost, p.o.BufferBytes); int64(cost) > limit {
		return Delivery{}, errcode.New(errcode.TooLarge, "a record of %d bytes does not fit: the most is %d", cost, limit).With("limit", limit)
	}
	for i := range rec.Headers {
		if !utf8.ValidString(rec.Headers[i].Name) {
			return Delivery{}, errcode.New(errcode.InvalidArgument, "header name %q is not UTF-8", rec.Headers[i].Name)
		}
	}
	if err := p.room(ctx, int64(cost)); err != nil {
		return Delivery{}, err
	}
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		p.records.Release(1)
		p.bytes.Release(int64(cost))
		return Delivery{}, p.errClosed()
	}
	look := false
	if b := p.mu.open; b != nil && b.cost+cost > p.o.BatchBytes {
		p.sealLocked()
		look = true
	}
	b := p.mu.open
	if b == nil {
		b = newPending(time.Now(), max(p.mu.hint, cost))
		p.mu.open, look = b, true
	}
	i := b.add(rec, call)
	b.cost += cost
	if b.count() >= p.o.BatchRecords || b.cost >= p.o.BatchBytes {
		p.sealLocked()
		look = true
	}
	p.mu.Unlock()
	if look {
		p.look()
	}
	return Delivery{b, i}, nil
}

// sealLocked lets the open batch take no more.
func (p *Producer) sealLocked() {
	p.mu.queue = append(p.mu.queue, p.mu.open)
	p.mu.hint = min(len(p.mu.open.body), p.o.BatchBytes)
	p.mu.open, p.mu.hurry = nil, false
}

// look wakes the sender.
func (p *Producer) look() {
	select {
	case p.wake <- struct{}{}:
	default: // it will look anyway
	}
}

func (p *Producer) errClosed() error {
	return errcode.New(errcode.Closed, "the producer to %q is closed", p.topic)
}

// room takes a record's place in the buffer.
func (p *Producer) room(ctx context.Context, cost int64) error {
	if p.records.TryAcquire(1) {
		if p.bytes.TryAcquire(cost) {
			return nil
		}
		p.records.Release(1)
	}
	if p.closing.Err() != nil {
		return p.errClosed()
	}
	if p.o.Full == FullFails {
		return errcode.New(errcode.TooMany, "the buffer of the producer to %q is full: %d records or %d bytes are not delivered yet", p.topic, p.o.BufferRecords, p.o.BufferBytes)
	}
	p.hurry() // what fills the buffer does not linger
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.closing, cancel)()
	err := p.records.Acquire(both, 1)
	if err == nil {
		if err = p.bytes.Acquire(both, cost); err != nil {
			p.records.Release(1)
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errcode.Wrap(errcode.Canceled, ctx.Err(), "wait for room in the buffer of the producer to %q", p.topic)
	default:
		return p.errClosed()
	}
}

// hurry ends the lingering of the open batch.
func (p *Producer) hurry() {
	p.mu.Lock()
	p.mu.hurry = p.mu.open != nil
	p.mu.Unlock()
	p.look()
}

// Flush sends what Send has taken and waits until its fate is known. It returns
// an error when records failed since the last Flush, or when ctx ended first;
// they go on then.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	last := p.mu.sending
	if n := len(p.mu.queue); n > 0 {
		last = p.mu.queue[n-1]
	}
	if p.mu.open != nil {
		last, p.mu.hurry = p.mu.open, true
	}
	p.mu.Unlock()
	p.look()
	if last != nil {
		select {
		case <-last.done:
		case <-ctx.Done():
			return errcode.Wrap(errcode.Canceled, ctx.Err(), "flush the producer to %q", p.topic)
		}
	}
	return p.failures()
}

// failures says how many records failed since it was called last.
func (p *Producer) failures() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.mu.failed, p.mu.failure
	p.mu.failed, p.mu.failure = 0, nil
	return errcode.Wrap(errcode.Internal, err, "%d records to %q were not delivered, the first of them", n, p.topic)
}

// Close takes no more records, delivers those that Send has taken, and waits for
// that. When ctx ends first, what is left fails: with the code Closed what was
// never sent, with Canceled what may have arrived. The error is that of Flush.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	p.close()
	p.look()
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.abort()
		<-p.ended
	}
	p.abort()
	return p.failures()
}

// run is the sender: it delivers one batch after the other until Close.
func (p *Producer) run() {
	defer close(p.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		b, wait, end := p.next(time.Now())
		switch {
		case end:
			return
		case b != nil:
			p.deliver(b)
			p.finish(b)
		default:
			timer.Reset(wait)
			select {
			case <-p.wake:
			case <-timer.C:
			}
		}
	}
}

// next returns the batch to send now; or how long to wait for one, unless woken;
// or that there will be none.
func (p *Producer) next(now time.Time) (b *pending, wait time.Duration, end bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = time.Hour
	if len(p.mu.queue) == 0 && p.mu.open != nil {
		wait = p.o.Linger - now.Sub(p.mu.open.born)
		if wait <= 0 || p.mu.hurry || p.mu.closed {
			p.sealLocked()
		}
	}
	if len(p.mu.queue) == 0 {
		return nil, wait, p.mu.closed && p.mu.open == nil
	}
	b = p.mu.queue[0]
	p.mu.queue[0] = nil
	p.mu.queue = p.mu.queue[1:]
	p.mu.sending = b
	return b, 0, false
}

// deliver sends a batch until its fate is known.
func (p *Producer) deliver(b *pending) {
	ctx, cancel := context.WithDeadline(p.ctx, b.born.Add(p.o.Patience))
	defer cancel()
	for try := 1; b.left() > 0; {
		if b.err = p.hopeless(ctx); b.err != nil {
			return
		}
		err := p.send(ctx, b)
		p.last = err
		if err == nil {
			return
		}
		if place, ok := faulty(err, b.left()); ok {
			b.drop(place, err)
			continue
		}
		if ctx.Err() != nil || !p.safety.may(err) || !p.retry.wait(ctx, try, err) {
			b.err = err
			return
		}
		try++
	}
}

// hopeless is the error of a batch that is not sent any more.
func (p *Producer) hopeless(ctx context.Context) error {
	switch {
	case p.ctx.Err() != nil:
		return errcode.New(errcode.Closed, "the producer to %q was closed before the record was sent", p.topic)
	case ctx.Err() != nil && p.last != nil:
		return errcode.New(errcode.Unavailable, "not sent within %s; before it: %w", p.o.Patience, p.last)
	case ctx.Err() != nil:
		return errcode.New(errcode.Unavailable, "not sent within %s: what came before it took as long", p.o.Patience)
	default:
		return nil
	}
}

// faulty reads which record of a batch the node found fault with.
func faulty(err error, count int) (place int, ok bool) {
	var e *errcode.Error
	if !errors.As(err, &e) || e.Code.Retry() != errcode.RetryNever || e.Facts["message"] == nil {
		return 0, false
	}
	place, convErr := strconv.Atoi(fmt.Sprint(e.Facts["message"]))
	return place, convErr == nil && place >= 0 && place < count
}

// send sends a batch once.
func (p *Producer) send(ctx context.Context, b *pending) error {
	r := p.request
	r.body, r.contentType = b.encode()
	plain := r
	compressed := p.compress(&r)
	got, err := p.c.batch(ctx, r)
	if compressed && errcode.Is(err, errcode.UnsupportedType) {
		p.encoder = nil // this node does not take it
		got, err = p.c.batch(ctx, plain)
	}
	if err != nil {
		return err
	}
	b.all.Archived = got.Archived
	if p.o.Partition != nil {
		b.all.Partition = int32(*p.o.Partition)
	}
	if len(got.Partitions) == 0 {
		return nil
	}
	if p.partitions == 0 && len(got.Partitions) > 1 {
		// Only for the places; without them the records are stored all the same.
		if info, err := p.c.Topic(ctx, p.topic); err == nil {
			p.partitions = info.Partitions
		}
	}
	if !b.place(got.Partitions, p.partitions, got.Archived) {
		p.partitions = 0
	}
	return nil
}

// finish makes room and tells everybody.
func (p *Producer) finish(b *pending) {
	var failed int
	var failure error
	for i := range b.ends {
		if _, err := b.result(i); err != nil {
			if failed++; failure == nil {
				failure = err
			}
		}
	}
	p.mu.Lock()
	p.mu.sending = nil
	if p.mu.failed += failed; p.mu.failure == nil {
		p.mu.failure = failure
	}
	p.mu.Unlock()
	p.records.Release(int64(b.count()))
	p.bytes.Release(int64(b.cost))
	for i := range b.ends {
		if call := b.calls[i]; call != nil {
			call(b.result(i))
		}
	}
	b.body, b.headers, b.calls = nil, nil, nil
	close(b.done)
}
