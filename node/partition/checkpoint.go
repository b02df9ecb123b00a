package partition

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
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
	crowded := e.crowded
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-crowded:
			// When the disk cannot help now, not before the next tick.
			if err := e.makeRoom(ctx); err != nil {
				crowded = nil
			}
			n--
			continue
		case <-tick.C:
			crowded = e.crowded
			if n, _ := e.room.waiting(); n > 0 {
				e.crowd()
			}
		}
		e.retryFlushes()
		if n%every == 0 {
			e.SealOld()
		}
		// Without the partition that left, the log may need less.
		if left := e.left.Swap(false); e.dirty.empty() && !left {
			continue
		}
		if err := e.Checkpoint(ctx); err != nil && ctx.Err() == nil {
			e.left.Store(true)
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

// crowd says that the tails exceed the memory budget.
func (e *Engine) crowd() {
	select {
	case e.crowded <- struct{}{}:
	default:
	}
}

// makeRoom relieves the tails and tells those who wait for room how that went.
func (e *Engine) makeRoom(ctx context.Context) error {
	before := e.room.total()
	hopeless, err := e.relieve(ctx)
	if hopeless == nil {
		hopeless = e.opts.DiskOK() // the next flush will fail
	}
	if e.room.tried(before, hopeless) {
		e.crowd()
	}
	return err
}

// relieveFailures is after how many failed flushes relieve leaves it at that: the
// others would hardly fare better, and each try of a file costs reads.
const relieveFailures = 8

// relieve brings the tails under the memory budget when the flushers, which
// wait for FlushBytes of a partition, cannot: it flushes the largest tails and
// lets a checkpoint evict them. err is everything that failed, hopeless what kept
// all of it from being of use.
func (e *Engine) relieve(ctx context.Context) (hopeless, err error) {
	over := e.memory.Load() - e.opts.MemoryBudget
	if over <= 0 {
		return nil, nil
	}
	over += e.opts.MemoryBudget / 8 // as evict, so that the work is rare
	type waiting struct {
		p    *Partition
		size int64
	}
	var all []waiting
	for _, p := range e.tails.list() {
		p.mu.Lock()
		if p.mu.refused == nil && p.mu.tail.pending > 0 {
			all = append(all, waiting{p, p.mu.tail.pending})
		}
		p.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b waiting) int { return cmp.Compare(b.size, a.size) })
	var errs []error
	flushed := false
	for _, w := range all {
		if over <= 0 || len(errs) == relieveFailures || ctx.Err() != nil {
			break
		}
		if err := e.flushAll(w.p); err != nil {
			errs = append(errs, err) // the next one may do better
			continue
		}
		over -= w.size
		flushed = true
	}
	if !flushed {
		hopeless = errors.Join(errs...)
	}
	if err := e.Checkpoint(ctx); err != nil { // without one no memory is given back
		hopeless = err
		errs = append(errs, err)
	}
	return hopeless, errors.Join(errs...)
}

// capture is what a checkpoint says of one partition.
type capture struct {
	p      *Partition
	ok     bool // else p keeps what the local state says of it
	entry  state.Partition
	marked []state.Sealed
	groups map[string][]byte
	lsn    uint64 // highest LSN that the groups hold
	held   uint64 // lowest LSN that the log had to keep for them
	writes uint64 // of p at the moment of the capture

	carried bool // the entry names a carry that no checkpoint has named yet
}

// Checkpoint syncs what was flushed, writes one synced batch of local state,
// and raises the log's low-water mark. A partition whose file cannot be synced,
// or that refuses service, keeps its part of the local state and of the log;
// the others go on.
func (e *Engine) Checkpoint(ctx context.Context) error {
	e.checkpoints.Lock()
	defer e.checkpoints.Unlock()
	if e.closed {
		return errcode.New(errcode.Closed, "the partitions are closed")
	}
	// Whatever has an LSN below this is in a tail or group that is looked at
	// below; what gets a higher one stays behind the low-water mark.
	captured := e.log.NextLSN()
	changed := e.dirty.take()
	needed := captured - 1
	captures := make([]capture, len(changed))
	for i, p := range changed {
		captures[i] = e.capture(p)
		needed = max(needed, captures[i].lsn)
		if captures[i].carried {
			// It may have been staged since the line was drawn. The log forgets
			// what it stands for only once it is durable.
			needed = max(needed, e.log.NextLSN()-1)
		}
	}
	// Group states hold what is only written so far; nothing above the durable
	// LSN may stand in a checkpoint (I2).
	err := e.log.WaitDurable(ctx, needed)
	var low uint64
	if err == nil {
		low, err = e.commit(captures, captured, needed)
	}
	if err != nil {
		for i := range captures {
			captures[i].giveBack()
		}
		return err
	}
	// Only now: what the log recycles below this, the local state holds.
	e.log.Hold(holdName, low)
	for i := range captures {
		e.evict(captures[i].p)
	}
	e.metrics.checkpoints.Inc()
	e.checkpointed.Store(e.opts.Now().UnixMilli())
	return nil
}

// commit writes the captures and the node's marks, and returns the lowest LSN
// that a restart needs then.
func (e *Engine) commit(captures []capture, captured, durable uint64) (low uint64, err error) {
	e.entries.Lock()
	defer e.entries.Unlock()
	b := e.opts.State.NewBatch()
	covered := make(map[*Partition]cover, len(captures))
	for i := range captures {
		c := &captures[i]
		if c.ok = c.ok && e.Get(c.p.ID) == c.p; !c.ok { // dropped meanwhile
			continue
		}
		if c.p.writes != c.writes { // sealed, trimmed or evicted meanwhile: its files are as that says
			c.entry = c.p.written
		}
		c.entry.GroupLSN = max(c.entry.GroupLSN, c.lsn)
		b.PutPartition(c.p.ID, c.entry)
		for _, s := range c.p.listed(c.marked) {
			b.PutSegment(c.p.ID, s)
		}
		for name, data := range c.groups {
			b.PutGroup(c.p.ID, name, data)
		}
		covered[c.p] = cover{c.entry.Flushed, c.entry.Carried}
	}
	low = e.lowWater(captured, covered)
	b.PutMarks(state.Marks{Incarnation: e.opts.Incarnation, Durable: durable, Needed: low, Shipped: e.shipped.Load()})
	if err := b.Commit(); err != nil {
		return 0, err
	}
	for p, by := range covered {
		p.mu.Lock()
		p.mu.checkpointed = max(p.mu.checkpointed, by.end)
		p.mu.checkpointCarried = by.carried
		p.mu.base = 0
		p.mu.Unlock()
	}
	for i := range captures {
		if c := &captures[i]; c.ok {
			c.p.files.Lock()
			c.p.files.saving = nil
			c.p.files.Unlock()
			c.p.mu.Lock()
			c.p.mu.groupLSN = max(c.p.mu.groupLSN, c.lsn)
			c.p.mu.Unlock()
		}
	}
	return low, nil
}

// capture syncs p's segment file and takes p's state.
func (e *Engine) capture(p *Partition) capture {
	p.flush.Lock()
	defer p.flush.Unlock()
	c := capture{p: p, writes: p.writes}
	p.mu.Lock()
	refused := p.mu.refused
	groups := p.mu.groupsChanged && refused == nil
	if groups {
		p.mu.groupsChanged = false
		c.held, p.mu.held = p.mu.held, 0
	}
	p.mu.Unlock()
	if refused != nil {
		// Its entry stays as it was when it broke, and what the log has of it.
		c.giveBack()
		return c
	}
	if err := e.syncActive(p); err != nil {
		e.opts.Logger.Error("checkpoint of a partition failed, the log keeps its records", "partition", p.ID.String(), "error", err)
		c.giveBack()
		return c
	}
	p.files.Lock()
	c.marked, p.files.marked = p.files.marked, nil
	p.files.saving = c.marked
	p.files.Unlock()
	p.mu.Lock()
	c.entry = p.entryLocked()
	c.carried = c.entry.Carried != p.mu.checkpointCarried
	p.mu.Unlock()
	if groups && e.opts.Groups != nil {
		c.groups, c.lsn = e.opts.Groups.Snapshot(p.ID)
	}
	c.ok = true
	return c
}

// syncActive makes what was flushed durable. The caller holds p.flush.
func (e *Engine) syncActive(p *Partition) error {
	if err := e.heal(p); err != nil {
		return err
	}
	if p.files.active == nil {
		return nil
	}
	err := p.files.active.Sync()
	if err != nil {
		e.abandon(p, err)
	}
	return err
}

// giveBack undoes a capture that did not become durable: the log keeps what it
// needs of the partition, and the next checkpoint looks at it again.
func (c *capture) giveBack() {
	p := c.p
	if len(c.marked) > 0 {
		p.files.Lock()
		p.files.marked = append(c.marked, p.files.marked...)
		p.files.saving = nil
		p.files.Unlock()
	}
	p.mu.Lock()
	if p.e.Get(p.ID) != p { // dropped: nothing of it keeps the log any more
		p.mu.Unlock()
		return
	}
	p.mu.groupsChanged = true
	if c.held > 0 && (p.mu.held == 0 || c.held < p.mu.held) {
		p.mu.held = c.held
	}
	p.joinTailsLocked()
	refused := p.mu.refused != nil
	p.mu.Unlock()
	if !refused {
		p.e.dirty.add(p)
	}
}

// entryLocked is p's durable entry as the segment files are now. The caller
// holds p.flush, so they do not change, and p.mu. The carry that it names may not
// be durable: only a checkpoint, which waits for it, says so; see betweenLocked.
func (p *Partition) entryLocked() state.Partition {
	entry := state.Partition{
		Generation: p.mu.generation, PreviousEnd: p.mu.previousEnd, Start: p.mu.start, Oldest: p.mu.oldest, Gaps: p.mu.gaps,
		Flushed: p.filesEnd(), GroupLSN: p.mu.groupLSN, ChainSeq: p.mu.chainSeq, ArchivedEnd: p.mu.archivedEnd,
		SkippedLSN: p.mu.skippedLSN, SkippedEnd: p.mu.skippedEnd,
		Carried: p.mu.carried, Doubts: p.mu.doubts,
	}
	if p.files.active != nil {
		meta := p.files.meta
		entry.Active = &meta
	}
	return entry
}

// betweenLocked is entryLocked for what is written between two checkpoints. It
// names the carry that the last one named: nothing waits for a later one to be
// durable here, and what that stands for may begin behind records that are in no
// synced file yet.
func (p *Partition) betweenLocked() state.Partition {
	entry := p.entryLocked()
	entry.Carried = p.mu.checkpointCarried
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

// cover is what a checkpoint says of a partition's records.
type cover struct {
	end     int64 // of what its files hold
	carried state.Carried
}

// lowWater is the lowest LSN that a restart needs once a checkpoint stands that
// covers that much: captured, or less where a tail reaches further
// back. A partition whose whole tail is covered leaves the set.
func (e *Engine) lowWater(captured uint64, covered map[*Partition]cover) uint64 {
	low := captured
	for _, p := range e.tails.list() {
		p.mu.Lock()
		by, ok := covered[p]
		base := uint64(0)
		if !ok {
			by.carried, base = p.mu.checkpointCarried, p.mu.base
		}
		lsn, ok := p.neededLocked(max(p.mu.checkpointed, by.end), by.carried, base)
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
