package api

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The encodings of batch bodies.
const (
	encodingGzip = "gzip"
	encodingZstd = "zstd"
)

// acceptEncoding tells a client whose encoding was refused what a batch takes.
var acceptEncoding = []string{encodingGzip + ", " + encodingZstd}

// contentEncoding is the encoding of the body, "" when it comes as it is.
func (x *exchange) contentEncoding() (string, error) {
	lines := x.r.Header["Content-Encoding"]
	if len(lines) == 0 {
		return "", nil
	}
	if len(lines) > 1 || strings.IndexByte(lines[0], ',') >= 0 {
		return "", errcode.New(errcode.UnsupportedType, "the body has several encodings (%.60q); one of them at most", strings.Join(lines, ", "))
	}
	switch name := strings.ToLower(strings.TrimSpace(lines[0])); name {
	case "identity":
		return "", nil
	default:
		return name, nil
	}
}

// plainBody refuses an encoded body where it would be taken byte for byte.
func (x *exchange) plainBody() error {
	name, err := x.contentEncoding()
	if err == nil && name != "" {
		err = errcode.New(errcode.UnsupportedType, "Content-Encoding %.40q is for batches; this route takes the body byte for byte, so send it as it is and without the header", name)
	}
	return err
}

// readBatch reads the whole body of a batch and decodes it. What arrives and what
// it decodes to are each at most limit bytes, and both count into the budget of
// large bodies.
func (x *exchange) readBatch(limit int64) ([]byte, error) {
	name, err := x.contentEncoding()
	if err != nil {
		x.Header()["Accept-Encoding"] = acceptEncoding
		return nil, err
	}
	var decode func(src []byte, limit int64) ([]byte, error)
	switch name {
	case "":
		return x.readRaw(limit, "the batch")
	case encodingGzip:
		decode = x.gunzip
	case encodingZstd:
		decode = x.unzstd
	default:
		x.Header()["Accept-Encoding"] = acceptEncoding
		return nil, errcode.New(errcode.UnsupportedType, "Content-Encoding %.40q is not accepted; a batch comes as it is, or in gzip or zstd", name)
	}
	src, err := x.readRaw(limit, "the encoded batch")
	if err != nil {
		return nil, err
	}
	x.beside = int64(len(src))
	return decode(src, limit)
}

func badEncoding(name string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errcode.New(errcode.InvalidArgument, "the body is cut off: its %s data end early; nothing was stored", name)
	}
	return errcode.New(errcode.InvalidArgument, "the body is not %s, or damaged, or something follows it: %v; nothing was stored", name, err)
}

var gzipReaders = sync.Pool{New: func() any { return new(gzipReader) }}

type gzipReader struct {
	src bytes.Reader
	z   gzip.Reader
}

// gunzip decodes into a buffer that grows with what was really decoded.
func (x *exchange) gunzip(src []byte, limit int64) ([]byte, error) {
	g := gzipReaders.Get().(*gzipReader)
	defer func() {
		g.src.Reset(nil)
		gzipReaders.Put(g)
	}()
	g.src.Reset(src)
	if err := g.z.Reset(&g.src); err != nil {
		return nil, badEncoding(encodingGzip, err)
	}
	buf := x.buffer()
	for room := cap(buf.b); ; {
		if len(buf.b) == room {
			var err error
			if room, err = x.grow(buf, limit+1); err != nil {
				return nil, err
			}
		}
		n, err := g.z.Read(buf.b[len(buf.b):room])
		buf.b = buf.b[:len(buf.b)+n]
		switch {
		case int64(len(buf.b)) > limit:
			return nil, tooLarge("the decoded batch", limit)
		case errors.Is(err, io.EOF):
			return buf.b, nil
		case err != nil:
			return nil, badEncoding(encodingGzip, err)
		}
	}
}

// maxZstdBlock is the most that one block decodes to; minZstdBlock are the bytes
// of the shortest block that decodes to anything.
const (
	maxZstdBlock = 128 << 10
	minZstdBlock = 4
)

// zstdDecoder is a pool of as many decoders as there are processors; DecodeAll
// waits for a free one. It writes only into the room that it is given and keeps
// no window of its own, so that neither a frame's declared size nor its window
// sizes an allocation.
var zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("api: the constant zstd decoder options are invalid: " + err.Error())
	}
	return d
})

// unzstd decodes into a room that grows fourfold while it is too small: all tries
// together decode less than half as much again as the last. It never grows beyond
// what so many bytes of blocks can hold, whatever the frames declare.
func (x *exchange) unzstd(src []byte, limit int64) ([]byte, error) {
	if len(src) == 0 {
		return nil, badEncoding(encodingZstd, io.ErrUnexpectedEOF)
	}
	most := min(limit, (int64(len(src))/minZstdBlock+1)*maxZstdBlock)
	buf := x.buffer()
	for room := min(int64(cap(buf.b)), most+1); ; {
		out, err := zstdDecoder().DecodeAll(src, buf.b[:0:room])
		full := errors.Is(err, zstd.ErrDecoderSizeExceeded) || int64(len(out))+maxZstdBlock >= room
		switch {
		case err == nil && int64(len(out)) <= limit:
			buf.b = out
			return out, nil
		case err == nil, full && room > limit:
			return nil, tooLarge("the decoded batch", limit)
		case !full || room > most:
			return nil, badEncoding(encodingZstd, err)
		}
		// It failed within a block of the room's end, so the room may have been
		// the reason.
		buf.b = buf.b[:room]
		more, err := x.grow(buf, most+1)
		if err != nil {
			return nil, err
		}
		room = int64(more)
	}
}
