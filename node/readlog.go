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
	r := &logReader{n: n, p: p, next: req.From, to: req.To, follow: req.Follow}
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
	if req.To < 0 {
		r.wait = req.Wait
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
	to     int64
	follow bool
	wait   time.Duration

	buf     partition.Buffer
	run     [][]byte
	scratch segment.Scratch
	recs    []broker.Record
}

// Next implements broker.LogReader.
func (r *logReader) Next(ctx context.Context) ([]broker.Record, error) {
	if r.next >= r.to && r.wait > 0 {
		more, err := r.atEnd(ctx)
		if err != nil || !more {
			return nil, err
		}
		if err := r.p.Refused(); err != nil {
			return nil, err
		}
		r.wait, r.to = 0, r.p.HighWatermark()
	}
	for r.next < r.to {
		if err := r.n.refusal(); err != nil {
			return nil, err
		}
		if len(r.run) == 0 {
			var err error
			if r.run, err = r.p.Read(ctx, r.next, readChunk, &r.buf); err != nil {
				return nil, err
			}
			if len(r.run) == 0 {
				if !r.follow {
					return nil, io.EOF
				}
				if more, err := r.atEnd(ctx); err != nil || !more {
					return nil, err
				}
				continue
			}
		}
		recs, err := r.decode(r.run[0])
		r.run = r.run[1:]
		if err != nil || len(recs) > 0 {
			return recs, err
		}
	}
	return nil, io.EOF
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

// atEnd waits at the high watermark. more is false when the reader is done.
func (r *logReader) atEnd(ctx context.Context) (more bool, err error) {
	changed := r.p.Changed()
	if r.next < r.p.HighWatermark() {
		return true, nil
	}
	var timeout <-chan time.Time
	if !r.follow {
		t := time.NewTimer(r.wait)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-changed:
		return true, nil
	case <-timeout:
		return false, io.EOF
	case <-ctx.Done():
		return false, ctx.Err()
	case <-r.n.serving.Done():
		return false, r.n.gone()
	}
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
