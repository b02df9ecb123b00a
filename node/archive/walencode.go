package archive

import (
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

const (
	blockTarget    = 256 << 10 // raw bytes of a compressed block: it stays in a core's own cache
	storedBatchMin = 4 << 10   // smaller compressed batches ride along in a compressed block
)

// WALEncoder makes shipped WAL objects: Group for each group of a run, Object at
// its end, Reset before the next one. Its memory goes round from object to
// object, so it is worth keeping while a log is shipped, and worth dropping when
// it is not: it holds as many bytes as the largest object had. The zero value is
// ready. Not safe for concurrent use.
type WALEncoder struct {
	ranges map[broker.PartitionID]int // where a partition stands in order
	order  []Range
	plain  []byte // waits to be compressed into one block, at most blockTarget
	object []byte // room for a header, and the blocks
	room   int    // as much as the last header had: most have as many ranges
	cuts   [][2]int
}

// EncodeWAL returns the object for a run of groups that are in memory. Batches
// that are compressed already are stored as they are, everything else is
// compressed.
func EncodeWAL(run wal.GroupRun) ([]byte, error) {
	var e WALEncoder
	for _, b := range run.Groups {
		g, n, err := wal.ParseGroup(b, run.Salt)
		if err != nil {
			return nil, err
		}
		if err := e.Group(g, b[:n]); err != nil {
			return nil, err
		}
	}
	return e.Object(run), nil
}

// Reset forgets the groups and keeps the memory. What Object returned is
// overwritten from now on.
func (e *WALEncoder) Reset() {
	clear(e.ranges)
	e.order, e.plain, e.object = e.order[:0], e.plain[:0], e.object[:e.room]
}

// Group adds a group that was verified, with its bytes, header and frames
// without padding. It keeps neither. Errors: Corrupt, when a commit or a carry
// in it does not decode; the encoder is to be Reset then.
func (e *WALEncoder) Group(g wal.Group, raw []byte) error {
	at, done := groupHeaderSize, 0
	e.cuts = e.cuts[:0]
	err := g.Each(func(f wal.Frame) error {
		at += frameHeaderSize
		if f.Kind == wal.KindCommit || f.Kind == wal.KindCarry {
			if err := e.commit(f.Body, at); err != nil {
				return err
			}
		}
		at += len(f.Body)
		return nil
	})
	if err != nil {
		return err
	}
	if at != len(raw) {
		return errcode.New(errcode.Internal, "group of %d bytes has frames up to %d", len(raw), at)
	}
	for _, c := range e.cuts {
		e.compress(raw[done:c[0]])
		e.flush()
		e.stored(raw[c[0]:c[1]])
		done = c[1]
	}
	e.compress(raw[done:])
	return nil
}

// commit notes the offsets of a commit body that stands at position at of its
// group, and where its large compressed batches are.
func (e *WALEncoder) commit(body []byte, at int) error {
	if len(body) < frame.CommitHeaderSize {
		return errcode.New(errcode.Corrupt, "commit of %d bytes, its header has %d", len(body), frame.CommitHeaderSize)
	}
	for rest := body[frame.CommitHeaderSize:]; len(rest) > 0; {
		s, after, err := frame.NextSection(rest)
		if err != nil {
			return err
		}
		batches := at + len(body) - len(rest) + frame.SectionHeaderSize // where they begin in the group
		for b := s.Batches; len(b) > 0; {
			h, err := segment.ParseHeader(b)
			if err != nil {
				return err
			}
			if h.Size > len(b) {
				return errcode.New(errcode.Corrupt, "batch of %d bytes, %d are there", h.Size, len(b))
			}
			e.cover(s.Partition, h.BaseOffset, h.NextOffset())
			if h.Codec() != segment.CodecNone && h.Size >= storedBatchMin {
				start := batches + len(s.Batches) - len(b)
				e.cuts = append(e.cuts, [2]int{start, start + h.Size})
			}
			b = b[h.Size:]
		}
		rest = after
	}
	return nil
}

func (e *WALEncoder) cover(p broker.PartitionID, first, next int64) {
	at, ok := e.ranges[p]
	if !ok {
		if e.ranges == nil {
			e.ranges = make(map[broker.PartitionID]int)
		}
		e.ranges[p] = len(e.order)
		e.order = append(e.order, Range{p, first, next})
		return
	}
	r := &e.order[at]
	r.First, r.Next = min(r.First, first), max(r.Next, next)
}

// compress gathers bytes for blocks, and makes those that are full.
func (e *WALEncoder) compress(b []byte) {
	for len(b) > 0 {
		if len(e.plain) == 0 && len(b) >= blockTarget { // a whole block as it lies there
			e.block(b[:blockTarget])
			b = b[blockTarget:]
			continue
		}
		n := min(len(b), blockTarget-len(e.plain))
		e.plain = append(e.plain, b[:n]...)
		if b = b[n:]; len(e.plain) == blockTarget {
			e.flush()
		}
	}
}

// flush makes a block of what was gathered.
func (e *WALEncoder) flush() {
	if len(e.plain) > 0 {
		e.block(e.plain)
		e.plain = e.plain[:0]
	}
}

// block appends a compressed block, or a stored one where that is not longer.
func (e *WALEncoder) block(raw []byte) {
	at := len(e.object)
	e.object = slices.Grow(e.object, blockHeader+s2.MaxEncodedLen(len(raw)))
	packed := s2.Encode(e.object[at+blockHeader:at+blockHeader:cap(e.object)], raw) // there is room, so it stays there
	if len(packed) >= len(raw) {
		e.stored(raw)
		return
	}
	e.object = blockHead(e.object, codecS2, len(raw), len(packed))
	e.object = e.object[:at+blockHeader+len(packed)]
}

// stored appends a block with the bytes as they are.
func (e *WALEncoder) stored(raw []byte) {
	e.object = append(blockHead(e.object, codecStored, len(raw), len(raw)), raw...)
}

func blockHead(b []byte, codec byte, raw, stored int) []byte {
	b = append(b, codec)
	b = binary.BigEndian.AppendUint32(b, uint32(raw))
	return binary.BigEndian.AppendUint32(b, uint32(stored))
}

// Object returns the object with the groups since the last Reset, which are
// those of the run. It is to be called once, and what it returns is valid until the
// next Reset.
func (e *WALEncoder) Object(run wal.GroupRun) []byte {
	e.flush()
	e.object = appendChecksum(e.object, e.object[e.room:])
	header := e.header(run)
	e.object, e.room = slices.Replace(e.object, 0, e.room, header...), len(header)
	return e.object
}

func (e *WALEncoder) header(run wal.GroupRun) []byte {
	b := make([]byte, 0, walHeaderSize+len(e.order)*walRangeSize+4)
	b = append(b, walMagic...)
	for _, v := range [...]uint64{run.Incarnation, run.Salt, run.First, run.Next} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.order)))
	for _, r := range e.order {
		b = binary.BigEndian.AppendUint64(b, uint64(r.Partition.Topic))
		b = binary.BigEndian.AppendUint32(b, r.Partition.Partition)
		b = binary.BigEndian.AppendUint64(b, uint64(r.First))
		b = binary.BigEndian.AppendUint64(b, uint64(r.Next))
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}
