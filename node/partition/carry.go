package partition

import (
	"context"

	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/wal"
)

const (
	// carryBytes is the largest tail that is carried: a flush costs a write and
	// a sync of a file of its own, whatever its size, and thousands of
	// partitions may have a few records each in the log's oldest file.
	carryBytes = 64 << 10

	// carryTotal bounds what one call carries: a log that is full of carried
	// records gains nothing.
	carryTotal = 16 << 20
)

// carry writes what only the log has of p into the log once more, and returns
// how many bytes that were: none when p's tail has to be flushed instead. From
// the next checkpoint on, which waits until the carry is durable and names it in
// the local state, a restart needs p's tail from there; until then the log has
// the records as they came.
//
// Records that are not durable yet are never carried: later ones would stand
// before them.
func (e *Engine) carry(p *Partition, most int64) (bytes int64, err error) {
	p.flush.Lock() // nothing of the tail is flushed or evicted while it is copied
	defer p.flush.Unlock()
	runs, err := p.reserveCarry(e, most)
	for i := range runs {
		r := &runs[i]
		at := frame.CommitHeaderSize + frame.SectionHeaderSize
		for _, b := range r.batches {
			at += copy(r.slot.Body[at:], b.data)
		}
		frame.PutCommitHeader(r.slot.Body, frame.CommitHeader{
			AppendMS: r.batches[0].appendMS, OriginIncarnation: e.opts.Incarnation, OriginLSN: r.batches[0].lsn,
		})
		frame.PutSectionHeader(r.slot.Body[frame.CommitHeaderSize:], p.ID, r.generation, r.size)
		r.slot.Done()
		bytes += int64(r.size)
	}
	if err != nil || len(runs) == 0 {
		return 0, err
	}
	last := runs[len(runs)-1].batches
	p.mu.Lock()
	p.mu.carried = state.Carried{LSN: runs[0].slot.LSN, From: runs[0].batches[0].base, End: last[len(last)-1].next}
	p.mu.Unlock()
	e.dirty.add(p)
	e.metrics.carried.Add(float64(bytes))
	return bytes, nil
}

// carryRun is batches of one append time, which is what one frame can say.
type carryRun struct {
	batches    []tailBatch
	generation uint32
	size       int
	slot       wal.Slot
}

// reserveCarry takes places in the log for all of p's tail that is in no file.
// Under p.mu, so that every later record of p stands behind them.
func (p *Partition) reserveCarry(e *Engine, most int64) ([]carryRun, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &p.mu.tail
	if p.mu.refused != nil || t.pending == 0 || t.pending > min(most, carryBytes) || t.visible < t.count {
		return nil, nil
	}
	var runs []carryRun
	for i := t.flushed; i < t.visible; i++ {
		b := *t.at(i)
		if n := len(runs); n == 0 || runs[n-1].batches[0].appendMS != b.appendMS {
			runs = append(runs, carryRun{generation: p.mu.generation})
		}
		r := &runs[len(runs)-1]
		r.batches = append(r.batches, b)
		r.size += len(b.data)
	}
	for i := range runs {
		slot, err := e.log.Reserve(wal.KindCarry, frame.CommitHeaderSize+frame.SectionHeaderSize+runs[i].size)
		if err != nil {
			return runs[:i], err // what was reserved is filled, and of no use
		}
		runs[i].slot = slot
	}
	return runs, nil
}

// Release makes every frame up to upTo unneeded: small tails that reach back to
// it are written into the log once more, larger ones are flushed, and a
// checkpoint moves the low-water mark. It is the answer to the log's pressure,
// which may come before Start and after Close; then it does nothing: the groups
// cannot be captured, and the log asks again.
func (e *Engine) Release(ctx context.Context, upTo uint64) error {
	if !e.running.Load() {
		return e.notServing()
	}
	left := int64(carryTotal)
	for _, p := range e.tails.list() {
		p.mu.Lock()
		lsn, ok := p.neededTail(p.mu.checkpointed, p.mu.checkpointCarried)
		p.mu.Unlock()
		if !ok || lsn > upTo || ctx.Err() != nil {
			continue
		}
		n, err := e.carry(p, left)
		left -= n
		if n == 0 && err == nil {
			err = e.flushAll(p)
		}
		if err != nil && p.Refused() == nil {
			return err
		}
	}
	return e.Checkpoint(ctx)
}
