package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// churnNames is small, so that names come back as new topics.
const churnNames = 6

// known is what the churner knows of one topic.
type known struct {
	there   bool
	unsure  bool  // a create or delete had no answer
	records int64 // answered
	maybe   int64 // sent without an answer
}

// churn creates and deletes topics, with some records in between. A topic that
// was created stays, one that was deleted is gone, and one that has the name of
// a deleted one is empty.
type churn struct {
	rig    *rig
	topics [churnNames]known
	done   atomic.Int64 // answered creates and deletes
}

func churnName(i int) string { return fmt.Sprintf("churn-%d", i) }

// run works until the load is over. It is one goroutine, and check follows it.
func (c *churn) run(l *load, rng *rand.Rand) {
	for !l.over() && l.rate.Wait(l.ctx) == nil {
		i := rng.IntN(churnNames)
		if !c.topics[i].unsure {
			c.step(l, i, rng.IntN(4) == 0)
		}
	}
}

func (c *churn) step(l *load, i int, remove bool) {
	ctx, cancel := context.WithTimeout(l.ctx, requestMax)
	defer cancel()
	k, name := &c.topics[i], churnName(i)
	var err error
	switch {
	case !k.there:
		one, keep := uint32(1), int64(0)
		_, err = l.node.CreateTopic(ctx, broker.TopicSpec{Name: name, Partitions: &one, RetentionMS: &keep})
		*k = known{there: err == nil, unsure: err != nil}
	case remove:
		err = l.node.DeleteTopic(ctx, name, true)
		*k = known{there: err != nil, unsure: err != nil, records: k.records, maybe: k.maybe}
	default:
		_, err = l.node.Produce(ctx, name, broker.Record{Value: []byte(name)}, client.ProduceOptions{Ack: broker.AckCommitted})
		if err == nil {
			k.records++
		} else {
			k.maybe++
		}
	}
	if err != nil {
		l.refused("topic "+name, err)
		return
	}
	c.done.Add(1)
}

// check asks for every topic after a restart. What is found settles what was
// unsure.
func (c *churn) check() {
	c.rig.t.Helper()
	for i := range c.topics {
		k, name := &c.topics[i], churnName(i)
		info, err := c.rig.node.Topic(limited(c.rig.t), name)
		there := err == nil
		switch {
		case err != nil && !errcode.Is(err, errcode.NotFound):
			c.rig.t.Fatalf("topic %s after a kill: %v", name, err)
		case there != k.there && !k.unsure:
			c.rig.t.Fatalf("topic %s after a kill: there %t, should be %t", name, there, k.there)
		case !there:
			*k = known{}
			continue
		}
		held := info.PartitionStats[0].HighWatermark
		// One whose create had no answer has no record; one whose delete had
		// none has them all.
		if held < k.records || held > k.records+k.maybe {
			c.rig.t.Fatalf("topic %s after a kill: %d records, %d were answered and %d were not", name, held, k.records, k.maybe)
		}
		*k = known{there: true, records: held}
	}
}
