package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Codec is the compression of a batch's records, numbered as on the wire.
type Codec uint8

// The codecs. All are read; none and zstd are written.
const (
	CodecNone Codec = iota
	CodecGzip
	CodecSnappy
	CodecLZ4
	CodecZstd
)

// String returns "none", "gzip", "snappy", "lz4" or "zstd".
func (c Codec) String() string {
	names := [...]string{"none", "gzip", "snappy", "lz4", "zstd"}
	if int(c) < len(names) {
		return names[c]
	}
	return "codec " + strconv.Itoa(int(c))
}

// keptBuffer is the largest buffer that goes back into a pool.
const keptBuffer = 1 << 20

// compressed holds buffers for the output of the encoder.
var compressed = sync.Pool{New: func() any { return new([]byte) }}

// zstdEncoder and zstdDecoder are one pool each of as many single-goroutine
// coders as there are processors; EncodeAll and DecodeAll wait for a free one.
// Batches have a checksum already, so the frames carry none.
var zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20))
	if err != nil {
		panic("segment: the constant zstd encoder options are invalid: " + err.Error())
	}
	return e
})

// The decoder writes only into the room that it is given, so a frame's
// declared size never sizes an allocation.
var zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(MaxDecoded))
	if err != nil {
		panic("segment: the constant zstd decoder options are invalid: " + err.Error())
	}
	return d
})

// decompress returns src's plain bytes in dst[:0], grown as needed up to limit.
// Memory grows with what was really decoded, not with a declared size.
func decompress(dst, src []byte, c Codec, limit int) ([]byte, error) {
	switch c {
	case CodecGzip:
		return gunzip(dst[:0], src, limit)
	case CodecSnappy:
		return unsnappy(dst[:0], src, limit)
	case CodecZstd:
		return unzstd(dst[:0], src, limit)
	case CodecLZ4:
		return unlz4(dst[:0], src, limit)
	default:
		return dst[:0], errcode.New(errcode.UnsupportedType, "batch compression %d is unknown; use none, gzip, snappy, lz4 or zstd", c)
	}
}

func overLimit(limit int) error {
	return errcode.New(errcode.TooLarge, "batch decompresses to more than %d bytes", limit)
}

// maxZstdBlock is the most that one block decodes to; none is shorter than
// four bytes.
const maxZstdBlock = 128 << 10

func unzstd(dst, src []byte, limit int) ([]byte, error) {
	var frame zstd.Header
	if err := frame.Decode(src); err != nil {
		return dst, errcode.New(errcode.Corrupt, "batch: zstd: %w", err)
	}
	room := min(limit, 8*len(src)+4<<10)
	if frame.HasFCS {
		// A declared size is believed as far as that many bytes of blocks can
		// really hold it. The few bytes above it allow the fast copies.
		size := frame.FrameContentSize
		switch {
		case size > uint64(limit):
			return dst, overLimit(limit)
		case size > uint64(len(src)/4+1)*maxZstdBlock:
			return dst, errcode.New(errcode.Corrupt, "batch: zstd: a frame of %d bytes declares %d", len(src), size)
		}
		room = int(size) + 64
	}
	for {
		dst = slices.Grow(dst[:0], room)
		room = min(cap(dst), limit+64)
		out, err := zstdDecoder().DecodeAll(src, dst[:0:room])
		switch {
		case err == nil && len(out) > limit:
			return dst, overLimit(limit)
		case err == nil:
			return out, nil
		case !errors.Is(err, zstd.ErrDecoderSizeExceeded) && len(out)+maxZstdBlock < room:
			return dst, errcode.New(errcode.Corrupt, "batch: zstd: %w", err)
		case room >= limit:
			return dst, overLimit(limit)
		}
		// It failed within a block of the room's end, so the room may have been
		// the reason: each step costs four times what the one before decoded.
		room = min(limit, 4*room)
	}
}

var gzipReaders = sync.Pool{New: func() any { return new(gzipReader) }}

type gzipReader struct {
	src bytes.Reader
	z   gzip.Reader
}

func gunzip(dst, src []byte, limit int) ([]byte, error) {
	g := gzipReaders.Get().(*gzipReader)
	defer gzipReaders.Put(g)
	g.src.Reset(src)
	if err := g.z.Reset(&g.src); err != nil {
		return dst, errcode.New(errcode.Corrupt, "batch: gzip: %w", err)
	}
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, max(4<<10, len(dst)))
		}
		n, err := g.z.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst) > limit:
			return dst[:0], overLimit(limit)
		case errors.Is(err, io.EOF):
			return dst, nil
		case err != nil:
			return dst[:0], errcode.New(errcode.Corrupt, "batch: gzip: %w", err)
		}
	}
}

// xerial is the framing of the Java clients around snappy blocks: this magic,
// two 32-bit versions, then blocks with a 32-bit length before each.
var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

func unsnappy(dst, src []byte, limit int) ([]byte, error) {
	if !bytes.HasPrefix(src, xerial) {
		return unsnappyBlock(dst, src, limit)
	}
	if len(src) < 16 {
		return dst, errcode.New(errcode.Corrupt, "batch: snappy: frame of %d bytes ends in its header", len(src))
	}
	for src = src[16:]; len(src) > 0; {
		if len(src) < 4 || uint64(binary.BigEndian.Uint32(src)) > uint64(len(src)-4) {
			return dst, errcode.New(errcode.Corrupt, "batch: snappy: a block is longer than the %d bytes left", len(src))
		}
		n := int(binary.BigEndian.Uint32(src))
		var err error
		if dst, err = unsnappyBlock(dst, src[4:4+n], limit); err != nil {
			return dst, err
		}
		src = src[4+n:]
	}
	return dst, nil
}

// unsnappyBlock appends one block to dst. Three bytes of snappy give at most
// 64, so a block that declares more than 22 times its size lies.
func unsnappyBlock(dst, src []byte, limit int) ([]byte, error) {
	n, err := snappy.DecodedLen(src)
	switch {
	case err != nil:
		return dst, errcode.New(errcode.Corrupt, "batch: snappy: %w", err)
	case n > limit-len(dst):
		return dst, overLimit(limit)
	case n > 22*len(src):
		return dst, errcode.New(errcode.Corrupt, "batch: snappy: a block of %d bytes declares %d", len(src), n)
	}
	dst = slices.Grow(dst, n)
	out, err := snappy.Decode(dst[len(dst):len(dst)+n], src)
	if err != nil || len(out) != n {
		return dst, errcode.New(errcode.Corrupt, "batch: snappy: %w", err)
	}
	return dst[:len(dst)+n], nil
}
