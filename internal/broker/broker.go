// Package broker is Tidemark's vocabulary as types: topics, partitions,
// records, positions, and the rules that say which values are valid. It does
// no IO and starts no goroutines.
package broker

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// TopicID is the incarnation of a topic: random, so that a topic deleted and
// created again under its name never mixes with its predecessor.
type TopicID uint64

// String returns 16 lower-case hexadecimal digits.
func (id TopicID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// ParseTopicID reads the form that String writes.
func ParseTopicID(s string) (TopicID, error) {
	if len(s) != 16 {
		return 0, errcode.New(errcode.InvalidArgument, "topic id %q is not 16 hexadecimal digits", s)
	}
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return 0, errcode.New(errcode.InvalidArgument, "topic id %q is not 16 hexadecimal digits", s)
	}
	return TopicID(v), nil
}

// MarshalText writes the form of String, so JSON carries the same 16 digits.
func (id TopicID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the form of String.
func (id *TopicID) UnmarshalText(b []byte) error {
	v, err := ParseTopicID(string(b))
	*id = v
	return err
}

// PartitionID names one partition of one topic incarnation.
type PartitionID struct {
	Topic     TopicID
	Partition uint32
}

// String returns "<topic id>/<partition>".
func (p PartitionID) String() string { return p.Topic.String() + "/" + strconv.Itoa(int(p.Partition)) }

// Header is one record header. Names that Tidemark writes itself begin with "tm-".
type Header struct {
	Name  string
	Value []byte
}

// Record is one message. Key nil means no key; an empty key is a key. Value is
// never nil for a record that was read.
type Record struct {
	Offset    int64
	Timestamp int64 // milliseconds since the Unix epoch
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Position is an offset in a partition.
type Position struct {
	PartitionID
	Offset int64
}

// Lease is one record reserved for one consumer of a group.
type Lease struct {
	Partition uint32
	Offset    int64
	Attempt   uint32    // 1 for the first delivery
	Expiry    time.Time // when the record returns to the group, unless extended
	Handle    string    // opaque receipt handle
}

// DefaultGroup is the group of consumers that name none.
const DefaultGroup = "default"

// Bounds of names and topics.
const (
	MaxNameLen       = 200
	MaxPartitions    = 1024
	DefaultPartition = 3 // partitions of a topic that does not say
)

// ValidateName checks a topic, group or user name; kind ("topic", "group") is
// used in the message. Names are 1-200 of A-Z a-z 0-9 . _ - and neither "."
// nor "..".
func ValidateName(kind, name string) error {
	const rule = "names are 1 to 200 of A-Z a-z 0-9 . _ -, and not . or .."
	switch {
	case name == "":
		return errcode.New(errcode.InvalidArgument, "%s name is empty: %s", kind, rule)
	case len(name) > MaxNameLen:
		return errcode.New(errcode.InvalidArgument, "%s name %.40q... has %d bytes: %s", kind, name, len(name), rule)
	case name == "." || name == "..":
		return errcode.New(errcode.InvalidArgument, "%s name %q is reserved: %s", kind, name, rule)
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return errcode.New(errcode.InvalidArgument, "%s name %q has the byte %q at position %d: %s", kind, name, name[i:i+1], i+1, rule)
		}
	}
	return nil
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// PartitionForKey returns the partition of a keyed record among n, by murmur2
// as Kafka's clients hash ("toPositive(murmur2(key)) % n"), so that a Kafka
// producer and an HTTP producer place the same key alike.
func PartitionForKey(key []byte, n uint32) uint32 {
	return (murmur2(key) & 0x7fffffff) % n
}

// murmur2 is the 32-bit MurmurHash2 with the seed of the Kafka clients.
func murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
	)
	h := uint32(seed) ^ uint32(len(data))
	for len(data) >= 4 {
		k := binary.LittleEndian.Uint32(data) * m
		k ^= k >> 24
		h = h*m ^ k*m
		data = data[4:]
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
