package archive

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Compressed bytes can change without changing what they decode to: a match that
// is copied from another place with the same text, a bit of a frame header that
// nothing depends on. Checksums of the content do not see that, so each object
// ends with one of the bytes that are stored. Damage is then found while it is
// harmless, and whatever place in the object it hit.

// checksumSize is what stands at the end of a shipped WAL object: the CRC-32C of
// its blocks.
const checksumSize = 4

// checkedBytes takes the checksum off the end of b and holds what is before it
// against it.
func checkedBytes(b []byte) ([]byte, error) {
	if len(b) < checksumSize {
		return nil, errcode.New(errcode.Corrupt, "%d bytes are left for the checksum at its end", len(b))
	}
	content := b[:len(b)-checksumSize]
	return content, compareChecksum(content, b[len(content):])
}

func compareChecksum(content, end []byte) error {
	if want, got := binary.BigEndian.Uint32(end), crc32.Checksum(content, castagnoli); want != got {
		return errcode.New(errcode.Corrupt, "checksum of its stored bytes is %08x, want %08x: it was changed or cut", got, want)
	}
	return nil
}

func appendChecksum(b, content []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(content, castagnoli))
}

// skippable begins a frame that decoders of zstd pass over, with the length of
// its content, both in little-endian as there: so an object of zstd that carries
// its checksum is still one that any tool decodes.
const skippable = "\x5f\x2a\x4d\x18\x04\x00\x00\x00"

// sealZstd appends the checksum of a zstd frame.
func sealZstd(frame []byte) []byte {
	return appendChecksum(append(frame, skippable...), frame)
}

// openZstd returns the zstd frame that sealZstd has sealed.
func openZstd(b []byte) ([]byte, error) {
	at := len(b) - len(skippable) - checksumSize
	if at < 0 || string(b[at:at+len(skippable)]) != skippable {
		return nil, errcode.New(errcode.Corrupt, "%d bytes do not end with a checksum: it was changed or cut", len(b))
	}
	return b[:at], compareChecksum(b[:at], b[at+len(skippable):])
}
