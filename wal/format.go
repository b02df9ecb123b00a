package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Sizes and bounds of the format; docs/formats/wal.md has the byte tables.
const (
	blockSize       = 4096 // groups start at multiples of it; no device tears inside one
	fileHeaderSize  = 64
	groupHeaderSize = 48
	frameHeaderSize = 5
	maxGroupBytes   = 32 << 20 // header and frames, whatever the options say
	minFileSize     = 64 << 10
	maxFileSize     = 1 << 30
	groupMagic      = 0x544d4752 // "TMGR"
	markBodySize    = 16

	formatVersion = 1
	fileMagic     = "TMWAL\x00\x00"
	fileSuffix    = ".wal"
	sparePrefix   = "spare-"
	lsnDigits     = 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// fileHeader is the first 64 bytes of a file.
type fileHeader struct {
	Incarnation uint64
	First       uint64 // LSN of the first frame
	Salt        uint64 // random; groups of another salt never verify
	CreatedMs   int64
}

// encode fills b, which must hold fileHeaderSize bytes.
func (h fileHeader) encode(b []byte) {
	clear(b[:fileHeaderSize])
	copy(b, fileMagic)
	b[7] = formatVersion
	binary.BigEndian.PutUint64(b[8:], h.Incarnation)
	binary.BigEndian.PutUint64(b[16:], h.First)
	binary.BigEndian.PutUint64(b[24:], h.Salt)
	binary.BigEndian.PutUint64(b[32:], uint64(h.CreatedMs))
	binary.BigEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

// parseFileHeader decodes b: errcode.Corrupt when it is no header, and
// errcode.UnsupportedVersion when a newer build wrote it.
func parseFileHeader(b []byte) (fileHeader, error) {
	var h fileHeader
	if len(b) < fileHeaderSize {
		return h, errcode.New(errcode.Corrupt, "file header: %d bytes, want %d", len(b), fileHeaderSize)
	}
	if string(b[:7]) != fileMagic {
		return h, errcode.New(errcode.Corrupt, "file header: magic %x, want %x", b[:7], fileMagic)
	}
	if b[7] != formatVersion {
		return h, errcode.New(errcode.UnsupportedVersion, "file header: WAL format version %d, this build reads %d", b[7], formatVersion)
	}
	want, got := binary.BigEndian.Uint32(b[60:]), crc32.Checksum(b[:60], castagnoli)
	if want != got {
		return h, errcode.New(errcode.Corrupt, "file header: checksum %08x, want %08x", got, want)
	}
	h.Incarnation = binary.BigEndian.Uint64(b[8:])
	h.First = binary.BigEndian.Uint64(b[16:])
	h.Salt = binary.BigEndian.Uint64(b[24:])
	h.CreatedMs = int64(binary.BigEndian.Uint64(b[32:]))
	if h.First == 0 {
		return h, errcode.New(errcode.Corrupt, "file header: first LSN is 0")
	}
	return h, nil
}

// saltOf returns what stands in the place of the salt, in a header that need
// not verify.
func saltOf(b []byte) uint64 { return binary.BigEndian.Uint64(b[24:]) }

// groupHeader is the first 48 bytes of a group.
type groupHeader struct {
	Bytes   uint32 // header and frames, without padding
	First   uint64 // LSN of the first frame
	Frames  uint32
	Durable uint64 // highest LSN fsynced before this group's write was issued
	crc     uint32
}

// next returns the LSN after the group's last frame.
func (h groupHeader) next() uint64 { return h.First + uint64(h.Frames) }

// sealGroup writes the header of the group in b (header and frames, no
// padding), checksum included.
func sealGroup(b []byte, salt, first uint64, frames uint32, durable uint64) {
	binary.BigEndian.PutUint32(b[0:], groupMagic)
	binary.BigEndian.PutUint32(b[4:], uint32(len(b)))
	binary.BigEndian.PutUint64(b[8:], first)
	binary.BigEndian.PutUint32(b[16:], frames)
	binary.BigEndian.PutUint64(b[20:], durable)
	clear(b[28:44])
	binary.BigEndian.PutUint32(b[44:], groupChecksum(salt, b))
}

// groupChecksum covers the salt, the header without its checksum, and the frames.
func groupChecksum(salt uint64, b []byte) uint32 {
	var s [8]byte
	binary.BigEndian.PutUint64(s[:], salt)
	crc := crc32.Update(0, castagnoli, s[:])
	crc = crc32.Update(crc, castagnoli, b[:44])
	return crc32.Update(crc, castagnoli, b[groupHeaderSize:])
}

// parseGroupHeader decodes the fields without verifying the checksum. limit is
// how many bytes there are for header and frames: a declared size above it is
// refused before anybody allocates for it.
func parseGroupHeader(b []byte, limit int64) (groupHeader, error) {
	var h groupHeader
	if len(b) < groupHeaderSize {
		return h, errcode.New(errcode.Corrupt, "group header: %d bytes, want %d", len(b), groupHeaderSize)
	}
	if m := binary.BigEndian.Uint32(b); m != groupMagic {
		return h, errcode.New(errcode.Corrupt, "group header: magic %08x, want %08x", m, uint32(groupMagic))
	}
	h.Bytes = binary.BigEndian.Uint32(b[4:])
	h.First = binary.BigEndian.Uint64(b[8:])
	h.Frames = binary.BigEndian.Uint32(b[16:])
	h.Durable = binary.BigEndian.Uint64(b[20:])
	h.crc = binary.BigEndian.Uint32(b[44:])
	most := min(limit, maxGroupBytes)
	if int64(h.Bytes) < groupHeaderSize+frameHeaderSize || int64(h.Bytes) > most {
		return h, errcode.New(errcode.Corrupt, "group header: %d bytes, want %d to %d", h.Bytes, groupHeaderSize+frameHeaderSize, most)
	}
	if h.Frames == 0 || int64(h.Frames) > (int64(h.Bytes)-groupHeaderSize)/frameHeaderSize {
		return h, errcode.New(errcode.Corrupt, "group header: %d frames do not fit in %d bytes", h.Frames, h.Bytes)
	}
	if h.First == 0 || h.First+uint64(h.Frames) < h.First || h.Durable >= h.First {
		return h, errcode.New(errcode.Corrupt, "group header: first LSN %d, %d frames, durable LSN %d", h.First, h.Frames, h.Durable)
	}
	return h, nil
}

// roundUp returns n rounded up to the next block boundary.
func roundUp(n int64) int64 { return (n + blockSize - 1) &^ (blockSize - 1) }

// fileName returns the name of the file whose first frame is first.
func fileName(first uint64) string { return fmt.Sprintf("%0*d%s", lsnDigits, first, fileSuffix) }

// parseFileName is the inverse of fileName; false for every other name.
func parseFileName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, fileSuffix)
	if !ok || len(digits) != lsnDigits {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first > 0 && fileName(first) == name
}
