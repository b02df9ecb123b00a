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
	chunkTrailer = 32
	chunkMagic   = "TMCHK\x00\x00\x02"
	chunkExt     = ".chunk"
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

// fileTrailer stands behind the data of a chunk file, so that the data lie in it
// as pages do in memory.
type fileTrailer struct {
	first chunkID
	size  int64 // of the data, at most maxGet chunks
}

func (h *fileTrailer) encode() [chunkTrailer]byte {
	var b [chunkTrailer]byte
	copy(b[:], chunkMagic)
	copy(b[8:], h.first.object[:])
	binary.BigEndian.PutUint32(b[20:], h.first.n)
	binary.BigEndian.PutUint32(b[24:], uint32(h.size))
	binary.BigEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
	return b
}

// parseTrailer checks the trailer of the file that begins with chunk first and
// has size bytes of data. What the data are worth their batches say.
func parseTrailer(b []byte, first chunkID, size int64) error {
	if len(b) != chunkTrailer || string(b[:8]) != chunkMagic {
		return errcode.New(errcode.Corrupt, "chunk file %s ends with %d bytes that are not its trailer", first.file(), len(b))
	}
	if want, got := binary.BigEndian.Uint32(b[28:]), crc32.Checksum(b[:28], castagnoli); want != got {
		return errcode.New(errcode.Corrupt, "chunk file %s: trailer crc32c want %08x, got %08x", first.file(), want, got)
	}
	t := fileTrailer{chunkID{[12]byte(b[8:20]), binary.BigEndian.Uint32(b[20:])}, int64(binary.BigEndian.Uint32(b[24:]))}
	switch {
	case t.first != first:
		return errcode.New(errcode.Corrupt, "chunk file %s holds other chunks, from %s on", first.file(), t.first.file())
	case t.size != size || size <= 0 || size > maxGet*ChunkSize:
		return errcode.New(errcode.Corrupt, "chunk file %s has %d bytes of data, its trailer says %d", first.file(), size, t.size)
	}
	return nil
}
