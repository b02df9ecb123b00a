package wal

import (
	"encoding/binary"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Group is a verified group of frames.
type Group struct {
	First   uint64 // LSN of the first frame
	Frames  int
	Durable uint64 // highest LSN that was durable when the group was written
	Salt    uint64 // what it verifies with: that of its file
	body    []byte // the frames
}

// Next returns the LSN after the group's last frame.
func (g Group) Next() uint64 { return g.First + uint64(g.Frames) }

// ParseGroup verifies the group at the start of b against salt and returns it
// together with its size in bytes, header and frames, without padding; more
// bytes may follow in b. The group aliases b. It allocates nothing but an
// error, whatever b declares. Errors: errcode.Corrupt.
func ParseGroup(b []byte, salt uint64) (Group, int, error) {
	h, err := parseGroupHeader(b, int64(len(b)))
	if err != nil {
		return Group{}, 0, err
	}
	whole := b[:h.Bytes]
	if got := groupChecksum(salt, whole); got != h.crc {
		return Group{}, 0, errcode.New(errcode.Corrupt, "group of LSN %d: checksum %08x, want %08x", h.First, got, h.crc)
	}
	g := Group{First: h.First, Frames: int(h.Frames), Durable: h.Durable, Salt: salt, body: whole[groupHeaderSize:]}
	if err := g.check(); err != nil {
		return Group{}, 0, err
	}
	return g, len(whole), nil
}

// check walks the frames: they must fill the group exactly, no more, no fewer.
func (g Group) check() error {
	b := g.body
	for i := range g.Frames {
		if len(b) < frameHeaderSize {
			return errcode.New(errcode.Corrupt, "group of LSN %d: ends inside frame %d", g.First, i)
		}
		n := int64(binary.BigEndian.Uint32(b))
		if n > int64(len(b)-frameHeaderSize) {
			return errcode.New(errcode.Corrupt, "group of LSN %d: frame %d of %d bytes, %d are left", g.First, i, n, len(b)-frameHeaderSize)
		}
		if b[4] == 0 {
			return errcode.New(errcode.Corrupt, "group of LSN %d: frame %d has kind 0", g.First, i)
		}
		b = b[frameHeaderSize+n:]
	}
	if len(b) != 0 {
		return errcode.New(errcode.Corrupt, "group of LSN %d: %d bytes after the last frame", g.First, len(b))
	}
	return nil
}

// Each calls fn for the frames in LSN order until fn fails, and returns that
// error. Bodies alias the bytes that the group was parsed from.
func (g Group) Each(fn func(Frame) error) error {
	b := g.body
	for i := range uint64(g.Frames) {
		n := binary.BigEndian.Uint32(b)
		end := frameHeaderSize + int(n)
		if err := fn(Frame{LSN: g.First + i, Kind: Kind(b[4]), Body: b[frameHeaderSize:end:end]}); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}

// ForEachFrame verifies the groups that stand in b one after the other without
// padding, as [Log.ReadGroups] gives them, and calls fn for their frames in
// LSN order. The LSNs must be contiguous. It stops at the first group that
// does not verify, after the frames before it. Errors: errcode.Corrupt, or
// what fn returned.
func ForEachFrame(b []byte, salt uint64, fn func(Frame) error) error {
	var next uint64
	for len(b) > 0 {
		g, n, err := ParseGroup(b, salt)
		if err != nil {
			return err
		}
		if next != 0 && g.First != next {
			return errcode.New(errcode.Corrupt, "group of LSN %d follows, want LSN %d", g.First, next)
		}
		if err := g.Each(fn); err != nil {
			return err
		}
		next, b = g.Next(), b[n:]
	}
	return nil
}

// Mark is the body of a frame of kind mark.
type Mark struct {
	TimeMs   uint64 // Unix milliseconds; never lower than in an earlier mark
	LowWater uint64 // lowest LSN that a reader needs; 0 = nobody has said
}

func (m Mark) encode(b []byte) {
	binary.BigEndian.PutUint64(b, m.TimeMs)
	binary.BigEndian.PutUint64(b[8:], m.LowWater)
}

// ParseMark decodes the body of a mark. Errors: errcode.Corrupt.
func ParseMark(body []byte) (Mark, error) {
	if len(body) != markBodySize {
		return Mark{}, errcode.New(errcode.Corrupt, "mark: %d bytes, want %d", len(body), markBodySize)
	}
	return Mark{TimeMs: binary.BigEndian.Uint64(body), LowWater: binary.BigEndian.Uint64(body[8:])}, nil
}
