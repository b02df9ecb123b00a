package segment

import (
	"math"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// AppendEmpty appends to dst a batch without records that takes the offsets
// [from, next), as a log keeps offsets whose records are gone. ms is its time:
// one that is not above the times before it leaves searches by time as they
// are. At most 2^31 offsets. Errors: InvalidArgument.
func AppendEmpty(dst []byte, from, next int64, generation uint32, ms int64) ([]byte, error) {
	if from < 0 || next <= from || next-from > math.MaxInt32 {
		return dst, errcode.New(errcode.InvalidArgument, "a batch for the offsets %d to %d is not possible", from, next)
	}
	h := BatchHeader{
		BaseOffset: from, Generation: generation, LastOffsetDelta: int32(next - from - 1), BaseTimestamp: ms, MaxTimestamp: ms,
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	}
	at := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	finishHeader(dst[at:], &h)
	return dst, nil
}

// CutBatch returns what b, exactly one batch, has at and above offset from,
// which lies in it, as a run of one or two batches that begins at from and ends
// where b does: the same records, offsets, times and generation, uncompressed.
// b itself when nothing is below. Errors: Corrupt, InvalidArgument.
func CutBatch(b []byte, from int64) ([]byte, error) {
	h, err := ParseHeader(b)
	if err != nil || from <= h.BaseOffset {
		return b, err
	}
	if from >= h.NextOffset() {
		return nil, errcode.New(errcode.InvalidArgument, "batch of offsets %d to %d has nothing from %d on", h.BaseOffset, h.LastOffset(), from)
	}
	recs, err := DecodeBatch(nil, b, nil)
	if err != nil {
		return nil, err
	}
	for len(recs) > 0 && recs[0].Offset < from {
		recs = recs[1:]
	}
	if len(recs) == 0 {
		return AppendEmpty(nil, from, h.NextOffset(), h.Generation, h.MaxTimestamp)
	}
	return cutTo(recs, from, &h)
}

// cutTo encodes recs as the batch of the offsets from from to h's end.
func cutTo(recs []broker.Record, from int64, h *BatchHeader) ([]byte, error) {
	out, err := AppendBatch(nil, recs, BatchOptions{Generation: h.Generation})
	if err != nil {
		return nil, err
	}
	// The batch may begin and end with offsets that have no record.
	cut, err := ParseHeader(out)
	if err != nil {
		return nil, err
	}
	if cut.BaseOffset == from && cut.NextOffset() == h.NextOffset() {
		return out, nil
	}
	cut.LastOffsetDelta = int32(h.LastOffset() - cut.BaseOffset)
	finishHeader(out, &cut)
	if cut.BaseOffset == from {
		return out, nil
	}
	front, err := AppendEmpty(nil, from, cut.BaseOffset, h.Generation, cut.BaseTimestamp)
	return append(front, out...), err
}
