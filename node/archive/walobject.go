package archive

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// Layout of a shipped WAL object.
const (
	walMagic       = "TMSHIP\x00\x01"
	walHeaderSize  = 8 + 8 + 8 + 8 + 8 + 4 // magic, incarnation, salt, first LSN, next LSN, ranges
	walRangeSize   = 8 + 4 + 8 + 8         // topic id, partition, first offset, next offset
	blockHeader    = 1 + 4 + 4             // codec, raw bytes, stored bytes
	codecStored    = 0
	codecZstd      = 1
	blockTarget    = 1 << 20   // most raw bytes of a compressed block
	storedBatchMin = 4 << 10   // smaller compressed batches ride along in a zstd block
	maxWALObject   = 128 << 20 // decoded bytes of an object

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

// EncodeWAL returns the object for a run of groups. Batches that are
// compressed already are stored as they are, everything else is compressed.
func EncodeWAL(run wal.GroupRun) ([]byte, error) {
	enc, err := newEncoder(run)
	if err != nil {
		return nil, err
	}
	for _, g := range run.Groups {
		if err := enc.group(g); err != nil {
			return nil, err
		}
	}
	enc.flush()
	return appendChecksum(append(enc.header(run), enc.blocks...), enc.blocks), nil
}

type encoder struct {
	salt   uint64
	ranges map[broker.PartitionID]*Range
	order  []broker.PartitionID
	plain  []byte // waits to be compressed into one block
	packed []byte // of the last one, used again
	blocks []byte
	zstd   *zstd.Encoder
}

func newEncoder(run wal.GroupRun) (*encoder, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "zstd")
	}
	size := 0
	for _, g := range run.Groups {
		size += len(g)
	}
	return &encoder{
		salt: run.Salt, ranges: make(map[broker.PartitionID]*Range), zstd: z,
		plain: make([]byte, 0, min(size, blockTarget)), blocks: make([]byte, 0, size/2),
	}, nil
}

// group adds one group's bytes, cutting out the compressed batches in it.
func (e *encoder) group(b []byte) error {
	g, size, err := wal.ParseGroup(b, e.salt)
	if err != nil {
		return err
	}
	at, done := groupHeaderSize, 0
	var cuts [][2]int
	err = g.Each(func(f wal.Frame) error {
		at += frameHeaderSize
		if f.Kind == wal.KindCommit || f.Kind == wal.KindCarry {
			if cuts, err = e.commit(f.Body, at, cuts); err != nil {
				return err
			}
		}
		at += len(f.Body)
		return nil
	})
	if err != nil {
		return err
	}
	if at != size {
		return errcode.New(errcode.Internal, "group of %d bytes has frames up to %d", size, at)
	}
	for _, c := range cuts {
		e.compress(b[done:c[0]])
		e.flush()
		e.block(codecStored, b[c[0]:c[1]], c[1]-c[0])
		done = c[1]
	}
	e.compress(b[done:size])
	return nil
}

// commit notes the offsets of a commit body that stands at position at of its
// group, and where its large compressed batches are.
func (e *encoder) commit(body []byte, at int, cuts [][2]int) ([][2]int, error) {
	_, sections, err := frame.ParseCommit(body)
	if err != nil {
		return cuts, err
	}
	pos := frame.CommitHeaderSize
	for s := range sections {
		pos += frame.SectionHeaderSize
		for rest := s.Batches; len(rest) > 0; {
			batch, after, err := segment.NextBatch(rest)
			if err != nil {
				return cuts, err
			}
			h, err := segment.ParseHeader(batch)
			if err != nil {
				return cuts, err
			}
			e.cover(s.Partition, h.BaseOffset, h.NextOffset())
			if h.Codec() != segment.CodecNone && len(batch) >= storedBatchMin {
				start := at + pos + len(s.Batches) - len(rest)
				cuts = append(cuts, [2]int{start, start + len(batch)})
			}
			rest = after
		}
		pos += len(s.Batches)
	}
	return cuts, nil
}

func (e *encoder) cover(p broker.PartitionID, first, next int64) {
	r := e.ranges[p]
	if r == nil {
		e.ranges[p] = &Range{p, first, next}
		e.order = append(e.order, p)
		return
	}
	r.First, r.Next = min(r.First, first), max(r.Next, next)
}

func (e *encoder) compress(b []byte) {
	for len(b) > 0 {
		n := min(len(b), blockTarget-len(e.plain))
		e.plain = append(e.plain, b[:n]...)
		b = b[n:]
		if len(e.plain) == blockTarget {
			e.flush()
		}
	}
}

func (e *encoder) flush() {
	if len(e.plain) == 0 {
		return
	}
	e.packed = e.zstd.EncodeAll(e.plain, e.packed[:0])
	if len(e.packed) < len(e.plain) {
		e.block(codecZstd, e.packed, len(e.plain))
	} else {
		e.block(codecStored, e.plain, len(e.plain))
	}
	e.plain = e.plain[:0]
}

func (e *encoder) block(codec byte, stored []byte, raw int) {
	e.blocks = append(e.blocks, codec)
	e.blocks = binary.BigEndian.AppendUint32(e.blocks, uint32(raw))
	e.blocks = binary.BigEndian.AppendUint32(e.blocks, uint32(len(stored)))
	e.blocks = append(e.blocks, stored...)
}

func (e *encoder) header(run wal.GroupRun) []byte {
	b := make([]byte, 0, walHeaderSize+len(e.order)*walRangeSize+4+len(e.blocks)+checksumSize)
	b = append(b, walMagic...)
	for _, v := range [...]uint64{run.Incarnation, run.Salt, run.First, run.Next} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.order)))
	for _, p := range e.order {
		r := e.ranges[p]
		b = binary.BigEndian.AppendUint64(b, uint64(p.Topic))
		b = binary.BigEndian.AppendUint32(b, p.Partition)
		b = binary.BigEndian.AppendUint64(b, uint64(r.First))
		b = binary.BigEndian.AppendUint64(b, uint64(r.Next))
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
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
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "zstd")
	}
	defer z.Close()
	if w.Groups = buf[:0]; cap(buf) < declared(rest) {
		w.Groups = make([]byte, 0, declared(rest))
	}
	for len(rest) > 0 {
		if rest, err = w.block(rest, z); err != nil {
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
func (w *WAL) block(b []byte, z *zstd.Decoder) (rest []byte, err error) {
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
	case codecZstd:
		if raw > blockTarget {
			return nil, errcode.New(errcode.Corrupt, "compressed block declares %d bytes, more than %d", raw, blockTarget)
		}
		// The capacity is the limit: a frame that says more allocates nothing.
		w.Groups = slices.Grow(w.Groups, int(raw))
		out, err := z.DecodeAll(body, w.Groups[:before:before+int(raw)])
		if err != nil {
			return nil, errcode.New(errcode.Corrupt, "zstd: %w", err)
		}
		w.Groups = w.Groups[:len(out)]
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
