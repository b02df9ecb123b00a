package queue

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The bytes of a receipt handle, before base64url without padding:
//
//	version u8 = 1 | partition u32 | offset i64 | attempt u32 | expiry i64 (us) | mac 16 B
//
// The mac is the first half of HMAC-SHA256 over the fields, the topic id and
// the group's name, so a handle serves one record of one group of one topic
// incarnation, on any node that has the key.
const (
	handleVersion = 1
	handleFields  = 1 + 4 + 8 + 4 + 8
	macLen        = 16
	handleRaw     = handleFields + macLen
	handleLen     = (handleRaw*8 + 5) / 6
)

// handle is a receipt handle's content. Attempt and expiry together are the
// identity of the lease.
type handle struct {
	partition uint32
	offset    int64
	attempt   uint32
	expiry    int64 // microseconds since the Unix epoch
}

var handleText = base64.RawURLEncoding.Strict()

func (h handle) put(b *[handleFields]byte) {
	b[0] = handleVersion
	binary.BigEndian.PutUint32(b[1:], h.partition)
	binary.BigEndian.PutUint64(b[5:], uint64(h.offset))
	binary.BigEndian.PutUint32(b[13:], h.attempt)
	binary.BigEndian.PutUint64(b[17:], uint64(h.expiry))
}

// signer makes and checks handles. It is HMAC by its definition, with the
// padded keys prepared: crypto/hmac would allocate a hash per handle or need a
// pool of them.
type signer struct{ inner, outer [sha256.BlockSize]byte }

func newSigner(secret []byte) *signer {
	s := new(signer)
	if len(secret) > sha256.BlockSize {
		sum := sha256.Sum256(secret)
		secret = sum[:]
	}
	copy(s.inner[:], secret)
	copy(s.outer[:], secret)
	for i := range s.inner {
		s.inner[i] ^= 0x36
		s.outer[i] ^= 0x5c
	}
	return s
}

func (s *signer) mac(fields *[handleFields]byte, topic broker.TopicID, group string) [macLen]byte {
	var in [sha256.BlockSize + handleFields + 8 + broker.MaxNameLen]byte
	n := copy(in[:], s.inner[:])
	n += copy(in[n:], fields[:])
	binary.BigEndian.PutUint64(in[n:], uint64(topic))
	n += 8
	n += copy(in[n:], group)
	sum := sha256.Sum256(in[:n])

	var out [sha256.BlockSize + sha256.Size]byte
	copy(out[:], s.outer[:])
	copy(out[sha256.BlockSize:], sum[:])
	sum = sha256.Sum256(out[:])
	return [macLen]byte(sum[:macLen])
}

// sign returns the text of h for one group.
func (s *signer) sign(h handle, topic broker.TopicID, group string) string {
	var raw [handleRaw]byte
	fields := (*[handleFields]byte)(raw[:])
	h.put(fields)
	mac := s.mac(fields, topic, group)
	copy(raw[handleFields:], mac[:])
	var text [handleLen]byte
	handleText.Encode(text[:], raw[:])
	return string(text[:])
}

// open reads a handle and checks that it was made for this group. Text that
// is no handle is InvalidArgument; a handle of something else, for example of
// a topic that was deleted and created again, is Gone: nothing it names is
// leased.
func (s *signer) open(text string, topic broker.TopicID, group string) (handle, error) {
	raw, h, err := parseHandle(text)
	if err != nil {
		return handle{}, err
	}
	mac := s.mac((*[handleFields]byte)(raw[:]), topic, group)
	if subtle.ConstantTimeCompare(mac[:], raw[handleFields:]) != 1 {
		return handle{}, errGoneForeign
	}
	return h, nil
}

func parseHandle(text string) (raw [handleRaw]byte, h handle, err error) {
	if len(text) != handleLen {
		return raw, h, errcode.New(errcode.InvalidArgument,
			"this is not a receipt handle: it has %d bytes, a handle has %d; send the receipt_handle of a consume as it came", len(text), handleLen)
	}
	var src [handleLen]byte
	copy(src[:], text)
	if n, err := handleText.Decode(raw[:], src[:]); err != nil || n != handleRaw {
		return raw, h, errNotHandle
	}
	if raw[0] != handleVersion {
		return raw, h, errcode.New(errcode.InvalidArgument, "receipt handle version %d is not known here; this node writes version %d", raw[0], handleVersion)
	}
	h = handle{
		partition: binary.BigEndian.Uint32(raw[1:]),
		offset:    int64(binary.BigEndian.Uint64(raw[5:])),
		attempt:   binary.BigEndian.Uint32(raw[13:]),
		expiry:    int64(binary.BigEndian.Uint64(raw[17:])),
	}
	if h.partition >= broker.MaxPartitions || h.offset < 0 || h.attempt == 0 {
		return raw, h, errNotHandle
	}
	return raw, h, nil
}

// HandlePartition reads the partition that a receipt handle names, to route a
// settle call to its owner. It does not check who made the handle.
func HandlePartition(text string) (uint32, error) {
	_, h, err := parseHandle(text)
	return h.partition, err
}
