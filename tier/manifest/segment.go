package manifest

import (
	"encoding/hex"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Hash is a SHA-256, written as 64 hexadecimal digits.
type Hash [32]byte

// String returns 64 lower-case hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText writes the form of String.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads the form of String.
func (h *Hash) UnmarshalText(b []byte) error {
	if len(b) != 2*len(h) {
		return errcode.New(errcode.Corrupt, "SHA-256 has %d digits, want 64", len(b))
	}
	if _, err := hex.Decode(h[:], b); err != nil {
		return errcode.New(errcode.Corrupt, "SHA-256 %q is not hexadecimal", b)
	}
	return nil
}

// hex64 is an identity of 64 bits as 16 hexadecimal digits: JSON numbers of
// that size do not survive every reader.
type hex64 uint64

func (h hex64) MarshalText() ([]byte, error) { return []byte(broker.TopicID(h).String()), nil }

func (h *hex64) UnmarshalText(b []byte) error {
	v, ok := hexNumber(string(b), 16)
	if !ok {
		return errcode.New(errcode.Corrupt, "%.20q is not 16 hexadecimal digits", b)
	}
	*h = hex64(v)
	return nil
}

// Segment is what the chain says about one archived segment. The object's
// layout is data | index | footer; all positions are in bytes of the object.
type Segment struct {
	Partition       broker.PartitionID
	Base, Next      int64 // offsets, half open
	Records         int64
	Bytes           int64 // of the whole object
	MinTimestamp    int64 // of the records, milliseconds
	MaxTimestamp    int64
	MinAppend       int64 // broker's append time, milliseconds
	MaxAppend       int64
	FirstGeneration uint32 // of the records
	LastGeneration  uint32
	Generation      uint32 // of the uploader, part of the key
	Nonce           uint32 // of the upload attempt, part of the key
	DataSHA256      Hash   // of the data part
	DataLength      int64  // where the index begins
	FooterPosition  int64
	FooterLength    int64
	OriginTopic     broker.TopicID // topic that the footer names: Partition.Topic unless the object is a copy
}

// Key returns the key of the segment's object.
func (s Segment) Key() string {
	return SegmentKey(s.Partition, s.Base, s.Next, s.Generation, s.Nonce)
}

// validate checks what one segment can say about itself.
func (s Segment) validate() error {
	switch {
	case s.Base < 0 || s.Next <= s.Base:
		return errcode.New(errcode.Corrupt, "segment covers offsets %d to %d", s.Base, s.Next)
	case s.Records < 0 || s.Records > s.Next-s.Base:
		return errcode.New(errcode.Corrupt, "segment %d to %d says it has %d records", s.Base, s.Next, s.Records)
	case s.DataLength <= 0 || s.FooterPosition < s.DataLength || s.FooterLength <= 0 ||
		s.FooterLength > s.Bytes || s.FooterPosition != s.Bytes-s.FooterLength:
		return errcode.New(errcode.Corrupt, "segment %d to %d: data length %d, footer %d+%d and size %d do not fit",
			s.Base, s.Next, s.DataLength, s.FooterPosition, s.FooterLength, s.Bytes)
	case s.MinTimestamp > s.MaxTimestamp || s.MinAppend > s.MaxAppend:
		return errcode.New(errcode.Corrupt, "segment %d to %d: times run backwards", s.Base, s.Next)
	case s.FirstGeneration > s.LastGeneration:
		return errcode.New(errcode.Corrupt, "segment %d to %d: generations %d to %d", s.Base, s.Next, s.FirstGeneration, s.LastGeneration)
	}
	return nil
}

// segmentJSON is a segment as entries and pages write it.
type segmentJSON struct {
	Key             string `json:"key"`
	Base            int64  `json:"base"`
	Next            int64  `json:"next"`
	Records         int64  `json:"records"`
	Bytes           int64  `json:"bytes"`
	MinTimestamp    int64  `json:"min_timestamp"`
	MaxTimestamp    int64  `json:"max_timestamp"`
	MinAppend       int64  `json:"min_append"`
	MaxAppend       int64  `json:"max_append"`
	FirstGeneration uint32 `json:"first_generation"`
	LastGeneration  uint32 `json:"last_generation"`
	DataSHA256      Hash   `json:"data_sha256"`
	DataLength      int64  `json:"data_length"`
	FooterPosition  int64  `json:"footer_position"`
	FooterLength    int64  `json:"footer_length"`
	OriginTopic     hex64  `json:"origin_topic"`
}

func (s Segment) wire() segmentJSON {
	return segmentJSON{
		Key: s.Key(), Base: s.Base, Next: s.Next, Records: s.Records, Bytes: s.Bytes,
		MinTimestamp: s.MinTimestamp, MaxTimestamp: s.MaxTimestamp, MinAppend: s.MinAppend, MaxAppend: s.MaxAppend,
		FirstGeneration: s.FirstGeneration, LastGeneration: s.LastGeneration,
		DataSHA256: s.DataSHA256, DataLength: s.DataLength,
		FooterPosition: s.FooterPosition, FooterLength: s.FooterLength, OriginTopic: hex64(s.OriginTopic),
	}
}

// segment checks w and returns it as a Segment of pid. The key is never
// believed: it has to be the one that the ids give.
func (w segmentJSON) segment(pid broker.PartitionID) (Segment, error) {
	k, err := ParseKey(w.Key)
	if err != nil || k.Kind != KindSegmentObject {
		return Segment{}, errcode.New(errcode.Corrupt, "segment key %.330q is malformed", w.Key)
	}
	if k.Partition != pid || k.Base != w.Base || k.Next != w.Next {
		return Segment{}, errcode.New(errcode.Corrupt, "segment key %q does not belong to %s offsets %d to %d", w.Key, pid, w.Base, w.Next)
	}
	s := Segment{
		Partition: pid, Base: w.Base, Next: w.Next, Records: w.Records, Bytes: w.Bytes,
		MinTimestamp: w.MinTimestamp, MaxTimestamp: w.MaxTimestamp, MinAppend: w.MinAppend, MaxAppend: w.MaxAppend,
		FirstGeneration: w.FirstGeneration, LastGeneration: w.LastGeneration,
		Generation: k.Generation, Nonce: k.Nonce,
		DataSHA256: w.DataSHA256, DataLength: w.DataLength,
		FooterPosition: w.FooterPosition, FooterLength: w.FooterLength, OriginTopic: broker.TopicID(w.OriginTopic),
	}
	return s, s.validate()
}
