package partition

import (
	"errors"
	iofs "io/fs"
	"strconv"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

func partitionName(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func (p *Partition) segmentOptions(base int64) segment.Options {
	o := segment.Options{Topic: p.ID.Topic, Partition: p.ID.Partition, Base: base}
	if p.importing {
		o.SyncStep = importSyncStep
	}
	return o
}

func (p *Partition) segmentPath(base int64) string {
	return p.e.opts.FS.PathJoin(p.dir, segment.SealedName(base))
}

func (p *Partition) closeFiles() error {
	p.flush.Lock()
	defer p.flush.Unlock()
	p.files.Lock()
	defer p.files.Unlock()
	if p.files.active == nil {
		return nil
	}
	err := p.files.active.Close()
	p.files.active = nil
	return err
}

// Announce hands the segments of a partition whose copy in the archive is not
// confirmed to OnSealed once more, in order. Before them it calls begin; no newly
// sealed segment comes in between. False: there is no such partition.
func (e *Engine) Announce(id broker.PartitionID, begin func()) bool {
	p := e.Get(id)
	if p == nil {
		return false
	}
	p.flush.Lock() // who seals holds it
	defer p.flush.Unlock()
	begin()
	e.announceSealed(p)
	return true
}

// announceSealed hands the segments whose copy in the archive is not confirmed
// to OnSealed. What was trimmed needs none.
func (e *Engine) announceSealed(p *Partition) {
	oldest := p.Oldest()
	p.files.RLock()
	defer p.files.RUnlock()
	for _, s := range p.files.sealed {
		if !s.Confirmed && s.Next > oldest {
			e.opts.OnSealed(p.ID, p.segmentPath(s.Base), s)
		}
	}
}

// Drop removes a topic's partitions from this node: out of service, out of the
// local state, then off the disk. Its caller knows from the metadata that the
// topic is deleted (I10).
func (e *Engine) Drop(topic broker.TopicID) error {
	gone := errcode.New(errcode.NotFound, "topic %s was deleted", topic)
	var dropped []*Partition
	for _, p := range e.All() {
		if p.ID.Topic != topic {
			continue
		}
		p.mu.Lock()
		p.mu.refused = gone
		p.mu.Unlock()
		dropped = append(dropped, p)
	}
	e.room.recheck()
	var errs []error
	for _, p := range dropped {
		errs = append(errs, p.closeFiles()) // waits for a running flush
		e.forget(p)
	}
	// The entries go first, synced: a crash leaves files that nothing names,
	// never a name without its file.
	if err := e.deleteEntries(dropped); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, p := range dropped {
		e.handles.forget(p.dir) // an open descriptor would keep the disk space
	}
	return errors.Join(append(errs, e.RemoveFiles(topic))...)
}

func (e *Engine) deleteEntries(dropped []*Partition) error {
	e.entries.Lock()
	defer e.entries.Unlock()
	b := e.opts.State.NewBatch()
	for _, p := range dropped {
		b.DeletePartition(p.ID)
	}
	return b.Commit()
}

// RemoveFiles removes the directory of a deleted topic.
func (e *Engine) RemoveFiles(topic broker.TopicID) error {
	dir := e.opts.FS.PathJoin(e.opts.Dir, topic.String())
	if err := e.opts.FS.RemoveAll(dir); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return errcode.Wrap(errcode.Storage, err, "remove %s", dir)
	}
	return nil
}

// forget takes p out of every set of the engine.
func (e *Engine) forget(p *Partition) {
	e.parts.Lock()
	delete(e.parts.m, p.ID)
	e.parts.Unlock()
	e.late.Lock()
	delete(e.late.set, p)
	e.late.Unlock()
	e.room.freed(e.forgetState(p))
}

// forgetState is forget for what p's lock guards, and returns how many bytes
// the tail gave back.
func (e *Engine) forgetState(p *Partition) (freed int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	freed = p.mu.tail.close()
	p.mu.held, p.mu.base = 0, 0 // whatever is noted of it from now on, it does not keep the log
	p.mu.inTails = false
	e.tails.remove(p)
	e.left.Store(true)
	e.dirty.remove(p)
	p.wakeLocked() // readers that follow find the partition refused
	return freed
}

func (p *Partition) compress() bool { return p.e.opts.Compress(p.ID.Topic) }
