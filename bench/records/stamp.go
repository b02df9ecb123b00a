package records

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"time"
)

// Bounds of a run.
const (
	MinBytes   = 128      // of a record
	MaxBytes   = 16 << 20 // of a record
	MaxStreams = 1 << 16
	maxSeq     = 1<<48 - 1
)

// Where the fields of a stamp are.
const (
	head   = `{"run":"00000000","id":"0000000000000000","at":"0000000000000000","sum":"00000000","text":"`
	tail   = `"}`
	runAt  = len(`{"run":"`)
	idAt   = runAt + 8 + len(`","id":"`)
	timeAt = idAt + 16 + len(`","at":"`)
	sumAt  = timeAt + 16 + len(`","sum":"`)
)

// Prefix is how every record begins.
const Prefix = `{"run":"`

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Run is the records of one run: they have one size and one mark.
type Run struct {
	corpus *Corpus
	size   int
	mark   uint32
}

// NewRun returns a run of records of size bytes, from MinBytes to MaxBytes, that
// are told from others by mark.
func NewRun(c *Corpus, size int, mark uint32) *Run { return &Run{corpus: c, size: size, mark: mark} }

// Size is the length of each record in bytes.
func (r *Run) Size() int { return r.size }

// Kind is what the records are filled with.
func (r *Run) Kind() Kind { return r.corpus.kind }

// Source returns the records of a stream, from sequence 0 on. Each stream has one
// source.
func (r *Run) Source(stream int) (*Source, error) {
	if r.size < MinBytes || r.size > MaxBytes {
		return nil, fmt.Errorf("records of %d bytes: they can have %d to %d", r.size, MinBytes, MaxBytes)
	}
	if stream < 0 || stream >= MaxStreams {
		return nil, fmt.Errorf("stream %d: there can be %d", stream, MaxStreams)
	}
	s := &Source{run: r, stream: stream}
	s.buf = append(make([]byte, 0, r.size), head...)[:r.size]
	putHex32(s.buf[runAt:], r.mark)
	if r.corpus.kind == Text {
		copy(s.buf[r.size-len(tail):], tail)
	}
	// Streams begin in different places, far from each other for the first ones.
	s.at = int(bits.Reverse16(uint16(stream))) * (len(r.corpus.data) / MaxStreams)
	return s, nil
}

// Source makes the records of one stream, one after the other.
type Source struct {
	run    *Run
	stream int
	seq    uint64
	at     int
	buf    []byte
}

// Stream is the number of the stream.
func (s *Source) Stream() int { return s.stream }

// Seq is the sequence of the next record.
func (s *Source) Seq() uint64 { return s.seq }

// Next returns the next record, due at that time since the run began. It is valid
// until the next call.
func (s *Source) Next(due time.Duration) []byte {
	b := s.buf
	putHex64(b[idAt:], uint64(s.stream)<<48|s.seq&maxSeq)
	putHex64(b[timeAt:], uint64(due))
	end := len(b)
	if s.run.corpus.kind == Text {
		end -= len(tail)
	}
	s.at = s.run.corpus.fill(b[len(head):end], s.at)
	putHex32(b[sumAt:], sum(b))
	s.seq++
	return b
}

// Append appends the next record to b.
func (s *Source) Append(b []byte, due time.Duration) []byte { return append(b, s.Next(due)...) }

// Stamp is what a record says of itself.
type Stamp struct {
	Stream int
	Seq    uint64
	Due    time.Duration // since the run began
}

// Errors of Check.
var (
	ErrForeign = errors.New("a record of another run")
	ErrCorrupt = errors.New("a record that is not what was sent")
)

// Check verifies a record and returns its stamp. Errors: ErrForeign, ErrCorrupt.
func (r *Run) Check(b []byte) (Stamp, error) {
	if len(b) < len(head) || string(b[:runAt]) != Prefix {
		return Stamp{}, fmt.Errorf("%w: %d bytes without a stamp", ErrCorrupt, len(b))
	}
	mark, ok1 := hex64(b[runAt : runAt+8])
	id, ok2 := hex64(b[idAt : idAt+16])
	due, ok3 := hex64(b[timeAt : timeAt+16])
	want, ok4 := hex64(b[sumAt : sumAt+8])
	switch {
	case !ok1 || !ok2 || !ok3 || !ok4:
		return Stamp{}, fmt.Errorf("%w: its stamp does not read", ErrCorrupt)
	case uint32(mark) != r.mark:
		return Stamp{}, ErrForeign
	case len(b) != r.size:
		return Stamp{}, fmt.Errorf("%w: %d bytes instead of %d", ErrCorrupt, len(b), r.size)
	case sum(b) != uint32(want):
		return Stamp{}, fmt.Errorf("%w: its checksum differs (stream %d, sequence %d)", ErrCorrupt, id>>48, id&maxSeq)
	}
	return Stamp{Stream: int(id >> 48), Seq: id & maxSeq, Due: time.Duration(due)}, nil
}

// sum is the checksum of a record, of all bytes but its own.
func sum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:sumAt], castagnoli), castagnoli, b[sumAt+8:])
}

func putHex32(dst []byte, v uint32) {
	var raw [4]byte
	binary.BigEndian.PutUint32(raw[:], v)
	hex.Encode(dst, raw[:])
}

func putHex64(dst []byte, v uint64) {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], v)
	hex.Encode(dst, raw[:])
}

// hex64 reads up to 16 lower-case hex digits.
func hex64(digits []byte) (v uint64, ok bool) {
	for _, c := range digits {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}
