package partition

import "github.com/tidemark-mq/tidemark/segment"

// merger turns runs of small batches into larger, compressed ones. The zero
// value is ready; it keeps its buffer between calls.
type merger struct {
	b   segment.Builder
	buf []byte
}

// next returns the bytes to store for the first n of batches: one large batch
// as it is, or a merged one of about target bytes before compression. The
// result is valid until the next call. What a client encoded with a producer
// id, compressed, or of another generation is never merged.
func (m *merger) next(batches []tailBatch, target int64, compress bool) (out []byte, n int, err error) {
	first := &batches[0]
	h, err := segment.ParseHeader(first.data)
	if err != nil {
		return nil, 0, err
	}
	if len(first.data) >= mergeBelow || !segment.Mergeable(&h) {
		return first.data, 1, nil
	}
	m.b.Reset(m.buf[:0])
	for n < len(batches) && int64(m.b.Size()) < target {
		b := &batches[n]
		if n > 0 {
			if h, err = segment.ParseHeader(b.data); err != nil {
				return nil, 0, err
			}
			if len(b.data) >= mergeBelow || b.base != batches[n-1].next || !m.b.Accepts(&h) {
				break
			}
		}
		if err := m.b.AddBatch(b.data); err != nil {
			return nil, 0, err
		}
		n++
	}
	opts := segment.BatchOptions{Generation: h.Generation}
	if compress {
		opts.Codec = segment.CodecZstd
	}
	if out, err = m.b.Finish(opts); err != nil {
		return nil, 0, err
	}
	m.buf = out[:0]
	return out, n, nil
}
