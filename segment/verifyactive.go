package segment

import (
	"errors"
	"fmt"
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// VerifyActive checks an active segment file of size bytes, which has neither
// index nor footer: header and checksum of every batch, and their order. Deep
// also decodes every record. Where a batch does not verify but the one behind
// it does, the walk goes on there; what is left behind the last batch that
// verifies is one problem, and may be a write that a crash tore. The error is
// about reading only (Storage).
func VerifyActive(name string, r io.ReaderAt, size int64, deep bool) (Report, error) {
	v := verifier{name: name, deep: deep}
	in := &v.report.Info
	s := NewScanner(name, r, 0, size, nil)
	for {
		b, h, err := s.Next()
		pos := s.Pos() - int64(h.Size)
		switch {
		case errors.Is(err, io.EOF):
			in.Bytes = size
			return v.report, nil
		case errcode.Is(err, errcode.Storage):
			return v.report, err
		case err != nil:
			again, ok := v.behind(s, r, size)
			if !ok {
				in.Bytes = size
				return v.report, nil
			}
			s = again
			continue
		}
		e := Entry{Base: h.BaseOffset, Position: pos, Size: h.Size}
		v.next = h.NextOffset()
		if v.report.Batches > 0 && (h.BaseOffset < in.Next || h.Generation < in.LastGeneration) {
			v.problem(pos, h.BaseOffset, "order of offset and generation", order(in.Next, in.LastGeneration), order(h.BaseOffset, h.Generation))
		}
		if v.report.Batches == 0 {
			in.Base = h.BaseOffset
		}
		in.note(&h)
		if deep {
			v.records(e, b, &h)
		}
		v.report.Batches++
		v.report.Records += int64(h.Records)
	}
}

// behind reports the batch that s has refused, and returns a scanner behind it
// when its header says where that is and another batch verifies there.
func (v *verifier) behind(s *Scanner, r io.ReaderAt, size int64) (*Scanner, bool) {
	pos := s.Pos()
	head := make([]byte, min(HeaderSize, size-pos))
	if err := readFull(v.name, r, head, pos); err == nil {
		if h, err := ParseHeader(head); err == nil && pos+int64(h.Size) < size {
			next := NewScanner(v.name, r, pos+int64(h.Size), size, nil)
			if _, after, err := next.Next(); err == nil {
				v.next = after.BaseOffset
				v.problem(pos, h.BaseOffset, "batch", "that it verifies", "it does not, those behind it do")
				return NewScanner(v.name, r, pos+int64(h.Size), size, nil), true
			}
		}
	}
	v.next = 0
	v.problem(pos, v.report.Info.Next, "the rest of the file", "batches that verify", sizeOf(size-pos)+" that do not")
	return nil, false
}

func order(offset int64, generation uint32) string {
	return fmt.Sprintf("%d, generation %d", offset, generation)
}

func sizeOf(n int64) string { return fmt.Sprintf("%d bytes", n) }
