package segment

import (
	"encoding/binary"
	"hash/crc32"
	"sort"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// IndexEntrySize is the length of one index entry in bytes.
const IndexEntrySize = 24

// Entry is one batch of a segment.
type Entry struct {
	Base         int64 // base offset
	MaxTimestamp int64 // ms; the highest of this batch and all before it
	Position     int64 // bytes from the segment's beginning
	Size         int   // bytes
}

// End is the position behind the batch.
func (e Entry) End() int64 { return e.Position + int64(e.Size) }

// Index is the list of a segment's batches in its encoded form: it costs no
// memory beyond those bytes. It is immutable.
type Index struct{ b []byte }

// Len is the number of batches.
func (x Index) Len() int { return len(x.b) / IndexEntrySize }

// At returns batch i.
func (x Index) At(i int) Entry {
	b := x.b[i*IndexEntrySize : (i+1)*IndexEntrySize]
	return Entry{
		Base:         int64(binary.BigEndian.Uint64(b)),
		MaxTimestamp: int64(binary.BigEndian.Uint64(b[8:])),
		Position:     int64(binary.BigEndian.Uint32(b[16:])),
		Size:         int(binary.BigEndian.Uint32(b[20:])),
	}
}

// SeekOffset returns the number of the last batch that begins at or below offset, 0
// when all begin above it. The offset may lie in a gap behind that batch.
func (x Index) SeekOffset(offset int64) int {
	i := sort.Search(x.Len(), func(i int) bool { return x.At(i).Base > offset })
	return max(0, i-1)
}

// SeekTime returns the number of the batch that holds the first record whose
// timestamp is at or after ms, Len when there is none. FindTime finds the
// record inside.
func (x Index) SeekTime(ms int64) int {
	// Because entries carry the running maximum, the first one that reaches ms
	// reaches it by a record of its own.
	return sort.Search(x.Len(), func(i int) bool { return x.At(i).MaxTimestamp >= ms })
}

func appendEntry(b []byte, e Entry) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(e.Base))
	b = binary.BigEndian.AppendUint64(b, uint64(e.MaxTimestamp))
	b = binary.BigEndian.AppendUint32(b, uint32(e.Position))
	return binary.BigEndian.AppendUint32(b, uint32(e.Size))
}

// ParseIndex checks b, the index of the segment with footer f, and returns it.
// The result aliases b. Errors: Corrupt.
func ParseIndex(b []byte, f *Footer) (Index, error) {
	if int64(len(b)) != f.IndexLength || len(b)%IndexEntrySize != 0 {
		return Index{}, errcode.New(errcode.Corrupt, "segment index: %d bytes, the footer says %d", len(b), f.IndexLength)
	}
	if got := crc32.Checksum(b, castagnoli); got != f.IndexCRC32C {
		return Index{}, errcode.New(errcode.Corrupt, "segment index: crc32c want %08x, got %08x", f.IndexCRC32C, got)
	}
	x := Index{b}
	last := Entry{Base: f.Base - 1}
	for i := range x.Len() {
		e := x.At(i)
		switch {
		case e.Base <= last.Base || e.Base >= f.Next:
			return Index{}, errcode.New(errcode.Corrupt, "segment index: batch %d begins at offset %d, behind %d and within %d to %d are expected", i, e.Base, last.Base, f.Base, f.Next)
		case e.Position != last.End():
			return Index{}, errcode.New(errcode.Corrupt, "segment index: batch %d at position %d, want %d", i, e.Position, last.End())
		case e.Size < HeaderSize || e.Size > MaxBatch:
			return Index{}, errcode.New(errcode.Corrupt, "segment index: batch %d has %d bytes, %d to %d are allowed", i, e.Size, HeaderSize, MaxBatch)
		case i > 0 && e.MaxTimestamp < last.MaxTimestamp:
			return Index{}, errcode.New(errcode.Corrupt, "segment index: batch %d lowers the running maximum of times from %d to %d", i, last.MaxTimestamp, e.MaxTimestamp)
		}
		last = e
	}
	if last.End() != f.DataLength || last.MaxTimestamp != f.MaxTimestamp {
		return Index{}, errcode.New(errcode.Corrupt, "segment index: ends at position %d and time %d, the footer says %d and %d", last.End(), last.MaxTimestamp, f.DataLength, f.MaxTimestamp)
	}
	return x, nil
}
