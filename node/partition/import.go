package partition

import (
	"container/list"
	"context"
	"math"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// Import begins a partition whose records up to entry.Flushed are elsewhere,
// in the archive. Records that follow come by an Importer, before the engine is
// started, up to EndImport; Rebase follows.
func (e *Engine) Import(id broker.PartitionID, entry state.Partition) (*Partition, error) {
	if e.Get(id) != nil {
		return nil, errcode.New(errcode.Exists, "partition %s is here already", id)
	}
	p := e.newPartition(id, entry)
	p.importing = true
	return p, segment.MakeDir(e.opts.FS, e.opts.Dir, p.dir)
}

const (
	// importFlush is how much of an import waits in memory per partition.
	importFlush = 1 << 20

	// importSyncStep is how much of an import one fsync covers. There is no log
	// beside it whose appends would wait, and the fewer there are the better; but
	// the disk is to work while the import goes on.
	importSyncStep = 4 << 20

	// batchCost is about what the tail's list takes for a batch, beside its bytes.
	batchCost = 64
)

// Importer imports into partitions that no other Importer imports into. It is
// for one goroutine at a time; several Importers may work beside each other.
//
// Small batches wait until a partition has 1 MiB of them, so that they are
// merged and written together. All that waits is bounded: above the bound, the
// partitions that have waited the longest are written earlier.
type Importer struct {
	most    int64
	waiting int64      // the sum of order's bytes
	order   *list.List // of *waiter, the longest first
	places  map[*Partition]*list.Element
	merger  merger
}

// waiter is a partition with batches that wait in memory.
type waiter struct {
	p     *Partition
	bytes int64
}

// NewImporter returns an Importer that keeps about most bytes in memory, and 4 KiB
// for each partition.
func NewImporter(most int64) *Importer {
	return &Importer{most: most, order: list.New(), places: make(map[*Partition]*list.Element)}
}

// Batch appends to p a batch, which the caller has verified, with the offsets
// and generation that it has. Offsets that lie between the end of the log and
// its base are a gap, which the caller has proven. Batches are flushed as they
// come, and durable after EndImport, with which the Importer's use of p ends. The
// batch is only read, and not kept.
func (im *Importer) Batch(p *Partition, appendMS int64, batch []byte) error {
	grown, full, err := p.takeImport(appendMS, batch)
	if err != nil {
		return err
	}
	place := im.places[p]
	if place == nil {
		place = im.order.PushBack(&waiter{p: p})
		im.places[p] = place
	}
	place.Value.(*waiter).bytes += grown
	im.waiting += grown
	if full {
		return im.flush(place)
	}
	for im.waiting > im.most {
		if err := im.flush(im.order.Front()); err != nil {
			return err
		}
	}
	return nil
}

// flush writes what waits of one partition.
func (im *Importer) flush(place *list.Element) error {
	w := im.order.Remove(place).(*waiter)
	delete(im.places, w.p)
	im.waiting -= w.bytes
	return w.p.flushImport(&im.merger)
}

// takeImport puts a batch into p's tail, and returns how much memory that took
// and whether the tail is to be flushed.
func (p *Partition) takeImport(appendMS int64, batch []byte) (grown int64, full bool, err error) {
	h, err := segment.ParseHeader(batch)
	if err != nil {
		return 0, false, err
	}
	if h.BaseOffset < p.mu.next {
		return 0, false, errcode.New(errcode.Internal, "import of offset %d into partition %s, which ends at %d", h.BaseOffset, p.ID, p.mu.next)
	}
	b := tailBatch{base: h.BaseOffset, next: h.NextOffset(), appendMS: appendMS, data: batch}
	// A large batch is stored as it is: written at once, it need not be copied.
	large := len(batch) >= mergeBelow
	if large {
		grown = p.mu.tail.push(b)
	} else {
		grown = p.mu.tail.pushCopy(b)
	}
	p.e.memory.Add(grown)
	p.mu.next = h.NextOffset()
	p.mu.tail.advance(0) // LSN 0 is in no log: nothing to wait for
	p.hw.Store(p.mu.next)
	return grown + batchCost, large || p.mu.tail.pending >= importFlush, nil
}

// flushImport writes what waits and drops it from memory. It need not be synced
// for that: a write or a sync that fails ends the import, and nothing of it is
// used.
func (p *Partition) flushImport(m *merger) error {
	if err := p.e.flush(p, m, 1); err != nil {
		return err
	}
	// A partition that refuses is passed by the flush, and nothing of it is written.
	if err := p.Refused(); err != nil {
		return err
	}
	p.mu.Lock()
	freed := p.mu.tail.evict(math.MaxInt64, p.mu.next)
	p.mu.Unlock()
	p.e.room.freed(freed)
	return nil
}

// EndImport makes every imported batch durable in p's files, or says why they
// are not: a checkpoint would go on without a partition whose file does not
// sync. It may run beside that of other partitions.
func (p *Partition) EndImport() error {
	if err := p.flushImport(new(merger)); err != nil {
		return err
	}
	p.importing = false
	if p.files.active == nil {
		return nil
	}
	if err := p.files.active.Sync(); err != nil {
		return err
	}
	p.mu.Lock()
	p.mu.checkpointed = max(p.mu.checkpointed, p.files.active.Next())
	p.mu.Unlock()
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
