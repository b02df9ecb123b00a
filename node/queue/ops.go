package queue

import (
	"encoding/binary"
	"math"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The operations of one journal entry, in order:
//
//	version u8 = 1, then until the end: kind u8 and its fields
//
// Numbers are unsigned LEB128 varints in their shortest form (encoding/binary
// "Uvarint"): an ack of a recent offset is about 6 bytes, and there is one for
// every record that is consumed.
const opsVersion = 1

// opKind is the first byte of an operation. Append only.
type opKind uint8

const (
	opSettle opKind = 1 // from, count: acked
	opReturn opKind = 2 // offset, attempts, due ms since the Unix epoch (0 = at once): nacked or expired
	opSeek   opKind = 3 // to: everything below is settled, everything else is not, counts are forgotten
	opDelete opKind = 4 // the group is deleted
	opSkip   opKind = 5 // from, count: proven unreadable or missing, counts as settled
	opExtend opKind = 6 // offset, attempt, expiry us, deadline us: the lease is valid until the deadline
	opCut    opKind = 7 // end: what was known of offsets from there on is forgotten, the log ended there
)

// op is one operation, decoded.
type op struct {
	kind     opKind
	from, to int64  // settle, skip: the range; return, extend: from is the offset; seek, cut: from is the target
	attempts uint32 // return, extend
	dueMS    int64  // return
	expiry   int64  // extend, microseconds
	deadline int64  // extend, microseconds
}

func appendSettle(b []byte, from, to int64) []byte { return appendRange(b, opSettle, from, to) }
func appendSkip(b []byte, from, to int64) []byte   { return appendRange(b, opSkip, from, to) }

func appendRange(b []byte, k opKind, from, to int64) []byte {
	b = append(beginOps(b), byte(k))
	b = binary.AppendUvarint(b, uint64(from))
	return binary.AppendUvarint(b, uint64(to-from))
}

func appendReturn(b []byte, offset int64, attempts uint32, dueMS int64) []byte {
	b = append(beginOps(b), byte(opReturn))
	b = binary.AppendUvarint(b, uint64(offset))
	b = binary.AppendUvarint(b, uint64(attempts))
	return binary.AppendUvarint(b, uint64(dueMS))
}

func appendSeek(b []byte, to int64) []byte {
	return binary.AppendUvarint(append(beginOps(b), byte(opSeek)), uint64(to))
}

func appendCut(b []byte, end int64) []byte {
	return binary.AppendUvarint(append(beginOps(b), byte(opCut)), uint64(end))
}

func appendDelete(b []byte) []byte { return append(beginOps(b), byte(opDelete)) }

func appendExtend(b []byte, offset int64, attempt uint32, expiry, deadline int64) []byte {
	b = append(beginOps(b), byte(opExtend))
	b = binary.AppendUvarint(b, uint64(offset))
	b = binary.AppendUvarint(b, uint64(attempt))
	b = binary.AppendUvarint(b, uint64(expiry))
	return binary.AppendUvarint(b, uint64(deadline))
}

// beginOps writes the version in front of the first operation.
func beginOps(b []byte) []byte {
	if len(b) == 0 {
		b = append(b, opsVersion)
	}
	return b
}

// decodeOps calls fn for each operation of a journal entry, in order, and
// stops at the first error. It allocates nothing. Callers that must not apply
// half an entry run it twice.
func decodeOps(b []byte, fn func(op) error) error {
	d := decoder{b: b, what: "group operations"}
	d.version(opsVersion)
	for d.err == nil && len(d.b) > 0 {
		o := op{kind: opKind(d.byte())}
		switch o.kind {
		case opSettle, opSkip:
			o.from = d.offset()
			o.to = d.end(o.from)
		case opReturn:
			o.from, o.attempts, o.dueMS = d.offset(), d.uint32(), d.offset()
		case opSeek, opCut:
			o.from = d.offset()
		case opDelete:
		case opExtend:
			o.from, o.attempts, o.expiry, o.deadline = d.offset(), d.uint32(), d.offset(), d.offset()
		default:
			return errcode.New(errcode.UnsupportedVersion, "group operation %d at byte %d is not known to this build; run the release that wrote it, or a newer one", o.kind, len(b)-len(d.b)-1)
		}
		if d.err != nil {
			break
		}
		if err := fn(o); err != nil {
			return err
		}
	}
	return d.err
}

// decoder reads varints from b and keeps the first error.
type decoder struct {
	b    []byte
	what string
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = errcode.Wrap(errcode.Corrupt, errcode.New(errcode.Corrupt, format, args...), "decode %s", d.what)
	}
	d.b = nil
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("it ends too early")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) version(want byte) {
	if v := d.byte(); d.err == nil && v != want {
		d.err = errcode.New(errcode.UnsupportedVersion, "%s of version %d: this build knows version %d; run the release that wrote it, or a newer one", d.what, v, want)
	}
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	switch {
	case n <= 0:
		d.fail("a number ends too early or is too long, %d bytes before the end", len(d.b))
		return 0
	case n > 1 && d.b[n-1] == 0:
		d.fail("a number is not in its shortest form, %d bytes before the end", len(d.b))
		return 0
	}
	d.b = d.b[n:]
	return v
}

// offset reads a number that is an offset or a time: never negative.
func (d *decoder) offset() int64 {
	v := d.uvarint()
	if v > math.MaxInt64 {
		d.fail("%d is not an offset or a time", v)
		return 0
	}
	return int64(v)
}

func (d *decoder) uint32() uint32 {
	v := d.uvarint()
	if v > math.MaxUint32 {
		d.fail("%d does not fit 32 bits", v)
		return 0
	}
	return uint32(v)
}

// end reads the length, at least 1, of a range that begins at from.
func (d *decoder) end(from int64) int64 {
	n := d.offset()
	if d.err == nil && (n == 0 || n > math.MaxInt64-from) {
		d.fail("a range of %d offsets from %d on is not possible", n, from)
	}
	return from + n
}
