package frame

import (
	"encoding/binary"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// groupHeaderSize: topic id u64 | partition u32 | generation u32 | name length u8.
const groupHeaderSize = 17

// Group is one change of a group's state on one partition.
type Group struct {
	Partition  broker.PartitionID
	Generation uint32
	Name       string
	Ops        []byte // operations in the encoding of package queue; aliases the frame's body
}

// GroupSize is the encoded size of g.
func GroupSize(g Group) int { return groupHeaderSize + len(g.Name) + len(g.Ops) }

// PutGroup encodes g into b, which has GroupSize(g) bytes.
func PutGroup(b []byte, g Group) {
	binary.BigEndian.PutUint64(b, uint64(g.Partition.Topic))
	binary.BigEndian.PutUint32(b[8:], g.Partition.Partition)
	binary.BigEndian.PutUint32(b[12:], g.Generation)
	b[16] = byte(len(g.Name))
	n := copy(b[groupHeaderSize:], g.Name)
	copy(b[groupHeaderSize+n:], g.Ops)
}

// ParseGroup decodes a group body.
func ParseGroup(body []byte) (Group, error) {
	if len(body) < groupHeaderSize {
		return Group{}, corrupt("group", "%d bytes, want at least %d", len(body), groupHeaderSize)
	}
	end := groupHeaderSize + int(body[16])
	if end > len(body) {
		return Group{}, corrupt("group", "name of %d bytes does not fit into %d", body[16], len(body))
	}
	g := Group{
		Partition: broker.PartitionID{
			Topic:     broker.TopicID(binary.BigEndian.Uint64(body)),
			Partition: binary.BigEndian.Uint32(body[8:]),
		},
		Generation: binary.BigEndian.Uint32(body[12:]),
		Name:       string(body[groupHeaderSize:end]),
		Ops:        body[end:],
	}
	if err := broker.ValidateName("group", g.Name); err != nil {
		return Group{}, corrupt("group", "%v", err)
	}
	return g, nil
}
