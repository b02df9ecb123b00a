package segment

import (
	"math"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Mergeable reports whether a batch may be merged with others at all: it is
// uncompressed, without producer id, transaction, control records or delete
// horizon, and has records. So what a client compressed stays as it came.
func Mergeable(h *BatchHeader) bool {
	return h.Attributes&^attrLogAppendTime == 0 && h.ProducerID < 0 && h.Records > 0
}

// Accepts reports whether AddBatch takes a batch with header h now: mergeable,
// behind the offsets so far, of the same generation and timestamp type, and
// within the bounds of a batch. With one time for the whole batch
// (LogAppendTime) the times must be equal, because they would change otherwise.
func (b *Builder) Accepts(h *BatchHeader) bool {
	if !Mergeable(h) {
		return false
	}
	if b.h.Records == 0 {
		return true
	}
	switch {
	case !b.merged, h.Generation != b.h.Generation, h.Attributes != b.h.Attributes:
		return false
	case h.Attributes&attrLogAppendTime != 0 && h.MaxTimestamp != b.h.MaxTimestamp:
		return false
	case h.BaseOffset <= b.h.LastOffset() || h.LastOffset()-b.h.BaseOffset > math.MaxInt32:
		return false
	}
	return int(b.h.Records)+int(h.Records) <= MaxRecords && b.Size()+grown(h) <= MaxBatch
}

// grown bounds the bytes that h's records take in another batch: length, time
// and offset delta may each grow to the longest varint of their kind.
func grown(h *BatchHeader) int { return h.Size - HeaderSize + int(h.Records)*(4+9+4) }

// AddBatch merges a batch, which the caller has verified, behind the batches
// that are there already; it does not follow records that Add took.
// Only the deltas and lengths are written anew; keys, values, headers, offsets
// and timestamps stay byte for byte, and no record is materialised. The result
// has the generation of the first batch. Errors: Conflict when Accepts says no,
// Corrupt when the records do not parse; the batch so far is then unchanged.
func (b *Builder) AddBatch(batch []byte) error {
	h, err := ParseHeader(batch)
	if err != nil {
		return err
	}
	if len(batch) != h.Size {
		return errcode.New(errcode.Corrupt, "batch at offset %d: %d bytes, its header says %d", h.BaseOffset, len(batch), h.Size)
	}
	if !b.Accepts(&h) {
		return errcode.New(errcode.Conflict, "batch at offset %d cannot be merged behind offset %d", h.BaseOffset, b.h.LastOffset())
	}
	first := b.h.Records == 0
	base, baseTime := b.h.BaseOffset, b.h.BaseTimestamp
	if first {
		base, baseTime = h.BaseOffset, h.BaseTimestamp
	}
	if err := b.room(grown(&h), int(h.Records)); err != nil {
		return err
	}
	out := b.buf[len(b.buf):cap(b.buf)]
	n, ok := redelta(out, batch[HeaderSize:], &h, h.BaseOffset-base, h.BaseTimestamp-baseTime)
	if !ok {
		return errcode.New(errcode.Corrupt, "batch at offset %d: its records do not parse", h.BaseOffset)
	}
	b.buf = b.buf[:len(b.buf)+n]
	if first {
		size := b.h.Size
		b.h, b.merged = h, true
		b.h.Size = size
		return nil
	}
	b.h.Records += h.Records
	b.h.LastOffsetDelta = int32(h.LastOffset() - base)
	b.h.MaxTimestamp = max(b.h.MaxTimestamp, h.MaxTimestamp)
	return nil
}

// redelta copies h's records from in to out, adding to each record's offset
// and time delta. It returns the bytes written.
func redelta(out, in []byte, h *BatchHeader, addOffset, addTime int64) (int, bool) {
	p, w, last := 0, 0, int64(-1)
	for range h.Records {
		n, q := varint(in, p)
		if q < 0 || n < minRecord-1 || n > int64(len(in)-q) {
			return 0, false
		}
		end := q + int(n)
		body := in[:end]
		time, r := varint(body, q+1)
		offset, r := varint(body, r)
		if r < 0 || offset <= last || offset > int64(h.LastOffsetDelta) {
			return 0, false
		}
		last = offset
		time += addTime
		offset += addOffset
		w = putVarint(out, w, int64(1+varintLen(time)+varintLen(offset)+end-r))
		out[w] = in[q]
		w = putVarint(out, w+1, time)
		w = putVarint(out, w, offset)
		w += copy(out[w:], in[r:end])
		p = end
	}
	return w, p == len(in)
}
