package frame

import (
	"encoding/binary"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// baseHeaderSize: topic id u64 | partition u32 | generation u32 | chain end i64 |
// previous end i64 | start i64 | end i64 | groups u16.
const baseHeaderSize = 50

// MaxGroups bounds the groups of one partition in a base.
const MaxGroups = 1 << 16

// Base says that a partition begins in this log: what its state is before the
// first frame of it that follows.
type Base struct {
	Partition   broker.PartitionID
	Generation  uint32
	ChainEnd    int64    // end of the archive's chain when the base was written
	PreviousEnd int64    // end of the offsets of all earlier generations
	Start       int64    // first offset of this generation; above PreviousEnd after an unclean change of owner
	End         int64    // exclusive end of the records that exist; Start when none of this generation do
	Groups      [][]byte // group states in the encoding of package queue
}

// BaseSize is the encoded size of s.
func BaseSize(s Base) int {
	n := baseHeaderSize
	for _, g := range s.Groups {
		n += 4 + len(g)
	}
	return n
}

// PutBase encodes s into b, which has BaseSize(s) bytes.
func PutBase(b []byte, s Base) {
	binary.BigEndian.PutUint64(b, uint64(s.Partition.Topic))
	binary.BigEndian.PutUint32(b[8:], s.Partition.Partition)
	binary.BigEndian.PutUint32(b[12:], s.Generation)
	for i, v := range [...]int64{s.ChainEnd, s.PreviousEnd, s.Start, s.End} {
		binary.BigEndian.PutUint64(b[16+8*i:], uint64(v))
	}
	binary.BigEndian.PutUint16(b[48:], uint16(len(s.Groups)))
	b = b[baseHeaderSize:]
	for _, g := range s.Groups {
		binary.BigEndian.PutUint32(b, uint32(len(g)))
		copy(b[4:], g)
		b = b[4+len(g):]
	}
}

// ParseBase decodes a base body.
func ParseBase(body []byte) (Base, error) {
	if len(body) < baseHeaderSize {
		return Base{}, corrupt("base", "%d bytes, want at least %d", len(body), baseHeaderSize)
	}
	i64 := func(at int) int64 { return int64(binary.BigEndian.Uint64(body[at:])) }
	s := Base{
		Partition: broker.PartitionID{
			Topic:     broker.TopicID(binary.BigEndian.Uint64(body)),
			Partition: binary.BigEndian.Uint32(body[8:]),
		},
		Generation: binary.BigEndian.Uint32(body[12:]),
		ChainEnd:   i64(16), PreviousEnd: i64(24), Start: i64(32), End: i64(40),
	}
	if s.ChainEnd < 0 || s.PreviousEnd < 0 || s.Start < s.PreviousEnd || s.End < 0 {
		return Base{}, corrupt("base", "chain end %d, previous end %d, start %d and end %d do not fit together", s.ChainEnd, s.PreviousEnd, s.Start, s.End)
	}
	rest := body[baseHeaderSize:]
	for range binary.BigEndian.Uint16(body[48:]) {
		if len(rest) < 4 {
			return Base{}, corrupt("base", "%d bytes left for a group's length", len(rest))
		}
		n := uint64(binary.BigEndian.Uint32(rest))
		if n > uint64(len(rest)-4) {
			return Base{}, corrupt("base", "group state declares %d bytes, %d are there", n, len(rest)-4)
		}
		s.Groups = append(s.Groups, rest[4:4+n:4+n])
		rest = rest[4+n:]
	}
	if len(rest) != 0 {
		return Base{}, corrupt("base", "%d bytes after the last group", len(rest))
	}
	return s, nil
}
