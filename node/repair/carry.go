package repair

import (
	"context"
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// carryBytes is about the size of one carry.
const carryBytes = 1 << 20

// carry writes into the new log the records that the archive may not have: the
// old log, which had them, is shipped no more. The node passes them over when it
// starts, because its files have them, and ships them. What the archive has of
// them already a restore recognises by their offsets.
func (b *build) carry(ctx context.Context) error {
	if _, claimed := b.meta.State().Setting(settingClaimed); !claimed {
		return nil // there is none
	}
	var last uint64
	for i := range b.entries {
		e := &b.entries[i]
		t := b.tracks[e.ID]
		if t == nil {
			continue
		}
		// Everything in front of a file whose first commit is at or below the
		// shipped mark was shipped.
		from := max(e.ArchivedEnd, e.Oldest)
		for _, s := range e.Sealed {
			if s.FirstLSN > 1 && s.FirstLSN <= b.marks.Shipped+1 { // 1: nobody knows
				from = max(from, s.Base)
			}
		}
		if a := e.Active; a != nil && a.FirstLSN > 1 && a.FirstLSN <= b.marks.Shipped+1 {
			from = max(from, a.Base)
		}
		for _, s := range e.Sealed {
			if s.Next <= from {
				continue
			}
			path := b.o.FS.PathJoin(b.partitionDir(e.ID), segment.SealedName(s.Base))
			if err := b.carryFile(path, s.MinAppend, from, t, &last); err != nil {
				return err
			}
		}
	}
	for id, p := range b.parts {
		if err := b.carryTail(ctx, p, b.tracks[id], &last); err != nil {
			return err
		}
	}
	if last == 0 {
		return nil
	}
	return b.log.WaitDurable(ctx, last)
}

// carryFile carries the batches of a sealed segment from an offset on.
func (b *build) carryFile(path string, appendMS, from int64, t *track, last *uint64) error {
	f, err := b.o.FS.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "open %s", path)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "stat %s", path)
	}
	r, _, err := segment.OpenReader(path, f, st.Size())
	if err != nil {
		return err
	}
	var c carrier
	for s := r.Scan(from, nil); ; {
		batch, h, err := s.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && h.NextOffset() > from {
			err = c.add(b.log, t, h.Generation, appendMS, batch, last)
		}
		if err != nil {
			return err
		}
	}
	return c.flush(b.log, t, appendMS, last)
}

// carryTail carries what the active file of a partition has. The engine has no
// other files.
func (b *build) carryTail(ctx context.Context, p *partition.Partition, t *track, last *uint64) error {
	var c carrier
	var buf partition.Buffer
	appendMS := p.Stats().OldestAppend
	if appendMS == 0 {
		appendMS = b.o.Now().UnixMilli()
	}
	for next := t.activeBase(); next < t.next; {
		run, err := p.Read(ctx, next, carryBytes, &buf)
		if err != nil {
			return err
		}
		if len(run) == 0 {
			break
		}
		for _, batch := range run {
			h, err := segment.ParseHeader(batch)
			if err == nil {
				err = c.add(b.log, t, h.Generation, appendMS, batch, last)
			}
			if err != nil {
				return err
			}
			next = max(next, h.NextOffset())
		}
	}
	return c.flush(b.log, t, appendMS, last)
}

// activeBase is where the files begin that are not sealed segments.
func (t *track) activeBase() int64 {
	for _, f := range t.files {
		if !f.listed {
			return f.base
		}
	}
	return t.local
}

// carrier gathers batches of one generation for a carry.
type carrier struct {
	generation uint32
	batches    []byte
}

func (c *carrier) add(log *wal.Log, t *track, generation uint32, appendMS int64, batch []byte, last *uint64) error {
	if len(c.batches) > 0 && (generation != c.generation || len(c.batches)+len(batch) > carryBytes) {
		if err := c.flush(log, t, appendMS, last); err != nil {
			return err
		}
	}
	c.generation, c.batches = generation, append(c.batches, batch...)
	return nil
}

func (c *carrier) flush(log *wal.Log, t *track, appendMS int64, last *uint64) error {
	if len(c.batches) == 0 {
		return nil
	}
	slot, err := log.Reserve(wal.KindCarry, frame.CommitHeaderSize+frame.SectionHeaderSize+len(c.batches))
	if err != nil {
		return err
	}
	frame.PutCommitHeader(slot.Body, frame.CommitHeader{AppendMS: appendMS})
	section := slot.Body[frame.CommitHeaderSize:]
	frame.PutSectionHeader(section, t.id, c.generation, len(c.batches))
	copy(section[frame.SectionHeaderSize:], c.batches)
	slot.Done()
	*last, c.batches = slot.LSN, c.batches[:0]
	return nil
}
