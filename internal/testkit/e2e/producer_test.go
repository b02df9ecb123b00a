package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
)

// producer sends records, one request after the other.
type producer struct {
	load *load
	name string
	rng  *rand.Rand
	sent int
	acks []broker.Ack
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

// What producers ask for, each as often as it stands there.
var (
	hotAcks   = []broker.Ack{broker.AckAccepted, broker.AckCommitted}
	mixedAcks = append(slices.Repeat(hotAcks, 10), broker.AckArchived)
)

func (p *producer) ack() broker.Ack { return p.acks[p.rng.IntN(len(p.acks))] }

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
	p.count(ack, 1)
	h.Produced(out)
	if ack == broker.AckArchived && !got.Archived {
		p.load.rig.t.Errorf("ack=archived was answered with %+v", got)
	}
}

func (p *producer) count(ack broker.Ack, records int) {
	p.load.stored.Add(1)
	p.load.records.Add(int64(records))
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
		p.count(ack, len(records))
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
