package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// text returns n bytes that compress like text.
func text(rng *rand.Rand, n int) []byte {
	words := []string{"tide ", "harbour ", "record ", "offset ", "the ", "of ", "moon ", "water ", "level ", "rises "}
	b := make([]byte, 0, n+10)
	for len(b) < n {
		b = append(b, words[rng.IntN(len(words))]...)
	}
	return b[:n:n]
}

// someRecords returns n records from offset base on, with every shape of key,
// value and header, gaps between offsets, and times that go back and forth.
func someRecords(rng *rand.Rand, base int64, n int) []broker.Record {
	recs := make([]broker.Record, n)
	next := base
	for i := range recs {
		r := &recs[i]
		r.Offset = next
		next += 1 + int64(rng.IntN(3)/2)
		r.Timestamp = 1_700_000_000_000 + int64(i)*7 - int64(rng.IntN(1000))
		switch rng.IntN(3) {
		case 0:
			r.Key = []byte{}
		case 1:
			r.Key = fmt.Appendf(nil, "key-%d", rng.IntN(1000))
		}
		r.Value = text(rng, rng.IntN(300))
		for h := range rng.IntN(3) {
			var v []byte
			if rng.IntN(2) == 0 {
				v = text(rng, rng.IntN(90))
			}
			r.Headers = append(r.Headers, broker.Header{Name: fmt.Sprintf("h%d", h), Value: v})
		}
	}
	return recs
}

// kmsgRecords encodes recs with franz-go's generated code.
func kmsgRecords(dst []byte, recs []broker.Record) []byte {
	for i := range recs {
		r := &recs[i]
		k := kmsg.Record{
			TimestampDelta64: r.Timestamp - recs[0].Timestamp,
			OffsetDelta:      int32(r.Offset - recs[0].Offset),
			Key:              r.Key,
			Value:            r.Value,
		}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kmsg.Header{Key: h.Name, Value: h.Value})
		}
		// kmsg writes whatever Length says: first the body for its length.
		at := len(dst)
		dst = k.AppendTo(dst)
		k.Length = int32(len(dst) - at - 1) // Length 0 takes one byte
		dst = k.AppendTo(dst[:at])
	}
	return dst
}

// kmsgBatch encodes recs as a whole batch with franz-go's generated code.
func kmsgBatch(recs []broker.Record, generation uint32) []byte {
	highest := recs[0].Timestamp
	for i := range recs {
		highest = max(highest, recs[i].Timestamp)
	}
	b := kmsg.RecordBatch{
		FirstOffset:          recs[0].Offset,
		PartitionLeaderEpoch: int32(generation),
		Magic:                2,
		LastOffsetDelta:      int32(recs[len(recs)-1].Offset - recs[0].Offset),
		FirstTimestamp:       recs[0].Timestamp,
		MaxTimestamp:         highest,
		ProducerID:           -1,
		ProducerEpoch:        -1,
		FirstSequence:        -1,
		NumRecords:           int32(len(recs)),
		Records:              kmsgRecords(nil, recs),
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// mustBatch encodes recs or fails the test.
func mustBatch(tb testing.TB, recs []broker.Record, opts BatchOptions) []byte {
	tb.Helper()
	b, err := AppendBatch(nil, recs, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// sameRecords fails the test unless got is want, nil and empty told apart.
func sameRecords(tb testing.TB, want, got []broker.Record) {
	tb.Helper()
	if len(want) != len(got) {
		tb.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range want {
		w, g := &want[i], &got[i]
		if w.Offset != g.Offset || w.Timestamp != g.Timestamp || !sameBytes(w.Key, g.Key) || g.Value == nil || !bytes.Equal(w.Value, g.Value) || len(w.Headers) != len(g.Headers) {
			tb.Fatalf("record %d: got %+v, want %+v", i, g, w)
		}
		for j := range w.Headers {
			if w.Headers[j].Name != g.Headers[j].Name || !sameBytes(w.Headers[j].Value, g.Headers[j].Value) {
				tb.Fatalf("record %d header %d: got %+v, want %+v", i, j, g.Headers[j], w.Headers[j])
			}
		}
	}
}

func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// wantCode fails the test unless err carries code.
func wantCode(tb testing.TB, err error, code errcode.Code) {
	tb.Helper()
	if !errcode.Is(err, code) {
		tb.Fatalf("error %v has code %v, want %v", err, errcode.Of(err), code)
	}
}
