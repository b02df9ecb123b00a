package queue

import (
	"encoding/binary"
	"math"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// State is the durable part of one group on one partition. Every offset below
// Committed is settled, and so is every offset in Ranges; every other offset
// is to be delivered.
type State struct {
	Group     string
	Committed int64
	Ranges    [][2]int64 // half-open, ascending, disjoint, not touching, all above Committed
	Returned  []Returned // ascending by offset
	Leased    []Leased   // ascending by offset
}

// Returned is an unsettled record that was delivered and came back.
type Returned struct {
	Offset  int64
	Attempt uint32 // deliveries so far
	DueMS   int64  // hidden until then, milliseconds since the Unix epoch; 0 = not hidden
}

// Leased is an unsettled record that was leased at the capture. A restart
// makes it deliverable at once, and yet its receipt handle settles it until
// Deadline, unless it is leased anew before.
type Leased struct {
	Offset   int64
	Attempt  uint32 // deliveries so far, the lease included
	Expiry   int64  // as issued, in the handle; microseconds since the Unix epoch
	Deadline int64  // Expiry, or later or earlier if the lease was extended
}

// The bytes of a State. Numbers are shortest-form unsigned varints, offsets
// are differences to the number before, so that fifty thousand holes are
// 100-200 KB and the largest state stays below the frame limits of the log and
// of a move:
//
//	version u8 = 1 | name length, name | committed
//	ranges:   count, {from - end before, length}
//	returned: count, {offset - offset before, attempt, due ms}
//	leased:   count, {offset - offset before, attempt, expiry us, zigzag(deadline - expiry)}
//
// The first difference of each list is to committed. Decoding is strict: what
// decodes encodes to the same bytes.
const stateVersion = 1

// Append appends the encoded state to b.
func (s *State) Append(b []byte) []byte {
	b = append(b, stateVersion)
	b = binary.AppendUvarint(b, uint64(len(s.Group)))
	b = append(b, s.Group...)
	b = binary.AppendUvarint(b, uint64(s.Committed))
	b = binary.AppendUvarint(b, uint64(len(s.Ranges)))
	last := s.Committed
	for _, r := range s.Ranges {
		b = binary.AppendUvarint(b, uint64(r[0]-last))
		b = binary.AppendUvarint(b, uint64(r[1]-r[0]))
		last = r[1]
	}
	b = binary.AppendUvarint(b, uint64(len(s.Returned)))
	last = s.Committed
	for _, r := range s.Returned {
		b = binary.AppendUvarint(b, uint64(r.Offset-last))
		b = binary.AppendUvarint(b, uint64(r.Attempt))
		b = binary.AppendUvarint(b, uint64(r.DueMS))
		last = r.Offset
	}
	b = binary.AppendUvarint(b, uint64(len(s.Leased)))
	last = s.Committed
	for _, r := range s.Leased {
		b = binary.AppendUvarint(b, uint64(r.Offset-last))
		b = binary.AppendUvarint(b, uint64(r.Attempt))
		b = binary.AppendUvarint(b, uint64(r.Expiry))
		b = binary.AppendVarint(b, r.Deadline-r.Expiry)
		last = r.Offset
	}
	return b
}

// DecodeState reads what Append wrote. It refuses trailing bytes, unordered or
// overlapping ranges and names that are none, and allocates in proportion to
// the bytes it is given.
func DecodeState(b []byte) (State, error) {
	d := decoder{b: b, what: "group state"}
	d.version(stateVersion)
	var s State
	s.Group = d.name()
	s.Committed = d.offset()
	d.ranges(&s)
	d.returned(&s)
	d.leased(&s)
	if d.err == nil && len(d.b) > 0 {
		d.fail("%d bytes follow its end", len(d.b))
	}
	if d.err != nil {
		return State{}, d.err
	}
	return s, nil
}

func (d *decoder) name() string {
	n := d.uvarint()
	if n > broker.MaxNameLen || n > uint64(len(d.b)) {
		d.fail("a group name of %d bytes is not possible", n)
		return ""
	}
	name := string(d.b[:n])
	d.b = d.b[n:]
	if d.err == nil {
		if err := broker.ValidateName("group", name); err != nil {
			d.fail("%w", err)
		}
	}
	return name
}

// count reads the number of elements of a list whose elements take at least
// size bytes each.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/size) {
		d.fail("%d elements do not fit the %d bytes left", n, len(d.b))
		return 0
	}
	return int(n)
}

// step reads a difference of at least low to the offset before.
func (d *decoder) step(last int64, low int64) int64 {
	n := d.offset()
	if d.err == nil && (n < low || n > math.MaxInt64-last) {
		d.fail("an offset %d after %d is out of order", n, last)
	}
	return last + n
}

func (d *decoder) ranges(s *State) {
	n := d.count(2)
	if n == 0 {
		return
	}
	s.Ranges = make([][2]int64, 0, n)
	last := s.Committed
	for range n {
		from := d.step(last, 1)
		last = d.end(from)
		if d.err != nil {
			return
		}
		s.Ranges = append(s.Ranges, [2]int64{from, last})
	}
}

// member reads the offset of the i-th element of a list, and checks that it is
// in order and not settled. rest is what of the ranges is still above.
func (d *decoder) member(i int, last int64, rest *[][2]int64) int64 {
	low := int64(1)
	if i == 0 {
		low = 0
	}
	off := d.step(last, low)
	for len(*rest) > 0 && (*rest)[0][1] <= off {
		*rest = (*rest)[1:]
	}
	if d.err == nil && len(*rest) > 0 && (*rest)[0][0] <= off {
		d.fail("offset %d is both settled and not", off)
	}
	return off
}

func (d *decoder) returned(s *State) {
	n := d.count(3)
	if n == 0 {
		return
	}
	s.Returned = make([]Returned, 0, n)
	last, rest := s.Committed, s.Ranges
	for i := range n {
		last = d.member(i, last, &rest)
		r := Returned{last, d.uint32(), d.offset()}
		if d.err != nil {
			return
		}
		s.Returned = append(s.Returned, r)
	}
}

func (d *decoder) leased(s *State) {
	n := d.count(4)
	if n == 0 {
		return
	}
	s.Leased = make([]Leased, 0, n)
	last, rest, other := s.Committed, s.Ranges, s.Returned
	for i := range n {
		last = d.member(i, last, &rest)
		for len(other) > 0 && other[0].Offset < last {
			other = other[1:]
		}
		if len(other) > 0 && other[0].Offset == last {
			d.fail("offset %d is both leased and returned", last)
		}
		r := Leased{Offset: last, Attempt: d.uint32(), Expiry: d.offset()}
		diff := d.uvarint()
		r.Deadline = r.Expiry + (int64(diff>>1) ^ -int64(diff&1))
		if d.err == nil && (r.Attempt == 0 || r.Deadline < 0) {
			d.fail("the lease of offset %d has attempt %d and deadline %d", last, r.Attempt, r.Deadline)
		}
		if d.err != nil {
			return
		}
		s.Leased = append(s.Leased, r)
	}
}

// AppendStates appends the states of all groups of a partition, as Snapshot
// gives them: version u8 = 1, then per state its length as a varint and its
// bytes.
func AppendStates(b []byte, states []State) []byte {
	b = append(b, stateVersion)
	var one []byte
	for i := range states {
		one = states[i].Append(one[:0])
		b = binary.AppendUvarint(b, uint64(len(one)))
		b = append(b, one...)
	}
	return b
}

// DecodeStates reads what AppendStates wrote, at most MaxGroups states.
func DecodeStates(b []byte) ([]State, error) {
	d := decoder{b: b, what: "group states"}
	d.version(stateVersion)
	var states []State
	for d.err == nil && len(d.b) > 0 {
		n := d.uvarint()
		if d.err == nil && (n > uint64(len(d.b)) || len(states) == MaxGroups) {
			d.fail("state %d of %d bytes does not fit the %d left, or is over the bound of %d groups", len(states), n, len(d.b), MaxGroups)
		}
		if d.err != nil {
			break
		}
		s, err := DecodeState(d.b[:n])
		if err != nil {
			return nil, errcode.Wrap(errcode.Corrupt, err, "state %d", len(states))
		}
		states = append(states, s)
		d.b = d.b[n:]
	}
	if d.err != nil {
		return nil, d.err
	}
	return states, nil
}
