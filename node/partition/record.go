package partition

import (
	"bytes"
	"context"
	"sort"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

// Record returns the record at offset. It stays valid. Errors as for Read, and
// Gone when no record stands at that offset. A batch that several readers want at
// once is read and decoded by one of them.
func (p *Partition) Record(ctx context.Context, offset int64) (broker.Record, error) {
	if err := p.Refused(); err != nil {
		return broker.Record{}, err
	}
	recs, err := p.decodedAt(ctx, offset)
	if oldest := p.Oldest(); err != nil && offset < oldest {
		return broker.Record{}, p.trimmed(offset, oldest)
	}
	if err != nil {
		return broker.Record{}, p.because(err)
	}
	i := sort.Search(len(recs), func(i int) bool { return recs[i].Offset >= offset })
	if i == len(recs) || recs[i].Offset != offset {
		return broker.Record{}, errcode.New(errcode.Gone, "partition %s has no record at offset %d", p.ID, offset)
	}
	return recs[i], nil
}

// decodedAt returns the records of the batch around offset.
func (p *Partition) decodedAt(ctx context.Context, offset int64) ([]broker.Record, error) {
	p.mu.Lock()
	if oldest := p.mu.oldest; offset < oldest {
		p.mu.Unlock()
		return nil, p.trimmed(offset, oldest)
	}
	if i, ok := p.mu.tail.find(offset); ok {
		b := p.mu.tail.at(i)
		key, data := decodedKey{p.ID, b.base, b.next}, b.lasting()
		p.mu.Unlock()
		if key.next-key.base == 1 { // nothing to gain from the cache
			return segment.DecodeBatch(nil, data, new(segment.Scratch))
		}
		return p.e.decoded.get(ctx, key, func() ([]byte, error) { return data, nil })
	}
	p.mu.Unlock()
	// Who reads one record after the other, and others beside it, need neither
	// look for files nor ask the archive.
	if recs := p.recent.find(p.e.decoded, offset); recs != nil {
		return recs, nil
	}
	recs, local, err := p.decodedLocal(ctx, offset)
	if local && !p.elsewhere(offset, err) {
		return recs, err
	}
	return p.decodedArchived(ctx, offset)
}

// decodedLocal returns the records of the batch around offset out of a local
// file; local is false when none holds it.
func (p *Partition) decodedLocal(ctx context.Context, offset int64) (recs []broker.Record, local bool, err error) {
	s, err := p.segmentFor(offset)
	if err != nil || s.Reader == nil {
		return nil, err != nil, err
	}
	defer s.release()
	recs, err = p.decodedFrom(ctx, s.Reader, offset)
	return recs, true, err
}

// decodedArchived returns the records of the archived batch around offset. How
// far it reaches is known before it is read, so readers of one batch share one
// read of it.
func (p *Partition) decodedArchived(ctx context.Context, offset int64) ([]broker.Record, error) {
	archive := p.e.opts.Archive
	if p.afterGap(offset) != offset {
		return nil, nil
	}
	if archive == nil {
		_, _, err := p.readArchive(ctx, offset, 1, new(Buffer)) // says what is wrong
		return nil, err
	}
	base, next, ok, err := archive.Bounds(ctx, p.ID, offset)
	if err != nil || !ok {
		return nil, err
	}
	k := decodedKey{p.ID, base, next}
	recs, err := p.e.decoded.get(ctx, k, func() ([]byte, error) { return p.archivedBatch(ctx, base) })
	if err == nil && holds(recs, offset) {
		p.recent.add(k)
		return recs, nil
	}
	if err != nil && !errcode.Is(err, errcode.Gone) {
		return nil, err
	}
	// That there is no such record settles it for every group. The segment may
	// have been merged into one with other batches since Bounds, and where the
	// log was trimmed inside of the batch the archive does not give its base any
	// more: a read from the offset on is what decides.
	b, err := p.archivedBatch(ctx, offset)
	if err != nil {
		return nil, err
	}
	return segment.DecodeBatch(nil, b, new(segment.Scratch))
}

// archivedBatch returns the first archived batch that ends above offset, in
// memory of its own: what is kept must not keep a chunk of the archive's cache.
func (p *Partition) archivedBatch(ctx context.Context, offset int64) ([]byte, error) {
	run, release, err := p.e.opts.Archive.Read(ctx, p.ID, offset, 1, p.localAfter(offset))
	if err != nil {
		return nil, err
	}
	if len(run) == 0 {
		return nil, errcode.New(errcode.ArchiveUnavailable, "partition %s: the archive's list of segments changed while offset %d was read; try again", p.ID, offset)
	}
	defer release()
	return bytes.Clone(run[0]), nil
}

func (p *Partition) decodedFrom(ctx context.Context, r *segment.Reader, offset int64) ([]broker.Record, error) {
	x := r.Index()
	i := x.SeekOffset(offset)
	next := r.Next()
	if i+1 < x.Len() {
		next = x.At(i + 1).Base
	}
	entry := x.At(i)
	k := decodedKey{p.ID, entry.Base, next}
	recs, err := p.e.decoded.get(ctx, k, func() ([]byte, error) {
		b, _, err := r.ReadBatch(entry, nil)
		return b, err
	})
	if err == nil {
		p.recent.add(k)
	}
	return recs, err
}
