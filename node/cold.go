package node

import (
	"container/list"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// keptScans bounds the scans that wait for their reader's next call.
const keptScans = 128

// coldReader reads archived records for package partition. A reader that goes
// on where its last call ended finds its scan again, with its read-ahead.
type coldReader struct {
	chains *chains
	cache  *cold.Cache

	mu     sync.Mutex
	scans  map[scanKey]*list.Element // -> *scan
	order  *list.List                // front: most recent
	closed bool
}

type scanKey struct {
	id   broker.PartitionID
	next int64
}

type scan struct {
	key     scanKey
	batches *cold.Batches
	segNext int64  // where the segment ends
	held    []byte // a batch that was read and did not fit into the run
}

func newColdReader(c *chains, cache *cold.Cache) *coldReader {
	return &coldReader{chains: c, cache: cache, scans: make(map[scanKey]*list.Element), order: list.New()}
}

// Read implements partition.Archive.
func (r *coldReader) Read(ctx context.Context, id broker.PartitionID, from int64, maxBytes int) ([][]byte, error) {
	for {
		s, kept, err := r.at(ctx, id, from)
		if err != nil || s == nil {
			return nil, err
		}
		run, next, err := s.read(ctx, from, maxBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			s.batches.Close()
			if kept && ctx.Err() == nil {
				continue // its object may have been replaced since: look again
			}
			return nil, lost(err)
		}
		s.key.next = next
		if errors.Is(err, io.EOF) {
			s.batches.Close()
		} else {
			r.keep(s)
		}
		if len(run) > 0 {
			return run, nil
		}
		from = next // the segment's rest held nothing at or above from
	}
}

// at returns a scan that stands at from, nil when the archive ends before; kept
// says that an earlier call left it.
func (r *coldReader) at(ctx context.Context, id broker.PartitionID, from int64) (s *scan, kept bool, err error) {
	if s := r.take(scanKey{id, from}); s != nil {
		return s, true, nil
	}
	s, err = r.begin(ctx, id, from)
	return s, false, err
}

func (r *coldReader) begin(ctx context.Context, id broker.PartitionID, from int64) (*scan, error) {
	chain, err := r.chains.load(ctx, id)
	if err != nil {
		return nil, err
	}
	for {
		loc, err := chain.Find(ctx, from)
		if err != nil {
			return nil, unreachable(err, "find offset %d of partition %s", from, id)
		}
		switch loc.Kind {
		case manifest.InSegment:
			reader, err := r.cache.Open(ctx, loc.Segment)
			if err != nil {
				return nil, lost(err)
			}
			return &scan{key: scanKey{id, from}, batches: reader.Batches(from), segNext: loc.Next}, nil
		case manifest.InGap:
			from = loc.Next
		case manifest.Below:
			return nil, errcode.New(errcode.Gone, "offset %d of partition %s was trimmed, the log begins at %d", from, id, loc.Next).With("oldest_offset", loc.Next)
		default:
			return nil, nil
		}
	}
}

// read returns batches up to about maxBytes, copied: the cache's memory is
// shared. next is where the following call goes on; io.EOF, with what was read,
// says that the segment ended.
func (s *scan) read(ctx context.Context, from int64, maxBytes int) (run [][]byte, next int64, err error) {
	next = from
	for size := 0; size < maxBytes || len(run) == 0; {
		b := s.held
		s.held = nil
		if b == nil {
			batch, _, err := s.batches.Next(ctx)
			if errors.Is(err, io.EOF) {
				return run, max(next, s.segNext), err
			}
			if err != nil {
				if len(run) > 0 {
					return run, next, nil // the next call meets the error
				}
				return nil, next, err
			}
			b = append([]byte(nil), batch...)
		}
		if len(run) > 0 && size+len(b) > maxBytes {
			s.held = b
			return run, next, nil
		}
		h, err := segment.ParseHeader(b)
		if err != nil {
			return nil, next, err
		}
		if h.NextOffset() <= from {
			continue
		}
		run, next = append(run, b), h.NextOffset()
		size += len(b)
	}
	return run, next, nil
}

func (r *coldReader) take(key scanKey) *scan {
	r.mu.Lock()
	defer r.mu.Unlock()
	el, ok := r.scans[key]
	if !ok {
		return nil
	}
	delete(r.scans, key)
	return r.order.Remove(el).(*scan)
}

func (r *coldReader) keep(s *scan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		s.batches.Close()
		return
	}
	if old, ok := r.scans[s.key]; ok {
		r.drop(old)
	}
	r.scans[s.key] = r.order.PushFront(s)
	for r.order.Len() > keptScans {
		r.drop(r.order.Back())
	}
}

func (r *coldReader) drop(el *list.Element) {
	s := r.order.Remove(el).(*scan)
	delete(r.scans, s.key)
	s.batches.Close()
}

// forget drops the scans of a deleted topic.
func (r *coldReader) forget(topic broker.TopicID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, el := range r.scans {
		if key.id.Topic == topic {
			r.drop(el)
		}
	}
}

func (r *coldReader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for r.order.Len() > 0 {
		r.drop(r.order.Back())
	}
}

// FindTime implements partition.Archive.
func (r *coldReader) FindTime(ctx context.Context, id broker.PartitionID, ms int64) (int64, bool, error) {
	chain, err := r.chains.load(ctx, id)
	if err != nil {
		return 0, false, err
	}
	loc, err := chain.FindTime(ctx, ms)
	if err != nil {
		return 0, false, unreachable(err, "find a time in partition %s", id)
	}
	if loc.Kind != manifest.InSegment {
		return 0, false, nil
	}
	reader, err := r.cache.Open(ctx, loc.Segment)
	if err != nil {
		return 0, false, err
	}
	x := reader.Index()
	i := x.SeekTime(ms)
	if i == x.Len() {
		return 0, false, errcode.New(errcode.Corrupt, "segment %s has no record at or after %d ms, its chain entry says so", loc.Segment.Key(), ms)
	}
	batches := reader.Batches(x.At(i).Base)
	defer batches.Close()
	b, _, err := batches.Next(ctx)
	if err != nil {
		return 0, false, err
	}
	at, _, found, err := segment.FindTime(b, ms, nil)
	return at, found, err
}

// lost gives the absence of an object that the chain names its own code: to
// readers Gone means that records were trimmed and never come back, which is
// settled; these may come back, or be repaired.
func lost(err error) error {
	if !errcode.Is(err, errcode.Gone) {
		return err
	}
	out := errcode.New(errcode.Corrupt, "the archive lost an object that it names: %w; put it back, or see tidemark bucket verify", err)
	var e *errcode.Error
	if errors.As(err, &e) {
		out.Facts = e.Facts
	}
	return out
}
