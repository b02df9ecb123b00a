package segment

import (
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Reader finds and reads the batches of a segment, wherever its bytes are. It
// holds no resource, and is safe for concurrent use if the ReaderAt is.
type Reader struct {
	name  string
	r     io.ReaderAt
	base  int64
	next  int64
	index Index
}

// NewReader reads the segment with footer f and index x from r. The name goes
// into errors.
func NewReader(name string, r io.ReaderAt, f *Footer, x Index) *Reader {
	return &Reader{name: name, r: r, base: f.Base, next: f.Next, index: x}
}

// OpenReader reads footer and index of a sealed segment of size bytes. Errors:
// Corrupt, UnsupportedVersion, Storage (the read failed).
func OpenReader(name string, r io.ReaderAt, size int64) (*Reader, *Footer, error) {
	f, x, err := readTail(name, r, size)
	if err != nil {
		return nil, nil, err
	}
	return NewReader(name, r, &f, x), &f, nil
}

func readTail(name string, r io.ReaderAt, size int64) (Footer, Index, error) {
	if size < FooterSize {
		return Footer{}, Index{}, errcode.New(errcode.Corrupt, "%s: %d bytes are shorter than a footer", name, size)
	}
	var b [FooterSize]byte
	if err := readFull(name, r, b[:], size-FooterSize); err != nil {
		return Footer{}, Index{}, err
	}
	f, err := ParseFooter(b[:])
	if err == nil && f.Size() != size {
		err = errcode.New(errcode.Corrupt, "segment footer: describes %d bytes, there are %d", f.Size(), size)
	}
	if err != nil {
		return Footer{}, Index{}, errcode.Wrap(errcode.Corrupt, err, "%s: position %d", name, size-FooterSize)
	}
	// The size has just been compared, so the index is no longer than the file.
	index := make([]byte, f.IndexLength)
	if err := readFull(name, r, index, f.DataLength); err != nil {
		return Footer{}, Index{}, err
	}
	x, err := ParseIndex(index, &f)
	return f, x, errcode.Wrap(errcode.Corrupt, err, "%s: position %d", name, f.DataLength)
}

// readFull fills b; fewer bytes are a failed read.
func readFull(name string, r io.ReaderAt, b []byte, pos int64) error {
	n, err := r.ReadAt(b, pos)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return errcode.Wrap(errcode.Storage, err, "read %s at position %d", name, pos)
}

// Index lists the segment's batches.
func (r *Reader) Index() Index { return r.index }

// Base is the segment's first offset.
func (r *Reader) Base() int64 { return r.base }

// Next is the exclusive end of the segment's offsets.
func (r *Reader) Next() int64 { return r.next }

// SeekOffset returns the last batch that begins at or below offset, the first one
// when none does; ok is false when offset is at or above Next. Because of gaps
// the records at or above offset may begin in the batch after it.
func (r *Reader) SeekOffset(offset int64) (e Entry, ok bool) {
	if offset >= r.next || r.index.Len() == 0 {
		return Entry{}, false
	}
	return r.index.At(r.index.SeekOffset(offset)), true
}

// SeekTime returns the batch that holds the first record at or after ms;
// FindTime finds that record inside. ok is false when there is none.
func (r *Reader) SeekTime(ms int64) (e Entry, ok bool) {
	i := r.index.SeekTime(ms)
	if i == r.index.Len() {
		return Entry{}, false
	}
	return r.index.At(i), true
}

// Scan reads verified batches from the one that SeekOffset finds to the
// segment's end. mem is a read buffer to begin with and may be nil.
func (r *Reader) Scan(offset int64, mem []byte) *Scanner {
	from, end := int64(0), int64(0)
	if n := r.index.Len(); n > 0 {
		end = r.index.At(n - 1).End()
	}
	if e, ok := r.SeekOffset(offset); ok {
		from = e.Position
	} else {
		from = end
	}
	return NewScanner(r.name, r.r, from, end, mem)
}

// ReadBatch reads the batch of entry e into buf[:0], grown as needed, and
// verifies it. Errors: Corrupt, UnsupportedVersion, Storage (the read failed).
func (r *Reader) ReadBatch(e Entry, buf []byte) ([]byte, BatchHeader, error) {
	if e.Size < HeaderSize || e.Size > MaxBatch {
		return nil, BatchHeader{}, errcode.New(errcode.InvalidArgument, "%s: entry of %d bytes is no batch", r.name, e.Size)
	}
	if cap(buf) < e.Size {
		buf = make([]byte, e.Size)
	}
	buf = buf[:e.Size]
	if err := readFull(r.name, r.r, buf, e.Position); err != nil {
		return nil, BatchHeader{}, err
	}
	h, err := VerifyBatch(buf)
	if err == nil && h.BaseOffset != e.Base {
		err = errcode.New(errcode.Corrupt, "batch at offset %d, the index says %d", h.BaseOffset, e.Base)
	}
	if err != nil {
		return nil, h, errcode.Wrap(errcode.Corrupt, err, "%s: position %d", r.name, e.Position)
	}
	return buf, h, nil
}
