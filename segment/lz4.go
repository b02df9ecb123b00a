package segment

import (
	"encoding/binary"
	"slices"

	"github.com/pierrec/lz4/v4"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	lz4Magic  = 0x184D2204
	lz4Window = 64 << 10 // how far back a linked block may point
	lz4Ratio  = 255      // a byte of a block stands for at most so many
)

// Bits of the flags of an LZ4 frame.
const (
	lz4Dictionary      = 0x01
	lz4Reserved        = 0x02
	lz4ContentChecksum = 0x04
	lz4ContentSize     = 0x08
	lz4BlockChecksum   = 0x10
	lz4Independent     = 0x20
)

// unlz4 decodes LZ4 frames, one behind the other. Checksums of frames are passed
// over: the batch has one over the same bytes, and early Kafka clients computed
// that of the frame's header wrongly. A block's room follows from what its bytes
// can stand for, so no declared size sizes an allocation.
func unlz4(dst, src []byte, limit int) ([]byte, error) {
	for first := true; first || len(src) > 0; first = false {
		var err error
		if dst, src, err = lz4Frame(dst, src, limit); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

func lz4Corrupt(what string) error { return errcode.New(errcode.Corrupt, "batch: lz4: %s", what) }

// lz4Frame appends what one frame holds and returns what follows it.
func lz4Frame(dst, src []byte, limit int) (out, rest []byte, err error) {
	le := binary.LittleEndian
	if len(src) < 7 || le.Uint32(src) != lz4Magic {
		return dst, nil, lz4Corrupt("this is no frame")
	}
	flags, sizes := src[4], src[5]
	if flags>>6 != 1 || flags&(lz4Reserved|lz4Dictionary) != 0 || sizes&0x8f != 0 || sizes>>4 < 4 {
		return dst, nil, lz4Corrupt("the frame's header is of another version, needs a dictionary, or is damaged")
	}
	largest := 1 << (8 + 2*(sizes>>4)) // 64 KiB to 4 MiB
	p := 7
	if flags&lz4ContentSize != 0 {
		p += 8
	}
	trailer := 0
	if flags&lz4BlockChecksum != 0 {
		trailer = 4
	}
	for begin := len(dst); ; {
		if len(src)-p < 4 {
			return dst, nil, lz4Corrupt("the frame is cut off")
		}
		head := le.Uint32(src[p:])
		p += 4
		if head == 0 {
			break
		}
		n := int(head & 0x7fffffff)
		if n > largest || n > len(src)-p-trailer {
			return dst, nil, lz4Corrupt("a block is longer than its frame allows, or cut off")
		}
		block := src[p : p+n]
		p += n + trailer
		if head>>31 != 0 {
			dst = append(dst, block...)
		} else if dst, err = lz4Block(dst, block, begin, largest, flags&lz4Independent == 0); err != nil {
			return dst, nil, err
		}
		if len(dst) > limit {
			return dst[:0], nil, overLimit(limit)
		}
	}
	if flags&lz4ContentChecksum != 0 {
		p += 4
	}
	if p > len(src) {
		return dst, nil, lz4Corrupt("the frame is cut off")
	}
	return dst, src[p:], nil
}

// lz4Block appends one compressed block of a frame whose output begins at begin.
func lz4Block(dst, block []byte, begin, largest int, linked bool) ([]byte, error) {
	room := min(largest, lz4Ratio*len(block))
	dst = slices.Grow(dst, room)
	var window []byte
	if linked {
		window = dst[max(begin, len(dst)-lz4Window):]
	}
	n, err := lz4.UncompressBlockWithDict(block, dst[len(dst):len(dst)+room], window)
	if err != nil {
		return dst, lz4Corrupt("a block does not decode: " + err.Error())
	}
	return dst[:len(dst)+n], nil
}
