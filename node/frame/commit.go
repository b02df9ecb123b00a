package frame

import (
	"encoding/binary"
	"iter"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Sizes of the fixed parts of a commit body.
const (
	CommitHeaderSize  = 24 // append ms i64 | origin incarnation u64 | origin LSN u64
	SectionHeaderSize = 20 // topic id u64 | partition u32 | generation u32 | bytes u32
)

// CommitHeader stands before the sections of a commit.
type CommitHeader struct {
	AppendMS          int64  // the broker's clock when the records were accepted
	OriginIncarnation uint64 // where they were first accepted
	OriginLSN         uint64 // 0: in this very frame
}

// Section is one partition's part of a commit: whole batches with their
// offsets and generation stamped.
type Section struct {
	Partition  broker.PartitionID
	Generation uint32
	Batches    []byte // aliases the frame's body
}

// PutCommitHeader writes h into the first CommitHeaderSize bytes of b.
func PutCommitHeader(b []byte, h CommitHeader) {
	binary.BigEndian.PutUint64(b, uint64(h.AppendMS))
	binary.BigEndian.PutUint64(b[8:], h.OriginIncarnation)
	binary.BigEndian.PutUint64(b[16:], h.OriginLSN)
}

// PutSectionHeader writes the header of a section whose batches have size
// bytes into the first SectionHeaderSize bytes of b.
func PutSectionHeader(b []byte, p broker.PartitionID, generation uint32, size int) {
	binary.BigEndian.PutUint64(b, uint64(p.Topic))
	binary.BigEndian.PutUint32(b[8:], p.Partition)
	binary.BigEndian.PutUint32(b[12:], generation)
	binary.BigEndian.PutUint32(b[16:], uint32(size))
}

// ParseCommit checks the whole structure of a commit body and returns its
// header and an iterator over its sections.
func ParseCommit(body []byte) (CommitHeader, iter.Seq[Section], error) {
	if len(body) < CommitHeaderSize {
		return CommitHeader{}, nil, corrupt("commit", "%d bytes, want at least %d", len(body), CommitHeaderSize)
	}
	h := CommitHeader{
		AppendMS:          int64(binary.BigEndian.Uint64(body)),
		OriginIncarnation: binary.BigEndian.Uint64(body[8:]),
		OriginLSN:         binary.BigEndian.Uint64(body[16:]),
	}
	sections := body[CommitHeaderSize:]
	for rest := sections; len(rest) > 0; {
		var err error
		if _, rest, err = NextSection(rest); err != nil {
			return h, nil, err
		}
	}
	return h, func(yield func(Section) bool) {
		for rest := sections; len(rest) > 0; {
			var s Section
			if s, rest, _ = NextSection(rest); !yield(s) {
				return
			}
		}
	}, nil
}

// NextSection returns the section at the start of b, which stands behind a
// commit's header or another section and is not empty, and what follows. It is
// for loops that must not allocate.
func NextSection(b []byte) (s Section, rest []byte, err error) {
	if len(b) < SectionHeaderSize {
		return Section{}, nil, corrupt("commit", "%d bytes left for a section header, want %d", len(b), SectionHeaderSize)
	}
	n := uint64(binary.BigEndian.Uint32(b[16:]))
	if n > uint64(len(b)-SectionHeaderSize) {
		return Section{}, nil, corrupt("commit", "section declares %d bytes, %d are there", n, len(b)-SectionHeaderSize)
	}
	end := SectionHeaderSize + int(n)
	return Section{
		Partition: broker.PartitionID{
			Topic:     broker.TopicID(binary.BigEndian.Uint64(b)),
			Partition: binary.BigEndian.Uint32(b[8:]),
		},
		Generation: binary.BigEndian.Uint32(b[12:]),
		Batches:    b[SectionHeaderSize:end:end],
	}, b[end:], nil
}

func corrupt(what, format string, args ...any) error {
	return errcode.Wrap(errcode.Corrupt, errcode.New(errcode.Corrupt, format, args...), "decode %s frame", what)
}
