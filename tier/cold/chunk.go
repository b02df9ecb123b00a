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
type chunkID struct {
	object [12]byte // of the key's SHA-256
	n      uint32
}

func idOf(key string, n uint32) chunkID {
	sum := sha256.Sum256([]byte(key))
	return chunkID{[12]byte(sum[:12]), n}
}

// plus is the id of the chunk that comes i later in the object.
func (id chunkID) plus(i int) chunkID {
	id.n += uint32(i)
	return id
}

// file is the name of the chunk file that begins with this chunk.
func (id chunkID) file() string {
	return hex.EncodeToString(binary.BigEndian.AppendUint32(id.object[:], id.n)) + chunkExt
}

// parseFile reads the name that file writes.
func parseFile(name string) (id chunkID, ok bool) {
	digits, ok := strings.CutSuffix(name, chunkExt)
	if !ok || len(digits) != 32 || strings.ToLower(digits) != digits {
		return id, false
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return id, false
	}
	return chunkID{[12]byte(b), binary.BigEndian.Uint32(b[12:])}, true
}

// chunksIn is how many chunks size bytes are.
func chunksIn(size int64) int { return int((size + ChunkSize - 1) / ChunkSize) }

// fileHeader stands before the data of a chunk file.
type fileHeader struct {
	first chunkID
	size  int64          // of the data, at most maxGet chunks
	sums  [maxGet]uint32 // CRC-32C of each chunk
}

func (h *fileHeader) encode() [chunkHeader]byte {
	var b [chunkHeader]byte
	copy(b[:], chunkMagic)
	copy(b[8:], h.first.object[:])
	binary.BigEndian.PutUint32(b[20:], h.first.n)
	binary.BigEndian.PutUint32(b[24:], uint32(h.size))
	for i, sum := range h.sums {
		binary.BigEndian.PutUint32(b[28+4*i:], sum)
	}
	binary.BigEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

// parseHeader checks the header of the file that begins with chunk first and
// has size bytes of data. The data have to be checked with its sums.
func parseHeader(b []byte, first chunkID, size int64) (fileHeader, error) {
	if len(b) != chunkHeader || string(b[:8]) != chunkMagic {
		return fileHeader{}, errcode.New(errcode.Corrupt, "chunk file %s begins with %d bytes that are not its header", first.file(), len(b))
	}
	if want, got := binary.BigEndian.Uint32(b[60:]), crc32.Checksum(b[:60], castagnoli); want != got {
		return fileHeader{}, errcode.New(errcode.Corrupt, "chunk file %s: header crc32c want %08x, got %08x", first.file(), want, got)
	}
	h := fileHeader{first: chunkID{[12]byte(b[8:20]), binary.BigEndian.Uint32(b[20:])}, size: int64(binary.BigEndian.Uint32(b[24:]))}
	for i := range h.sums {
		h.sums[i] = binary.BigEndian.Uint32(b[28+4*i:])
		if h.sums[i] != 0 && i >= chunksIn(h.size) {
			return fileHeader{}, errcode.New(errcode.Corrupt, "chunk file %s: its header has a sum for a chunk that is not there", first.file())
		}
	}
	switch {
	case [16]byte(b[44:60]) != [16]byte{}:
		return fileHeader{}, errcode.New(errcode.Corrupt, "chunk file %s: reserved bytes of its header are not zero", first.file())
	case h.first != first:
		return fileHeader{}, errcode.New(errcode.Corrupt, "chunk file %s holds other chunks, from %s on", first.file(), h.first.file())
	case h.size != size || size <= 0 || size > maxGet*ChunkSize:
		return fileHeader{}, errcode.New(errcode.Corrupt, "chunk file %s has %d bytes of data, its header says %d", first.file(), size, h.size)
	}
	return h, nil
}
