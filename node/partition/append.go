package partition

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// Batch is one encoded batch that waits for its offset. Its records' deltas
// count from 0 and Span is the number of offsets it takes. Data of more than
// SmallBatch bytes becomes part of the tail; smaller ones are copied, and the
// caller's again when Append returns.
type Batch struct {
	Data []byte
	Span int64
}

// Part is one partition's share of an append.
type Part struct {
	Partition *Partition
	Batches   []Batch
	// Expected is where the part has to begin, nil when that does not matter.
	// It is compared under the lock that gives the offsets out.
	Expected   *int64
	Base       int64  // set by Append: offset of the first record
	Generation uint32 // set by Append
}

// Append gives the parts' batches their offsets, reserves one WAL frame for
// all of them, so that they are whole or absent after a crash, and extends the
// tails. parts are in ascending partition order, each partition once. Nothing
// is durable or visible when it returns: the caller waits for the frame's LSN
// to become durable and calls Advance, or gives up waiting with Late. Admit comes
// before: nothing here bounds the tails.
//
// Errors leave everything as it was: Closed, Storage, Poisoned, or why a partition
// refuses; PreconditionFailed with the fact "next_offset" when a part would not
// begin where it has to. Then lsn is that of the last append the refusal rests
// on, which need not be durable: who tells anybody waits for it first, or a crash
// makes the refusal untrue.
func (e *Engine) Append(parts []Part, appendMS int64) (lsn uint64, err error) {
	data := 0
	for i := range parts {
		for _, b := range parts[i].Batches {
			data += len(b.Data)
		}
	}
	slot, grown, err := e.place(parts, frame.CommitHeaderSize+len(parts)*frame.SectionHeaderSize+data, appendMS)
	if err != nil {
		return slot.LSN, err
	}
	if grown > 0 {
		e.memory.Add(grown)
	}
	// Outside the locks: nobody reads these bytes before Done.
	frame.PutCommitHeader(slot.Body, frame.CommitHeader{AppendMS: appendMS, OriginIncarnation: e.opts.Incarnation})
	at := frame.CommitHeaderSize
	for i := range parts {
		at += fill(slot.Body[at:], &parts[i])
	}
	slot.Done()
	return slot.LSN, nil
}

// place does what needs the partitions' locks: check, reserve, number, push.
// Small batches are copied into their tails here: a tail that is closed
// meanwhile takes its memory along. grown is by how much the tails grew.
func (e *Engine) place(parts []Part, size int, appendMS int64) (slot wal.Slot, grown int64, err error) {
	for i := range parts {
		parts[i].Partition.mu.Lock()
	}
	defer func() {
		for i := range parts {
			parts[i].Partition.mu.Unlock()
		}
	}()
	for i := range parts {
		p := parts[i].Partition
		if p.mu.refused != nil {
			return wal.Slot{}, 0, p.mu.refused
		}
		if want := parts[i].Expected; want != nil && *want != p.mu.next {
			return wal.Slot{LSN: p.mu.tail.lastLSN()}, 0, p.unexpected(*want, p.mu.next)
		}
		// Before the reservation: a checkpoint that runs now must find the
		// partition in its set once the frame has an LSN.
		p.joinTailsLocked()
	}
	if slot, err = e.log.Reserve(wal.KindCommit, size); err != nil {
		return wal.Slot{}, 0, err
	}
	for i := range parts {
		part := &parts[i]
		p := part.Partition
		part.Base, part.Generation = p.mu.next, p.mu.generation
		for k := range part.Batches {
			b := &part.Batches[k]
			segment.Stamp(b.Data, p.mu.next, p.mu.generation)
			next := p.mu.next + b.Span
			grown += p.mu.tail.push(tailBatch{base: p.mu.next, next: next, lsn: slot.LSN, appendMS: appendMS, data: b.Data})
			p.mu.next = next
		}
	}
	return slot, grown, nil
}

func (p *Partition) unexpected(want, next int64) error {
	return errcode.New(errcode.PreconditionFailed, "partition %s goes on at offset %d, not %d; nothing was stored", p.ID, next, want).With("next_offset", next)
}

// fill copies a part's batches into its section.
func fill(dst []byte, part *Part) int {
	at := frame.SectionHeaderSize
	for i := range part.Batches {
		at += copy(dst[at:], part.Batches[i].Data)
	}
	frame.PutSectionHeader(dst, part.Partition.ID, part.Generation, at-frame.SectionHeaderSize)
	return at
}

// Advance makes visible what the log's durable LSN covers in the parts.
func (e *Engine) Advance(parts []Part) {
	durable := e.log.Durable()
	for i := range parts {
		parts[i].Partition.advance(durable)
	}
}

// Late takes over the waiting of a caller that left before its records were
// durable, so that they become visible as soon as they are.
func (e *Engine) Late(parts []Part) {
	e.late.Lock()
	for i := range parts {
		e.late.set[parts[i].Partition] = struct{}{}
	}
	e.late.Unlock()
	select {
	case e.lateWake <- struct{}{}:
	default:
	}
}

// runLate advances the partitions of callers that left.
func (e *Engine) runLate(ctx context.Context) {
	for {
		changed := e.log.DurableChanged()
		durable := e.log.Durable()
		e.late.Lock()
		waiting := make([]*Partition, 0, len(e.late.set))
		for p := range e.late.set {
			waiting = append(waiting, p)
		}
		e.late.Unlock()
		for _, p := range waiting {
			p.advance(durable)
			e.forgetLate(p)
		}
		if len(waiting) == 0 {
			changed = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-e.lateWake:
		case <-changed:
		}
	}
}

// forgetLate drops p from the late set once nothing in it waits for the log.
// Both locks are held for the look and the removal, or an append and its Late
// could come between them.
func (e *Engine) forgetLate(p *Partition) {
	e.late.Lock()
	defer e.late.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.tail.visible == p.mu.tail.len() {
		delete(e.late.set, p)
	}
}

// StageGroup writes a change of a group's state into the log and returns its
// LSN. It does not block. It is the journal of package queue.
func (e *Engine) StageGroup(id broker.PartitionID, generation uint32, group string, ops []byte) (uint64, error) {
	p := e.Get(id)
	if p == nil {
		return 0, errcode.New(errcode.NotFound, "partition %s is not served here", id)
	}
	// Before the reservation, as in place: a checkpoint that runs now takes the
	// group's state, and if it fails, keeps the log from here on.
	p.mu.Lock()
	err := p.mu.refused
	if err == nil {
		p.mu.groupsChanged = true
		if p.mu.held == 0 {
			p.mu.held = e.log.NextLSN()
		}
		e.dirty.add(p)
	}
	p.mu.Unlock()
	if err != nil {
		return 0, err
	}
	g := frame.Group{Partition: id, Generation: generation, Name: group, Ops: ops}
	slot, err := e.log.Reserve(wal.KindGroup, frame.GroupSize(g))
	if err != nil {
		return 0, err
	}
	frame.PutGroup(slot.Body, g)
	slot.Done()
	return slot.LSN, nil
}
