package segment

import (
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// scanBuffer is how much a Scanner reads at a time. A larger batch grows its
// buffer, but only after the header has been checked and the range holds it.
const scanBuffer = 1 << 20

// Scanner reads the batches of a byte range one after the other.
type Scanner struct {
	name     string
	r        io.ReaderAt
	pos, end int64  // the next batch begins at pos; the range ends at end
	buf      []byte // bytes of r from pos on
	mem      []byte
}

// NewScanner reads from r the batches that stand in positions from to to. The
// name goes into errors. mem is the read buffer to begin with and may be nil.
func NewScanner(name string, r io.ReaderAt, from, to int64, mem []byte) *Scanner {
	return &Scanner{name: name, r: r, pos: from, end: to, mem: mem[:cap(mem)]}
}

// Pos is the position of the batch that Next reads next or has just refused.
func (s *Scanner) Pos() int64 { return s.pos }

// Next returns the next batch, whose header and checksum verify, valid until
// the next call. It returns io.EOF at the end of the range. Errors: Corrupt and
// UnsupportedVersion name file and position and leave Pos there; anything else
// is a failed read, which says nothing about the bytes.
func (s *Scanner) Next() ([]byte, BatchHeader, error) {
	if s.pos >= s.end {
		return nil, BatchHeader{}, io.EOF
	}
	if err := s.fill(min(HeaderSize, s.end-s.pos)); err != nil {
		return nil, BatchHeader{}, err
	}
	h, err := ParseHeader(s.buf)
	if err == nil && int64(h.Size) > s.end-s.pos {
		err = errcode.New(errcode.Corrupt, "batch at offset %d: %d bytes, %d are left", h.BaseOffset, h.Size, s.end-s.pos)
	}
	if err != nil {
		return nil, h, s.at(err)
	}
	if err := s.fill(int64(h.Size)); err != nil {
		return nil, h, err
	}
	batch := s.buf[:h.Size:h.Size]
	if _, err := VerifyBatch(batch); err != nil {
		return nil, h, s.at(err)
	}
	s.buf = s.buf[h.Size:]
	s.pos += int64(h.Size)
	return batch, h, nil
}

func (s *Scanner) at(err error) error {
	return errcode.Wrap(errcode.Corrupt, err, "%s: position %d", s.name, s.pos)
}

// fill makes at least n bytes from pos on available; the range holds them.
func (s *Scanner) fill(n int64) error {
	if int64(len(s.buf)) >= n {
		return nil
	}
	have := len(s.buf)
	if int64(len(s.mem)) < n {
		mem := make([]byte, max(n, min(scanBuffer, s.end-s.pos)))
		copy(mem, s.buf)
		s.mem = mem
	} else {
		copy(s.mem, s.buf)
	}
	want := min(int64(len(s.mem)), s.end-s.pos)
	got, err := s.r.ReadAt(s.mem[have:want], s.pos+int64(have))
	s.buf = s.mem[:have+got]
	if int64(len(s.buf)) >= n {
		return nil
	}
	if err == io.EOF || err == nil {
		err = io.ErrUnexpectedEOF
	}
	return errcode.Wrap(errcode.Storage, err, "read %s at position %d", s.name, s.pos)
}
