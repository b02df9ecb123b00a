package node

import (
	"context"
	"io"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/segment"
)

// readChunk is about how many stored bytes one step of a log reader takes.
const readChunk = 1 << 20

// ReadLog opens a reader of one partition's log.
func (n *Node) ReadLog(_ context.Context, req broker.ReadRequest) (broker.LogReader, error) {
	t, err := n.topic(req.Topic)
	if err != nil {
		return nil, err
	}
	p, err := t.partition(int64(req.Partition))
	if err != nil {
		return nil, err
	}
	if err := p.Refused(); err != nil {
		return nil, err
	}
	oldest, hw := p.Oldest(), p.HighWatermark()
	r := &logReader{n: n, p: p, next: req.From, to: req.To, end: req.To, follow: req.Follow}
	if r.next < 0 {
		r.next = oldest
	}
	if r.to < 0 {
		r.to = hw
		if req.Follow {
			r.to = 1<<63 - 1
		}
	}
	bounds := func(e *errcode.Error) error { return e.With("oldest_offset", oldest).With("high_watermark", hw) }
	switch {
	case r.next < oldest:
		return nil, bounds(errcode.New(errcode.Gone, "offset %d was trimmed: the log of partition %d begins at %d and ends at %d", r.next, req.Partition, oldest, hw))
	case r.next > hw:
		return nil, bounds(errcode.New(errcode.OutOfRange, "offset %d is above the high watermark: the log of partition %d begins at %d and ends at %d", r.next, req.Partition, oldest, hw))
	}
	for _, g := range p.Gaps() {
		if r.next == g[0] {
			r.next = g[1]
		}
		if r.next > g[0] && r.next < g[1] {
			return nil, bounds(errcode.New(errcode.Conflict, "offset %d of partition %d lies in a gap: no records stand from %d to %d; go on at %d", r.next, req.Partition, g[0], g[1], g[1]).With("gap_from", g[0]).With("gap_to", g[1]))
		}
	}
	return r, nil
}

// OffsetForTime returns the first offset at or after a time.
func (n *Node) OffsetForTime(ctx context.Context, name string, index uint32, ms int64) (int64, error) {
	t, err := n.topic(name)
	if err != nil {
		return 0, err
	}
	p, err := t.partition(int64(index))
	if err != nil {
		return 0, err
	}
	return p.FindTime(ctx, ms)
}

// logReader walks over a partition's records wherever they are.
type logReader struct {
	n      *Node
	p      *partition.Partition
	next   int64
	to     int64 // where it ends
	end    int64 // where it was asked to end, -1: nowhere
	follow bool

	buf     partition.Buffer
	run     [][]byte // read and not returned yet
	scratch segment.Scratch
	recs    []broker.Record
	stored  []broker.StoredBatch
}

// Next implements broker.LogReader.
func (r *logReader) Next(ctx context.Context) ([]broker.Record, error) {
	for {
		if len(r.run) == 0 {
			if err := r.read(ctx); err != nil || len(r.run) == 0 {
				return nil, err
			}
		}
		if r.next >= r.to {
			return nil, io.EOF
		}
		recs, err := r.decode(r.run[0])
		r.run = r.run[1:]
		if err != nil || len(recs) > 0 {
			return recs, err
		}
	}
}

// NextBatches implements broker.LogReader.
func (r *logReader) NextBatches(ctx context.Context) ([]broker.StoredBatch, error) {
	if len(r.run) == 0 {
		if err := r.read(ctx); err != nil || len(r.run) == 0 {
			return nil, err
		}
	}
	r.stored = r.stored[:0]
	next, ended := r.next, false
	for _, b := range r.run {
		h, err := segment.ParseHeader(b)
		if err != nil {
			return nil, err
		}
		if ended = h.BaseOffset >= r.to; ended {
			break
		}
		if h.NextOffset() <= next {
			continue // only a gap's other side
		}
		next = h.NextOffset()
		if r.end >= 0 {
			next = min(next, r.end)
		}
		next = r.afterGap(next)
		r.stored = append(r.stored, broker.StoredBatch{Bytes: b, Records: int(h.Records), Resume: next})
	}
	r.run = nil
	switch {
	case len(r.stored) > 0:
		r.next = next
		return r.stored, nil
	case next < r.to && !ended:
		return nil, errcode.New(errcode.Corrupt, "partition %s: a read at offset %d found only what lies before it", r.p.ID, next)
	default: // nothing stands between here and the end
		r.next = r.afterGap(r.to)
		return nil, io.EOF
	}
}

// read gets the next run. None and no error: the reader follows and stands at
// the high watermark.
func (r *logReader) read(ctx context.Context) error {
	if r.next >= r.to {
		return io.EOF
	}
	if err := r.n.refusal(); err != nil {
		return err
	}
	var err error
	if r.run, err = r.p.Read(ctx, r.next, readChunk, &r.buf); err != nil {
		return err
	}
	if len(r.run) == 0 && !r.follow {
		return io.EOF
	}
	return nil
}

// decode returns the records of a batch that were asked for.
func (r *logReader) decode(batch []byte) ([]broker.Record, error) {
	var err error
	if r.recs, err = segment.DecodeBatch(r.recs[:0], batch, &r.scratch); err != nil {
		return nil, err
	}
	recs := r.recs
	for len(recs) > 0 && recs[0].Offset < r.next {
		recs = recs[1:]
	}
	hw := min(r.to, r.p.HighWatermark())
	for len(recs) > 0 && recs[len(recs)-1].Offset >= hw {
		recs = recs[:len(recs)-1]
	}
	if len(recs) > 0 {
		r.next = r.afterGap(recs[len(recs)-1].Offset + 1)
		return recs, nil
	}
	if h, err := segment.ParseHeader(batch); err == nil {
		r.next = max(r.next, min(h.NextOffset(), r.to))
	}
	return nil, nil
}

// Wait implements broker.LogReader.
func (r *logReader) Wait(ctx context.Context, most time.Duration) (more bool, err error) {
	if !r.follow && r.end >= 0 {
		return false, nil
	}
	if len(r.run) > 0 {
		return true, nil
	}
	r.rest()
	var timeout <-chan time.Time
	if most > 0 {
		t := time.NewTimer(most)
		defer t.Stop()
		timeout = t.C
	}
	for {
		changed := r.p.Changed()
		if err := r.p.Refused(); err != nil {
			return false, err
		}
		if hw := r.p.HighWatermark(); r.next < hw {
			if !r.follow {
				r.to = hw
			}
			return true, nil
		}
		select {
		case <-changed:
		case <-timeout:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-r.n.serving.Done():
			return false, r.n.gone()
		}
	}
}

// restBytes is how much memory of each kind a reader keeps that waits.
const restBytes = 64 << 10

// rest gives back what a reader that waits needs again only then.
func (r *logReader) rest() {
	r.buf.Shrink(restBytes)
	r.scratch.Shrink(restBytes)
	// What is left of these points into the memory that goes.
	r.run, r.stored, r.recs = nil, nil, nil
}

// afterGap is offset, or the end of the gap that begins there: a place to
// resume is never a gap's start.
func (r *logReader) afterGap(offset int64) int64 {
	for _, g := range r.p.Gaps() {
		if offset == g[0] {
			offset = g[1]
		}
	}
	return offset
}

// ResumeOffset implements broker.LogReader.
func (r *logReader) ResumeOffset() int64 { return r.next }

// Bounds implements broker.LogReader.
func (r *logReader) Bounds() (oldest, highWatermark int64) {
	return r.p.Oldest(), r.p.HighWatermark()
}

// Close implements broker.LogReader.
func (r *logReader) Close() error {
	r.run = nil
	r.buf.Release()
	return nil
}
