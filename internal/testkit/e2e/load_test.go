package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
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
	records   atomic.Int64 // in those
	acked     atomic.Int64
	lastError atomic.Pointer[error]
}

// startLoad starts producers and consumers.
func (r *rig) startLoad() *load {
	l := &load{rig: r, node: r.node, rate: rate.NewLimiter(rate.Limit(cmp.Or(r.rate, recordRate)), batchMost)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	r.epoch++
	start := func(name string, acks []broker.Ack) {
		p := &producer{load: l, name: fmt.Sprintf("e%d-p%s", r.epoch, name), rng: rand.New(rand.NewPCG(r.rng.Uint64(), 2)), acks: acks}
		l.wg.Go(p.run)
	}
	acks := mixedAcks
	if r.apart {
		acks = hotAcks
		start("archived", []broker.Ack{broker.AckArchived})
	}
	for i := range producers {
		start(strconv.Itoa(i), acks)
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
	return errors.Is(err, client.ErrNoAnswer) || errcode.Is(err, errcode.Canceled)
}
