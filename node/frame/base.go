package frame

import (
	"encoding/binary"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// baseHeaderSize: topic id u64 | partition u32 | generation u32 | chain end i64 |
// previous end i64 | start i64 | end i64 | gaps u16 | groups u16.
const baseHeaderSize = 52

// MaxGroups bounds the groups of one partition in a base.
const MaxGroups = 1 << 16

// Base says that a partition begins in this log: what its state is before the
// first frame of it that follows.
type Base struct {
	Partition   broker.PartitionID
	Generation  uint32
	ChainEnd    int64      // end of the archive's chain when the base was written
	PreviousEnd int64      // end of the offsets of all earlier generations
	Start       int64      // first offset of this generation; above PreviousEnd after an unclean change of owner
	End         int64      // exclusive end of the records that exist; Start when none of this generation do
	Gaps        [][2]int64 // half-open ranges without records, ascending; a start above PreviousEnd is one of them
	Groups      [][]byte   // group states in the encoding of package queue
}

// BaseSize is the encoded size of s.
func BaseSize(s Base) int {
	n := baseHeaderSize + 16*len(s.Gaps)
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
	binary.BigEndian.PutUint16(b[48:], uint16(len(s.Gaps)))
	binary.BigEndian.PutUint16(b[50:], uint16(len(s.Groups)))
	b = b[baseHeaderSize:]
	for _, g := range s.Gaps {
		binary.BigEndian.PutUint64(b, uint64(g[0]))
		binary.BigEndian.PutUint64(b[8:], uint64(g[1]))
		b = b[16:]
	}
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
	gaps := int(binary.BigEndian.Uint16(body[48:]))
	if 16*gaps > len(rest) {
		return Base{}, corrupt("base", "%d gaps do not fit into %d bytes", gaps, len(rest))
	}
	for end := int64(0); gaps > 0; gaps-- {
		g := [2]int64{int64(binary.BigEndian.Uint64(rest)), int64(binary.BigEndian.Uint64(rest[8:]))}
		if g[0] < end || g[1] <= g[0] {
			return Base{}, corrupt("base", "gap from %d to %d behind %d", g[0], g[1], end)
		}
		end = g[1]
		s.Gaps = append(s.Gaps, g)
		rest = rest[16:]
	}
	for range binary.BigEndian.Uint16(body[50:]) {
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
