package client

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Bounds of one part of a frame, above what a node accepts: a value of 16 MiB; a
// key and headers of a request each.
const (
	maxFrameMeta  = 4 << 20
	maxFrameValue = 32 << 20
	// frameStep is how far a buffer grows ahead of the bytes that have arrived.
	frameStep = 1 << 20
)

// frameReader reads records as nodes answer them in the form
// application/vnd.tidemark.frames, each
//
//	u32 length | metadata as JSON | u32 length | value
//
// with big-endian lengths.
type frameReader struct {
	in   *bufio.Reader
	meta []byte // of the last frame
}

// next returns the next record. io.EOF: the bytes end between two frames.
func (f *frameReader) next() (broker.Message, error) {
	n, err := f.length(maxFrameMeta, "metadata")
	if err != nil {
		return broker.Message{}, err
	}
	if f.meta, err = readPart(f.in, f.meta[:0], n); err != nil {
		return broker.Message{}, err
	}
	var m message
	if err := json.Unmarshal(f.meta, &m); err != nil {
		return broker.Message{}, errcode.New(errcode.Internal, "decode the metadata of a frame: %w", err)
	}
	out, err := m.decode()
	if err != nil {
		return out, err
	}
	if n, err = f.length(maxFrameValue, "value"); err == nil {
		out.Value, err = readPart(f.in, make([]byte, 0, min(n, frameStep)), n)
	}
	return out, whole(err)
}

func (f *frameReader) length(most uint32, what string) (int, error) {
	b, err := f.in.Peek(4)
	if err != nil {
		if len(b) > 0 {
			err = whole(err)
		}
		return 0, err
	}
	n := binary.BigEndian.Uint32(b)
	if n > most {
		return 0, errcode.New(errcode.Internal, "the %s of a frame has %d bytes, the most is %d; is this a Tidemark node?", what, n, most)
	}
	_, err = f.in.Discard(4)
	return int(n), err
}

// whole says that the bytes may not end here.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readPart appends n bytes to b, which grows with what arrives.
func readPart(in io.Reader, b []byte, n int) ([]byte, error) {
	for n > 0 {
		step := min(n, frameStep)
		at := len(b)
		b = append(b, make([]byte, step)...)
		if _, err := io.ReadFull(in, b[at:]); err != nil {
			return b[:at], whole(err)
		}
		n -= step
	}
	return b, nil
}
