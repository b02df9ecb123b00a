package segment

import (
	"encoding/binary"
	"unsafe"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Scratch is memory that decoding reuses: decompressed records and the header
// slices. The zero value is ready. Records decoded with a Scratch are valid
// until it decodes the next batch. Not safe for concurrent use.
type Scratch struct {
	plain   []byte
	headers []broker.Header
}

// Shrink drops memory beyond about so many bytes. Records that were decoded with
// it are not valid any more.
func (s *Scratch) Shrink(most int) {
	if cap(s.plain) > most {
		s.plain = nil
	}
	s.headers = nil // they point into records
}

// Iterator walks over the records of one batch; see Records.
type Iterator struct {
	h    BatchHeader
	raw  []byte
	pos  int
	left int32
	last int64 // offset delta of the record before
	s    *Scratch
	err  error
}

// Records prepares to walk over the records of b, which is exactly one batch.
// The checksum is not checked: see VerifyBatch.
//
// Ownership: everything in a record that Next fills, header names included,
// aliases b (codec none) or s (other codecs; header slices always). It is valid
// while b is unchanged and until s decodes another batch; copy what must live
// longer. A nil s stands for a new one.
//
// Errors: Corrupt, UnsupportedVersion, UnsupportedType (codec), TooLarge (more
// than MaxDecoded bytes).
func Records(b []byte, s *Scratch) (Iterator, error) { return recordsWithin(b, MaxDecoded, s) }

// Size is how many bytes s holds for decompressed records.
func (s *Scratch) Size() int { return cap(s.plain) }

// recordsWithin is Records for a batch of at most limit decompressed bytes, which
// holds for what comes uncompressed too.
func recordsWithin(b []byte, limit int, s *Scratch) (Iterator, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return Iterator{}, err
	}
	if len(b) != h.Size {
		return Iterator{}, errcode.New(errcode.Corrupt, "batch at offset %d: %d bytes, its header says %d", h.BaseOffset, len(b), h.Size)
	}
	if s == nil {
		s = new(Scratch)
	}
	s.headers = s.headers[:0]
	raw := b[HeaderSize:]
	if h.Codec() == CodecNone && len(raw) > limit {
		return Iterator{}, overLimit(limit)
	}
	if h.Codec() != CodecNone {
		if s.plain, err = decompress(s.plain, raw, h.Codec(), limit); err != nil {
			return Iterator{}, errcode.Wrap(errcode.Corrupt, err, "batch at offset %d", h.BaseOffset)
		}
		raw = s.plain
	}
	return Iterator{h: h, raw: raw, left: h.Records, last: -1, s: s}, nil
}

// Header returns the batch's header.
func (it *Iterator) Header() *BatchHeader { return &it.h }

// Err returns what ended the walk, nil after the last record.
func (it *Iterator) Err() error { return it.err }

// Next fills rec with the next record and reports whether there was one. Every
// field of rec is overwritten.
func (it *Iterator) Next(rec *broker.Record) bool {
	if it.left <= 0 {
		if it.err == nil && it.pos != len(it.raw) {
			it.fail("bytes behind the last record")
		}
		return false
	}
	end, time, offset, keyLen, p := recordFront(it.raw, it.pos)
	if p < 0 || p > end || end > len(it.raw) {
		return it.fail("record length or delta")
	}
	if offset <= it.last || offset > int64(it.h.LastOffsetDelta) {
		return it.fail("offset delta")
	}
	b := it.raw[:end:end]
	key, p := bytesOf(b, p, keyLen)
	value, p := bytesAt(b, p)
	if p < 0 {
		return it.fail("key or value")
	}
	if value == nil {
		value = b[end:]
	}
	rec.Offset, rec.Timestamp = it.h.BaseOffset+offset, it.h.BaseTimestamp+time
	if it.h.Attributes&attrLogAppendTime != 0 {
		rec.Timestamp = it.h.MaxTimestamp
	}
	rec.Key, rec.Value, rec.Headers = key, value, nil
	// Most records have no headers: their last byte says so.
	if p != end-1 || b[p] != 0 {
		if it.headers(rec, b, p) != end {
			return it.fail("headers")
		}
	}
	it.pos, it.last = end, offset
	it.left--
	return true
}

func (it *Iterator) fail(what string) bool {
	it.err = errcode.New(errcode.Corrupt, "batch at offset %d: record %d of %d, byte %d of the records: bad %s",
		it.h.BaseOffset, it.h.Records-it.left, it.h.Records, it.pos, what)
	it.left = 0
	return false
}

// recordFront reads a record's fields up to its key's length. It returns the
// end of the record, which may lie beyond b, and the position of the key, -1
// when a field is malformed.
func recordFront(b []byte, p int) (end int, time, offset, key int64, q int) {
	if len(b)-p >= 8 {
		// Length, attributes, two deltas and the key's length are in eight bytes
		// of most records: none of the first three varints is longer than two
		// bytes and the last one has one. They come out of one register.
		x := binary.LittleEndian.Uint64(b[p:])
		size, x, n := shortVarint(x)
		end = p + n + int(size)
		x >>= 8 // the record's attributes, of which none are defined
		time, x, n1 := shortVarint(x)
		offset, x, n2 := shortVarint(x)
		if x&0x80 == 0 && n|n1|n2 < 4 && size >= minRecord-1 {
			return end, time, offset, int64(zigzag[x&0x7f]), p + n + n1 + n2 + 2
		}
	}
	size, q := varint(b, p)
	if q < 0 || size < minRecord-1 || size > int64(len(b)-q) {
		return 0, 0, 0, 0, -1
	}
	end = q + int(size)
	time, q = varint(b, q+1)
	offset, q = varint(b, q)
	key, q = varint(b, q)
	return end, time, offset, key, q
}

// headers reads the headers at b[p:]. They are appended one by one, so a count
// that lies allocates nothing.
func (it *Iterator) headers(rec *broker.Record, b []byte, p int) int {
	count, p := varint(b, p)
	if count < 0 || count > int64(len(b)) {
		return -1
	}
	all, start := it.s.headers, len(it.s.headers)
	for range count {
		var name, value []byte
		if name, p = bytesAt(b, p); p < 0 || name == nil {
			return -1
		}
		if value, p = bytesAt(b, p); p < 0 {
			return -1
		}
		all = append(all, broker.Header{Name: unsafe.String(unsafe.SliceData(name), len(name)), Value: value})
	}
	it.s.headers = all
	rec.Headers = all[start:len(all):len(all)]
	return p
}

// bytesAt reads a length and as many bytes; length -1 gives nil. It returns
// position -1 when they do not fit.
func bytesAt(b []byte, p int) ([]byte, int) {
	n, p := varint(b, p)
	return bytesOf(b, p, n)
}

// bytesOf is bytesAt behind the length n.
func bytesOf(b []byte, p int, n int64) ([]byte, int) {
	if p >= 0 && uint64(n) <= uint64(len(b)-p) {
		end := p + int(n)
		return b[p:end:end], end
	}
	if p >= 0 && n == -1 {
		return nil, p
	}
	return nil, -1
}

// DecodeBatch appends all records of b, exactly one batch, to dst. Checks,
// errors and ownership are those of Records. After an error dst has its old length.
func DecodeBatch(dst []broker.Record, b []byte, s *Scratch) ([]broker.Record, error) {
	it, err := Records(b, s)
	if err != nil {
		return dst, err
	}
	out := dst
	for it.left > 0 {
		if len(out) == cap(out) {
			// The count is believed only as far as the bytes can hold it.
			grown := make([]broker.Record, len(out), len(out)+max(len(out), min(int(it.left), len(it.raw)/minRecord+1)))
			copy(grown, out)
			out = grown
		}
		out = out[:len(out)+1]
		if !it.Next(&out[len(out)-1]) {
			return dst, it.err
		}
	}
	if it.Next(nil); it.err != nil {
		return dst, it.err
	}
	return out, nil
}

// FindTime returns offset and time of the first record in b, exactly one
// batch, whose timestamp is at or after ms. It looks at the records, not at
// the batch's bounds, because times need not ascend. Errors as for Records.
func FindTime(b []byte, ms int64, s *Scratch) (offset, timestamp int64, found bool, err error) {
	return FindTimeFrom(b, 0, ms, s)
}

// FindTimeFrom is FindTime among the records at or above offset from.
func FindTimeFrom(b []byte, from, ms int64, s *Scratch) (offset, timestamp int64, found bool, err error) {
	it, err := Records(b, s)
	if err != nil {
		return 0, 0, false, err
	}
	var rec broker.Record
	for it.Next(&rec) {
		if rec.Timestamp >= ms && rec.Offset >= from {
			return rec.Offset, rec.Timestamp, true, nil
		}
	}
	return 0, 0, false, it.err
}
