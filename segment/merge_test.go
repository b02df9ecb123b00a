package segment

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Merging changes nothing that a reader sees: the merged batch is byte for byte
// the batch that encoding all records at once gives, whatever the sizes, gaps
// and times.
func TestMergeEqualsEncodingAtOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for range 200 {
		recs := someRecords(rng, int64(rng.IntN(100)), 1+rng.IntN(300))
		if rng.IntN(4) == 0 { // offsets and times far apart: the deltas grow
			for i := range recs {
				recs[i].Offset += int64(i) * 1_000_000
				recs[i].Timestamp += int64(i) << 40
			}
		}
		codec := []Codec{CodecNone, CodecZstd}[rng.IntN(2)]
		var b Builder
		b.Reset([]byte("x"))
		for rest := recs; len(rest) > 0; {
			n := 1 + rng.IntN(min(len(rest), 40))
			raw := mustBatch(t, rest[:n], BatchOptions{Generation: 4})
			if h, _ := ParseHeader(raw); !b.Accepts(&h) {
				t.Fatalf("not accepted: %+v", h)
			}
			if err := b.AddBatch(raw); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		got, err := b.Finish(BatchOptions{Codec: codec, Generation: 99})
		if err != nil {
			t.Fatal(err)
		}
		want := mustBatch(t, recs, BatchOptions{Codec: codec, Generation: 4})
		if !bytes.Equal(got[1:], want) {
			t.Fatalf("merged batch differs: %d and %d bytes", len(got)-1, len(want))
		}
	}
}

// Batches that must stay apart are refused, and the batch so far is unharmed.
func TestMergeRefuses(t *testing.T) {
	be := binary.BigEndian
	first := mustBatch(t, []broker.Record{{Offset: 10, Timestamp: 5, Value: []byte("a")}}, BatchOptions{Generation: 1})
	next := mustBatch(t, []broker.Record{{Offset: 20, Timestamp: 6, Value: []byte("b")}}, BatchOptions{Generation: 1})
	change := func(f func(b []byte)) []byte { b := bytes.Clone(next); f(b); return reseal(b) }
	for name, c := range map[string]struct {
		raw  []byte
		code errcode.Code
	}{
		"other generation":     {change(func(b []byte) { Stamp(b, 20, 2) }), errcode.Conflict},
		"offset below":         {change(func(b []byte) { Stamp(b, 10, 1) }), errcode.Conflict},
		"offset too far":       {change(func(b []byte) { Stamp(b, 11+math.MaxInt32, 1) }), errcode.Conflict},
		"producer id":          {change(func(b []byte) { be.PutUint64(b[43:], 7) }), errcode.Conflict},
		"compressed":           {change(func(b []byte) { b[22] = byte(CodecZstd) }), errcode.Conflict},
		"one time for all":     {change(func(b []byte) { b[22] = attrLogAppendTime }), errcode.Conflict},
		"transactional":        {change(func(b []byte) { b[22] = 0x10 }), errcode.Conflict},
		"control":              {change(func(b []byte) { b[22] = 0x20 }), errcode.Conflict},
		"delete horizon":       {change(func(b []byte) { b[22] = 0x40 }), errcode.Conflict},
		"unknown attribute":    {change(func(b []byte) { b[21] = 0x01 }), errcode.Conflict},
		"no records":           {change(func(b []byte) { be.PutUint32(b[57:], 0) }), errcode.Conflict},
		"records do not parse": {change(func(b []byte) { b[HeaderSize] = 0x7e }), errcode.Corrupt},
		"record offset wrong":  {change(func(b []byte) { b[HeaderSize+3] = 2 }), errcode.Corrupt},
		"cut":                  {next[:len(next)-1], errcode.Corrupt},
		"header cut":           {next[:20], errcode.Corrupt},
	} {
		var b Builder
		b.Reset(nil)
		if err := b.AddBatch(first); err != nil {
			t.Fatal(err)
		}
		if err := b.AddBatch(c.raw); !errcode.Is(err, c.code) {
			t.Errorf("%s: %v, want code %v", name, err, c.code)
		}
		if got, err := b.Finish(BatchOptions{}); err != nil || !bytes.Equal(got, first) {
			t.Errorf("%s: the batch before was changed: %v", name, err)
		}
	}
}

// Batches with one time for all their records merge only while it is the same
// time, because it would change otherwise.
func TestMergeOneTimeForAll(t *testing.T) {
	raw := func(offset, ms int64) []byte {
		b := mustBatch(t, []broker.Record{{Offset: offset, Timestamp: 1, Value: []byte("a")}}, BatchOptions{})
		b[22] = attrLogAppendTime
		binary.BigEndian.PutUint64(b[35:], uint64(ms))
		return reseal(b)
	}
	var b Builder
	b.Reset(nil)
	for _, err := range []error{b.AddBatch(raw(1, 50)), b.AddBatch(raw(2, 50))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, b.AddBatch(raw(3, 51)), errcode.Conflict)
	wantCode(t, b.Add(&broker.Record{Offset: 3, Timestamp: 51}), errcode.InvalidArgument)
	out, err := b.Finish(BatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeBatch(nil, out, nil)
	if err != nil || len(got) != 2 || got[0].Timestamp != 50 || got[1].Timestamp != 50 {
		t.Fatalf("%+v %v", got, err)
	}
}

// A merge stops at the bounds of a batch.
func TestMergeIsBounded(t *testing.T) {
	var b Builder
	b.Reset(nil)
	big := mustBatch(t, []broker.Record{{Offset: 0, Value: make([]byte, MaxBatch/2)}}, BatchOptions{})
	if err := b.AddBatch(big); err != nil {
		t.Fatal(err)
	}
	Stamp(big, 5, 0)
	wantCode(t, b.AddBatch(big), errcode.Conflict)
	if b.Len() != 1 {
		t.Fatal(b.Len())
	}
}
