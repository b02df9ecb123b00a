package segment

import (
	"math"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// BatchOptions says how a batch is finished. The zero value is an uncompressed
// batch of generation 0.
type BatchOptions struct {
	Codec      Codec  // CodecNone or CodecZstd; a batch that does not shrink stays uncompressed
	Generation uint32 // of the owner; Stamp may set it later
}

// AppendBatch encodes recs as one batch and appends it to dst. Offsets ascend,
// gaps allowed, and the first one is the batch's base offset; timestamps are
// the records' own. Records and what they point to are only read. Errors:
// InvalidArgument, TooLarge; dst's bytes are then unchanged.
func AppendBatch(dst []byte, recs []broker.Record, opts BatchOptions) ([]byte, error) {
	var b Builder
	b.Reset(dst)
	for i := range recs {
		if err := b.Add(&recs[i]); err != nil {
			return dst, err
		}
	}
	out, err := b.Finish(opts)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// Builder encodes one batch after another, from records (Add) or from batches
// that exist already (AddBatch). The zero value is ready after Reset. It is
// not safe for concurrent use.
type Builder struct {
	buf    []byte // what Reset got, the header's place, the records
	start  int    // where the batch begins in buf
	h      BatchHeader
	merged bool // attributes and generation are those of a batch
}

// Reset begins a batch behind dst. The builder owns dst until Finish.
func (b *Builder) Reset(dst []byte) {
	b.start = len(dst)
	b.buf = slices.Grow(dst, HeaderSize)[:len(dst)+HeaderSize]
	b.h = BatchHeader{ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}
	b.merged = false
}

// Len is the number of records added since Reset.
func (b *Builder) Len() int { return int(b.h.Records) }

// Size is the uncompressed size of the batch so far in bytes, with the header.
func (b *Builder) Size() int { return len(b.buf) - b.start }

// Add encodes one record. A nil value is written as an empty one, a nil key as
// none. After an error (InvalidArgument, TooLarge) the batch is what it was.
func (b *Builder) Add(r *broker.Record) error {
	if b.merged && b.h.Attributes&attrLogAppendTime != 0 && r.Timestamp != b.h.MaxTimestamp {
		return errcode.New(errcode.InvalidArgument, "record at offset %d has a time of its own, the batch has one time for all", r.Offset)
	}
	if r.Offset < 0 || r.Offset == math.MaxInt64 { // there is no offset behind the last
		return errcode.New(errcode.InvalidArgument, "record offset %d is not an offset", r.Offset)
	}
	if b.h.Records == 0 {
		b.h.BaseOffset, b.h.BaseTimestamp, b.h.MaxTimestamp = r.Offset, r.Timestamp, r.Timestamp
		b.h.LastOffsetDelta = -1
	}
	offset := r.Offset - b.h.BaseOffset
	if offset <= int64(b.h.LastOffsetDelta) || offset > math.MaxInt32 {
		return errcode.New(errcode.InvalidArgument, "record offset %d cannot follow offset %d in the batch at %d", r.Offset, b.h.LastOffset(), b.h.BaseOffset)
	}
	if err := b.encode(r, r.Timestamp-b.h.BaseTimestamp, offset); err != nil {
		return err
	}
	b.h.Records++
	b.h.LastOffsetDelta = int32(offset)
	b.h.MaxTimestamp = max(b.h.MaxTimestamp, r.Timestamp)
	return nil
}

// Of a record without headers whose key and value have between shortest and
// longest bytes together, the length field surely has two bytes. So the body
// can be written behind them in one pass and its length afterwards. Most
// records are of that kind.
const (
	overhead = 1 + 10 + 5 + 5 + 5 + 1 // the most that a body has besides key and value
	shortest = 64 - 6                 // a body has at least 6 bytes besides
	longest  = 8191 - overhead
)

// encode writes one record with these deltas, or nothing.
func (b *Builder) encode(r *broker.Record, time, offset int64) error {
	n := len(r.Key) + len(r.Value)
	if len(r.Headers) == 0 && n >= shortest && n <= longest && cap(b.buf)-len(b.buf) >= n+overhead+2 &&
		b.Size()+n+overhead+2 <= MaxBatch && b.h.Records < MaxRecords {
		out := b.buf[len(b.buf):cap(b.buf)]
		out[2] = 0 // record attributes: none are defined
		p := putVarint(out, 3, time)
		p = putVarint(out, p, offset)
		p = putBytes(out, p, r.Key)
		p = putVarint(out, p, int64(len(r.Value)))
		p += copy(out[p:], r.Value)
		out[p] = 0 // no headers
		p++
		size := uint(p-2) << 1
		out[0], out[1] = byte(size)|0x80, byte(size>>7)
		b.buf = b.buf[:len(b.buf)+p]
		return nil
	}
	body, err := bodyLen(r, time, offset)
	if err != nil {
		return err
	}
	if err := b.room(body+varintLen(int64(body)), 1); err != nil {
		return err
	}
	b.put(r, body, time, offset)
	return nil
}

// bodyLen is the length of a record behind its length field. Sums stay far
// below an int's range because every part is the length of a slice in memory.
func bodyLen(r *broker.Record, time, offset int64) (int, error) {
	n := 1 + varintLen(time) + varintLen(offset) + 1 + 1 + varintLen(int64(len(r.Headers)))
	if r.Key != nil {
		n += varintLen(int64(len(r.Key))) - 1 + len(r.Key)
	}
	n += varintLen(int64(len(r.Value))) - 1 + len(r.Value)
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintLen(int64(len(h.Name))) + len(h.Name) + 1
		if h.Value != nil {
			n += varintLen(int64(len(h.Value))) - 1 + len(h.Value)
		}
	}
	if n > MaxBatch {
		return 0, errcode.New(errcode.TooLarge, "record at offset %d has %d bytes, a batch holds %d", r.Offset, n, MaxBatch)
	}
	return n, nil
}

// room makes space for n more bytes of records, or says that they do not fit.
func (b *Builder) room(n, records int) error {
	if b.Size()+n > MaxBatch || int(b.h.Records)+records > MaxRecords {
		return errcode.New(errcode.TooLarge, "batch at offset %d is full: %d records of %d bytes and %d more of %d bytes; at most %d and %d bytes", b.h.BaseOffset, b.h.Records, b.Size(), records, n, MaxRecords, MaxBatch)
	}
	if cap(b.buf)-len(b.buf) < n {
		b.buf = slices.Grow(b.buf, n)
	}
	return nil
}

func (b *Builder) put(r *broker.Record, body int, time, offset int64) {
	out := b.buf[len(b.buf):cap(b.buf)]
	p := putVarint(out, 0, int64(body))
	out[p] = 0 // record attributes: none are defined
	p = putVarint(out, p+1, time)
	p = putVarint(out, p, offset)
	p = putBytes(out, p, r.Key)
	p = putVarint(out, p, int64(len(r.Value)))
	p += copy(out[p:], r.Value)
	p = putVarint(out, p, int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		p = putVarint(out, p, int64(len(h.Name)))
		p += copy(out[p:], h.Name)
		p = putBytes(out, p, h.Value)
	}
	b.buf = b.buf[:len(b.buf)+p]
}

// putBytes writes a length and the bytes; nil is length -1.
func putBytes(out []byte, p int, v []byte) int {
	if v == nil {
		out[p] = 1 // zigzag of -1
		return p + 1
	}
	p = putVarint(out, p, int64(len(v)))
	return p + copy(out[p:], v)
}

// Finish compresses if asked to, writes header and checksum, and returns what
// Reset got with the batch behind it. The builder is empty until the next
// Reset. Errors: InvalidArgument for a batch without records or another codec.
func (b *Builder) Finish(opts BatchOptions) ([]byte, error) {
	if b.h.Records == 0 {
		return nil, errcode.New(errcode.InvalidArgument, "batch without records")
	}
	if !b.merged {
		b.h.Generation = opts.Generation
	}
	switch opts.Codec {
	case CodecNone:
	case CodecZstd:
		b.compress()
	default:
		return nil, errcode.New(errcode.InvalidArgument, "batches are written with codec none or zstd, not %s", opts.Codec)
	}
	finishHeader(b.buf[b.start:], &b.h)
	out := b.buf
	b.buf, b.h.Records = nil, 0
	return out, nil
}

// compress replaces the records by their zstd form when that is smaller.
func (b *Builder) compress() {
	records := b.buf[b.start+HeaderSize:]
	s := compressed.Get().(*[]byte)
	*s = zstdEncoder().EncodeAll(records, (*s)[:0])
	if len(*s) < len(records) {
		b.buf = b.buf[:b.start+HeaderSize+copy(records, *s)]
		b.h.Attributes |= uint16(CodecZstd)
	}
	if cap(*s) <= keptBuffer {
		compressed.Put(s)
	}
}
