package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

const (
	// maxLent bounds the runs that are lent at once. Each may hold two blocks
	// of the cache, 8 MiB; a slow client keeps its run as long as it takes to
	// send it. Further runs are copied: their own bytes and no more.
	maxLent = 16
	// maxLooks bounds how often one read looks at the chain again because an
	// object was not there: each time must name another object.
	maxLooks = 8
)

// coldReader reads archived records for package partition. A reader that goes
// on where its last call ended finds its scan again, with its read-ahead.
type coldReader struct {
	chains *chains
	cache  *cold.Cache
	scans  *scans
	lent   atomic.Int64 // runs
}

func newColdReader(c *chains, cache *cold.Cache, now func() time.Time) *coldReader {
	return &coldReader{chains: c, cache: cache, scans: newScans(now)}
}

// forget drops the scans of a deleted topic.
func (r *coldReader) forget(topic broker.TopicID) { r.scans.forget(topic) }

func (r *coldReader) close() { r.scans.close() }

// Read implements partition.Archive.
func (r *coldReader) Read(ctx context.Context, id broker.PartitionID, from int64, maxBytes int, local int64) ([][]byte, func(), error) {
	missing := "" // object that was not there
	for range maxLooks {
		s, kept, err := r.at(ctx, id, from, local)
		if err != nil || s == nil {
			return nil, nil, err
		}
		run, err := r.next(ctx, s, maxBytes, local)
		if err == nil && run == nil { // the archive ends
			return nil, nil, nil
		}
		if err == nil {
			s.key.next = run.Next
			r.put(s, local)
			batches, release := r.lend(run)
			return batches, release, nil
		}
		s.close()
		switch {
		case ctx.Err() != nil:
			return nil, nil, err
		case kept: // its object may have been replaced since: look again
		case errcode.Is(err, errcode.Gone) && s.seg.Key() != missing:
			// Merged or trimmed since the chain named it, perhaps by another
			// owner. Only what the chain still names is lost.
			missing = s.seg.Key()
			if err := r.chains.refresh(ctx, id); err != nil {
				return nil, nil, err
			}
		default:
			return nil, nil, lost(err)
		}
		// What the scan passed before it failed held nothing at or above from.
		from = max(from, s.key.next)
	}
	return nil, nil, errcode.New(errcode.ArchiveUnavailable, "partition %s: the archive's list of segments changes faster than offset %d can be read; try again", id, from)
}

// put keeps a scan whose reader will come again, closes any other one.
func (r *coldReader) put(s *scan, local int64) {
	if s.key.next >= local {
		s.close()
		return
	}
	r.scans.keep(s)
	// Those that wait must not keep readers from reading ahead.
	for r.cache.Crowded() && r.scans.len() > 1 {
		r.scans.shed()
	}
}

// at returns a scan that stands at from, nil when the archive ends before; kept
// says that an earlier call left it. A segment that cannot be opened is a scan
// with that error.
func (r *coldReader) at(ctx context.Context, id broker.PartitionID, from, local int64) (s *scan, kept bool, err error) {
	if s := r.scans.take(scanKey{id, from}); s != nil {
		return s, true, nil
	}
	loc, ok, err := r.find(ctx, id, from)
	if err != nil || !ok {
		return nil, false, err
	}
	s = &scan{key: scanKey{id, from}, seg: loc}
	if s.batches, s.err = r.cache.Scan(ctx, loc, from); s.err != nil {
		return s, false, nil
	}
	r.follow(ctx, s, local)
	return s, false, nil
}

// find returns the segment that holds from, or the first one after it; ok is
// false when the archive ends before.
func (r *coldReader) find(ctx context.Context, id broker.PartitionID, from int64) (seg manifest.Segment, ok bool, err error) {
	chain, err := r.chains.load(ctx, id)
	if err != nil {
		return seg, false, err
	}
	for {
		loc, err := chain.Find(ctx, from)
		if err != nil {
			return seg, false, unreachable(err, "find offset %d of partition %s", from, id)
		}
		switch loc.Kind {
		case manifest.InSegment:
			return loc.Segment, true, nil
		case manifest.InGap:
			from = loc.Next
		case manifest.Below:
			return seg, false, errcode.New(errcode.Gone, "offset %d of partition %s was trimmed, the log begins at %d", from, id, loc.Next).With("oldest_offset", loc.Next)
		default:
			return seg, false, nil
		}
	}
}

// follow has the scan read ahead into the segment after its own, unless local
// files have that one. What is wrong there is met when the scan gets there.
func (r *coldReader) follow(ctx context.Context, s *scan, local int64) {
	if s.seg.Next >= local {
		return
	}
	if seg, ok, err := r.find(ctx, s.key.id, s.seg.Next); err == nil && ok && seg.Base < local {
		s.batches.Follow(seg)
		s.then = seg.Key()
	}
}

// next returns the scan's next run, from the segments behind when its own has
// no more; nil at the archive's end. After an error s.seg is what it is about.
func (r *coldReader) next(ctx context.Context, s *scan, maxBytes int, local int64) (*cold.Run, error) {
	if s.err != nil {
		return nil, s.err
	}
	for {
		run, err := s.batches.Run(ctx, maxBytes)
		if !errors.Is(err, io.EOF) {
			s.err = err
			return run, err
		}
		s.key.next = max(s.key.next, s.seg.Next)
		// The chain is asked again: what was to follow may have been merged.
		seg, ok, err := r.find(ctx, s.key.id, s.key.next)
		if err != nil {
			s.err = err
			return nil, err
		}
		if !ok {
			s.close()
			return nil, nil
		}
		if key := seg.Key(); key != s.then {
			s.batches.Follow(seg)
		}
		s.seg, s.then = seg, ""
		if s.batches, err = s.onward(ctx); err != nil {
			s.err = err
			return nil, err
		}
		r.follow(ctx, s, local)
	}
}

// lend hands a run out, as it is or copied.
func (r *coldReader) lend(run *cold.Run) ([][]byte, func()) {
	if r.lent.Add(1) <= maxLent {
		return run.Batches, func() {
			run.Release()
			r.lent.Add(-1)
		}
	}
	r.lent.Add(-1)
	out := make([][]byte, len(run.Batches))
	for i, b := range run.Batches {
		out[i] = bytes.Clone(b)
	}
	run.Release()
	return out, func() {}
}

// Bounds implements partition.Archive.
func (r *coldReader) Bounds(ctx context.Context, id broker.PartitionID, offset int64) (base, next int64, ok bool, err error) {
	err = r.look(ctx, id, func(chain *manifest.Chain) (manifest.Segment, error) {
		loc, err := chain.Find(ctx, offset)
		if err != nil {
			return loc.Segment, unreachable(err, "find offset %d of partition %s", offset, id)
		}
		if loc.Kind != manifest.InSegment {
			return loc.Segment, nil
		}
		reader, err := r.cache.Open(ctx, loc.Segment)
		if err != nil {
			return loc.Segment, err
		}
		x := reader.Index()
		i := x.SeekOffset(offset)
		base, next, ok = x.At(i).Base, loc.Next, true
		if i+1 < x.Len() {
			next = x.At(i + 1).Base
		}
		return loc.Segment, nil
	})
	return base, next, ok, err
}

// look runs f until it fails with something else than an object that is missing
// and that the chain, read again, does not name any more. f returns the segment
// that it used.
func (r *coldReader) look(ctx context.Context, id broker.PartitionID, f func(*manifest.Chain) (manifest.Segment, error)) error {
	chain, err := r.chains.load(ctx, id)
	if err != nil {
		return err
	}
	missing := ""
	for range maxLooks {
		seg, err := f(chain)
		if !errcode.Is(err, errcode.Gone) || seg.Key() == missing {
			return lost(err)
		}
		missing = seg.Key()
		if err := r.chains.refresh(ctx, id); err != nil {
			return err
		}
	}
	return errcode.New(errcode.ArchiveUnavailable, "partition %s: the archive's list of segments changes faster than it can be read; try again", id)
}

// FindTime implements partition.Archive.
func (r *coldReader) FindTime(ctx context.Context, id broker.PartitionID, from, local, ms int64) (at int64, ok bool, err error) {
	for {
		var loc manifest.Location
		err = r.look(ctx, id, func(chain *manifest.Chain) (manifest.Segment, error) {
			if loc, err = chain.FindTime(ctx, from, ms); err != nil {
				return loc.Segment, unreachable(err, "find a time in partition %s", id)
			}
			if loc.Segment.Base >= local {
				loc.Kind = manifest.Beyond // what the archive alone has holds no such time
			}
			if loc.Kind == manifest.InSegment {
				at, ok, err = r.findTimeIn(ctx, loc.Segment, from, ms)
			}
			return loc.Segment, err
		})
		if err != nil || ok || loc.Kind != manifest.InSegment {
			return at, ok, err
		}
		from = loc.Next // its records of that time lie below from
	}
}

// findTimeIn looks in one segment from offset from on.
func (r *coldReader) findTimeIn(ctx context.Context, seg manifest.Segment, from, ms int64) (int64, bool, error) {
	reader, err := r.cache.Open(ctx, seg)
	if err != nil {
		return 0, false, err
	}
	x := reader.Index()
	i := x.SeekTime(ms)
	if i == x.Len() {
		return 0, false, errcode.New(errcode.Corrupt, "segment %s has no record at or after %d ms, its chain entry says so", seg.Key(), ms)
	}
	// The first batch that reaches ms, or one behind it when that lies below
	// from: then batches are looked into until one of them reaches it again.
	i = max(i, x.SeekOffset(from))
	batches := reader.Batches(x.At(i).Base)
	defer batches.Close()
	for {
		b, h, err := batches.Next(ctx)
		if errors.Is(err, io.EOF) {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		if h.MaxTimestamp < ms {
			continue
		}
		if at, _, found, err := segment.FindTimeFrom(b, from, ms, nil); err != nil || found {
			return at, found, err
		}
	}
}

// lost gives the absence of an object that the chain names its own code: to
// readers Gone means that records were trimmed and never come back, which is
// settled; these may come back, or be repaired.
func lost(err error) error {
	if !errcode.Is(err, errcode.Gone) {
		return err
	}
	out := errcode.New(errcode.Corrupt, "the archive lost an object that it names: %w; put it back, or give its records up with tidemark topic trim; tidemark bucket verify says what else is missing", err)
	var e *errcode.Error
	if errors.As(err, &e) {
		out.Facts = e.Facts
	}
	return out
}
