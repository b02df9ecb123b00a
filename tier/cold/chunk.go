package cold

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// ChunkSize is the length of every chunk of an object but the last, in bytes.
const ChunkSize = 1 << 20

const (
	chunkHeader = 64
	chunkMagic  = "TMCHK\x00\x00\x01"
	chunkExt    = ".chunk"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkID names one chunk of one object.
type chunkID [16]byte

func idOf(key string, n uint32) chunkID {
	b := make([]byte, 0, len(key)+5)
	b = append(b, key...)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint32(b, n)
	sum := sha256.Sum256(b)
	return chunkID(sum[:16])
}

func (id chunkID) file() string { return hex.EncodeToString(id[:]) + chunkExt }

// parseFile reads the name that file writes.
func parseFile(name string) (id chunkID, ok bool) {
	digits, ok := strings.CutSuffix(name, chunkExt)
	if !ok || len(digits) != 2*len(id) || strings.ToLower(digits) != digits {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(digits))
	return id, err == nil
}

// encodeChunk returns the header that stands before data in its file.
func encodeChunk(id chunkID, n uint32, data []byte) [chunkHeader]byte {
	var h [chunkHeader]byte
	copy(h[:], chunkMagic)
	copy(h[8:], id[:])
	binary.BigEndian.PutUint64(h[24:], uint64(n)*ChunkSize)
	binary.BigEndian.PutUint32(h[32:], uint32(len(data)))
	binary.BigEndian.PutUint32(h[36:], crc32.Checksum(data, castagnoli))
	binary.BigEndian.PutUint32(h[60:], crc32.Checksum(h[:60], castagnoli))
	return h
}

// checkChunk checks a chunk file, of which h is the header and data the rest.
// The batches in it have checksums of their own, but not over their generation.
func checkChunk(h, data []byte, id chunkID, n uint32) error {
	if len(h) != chunkHeader || string(h[:8]) != chunkMagic {
		return errcode.New(errcode.Corrupt, "chunk %s begins with %d bytes that are not its header", id.file(), len(h))
	}
	if want, got := binary.BigEndian.Uint32(h[60:]), crc32.Checksum(h[:60], castagnoli); want != got {
		return errcode.New(errcode.Corrupt, "chunk %s: header crc32c want %08x, got %08x", id.file(), want, got)
	}
	if [20]byte(h[40:60]) != [20]byte{} {
		return errcode.New(errcode.Corrupt, "chunk %s: reserved bytes of its header are not zero", id.file())
	}
	if chunkID(h[8:24]) != id || binary.BigEndian.Uint64(h[24:]) != uint64(n)*ChunkSize {
		return errcode.New(errcode.Corrupt, "chunk %s holds another chunk", id.file())
	}
	if size := binary.BigEndian.Uint32(h[32:]); int64(size) != int64(len(data)) || size == 0 || size > ChunkSize {
		return errcode.New(errcode.Corrupt, "chunk %s has %d bytes, its header says %d", id.file(), len(data), size)
	}
	if want, got := binary.BigEndian.Uint32(h[36:]), crc32.Checksum(data, castagnoli); want != got {
		return errcode.New(errcode.Corrupt, "chunk %s: crc32c want %08x, got %08x", id.file(), want, got)
	}
	return nil
}
