package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
)

const (
	producers   = 4
	consumers   = 2
	recordRate  = 4000 // records a second of all producers together
	batchMost   = 50
	valueMost   = 2000
	consumeMost = 40
	requestMax  = 15 * time.Second
	consumeWait = 300 * time.Millisecond
	produceWait = 3 * time.Second // the archive may be down, and there are few producers
)

// load is clients at work on one node, until stop.
type load struct {
	rig    *rig
	node   *realnode.Node
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	rate   *rate.Limiter

	archived  atomic.Int64 // answers so far
	stored    atomic.Int64
	acked     atomic.Int64
	lastError atomic.Pointer[error]
}

// startLoad starts producers and consumers.
func (r *rig) startLoad() *load {
	l := &load{rig: r, node: r.node, rate: rate.NewLimiter(recordRate, batchMost)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	r.epoch++
	for i := range producers {
		p := &producer{load: l, name: fmt.Sprintf("e%d-p%d", r.epoch, i), rng: rand.New(rand.NewPCG(r.rng.Uint64(), 2))}
		l.wg.Go(p.run)
	}
	for range consumers {
		c := &consumer{load: l, rng: rand.New(rand.NewPCG(r.rng.Uint64(), 3))}
		l.wg.Go(c.run)
	}
	return l
}

// stop ends the clients. Requests under way are broken off, so stop a load only
// after its broker has ended or when that is meant.
func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

// over says whether clients should go home.
func (l *load) over() bool {
	select {
	case <-l.ctx.Done():
		return true
	case <-l.node.Done():
		return true
	default:
		return false
	}
}

// refused judges an error. Only an answer that says the request was wrong, or
// that the broker is, fails the test; everything else is part of the game.
func (l *load) refused(what string, err error) {
	l.lastError.Store(&err)
	if unanswered(err) {
		return
	}
	if code := errcode.Of(err); code == errcode.Internal || code.Retry() == errcode.RetryNever {
		l.rig.t.Errorf("%s: %s: %v", what, code, err)
	}
}

// unanswered says whether a request broke off without an answer.
func unanswered(err error) bool {
	var transport *url.Error
	return errors.As(err, &transport) || errcode.Is(err, errcode.Canceled) || strings.Contains(err.Error(), "broke off")
}

// producer sends records, one request after the other.
type producer struct {
	load *load
	name string
	rng  *rand.Rand
	sent int
}

func (p *producer) run() {
	for !p.load.over() {
		n := 1
		if p.rng.IntN(4) == 0 {
			n = 1 + p.rng.IntN(batchMost)
		}
		if p.load.rate.WaitN(p.load.ctx, n) != nil {
			return
		}
		records := make([]broker.Record, n)
		for i := range records {
			records[i] = p.next()
		}
		if n == 1 {
			p.one(records[0])
		} else {
			p.batch(records)
		}
	}
}

// next makes a record with a name of its own.
func (p *producer) next() broker.Record {
	p.sent++
	value := fmt.Appendf(nil, "%s-%d ", p.name, p.sent)
	for end := len(value) + p.rng.IntN(valueMost); len(value) < end; {
		value = fmt.Appendf(value, "%x", p.rng.Uint64())
	}
	r := broker.Record{Value: value}
	switch p.rng.IntN(10) {
	case 0: // no key
	case 1:
		r.Key = []byte{}
	default:
		r.Key = fmt.Appendf(nil, "key-%d", p.rng.IntN(1000))
	}
	return r
}

func (p *producer) ack() broker.Ack {
	switch n := p.rng.IntN(20); {
	case n == 0:
		return broker.AckArchived
	case n < 10:
		return broker.AckAccepted
	default:
		return broker.AckCommitted
	}
}

func level(ack broker.Ack) history.Level {
	if ack == broker.AckArchived {
		return history.Archived
	}
	return history.Stored
}

func (p *producer) one(rec broker.Record) {
	h, ack := p.load.rig.history, p.ack()
	ctx, cancel := context.WithTimeout(p.load.ctx, requestMax)
	defer cancel()
	sent := h.Now()
	got, err := p.load.node.Produce(ctx, topic, rec, client.ProduceOptions{Ack: ack, Wait: produceWait})
	out := history.Produce{
		Record: identity(rec.Key, rec.Value), Sent: sent, Answered: history.Never,
		Place: history.Place{Partition: history.AnyPartition, Offset: history.Nowhere},
	}
	if err != nil {
		p.load.refused("produce", err)
		h.Produced(out)
		return
	}
	out.Level, out.Answered = level(ack), h.Now()
	out.Place = history.Place{Partition: int32(got.Partition), Offset: got.Offset}
	p.count(ack)
	h.Produced(out)
	if ack == broker.AckArchived && !got.Archived {
		p.load.rig.t.Errorf("ack=archived was answered with %+v", got)
	}
}

func (p *producer) count(ack broker.Ack) {
	p.load.stored.Add(1)
	if ack == broker.AckArchived {
		p.load.archived.Add(1)
	}
}

// batch sends records together. The answer tells where they are at every level
// but accepted.
func (p *producer) batch(records []broker.Record) {
	h, ack := p.load.rig.history, p.ack()
	ctx, cancel := context.WithTimeout(p.load.ctx, requestMax)
	defer cancel()
	sent := h.Now()
	got, err := p.load.node.ProduceBatch(ctx, topic, records, client.ProduceOptions{Ack: ack, Wait: produceWait})
	answered, lvl := h.Now(), level(ack)
	if err != nil {
		p.load.refused("produce a batch", err)
		answered, lvl = history.Never, history.Unknown
	} else {
		p.count(ack)
		if got.Accepted != len(records) {
			p.load.rig.t.Errorf("a batch of %d was answered with %+v", len(records), got)
		}
	}
	places := placesOf(records, got.Partitions)
	for i, rec := range records {
		h.Produced(history.Produce{Record: identity(rec.Key, rec.Value), Level: lvl, Place: places[i], Sent: sent, Answered: answered})
	}
}

// placesOf deals the runs of a batch's answer to its records: those of one
// partition have the run's offsets in their order. Records without a key share
// the partition that the broker chose: the one whose run is longer than its keys
// account for. Without runs all places stay open.
func placesOf(records []broker.Record, runs []broker.Placement) []history.Place {
	out := make([]history.Place, len(records))
	keyed := map[uint32]int{}
	for i := range out {
		out[i] = history.Place{Partition: history.AnyPartition, Offset: history.Nowhere}
		if records[i].Key != nil {
			keyed[broker.PartitionForKey(records[i].Key, partitions)]++
		}
	}
	chosen := int32(-1) // of the records without a key
	for _, run := range runs {
		if run.Count != keyed[run.Partition] {
			chosen = int32(run.Partition)
		}
	}
	next := map[int32]int64{}
	for _, run := range runs {
		next[int32(run.Partition)] = run.FirstOffset
	}
	for i := range records {
		p := chosen
		if records[i].Key != nil {
			p = int32(broker.PartitionForKey(records[i].Key, partitions))
		}
		if offset, ok := next[p]; ok {
			out[i] = history.Place{Partition: p, Offset: offset}
			next[p]++
		}
	}
	return out
}

// consumer takes records and settles most of them.
type consumer struct {
	load *load
	rng  *rand.Rand
}

func (c *consumer) run() {
	for !c.load.over() {
		if c.load.take(1+c.rng.IntN(consumeMost), c.rng) != nil && c.load.rate.Wait(c.load.ctx) != nil {
			return
		}
	}
}

// take consumes up to most records and settles them; rng nil settles all.
func (l *load) take(most int, rng *rand.Rand) error {
	h := l.rig.history
	ctx, cancel := context.WithTimeout(l.ctx, requestMax)
	defer cancel()
	asked := h.Now()
	got, err := l.node.Consume(ctx, topic, client.ConsumeOptions{Max: most, Wait: consumeWait})
	if err != nil {
		l.refused("consume", err)
		return err
	}
	if len(got) == 0 {
		return nil
	}
	for _, m := range got {
		h.Delivered(placeOf(m), identity(m.Key, m.Value), asked)
	}
	if rng == nil {
		return l.settle(ctx, got)
	}
	switch rng.IntN(10) {
	case 0: // a consumer that dies: the leases end by themselves
		return nil
	case 1:
		if err := l.node.Settle(ctx, topic, got[0].Handle, broker.SettleNack, 0); err != nil && !errcode.Is(err, errcode.Gone) {
			l.refused("nack", err)
		}
		return l.settle(ctx, got[1:])
	case 2:
		return l.settleOne(ctx, got[0])
	default:
		return l.settle(ctx, got)
	}
}

func placeOf(m broker.Message) history.Place {
	return history.Place{Partition: int32(m.Partition), Offset: m.Offset}
}

func (l *load) settleOne(ctx context.Context, m broker.Message) error {
	err := l.node.Ack(ctx, topic, m.Handle)
	l.acknowledged(m, err)
	return err
}

func (l *load) settle(ctx context.Context, list []broker.Message) error {
	if len(list) == 0 {
		return nil
	}
	handles := make([]string, len(list))
	for i := range list {
		handles[i] = list[i].Handle
	}
	errs, err := l.node.AckBatch(ctx, topic, handles)
	for i := range list {
		one := err
		if err == nil {
			one = errs[i]
		}
		l.acknowledged(list[i], one)
	}
	return err
}

// acknowledged records the answer to an ack. A lease that is over settles
// nothing.
func (l *load) acknowledged(m broker.Message, err error) {
	switch {
	case err == nil:
		l.acked.Add(1)
		l.rig.history.Acked(placeOf(m), true)
	case errcode.Is(err, errcode.Gone):
	default:
		l.refused("ack", err)
		l.rig.history.Acked(placeOf(m), false)
	}
}
