package partition

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/node/state"
)

// holdName is the engine among the log's readers.
const holdName = "checkpoint"

// runCheckpoints writes a checkpoint per interval while something changed, and
// looks at the age of segments now and then.
func (e *Engine) runCheckpoints(ctx context.Context) {
	tick := time.NewTicker(e.opts.CheckpointInterval)
	defer tick.Stop()
	every := max(1, int(e.opts.SealAge/10/e.opts.CheckpointInterval))
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.retryFlushes()
		if n%every == 0 {
			e.SealOld()
		}
		if e.dirty.empty() {
			continue
		}
		if err := e.Checkpoint(ctx); err != nil && ctx.Err() == nil {
			e.metrics.checkpointErrors.Inc()
			e.opts.Logger.Error("checkpoint failed, the log keeps what it needs", "error", err)
		}
	}
}

// retryFlushes queues again what a failed flush or a full disk left behind.
func (e *Engine) retryFlushes() {
	for _, p := range e.tails.list() {
		p.mu.Lock()
		again := !p.mu.queued && p.mu.refused == nil && p.mu.tail.pending >= e.opts.FlushBytes
		if again {
			p.mu.queued = true
		}
		p.mu.Unlock()
		if again {
			e.flushes.push(p)
		}
	}
}

// Checkpoint syncs what was flushed, writes one synced batch of local state,
// and raises the log's low-water mark.
func (e *Engine) Checkpoint(ctx context.Context) error {
	e.checkpoints.Lock()
	defer e.checkpoints.Unlock()
	if err := e.opts.DiskOK(); err != nil {
		return err
	}
	// Whatever has an LSN below this is in a tail or group that is looked at
	// below; what gets a higher one stays behind the low-water mark.
	captured := e.log.NextLSN()
	changed := e.dirty.take()
	b := e.opts.State.NewBatch()
	needed := captured - 1
	flushed := make([]int64, len(changed))
	for i, p := range changed {
		lsn, end, err := e.capture(b, p)
		if err != nil {
			// The rest of the node goes on; this one is tried again, or refuses.
			e.opts.Logger.Error("checkpoint of a partition failed", "partition", p.ID.String(), "error", err)
			e.abandonLocked(p, err)
			flushed[i] = -1
			continue
		}
		needed, flushed[i] = max(needed, lsn), end
	}
	// Group states hold what is only written so far; nothing above the durable
	// LSN may stand in a checkpoint (I2).
	if err := e.log.WaitDurable(ctx, needed); err != nil {
		e.giveBack(changed)
		return err
	}
	covered := make(map[*Partition]int64, len(changed))
	for i, p := range changed {
		covered[p] = flushed[i]
	}
	low := e.lowWater(captured, covered)
	b.PutMarks(state.Marks{Incarnation: e.opts.Incarnation, Durable: needed, Needed: low, Shipped: e.shipped.Load()})
	if err := b.Commit(); err != nil {
		e.giveBack(changed)
		return err
	}
	for p, end := range covered {
		p.mu.Lock()
		p.mu.checkpointed = max(p.mu.checkpointed, end)
		p.mu.Unlock()
		e.evict(p)
	}
	// Only now: what the log recycles below this, the local state holds.
	e.log.Hold(holdName, low)
	e.metrics.checkpoints.Inc()
	return nil
}

func (e *Engine) giveBack(changed []*Partition) {
	for _, p := range changed {
		p.mu.Lock()
		p.mu.groupsChanged = true
		p.mu.inTails = true
		e.tails.add(p)
		p.mu.Unlock()
		e.dirty.add(p)
	}
}

// capture syncs p's segment file and adds p's state to the batch. It returns
// the highest LSN that the group states hold and the flushed offset.
func (e *Engine) capture(b *state.Batch, p *Partition) (lsn uint64, flushed int64, err error) {
	p.flush.Lock()
	defer p.flush.Unlock()
	p.mu.Lock()
	refused, groups := p.mu.refused, p.mu.groupsChanged
	p.mu.groupsChanged = false
	p.mu.Unlock()
	if refused != nil {
		return 0, -1, nil // its entry stays as it was when it broke
	}
	if p.files.active != nil {
		if err := p.files.active.Sync(); err != nil {
			return 0, 0, err
		}
	}
	p.mu.Lock()
	entry := p.entryLocked()
	p.mu.Unlock()
	if groups && e.opts.Groups != nil {
		var states map[string][]byte
		states, lsn = e.opts.Groups.Snapshot(p.ID)
		for name, data := range states {
			b.PutGroup(p.ID, name, data)
		}
		p.mu.Lock()
		p.mu.groupLSN = max(p.mu.groupLSN, lsn)
		entry.GroupLSN = p.mu.groupLSN
		p.mu.Unlock()
	}
	b.PutPartition(p.ID, entry)
	return lsn, entry.Flushed, nil
}

func (e *Engine) abandonLocked(p *Partition, err error) {
	p.flush.Lock()
	defer p.flush.Unlock()
	e.abandon(p, err)
	e.dirty.add(p)
}

// entryLocked is p's durable entry as the segment files are now. The caller
// holds p.flush, so they do not change, and p.mu.
func (p *Partition) entryLocked() state.Partition {
	entry := state.Partition{
		Generation: p.mu.generation, PreviousEnd: p.mu.previousEnd, Start: p.mu.start, Oldest: p.mu.oldest, Gaps: p.mu.gaps,
		Flushed: p.filesEnd(), GroupLSN: p.mu.groupLSN, ChainSeq: p.mu.chainSeq, ArchivedEnd: p.mu.archivedEnd,
	}
	if p.files.active != nil {
		meta := p.files.meta
		entry.Active = &meta
	}
	return entry
}

// filesEnd is the exclusive end of what is in segment files; without any, the
// last checkpoint's. The caller holds p.flush and p.mu.
func (p *Partition) filesEnd() int64 {
	if p.files.active != nil {
		return p.files.active.Next()
	}
	if n := len(p.files.sealed); n > 0 {
		return max(p.mu.checkpointed, p.files.sealed[n-1].Next)
	}
	return p.mu.checkpointed
}

// lowWater is the lowest LSN that a restart needs once a checkpoint stands that
// covers the given offsets: captured, or less where a tail reaches further
// back. A partition whose whole tail is covered leaves the set.
func (e *Engine) lowWater(captured uint64, covered map[*Partition]int64) uint64 {
	low := captured
	for _, p := range e.tails.list() {
		p.mu.Lock()
		lsn, ok := p.mu.tail.oldestLSN(max(p.mu.checkpointed, covered[p]))
		if ok {
			low = min(low, lsn)
		} else {
			p.mu.inTails = false
			e.tails.remove(p)
		}
		p.mu.Unlock()
	}
	return low
}
