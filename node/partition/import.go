package partition

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// Import begins a partition whose records up to entry.Flushed are elsewhere,
// in the archive. Records that follow come by ImportBatch, before the engine
// is started; Rebase ends the import.
func (e *Engine) Import(id broker.PartitionID, entry state.Partition) (*Partition, error) {
	if e.Get(id) != nil {
		return nil, errcode.New(errcode.Exists, "partition %s is here already", id)
	}
	p := e.newPartition(id, entry)
	return p, segment.MakeDir(e.opts.FS, e.opts.Dir, p.dir)
}

// ImportBatch appends a batch with the offsets and generation that it has.
// Offsets that lie between the end of the log and its base are a gap, which
// the caller has proven. Batches are flushed as they come; they are durable
// after the engine's next checkpoint.
func (p *Partition) ImportBatch(appendMS int64, batch []byte) error {
	h, err := segment.VerifyBatch(batch)
	if err != nil {
		return err
	}
	if h.BaseOffset < p.mu.next {
		return errcode.New(errcode.Internal, "import of offset %d into partition %s, which ends at %d", h.BaseOffset, p.ID, p.mu.next)
	}
	p.e.memory.Add(p.mu.tail.pushCopy(tailBatch{base: h.BaseOffset, next: h.NextOffset(), appendMS: appendMS, data: batch}))
	p.mu.next = h.NextOffset()
	p.mu.tail.advance(0) // LSN 0 is in no log: nothing to wait for
	p.hw.Store(p.mu.next)
	if p.mu.tail.pending < importFlush {
		return nil
	}
	if err := p.e.flushAll(p); err != nil {
		return err
	}
	return p.release()
}

// importFlush is how much of an import waits in memory per partition.
const importFlush = 1 << 20

// release syncs what was flushed and drops it from memory.
func (p *Partition) release() error {
	if p.files.active != nil {
		if err := p.files.active.Sync(); err != nil {
			return err
		}
		p.mu.checkpointed = max(p.mu.checkpointed, p.files.active.Next())
	}
	p.evict(1 << 62)
	return nil
}

// Rebase begins a generation: offsets go on at start, and everything below
// previousEnd belongs to earlier generations.
func (p *Partition) Rebase(generation uint32, previousEnd, start int64, gaps [][2]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.generation, p.mu.previousEnd, p.mu.start, p.mu.gaps = generation, previousEnd, start, gaps
	p.mu.next = start
	p.hw.Store(start)
	p.mu.groupsChanged = true
	p.e.dirty.add(p)
}

// StageBases writes base frames with the partitions' group states into the
// log, so that whoever restores from the shipped log finds where they begin.
func (e *Engine) StageBases(ctx context.Context, groups func(broker.PartitionID) [][]byte) error {
	var lsn uint64
	for _, p := range e.All() {
		b := p.Base()
		b.Groups = groups(p.ID)
		slot, err := e.log.Reserve(wal.KindBase, frame.BaseSize(b))
		if err != nil {
			return err
		}
		frame.PutBase(slot.Body, b)
		slot.Done()
		lsn = slot.LSN
	}
	if lsn == 0 {
		return nil
	}
	return e.log.WaitDurable(ctx, lsn)
}
