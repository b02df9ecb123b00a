package partition

import (
	"sync"
	"sync/atomic"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// Partition is one partition that this node owns.
type Partition struct {
	ID broker.PartitionID

	e   *Engine
	dir string
	hw  atomic.Int64 // high watermark; written under mu
	// recent names the batches that were decoded last out of files and archive.
	recent recentKeys

	flush sync.Mutex
	// importing is true from Import to EndImport, which nothing runs beside.
	importing bool

	files struct {
		sync.RWMutex
		active *segment.Writer // nil: nothing flushed since the last seal
		meta   state.Active
		sealed []state.Sealed // ascending base
		marked []state.Sealed // confirmed since the last checkpoint
		saving []state.Sealed // in the checkpoint that is being written
		// What the local state names of a partition whose files could not be
		// opened; nil: they are in sealed.
		unopened []state.Sealed
	}

	// What was last written of p outside a checkpoint, by a seal, a trim or an
	// eviction; under flush and Engine.entries. A checkpoint that captured p
	// before must not put back what stood there.
	writes  uint64
	written state.Partition

	mu struct {
		sync.Mutex
		generation        uint32
		previousEnd       int64
		start             int64 // first offset of this generation
		gaps              [][2]int64
		oldest            int64
		next              int64
		tail              tail
		checkpointed      int64 // offset below which files are synced and the local state says so
		archivedEnd       int64
		chainSeq          uint64
		skippedLSN        uint64 // see state.Partition
		skippedEnd        int64
		carried           state.Carried // durable in the log
		doubts            [][3]int64    // append times that cannot be right; replaced, never changed
		checkpointCarried state.Carried // as the last checkpoint says
		groupLSN          uint64        // group entries up to here are in the checkpointed group states
		groupsChanged     bool          // since the last checkpoint
		held              uint64        // apart from the tail, no checkpoint covers frames of p from here on; 0 = all are covered
		base              uint64        // LSN of the frame that p began with, while the local state has no entry of p
		inTails           bool          // in the engine's set of partitions that need the log
		queued            bool          // in the flush queue
		stuck             bool          // the last flush failed: the next tick tries again, not each append
		refused           error
		changed           chan struct{} // closed at the next change of hw; nil: nobody waits
	}
}

// HighWatermark is the exclusive end of what consumers may see.
func (p *Partition) HighWatermark() int64 { return p.hw.Load() }

// Generation is the ownership epoch.
func (p *Partition) Generation() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.generation
}

// Gaps lists the half-open ranges without records that changes of owner left,
// ascending. Every group counts them as settled. The result is shared.
func (p *Partition) Gaps() [][2]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.gaps
}

// Base is what a base frame says of the partition as it is now.
func (p *Partition) Base() frame.Base {
	p.mu.Lock()
	defer p.mu.Unlock()
	return frame.Base{
		Partition: p.ID, Generation: p.mu.generation, ChainEnd: p.mu.archivedEnd,
		PreviousEnd: p.mu.previousEnd, Start: p.mu.start, End: p.mu.next, Gaps: p.mu.gaps,
	}
}

// Refused returns why the partition does not serve, or nil.
func (p *Partition) Refused() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.refused
}

// refuse takes the partition out of service; the first reason stays.
func (p *Partition) refuse(err error) {
	p.mu.Lock()
	first := p.mu.refused == nil
	if first {
		p.mu.refused = errcode.Wrap(errcode.Storage, err, "partition %s is out of service", p.ID)
		p.wakeLocked() // readers that follow find the partition refused
	}
	p.mu.Unlock()
	if first {
		p.e.room.recheck()
		p.e.opts.Logger.Error("partition refuses service", "partition", p.ID.String(), "error", err)
	}
}

// advance raises the high watermark to what the durable LSN covers.
func (p *Partition) advance(durable uint64) {
	p.mu.Lock()
	end, ok := p.mu.tail.advance(durable)
	if !ok {
		p.mu.Unlock()
		return
	}
	p.hw.Store(end)
	enqueue := !p.mu.queued && !p.mu.stuck && p.mu.tail.pending >= p.e.opts.FlushBytes
	if enqueue {
		p.mu.queued = true
	}
	p.wakeLocked()
	p.mu.Unlock()
	if enqueue {
		p.e.flushes.push(p)
	}
	p.e.opts.OnVisible(p.ID, end)
}

// Changed returns a channel that is closed when the high watermark next rises,
// or the partition goes out of service; then it is closed already. To wait
// without missing a change: take the channel, look at the high watermark, wait.
func (p *Partition) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.changed == nil {
		p.mu.changed = make(chan struct{})
	}
	c := p.mu.changed
	if p.mu.refused != nil {
		p.wakeLocked()
	}
	return c
}

// wakeLocked tells those who wait for a change. The caller holds p.mu.
func (p *Partition) wakeLocked() {
	if p.mu.changed != nil {
		close(p.mu.changed)
		p.mu.changed = nil
	}
}

// hold says that the log's frame lsn is needed until a checkpoint covers it.
func (p *Partition) hold(lsn uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.held == 0 || lsn < p.mu.held {
		p.mu.held = lsn
	}
	p.joinTailsLocked()
}

// joinTailsLocked puts p into the engine's set of partitions that need the
// log. The caller holds p.mu.
func (p *Partition) joinTailsLocked() {
	if !p.mu.inTails {
		p.mu.inTails = true
		p.e.tails.add(p)
	}
}

// neededLocked is the lowest LSN that a restart needs of p when the local state
// holds everything below the offset covered, what c says, and what p began with
// if base is 0. The caller holds p.mu.
func (p *Partition) neededLocked(covered int64, c state.Carried, base uint64) (lsn uint64, ok bool) {
	lsn, ok = p.neededTail(covered, c)
	for _, held := range [...]uint64{p.mu.held, base} {
		if held > 0 && (!ok || held < lsn) {
			lsn, ok = held, true
		}
	}
	return lsn, ok
}

// neededTail is neededLocked for the tail alone.
func (p *Partition) neededTail(covered int64, c state.Carried) (lsn uint64, ok bool) {
	b, ok := p.mu.tail.oldest(covered)
	if !ok {
		return 0, false
	}
	if c.Again(b.lsn, b.base, b.next) {
		return c.LSN, true
	}
	return b.lsn, true
}

// NeededFrom is the lowest LSN that a restart needs of p; ok is false when local
// state and files hold everything.
func (p *Partition) NeededFrom() (lsn uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.neededLocked(p.mu.checkpointed, p.mu.checkpointCarried, p.mu.base)
}

// SetArchived records what the archive's chain holds: its end and where to
// begin looking for it. It confirms no local copy. It becomes durable with the
// next checkpoint; until then a restart only asks the chain again.
func (p *Partition) SetArchived(end int64, seq uint64) {
	p.mu.Lock()
	p.mu.archivedEnd = max(p.mu.archivedEnd, end)
	p.mu.chainSeq = max(p.mu.chainSeq, seq)
	if p.mu.archivedEnd >= p.mu.skippedEnd {
		p.mu.skippedLSN, p.mu.skippedEnd = 0, 0
	}
	p.mu.Unlock()
	p.e.dirty.add(p)
}

// Confirm records that the chain names an object with exactly the bytes of the
// local segment info, under an entry up to seq: from now on the local copy is
// not the only one (I6). A segment that is not here, or has other bytes, is left
// alone. Durable as SetArchived.
func (p *Partition) Confirm(info *segment.Info, seq uint64) {
	p.files.Lock()
	for i := range p.files.sealed {
		s := &p.files.sealed[i]
		if s.Base == info.Base && s.Next == info.Next && s.FileSHA256 == info.FileSHA256 && !s.Confirmed {
			s.Confirmed = true
			p.files.marked = append(p.files.marked, *s)
		}
	}
	p.files.Unlock()
	p.SetArchived(info.Next, seq)
}

// ArchivedEnd is the end of the chain as last seen, and ChainSeq where to
// begin looking for it.
func (p *Partition) ArchivedEnd() (end int64, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.archivedEnd, p.mu.chainSeq
}

// Stats are the numbers of one partition.
type Stats struct {
	Generation    uint32
	Oldest        int64
	Next          int64
	HighWatermark int64
	ArchivedEnd   int64
	LocalBytes    int64 // segment files and unflushed tail
	Segments      int   // local segment files
	OldestAppend  int64 // append time ms of the oldest local record, 0 = none
	Refused       error
}

// Stats returns the partition's numbers.
func (p *Partition) Stats() Stats {
	p.files.RLock()
	var s Stats
	for i := range p.files.sealed {
		s.LocalBytes += p.files.sealed[i].Bytes
	}
	s.Segments = len(p.files.sealed)
	if s.Segments > 0 {
		s.OldestAppend = p.files.sealed[0].MinAppend
	}
	if p.files.active != nil {
		s.LocalBytes += p.files.active.Size()
		s.Segments++
		if s.OldestAppend == 0 {
			s.OldestAppend = p.files.meta.MinAppend
		}
	}
	p.files.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Generation, s.Oldest, s.Next, s.HighWatermark = p.mu.generation, p.mu.oldest, p.mu.next, p.hw.Load()
	s.ArchivedEnd, s.Refused = p.mu.archivedEnd, p.mu.refused
	for i := p.mu.tail.flushed; i < p.mu.tail.len(); i++ {
		b := p.mu.tail.at(i)
		s.LocalBytes += int64(len(b.data))
		if s.OldestAppend == 0 {
			s.OldestAppend = b.appendMS
		}
	}
	return s
}

// UnarchivedFrom is the LSN of the oldest commit of this log whose records the
// archive's chain neither holds nor names as a gap; ok is false when there is
// none. It waits for a flush or a trim that runs: between two looks, one at the
// files and one at the tail, a flush would move a batch from where the second
// look is to where the first one was, and a state object that misses it lets the
// archive drop its only copy.
func (p *Partition) UnarchivedFrom() (lsn uint64, ok bool) {
	lsn, _, ok = p.unarchived()
	return lsn, ok
}

// unarchived is UnarchivedFrom. open says that a seal would let the archive have
// all of it: nothing else waits to be uploaded or named.
func (p *Partition) unarchived() (lsn uint64, open, ok bool) {
	p.flush.Lock()
	defer p.flush.Unlock()
	low := func(v uint64) {
		if v > 0 && (!ok || v < lsn) {
			lsn, ok = v, true
		}
	}
	p.files.RLock()
	defer p.files.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.files.sealed {
		if s := &p.files.sealed[i]; s.Next > p.mu.archivedEnd {
			low(s.FirstLSN)
		}
	}
	low(p.mu.skippedLSN)
	open = !ok && p.mu.refused == nil
	if p.files.active != nil {
		low(p.files.meta.FirstLSN)
	}
	if t := &p.mu.tail; t.flushed < t.len() {
		low(t.at(t.flushed).lsn)
	}
	return lsn, open, ok
}
