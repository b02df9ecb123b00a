package api

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// The scanner checks JSON by its grammar (RFC 8259) and finds where values
// end. It turns nothing into numbers or trees, so a number with a giant
// exponent costs what its digits cost. It does not look at UTF-8: callers
// check the whole body once.

// maxJSONDepth is how deep values may nest. Text that nests deeper is not
// taken for JSON, because many readers refuse it.
const maxJSONDepth = 512

// bad turns the position of a fault into the scanner's answer.
func bad(at int) int { return -1 - at }

// faultAt is the position that bad has hidden in a negative answer.
func faultAt(end int) int { return -1 - end }

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the end of the value that starts at i, negative for a
// fault. depth is how many values enclose it.
func skipValue(b []byte, i, depth int) int {
	if i >= len(b) || depth >= maxJSONDepth {
		return bad(i)
	}
	switch c := b[i]; {
	case c == '"':
		return skipString(b, i)
	case c == '{':
		return skipObject(b, i, depth)
	case c == '[':
		return skipArray(b, i, depth)
	case c == 't':
		return skipWord(b, i, "true")
	case c == 'f':
		return skipWord(b, i, "false")
	case c == 'n':
		return skipWord(b, i, "null")
	case c == '-' || isDigit(c):
		return skipNumber(b, i)
	default:
		return bad(i)
	}
}

func skipWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return bad(i)
	}
	return i + len(word)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func skipDigits(b []byte, i int) int {
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	return i
}

func skipNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b) || !isDigit(b[i]):
		return bad(i)
	case b[i] == '0':
		i++
	default:
		i = skipDigits(b, i)
	}
	if i < len(b) && b[i] == '.' {
		end := skipDigits(b, i+1)
		if end == i+1 {
			return bad(end)
		}
		i = end
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		end := skipDigits(b, i)
		if end == i {
			return bad(end)
		}
		i = end
	}
	return i
}

// plainInString are the bytes that stand for themselves inside a string.
var plainInString = func() (t [256]bool) {
	for c := 0x20; c < 256; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// plainEnd returns the position of the first byte from i on that does not stand
// for itself, or the end. It looks at eight bytes at a time: in each step a
// byte's highest bit is set where the byte is below 0x20, a quote or a
// backslash. Borrows run upwards only, so the lowest such bit is right.
func plainEnd(b []byte, i int) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	for len(b)-i >= 8 {
		v := binary.LittleEndian.Uint64(b[i:])
		quote, slash := v^ones*'"', v^ones*'\\'
		if mask := ((v-ones*0x20)&^v | (quote-ones)&^quote | (slash-ones)&^slash) & high; mask != 0 {
			return i + bits.TrailingZeros64(mask)/8
		}
		i += 8
	}
	for i < len(b) && plainInString[b[i]] {
		i++
	}
	return i
}

// skipString returns the position after the closing quote.
func skipString(b []byte, i int) int {
	i++
	for {
		i = plainEnd(b, i)
		if i >= len(b) {
			return bad(i)
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			end := skipEscape(b, i)
			if end < 0 {
				return end
			}
			i = end
		default:
			return bad(i)
		}
	}
}

func skipEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return bad(i)
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if _, ok := hex4(b, i+2); ok {
			return i + 6
		}
	}
	return bad(i)
}

func hex4(b []byte, i int) (r rune, ok bool) {
	if len(b)-i < 4 {
		return 0, false
	}
	for _, c := range b[i : i+4] {
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

func skipObject(b []byte, i, depth int) int {
	it := objectIter{b: b, at: i, depth: depth}
	for it.next() {
	}
	return it.at
}

func skipArray(b []byte, i, depth int) int {
	it := arrayIter{b: b, at: i, depth: depth}
	for it.next() {
	}
	return it.at
}

// objectIter walks the members of the object that starts at at. When next or
// open returns false, at is the position after the object, or negative for a
// fault.
type objectIter struct {
	b     []byte
	at    int
	depth int
	begun bool
	name  []byte // of the member, with its quotes
	value []byte // of the member, after next
}

// next goes to the next member and checks its value.
func (it *objectIter) next() bool {
	if !it.open() {
		return false
	}
	end := skipValue(it.b, it.at, it.depth+1)
	if end < 0 {
		return it.stop(end)
	}
	it.value, it.at = it.b[it.at:end:end], end
	return true
}

// open goes to the next member and leaves at where its value begins: the
// caller moves it to the value's end.
func (it *objectIter) open() bool {
	b := it.b
	i, more := openItem(b, it.at, it.begun, '}')
	if !more {
		return it.stop(i)
	}
	it.begun = true
	if i >= len(b) || b[i] != '"' {
		return it.stop(bad(i))
	}
	end := skipString(b, i)
	if end < 0 {
		return it.stop(end)
	}
	it.name = b[i:end]
	i = skipSpace(b, end)
	if i >= len(b) || b[i] != ':' {
		return it.stop(bad(i))
	}
	it.at = skipSpace(b, i+1)
	return true
}

func (it *objectIter) stop(at int) bool { it.at = at; return false }

// arrayIter walks the elements of the array that starts at at, as objectIter
// walks members.
type arrayIter struct {
	b     []byte
	at    int
	depth int
	begun bool
	value []byte // after next
}

func (it *arrayIter) next() bool {
	if !it.open() {
		return false
	}
	end := skipValue(it.b, it.at, it.depth+1)
	if end < 0 {
		it.at = end
		return false
	}
	it.value, it.at = it.b[it.at:end:end], end
	return true
}

func (it *arrayIter) open() bool {
	var more bool
	it.at, more = openItem(it.b, it.at, it.begun, ']')
	it.begun = true
	return more
}

// openItem goes from the opening bracket, or from the end of an item, to the
// next item. more is false at the closing bracket, and at a fault.
func openItem(b []byte, at int, begun bool, closing byte) (next int, more bool) {
	if !begun {
		i := skipSpace(b, at+1)
		if i < len(b) && b[i] == closing {
			return i + 1, false
		}
		return i, true
	}
	i := skipSpace(b, at)
	switch {
	case i < len(b) && b[i] == closing:
		return i + 1, false
	case i >= len(b) || b[i] != ',':
		return bad(i), false
	default:
		return skipSpace(b, i+1), true
	}
}

// validJSON reports whether b is one JSON value in valid UTF-8 that readers of
// an answer can take, white space around it allowed.
func validJSON(b []byte) bool {
	i := skipSpace(b, 0)
	end := skipValue(b, i, 0)
	return end >= 0 && skipSpace(b, end) == len(b) && utf8.Valid(b)
}

// unquote returns the text of the string raw (with its quotes, checked by
// skipString). Without escapes that is a part of raw; otherwise it is appended
// to arena, which is returned as well. ok is false for half a surrogate pair,
// which no UTF-8 text can hold.
func unquote(arena, raw []byte) (text, grown []byte, ok bool) {
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw, arena, true
	}
	from := len(arena)
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			arena = append(arena, raw[i])
			i++
			continue
		}
		switch c := raw[i+1]; c {
		case 'b':
			arena = append(arena, '\b')
		case 'f':
			arena = append(arena, '\f')
		case 'n':
			arena = append(arena, '\n')
		case 'r':
			arena = append(arena, '\r')
		case 't':
			arena = append(arena, '\t')
		case 'u':
			r, _ := hex4(raw, i+2)
			if utf16.IsSurrogate(r) {
				i += 6
				if len(raw)-i < 6 || raw[i] != '\\' || raw[i+1] != 'u' {
					return nil, arena, false
				}
				low, _ := hex4(raw, i+2)
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return nil, arena, false
				}
			}
			arena = utf8.AppendRune(arena, r)
			i += 4
		default:
			arena = append(arena, c)
		}
		i += 2
	}
	return arena[from:len(arena):len(arena)], arena, true
}
