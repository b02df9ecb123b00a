package wal

import (
	"errors"
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const scanWindow = 1 << 20

// scanner reads the groups of one file through a window. What it allocates is
// bounded by the window, or by one group that really is in the file.
type scanner struct {
	f    io.ReaderAt
	size int64 // of the file
	salt uint64
	off  int64 // where the next group is expected

	win    []byte
	winOff int64
}

// reset points the scanner at the groups of another file and keeps the window.
func (s *scanner) reset(f io.ReaderAt, size int64, salt uint64) {
	*s = scanner{f: f, size: size, salt: salt, off: blockSize, win: s.win[:0]}
}

// bytes returns up to n bytes at off, fewer at the end of the file. They are
// valid until the next call.
func (s *scanner) bytes(off int64, n int) ([]byte, error) {
	n = int(min(int64(n), s.size-off))
	if n <= 0 {
		return nil, nil
	}
	if in := off - s.winOff; in >= 0 && in+int64(n) <= int64(len(s.win)) {
		return s.win[in : in+int64(n)], nil
	}
	want := int(min(int64(max(n, scanWindow)), s.size-off))
	var kept []byte // what the window has of it: moved to its front, not read again
	if in := off - s.winOff; in >= 0 && in < int64(len(s.win)) {
		kept = s.win[in:]
	}
	if cap(s.win) < want {
		s.win = make([]byte, want)
	}
	s.win, s.winOff = s.win[:want], off
	have := copy(s.win, kept)
	got, err := s.f.ReadAt(s.win[have:], off+int64(have))
	s.win = s.win[:have+got]
	if err != nil && !errors.Is(err, io.EOF) {
		s.win = s.win[:0]
		return nil, errcode.Wrap(errcode.Storage, err, "read at %d", off)
	}
	return s.win[:min(n, len(s.win))], nil
}

// group verifies the group at off and returns it with its bytes; both are
// valid until the next call. errcode.Corrupt = there is none; errcode.Storage
// = the file could not be read, which says nothing about it.
func (s *scanner) group() (Group, []byte, error) {
	h, err := s.header()
	if err != nil {
		return Group{}, nil, err
	}
	b, err := s.bytes(s.off, int(h.Bytes))
	if err != nil {
		return Group{}, nil, err
	}
	g, n, err := ParseGroup(b, s.salt)
	if err != nil {
		return Group{}, nil, err
	}
	return g, b[:n], nil
}

// header decodes the group header at off without verifying the group.
func (s *scanner) header() (groupHeader, error) {
	b, err := s.bytes(s.off, groupHeaderSize)
	if err != nil {
		return groupHeader{}, err
	}
	return parseGroupHeader(b, s.size-s.off)
}

// skip moves past a group of n bytes and its padding.
func (s *scanner) skip(n int) { s.off += roundUp(int64(n)) }
