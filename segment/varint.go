package segment

import (
	"encoding/binary"
	"math/bits"
)

// zigzag decodes the varints of one byte, which most are. A table keeps varint
// small enough to be inlined.
var zigzag = func() (t [128]int8) {
	for i := range t {
		t[i] = int8(i>>1) ^ -int8(i&1)
	}
	return t
}()

// varint reads the zigzag varint at b[p:] and returns it with the position
// behind it. A malformed one, or a p that is negative already, gives position
// -1, so that a caller may read several in a row and check once.
func varint(b []byte, p int) (int64, int) {
	if uint(p) < uint(len(b)) && b[p] < 128 {
		return int64(zigzag[b[p]]), p + 1
	}
	return varintLong(b, p)
}

func varintLong(b []byte, p int) (int64, int) {
	if p < 0 || p >= len(b) {
		return 0, -1
	}
	// Two bytes are the length of most keys and values.
	if len(b)-p >= 2 && b[p+1] < 0x80 {
		u := uint64(b[p]&0x7f) | uint64(b[p+1])<<7
		return int64(u>>1) ^ -int64(u&1), p + 2
	}
	u, n := binary.Uvarint(b[p:])
	if n <= 0 {
		return 0, -1
	}
	return int64(u>>1) ^ -int64(u&1), p + n
}

// shortVarint takes a varint of one or two bytes from the low end of x. It
// returns what is left of x and the varint's length, 4 for a longer one.
func shortVarint(x uint64) (v int64, rest uint64, n int) {
	if x&0x80 == 0 {
		return int64(x>>1&0x3f) ^ -int64(x&1), x >> 8, 1
	}
	if x&0x8000 != 0 {
		return 0, x, 4
	}
	u := x&0x7f | x>>1&0x3f80
	return int64(u>>1) ^ -int64(u&1), x >> 16, 2
}

// putVarint writes v as a zigzag varint at b[p:], which has room, and returns
// the position behind it.
func putVarint(b []byte, p int, v int64) int {
	u := uint64(v)<<1 ^ uint64(v>>63)
	for u >= 0x80 {
		b[p] = byte(u) | 0x80
		u >>= 7
		p++
	}
	b[p] = byte(u)
	return p + 1
}

// varintLen is the number of bytes that putVarint writes for v.
func varintLen(v int64) int {
	u := uint64(v)<<1 ^ uint64(v>>63)
	if u < 0x80 {
		return 1
	}
	return (bits.Len64(u) + 6) / 7
}
