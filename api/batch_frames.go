package api

import (
	"encoding/binary"
)

// noKey is the key length of a frame without a key.
const noKey = 0xFFFFFFFF

// decodeFrames reads, until the body ends, per record:
//
//	u32 key length (0xFFFFFFFF: no key) | key | u32 value length | value
//
// all big-endian. Lengths are checked against what has arrived before they are
// used, and nothing is copied.
func (b *batch) decodeFrames(body []byte) error {
	for at := 0; at < len(body); {
		if err := b.room(); err != nil {
			return err
		}
		key, next, err := b.framePart(body, at, "key", true)
		if err != nil {
			return err
		}
		value, next, err := b.framePart(body, next, "value", false)
		if err != nil {
			return err
		}
		if err := b.add(b.partition, key, value, nil); err != nil {
			return err
		}
		at = next
	}
	return nil
}

// framePart reads one length and its bytes.
func (b *batch) framePart(body []byte, at int, what string, optional bool) (part []byte, next int, err error) {
	left := len(body) - at
	if left < 4 {
		return nil, 0, b.bad("the frame is cut off: at byte %d a %s length of 4 bytes is expected, %d are left", at, what, left)
	}
	size := binary.BigEndian.Uint32(body[at:])
	at += 4
	if optional && size == noKey {
		return nil, at, nil
	}
	if uint64(size) > uint64(len(body)-at) {
		return nil, 0, b.bad("the frame is cut off: at byte %d a %s of %d bytes is announced, %d are left", at, what, size, len(body)-at)
	}
	end := at + int(size)
	return body[at:end:end], end, nil
}
