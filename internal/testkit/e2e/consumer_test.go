package e2e

import (
	"context"
	"math/rand/v2"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

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
