package archive

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/wal"
)

// Layout of a shipped WAL object.
const (
	walMagic      = "TMSHIP\x00\x01"
	walHeaderSize = 8 + 8 + 8 + 8 + 8 + 4 // magic, incarnation, salt, first LSN, next LSN, ranges
	walRangeSize  = 8 + 4 + 8 + 8         // topic id, partition, first offset, next offset
	blockHeader   = 1 + 4 + 4             // codec, raw bytes, stored bytes
	codecStored   = 0
	codecS2       = 1
	maxBlock      = 1 << 20   // most raw bytes of a compressed block
	maxWALObject  = 128 << 20 // decoded bytes of an object

	// Where frames stand in a group; docs/formats/wal.md.
	groupHeaderSize = 48
	frameHeaderSize = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Range is a half-open range of offsets of one partition.
type Range struct {
	Partition   broker.PartitionID
	First, Next int64
}

// WAL is a decoded shipped WAL object.
type WAL struct {
	Incarnation uint64
	Salt        uint64 // verifies the groups
	First, Next uint64 // LSNs, half-open
	Ranges      []Range
	Groups      []byte // whole groups without padding, as wal.ForEachFrame takes them
}

// DecodeWAL reads a shipped WAL object. The groups are not verified yet:
// wal.ForEachFrame does that with the salt. Errors: Corrupt, UnsupportedVersion.
func DecodeWAL(b []byte) (*WAL, error) { return DecodeWALInto(b, nil) }

// DecodeWALInto is DecodeWAL with Groups in the memory of buf, whatever its
// length, if its capacity is enough.
func DecodeWALInto(b, buf []byte) (*WAL, error) {
	w, rest, err := decodeWALHeader(b)
	if err == nil {
		rest, err = checkedBytes(rest)
	}
	if err != nil {
		return nil, errcode.Wrap(errcode.Corrupt, err, "shipped WAL")
	}
	if w.Groups = buf[:0]; cap(buf) < declared(rest) {
		w.Groups = make([]byte, 0, declared(rest))
	}
	for len(rest) > 0 {
		if rest, err = w.block(rest); err != nil {
			return nil, errcode.Wrap(errcode.Corrupt, err, "shipped WAL, block behind %d bytes of groups", len(w.Groups))
		}
	}
	return w, nil
}

// declared adds up how long the blocks in b say that they are, so that groups
// are not moved each time they grow. It believes no more than what text, which
// nearly all of an object is, could become.
func declared(b []byte) int {
	most := min(64*len(b), maxWALObject)
	for n := 0; ; {
		if len(b) < blockHeader {
			return min(n, most)
		}
		raw, stored := binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint32(b[5:])
		if n += int(raw); n >= most || uint64(stored) > uint64(len(b)-blockHeader) {
			return min(n, most)
		}
		b = b[blockHeader+int(stored):]
	}
}

// maxRanges bounds the ranges that a header may declare: one per partition that
// a cluster can have.
const maxRanges = 1 << 18

// WALHeaderPrefix is how many bytes of a shipped WAL object say how long its
// header is.
const WALHeaderPrefix = walHeaderSize

// WALHeaderSize returns the length of the header that begins with prefix, which
// has at least WALHeaderPrefix bytes. Errors: Corrupt.
func WALHeaderSize(prefix []byte) (int, error) {
	if len(prefix) < walHeaderSize {
		return 0, errcode.New(errcode.Corrupt, "shipped WAL: %d bytes are shorter than a header", len(prefix))
	}
	n := binary.BigEndian.Uint32(prefix[40:])
	if n > maxRanges {
		return 0, errcode.New(errcode.Corrupt, "shipped WAL: header declares %d ranges", n)
	}
	return walHeaderSize + int(n)*walRangeSize + 4, nil
}

// DecodeWALHeader reads the header alone; Groups stays empty. Errors: Corrupt,
// UnsupportedVersion.
func DecodeWALHeader(b []byte) (*WAL, error) {
	w, _, err := decodeWALHeader(b)
	return w, errcode.Wrap(errcode.Corrupt, err, "shipped WAL")
}

func decodeWALHeader(b []byte) (*WAL, []byte, error) {
	if len(b) < walHeaderSize+4 {
		return nil, nil, errcode.New(errcode.Corrupt, "%d bytes are shorter than a header", len(b))
	}
	if !bytes.Equal(b[:7], []byte(walMagic[:7])) {
		return nil, nil, errcode.New(errcode.Corrupt, "it begins with %x, not with the magic", b[:8])
	}
	if b[7] != walMagic[7] {
		return nil, nil, errcode.New(errcode.UnsupportedVersion, "format %d, this build reads %d: use a newer build", b[7], walMagic[7])
	}
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	w := &WAL{Incarnation: u64(8), Salt: u64(16), First: u64(24), Next: u64(32)}
	n := uint64(binary.BigEndian.Uint32(b[40:]))
	if n > uint64(len(b)-walHeaderSize-4)/walRangeSize {
		return nil, nil, errcode.New(errcode.Corrupt, "header declares %d ranges in %d bytes", n, len(b))
	}
	end := walHeaderSize + int(n)*walRangeSize
	if want, got := binary.BigEndian.Uint32(b[end:]), crc32.Checksum(b[:end], castagnoli); want != got {
		return nil, nil, errcode.New(errcode.Corrupt, "header checksum is %08x, want %08x", got, want)
	}
	if w.First == 0 || w.Next <= w.First {
		return nil, nil, errcode.New(errcode.Corrupt, "LSNs from %d to %d", w.First, w.Next)
	}
	for at := walHeaderSize; at < end; at += walRangeSize {
		w.Ranges = append(w.Ranges, Range{
			Partition: broker.PartitionID{Topic: broker.TopicID(u64(at)), Partition: binary.BigEndian.Uint32(b[at+8:])},
			First:     int64(u64(at + 12)), Next: int64(u64(at + 20)),
		})
	}
	return w, b[end+4:], nil
}

// block appends the content of the block at the start of b to the groups.
func (w *WAL) block(b []byte) (rest []byte, err error) {
	if len(b) < blockHeader {
		return nil, errcode.New(errcode.Corrupt, "%d bytes left for a block header", len(b))
	}
	raw, stored := uint64(binary.BigEndian.Uint32(b[1:])), uint64(binary.BigEndian.Uint32(b[5:]))
	if stored > uint64(len(b)-blockHeader) {
		return nil, errcode.New(errcode.Corrupt, "block declares %d bytes, %d are there", stored, len(b)-blockHeader)
	}
	if raw+uint64(len(w.Groups)) > maxWALObject {
		return nil, errcode.New(errcode.Corrupt, "more than %d bytes of groups", maxWALObject)
	}
	body, before := b[blockHeader:blockHeader+stored], len(w.Groups)
	switch b[0] {
	case codecStored:
		w.Groups = append(w.Groups, body...)
	case codecS2:
		// The length stands in the content as well. Both are held against each
		// other and the bound before either sizes anything.
		if n, err := s2.DecodedLen(body); err != nil || uint64(n) != raw || raw > maxBlock {
			return nil, errcode.New(errcode.Corrupt, "compressed block declares %d bytes, its content %d, at most %d are possible", raw, n, maxBlock)
		}
		w.Groups = slices.Grow(w.Groups, int(raw))
		out, err := s2.Decode(w.Groups[before:before:before+int(raw)], body)
		if err != nil {
			return nil, errcode.New(errcode.Corrupt, "compressed block: %w", err)
		}
		w.Groups = w.Groups[:before+len(out)]
	default:
		return nil, errcode.New(errcode.UnsupportedVersion, "block codec %d, this build reads 0 and 1: use a newer build", b[0])
	}
	if got := uint64(len(w.Groups) - before); got != raw {
		return nil, errcode.New(errcode.Corrupt, "block has %d bytes, declares %d", got, raw)
	}
	return b[blockHeader+stored:], nil
}

// Each verifies the groups and calls fn for their frames in LSN order. Frames
// that end short of Next, or begin elsewhere than First, are Corrupt.
func (w *WAL) Each(fn func(wal.Frame) error) error {
	next := w.First
	err := wal.ForEachFrame(w.Groups, w.Salt, func(f wal.Frame) error {
		if f.LSN != next {
			return errcode.New(errcode.Corrupt, "shipped WAL has frame %d where %d belongs", f.LSN, next)
		}
		next++
		return fn(f)
	})
	if err == nil && next != w.Next {
		return errcode.New(errcode.Corrupt, "shipped WAL ends at frame %d, its name and header say %d", next, w.Next)
	}
	return err
}
