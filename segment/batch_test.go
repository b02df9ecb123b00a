package segment

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The codec writes exactly what franz-go's generated Kafka code writes.
func TestEncodeEqualsKmsg(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for n := 1; n < 400; n = n*2 + 1 {
		recs := someRecords(rng, int64(rng.IntN(1000)), n)
		for i := range recs {
			if recs[i].Value == nil { // kmsg would write a null value
				recs[i].Value = []byte{}
			}
		}
		got := mustBatch(t, recs, BatchOptions{Generation: 7})
		if want := kmsgBatch(recs, 7); !bytes.Equal(got, want) {
			t.Fatalf("%d records: got\n%x\nwant\n%x", n, got, want)
		}
		var k kmsg.RecordBatch
		if err := k.ReadFrom(got); err != nil || k.NumRecords != int32(n) || k.PartitionLeaderEpoch != 7 {
			t.Fatalf("kmsg reads %+v: %v", k, err)
		}
	}
}

// What is encoded is decoded again, record by record, for every codec that is
// written; what stood in dst before stays in front.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bs := func(label string) []byte {
			b := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(rt, label)
			if rapid.Bool().Draw(rt, label+" nil") {
				return nil
			}
			return b
		}
		var recs []broker.Record
		next := rapid.Int64Range(0, 1<<62).Draw(rt, "base")
		for range rapid.IntRange(1, 20).Draw(rt, "n") {
			r := broker.Record{Offset: next, Timestamp: rapid.Int64().Draw(rt, "ts"), Key: bs("key"), Value: bs("value")}
			next += 1 + rapid.Int64Range(0, 1<<20).Draw(rt, "gap")
			for range rapid.IntRange(0, 3).Draw(rt, "headers") {
				r.Headers = append(r.Headers, broker.Header{Name: rapid.String().Draw(rt, "name"), Value: bs("header")})
			}
			recs = append(recs, r)
		}
		opts := BatchOptions{Codec: rapid.SampledFrom([]Codec{CodecNone, CodecZstd}).Draw(rt, "codec"), Generation: rapid.Uint32().Draw(rt, "generation")}
		out, err := AppendBatch([]byte("before"), recs, opts)
		if err != nil {
			rt.Fatal(err)
		}
		raw, ok := bytes.CutPrefix(out, []byte("before"))
		if !ok {
			rt.Fatal("dst was overwritten")
		}
		h, err := VerifyBatch(raw)
		if err != nil {
			rt.Fatal(err)
		}
		if h.Generation != opts.Generation || h.BaseOffset != recs[0].Offset || h.NextOffset() != recs[len(recs)-1].Offset+1 || h.Records != int32(len(recs)) || h.ProducerID != -1 {
			rt.Fatalf("header %+v", h)
		}
		got, err := DecodeBatch(nil, raw, nil)
		if err != nil {
			rt.Fatal(err)
		}
		sameRecords(t, recs, got)
	})
}

// A batch is placed without touching its checksum, and decodes at its new offsets.
func TestStamp(t *testing.T) {
	recs := someRecords(rand.New(rand.NewPCG(2, 2)), 0, 5)
	raw := mustBatch(t, recs, BatchOptions{})
	Stamp(raw, 1<<40, 9)
	h, err := VerifyBatch(raw)
	if err != nil || h.BaseOffset != 1<<40 || h.Generation != 9 {
		t.Fatalf("%+v %v", h, err)
	}
	for i := range recs {
		recs[i].Offset += 1 << 40
	}
	got, err := DecodeBatch(nil, raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	sameRecords(t, recs, got)
}

// Each field of a header is refused outside its bounds, by code (I13).
func TestParseHeaderBounds(t *testing.T) {
	good := mustBatch(t, someRecords(rand.New(rand.NewPCG(3, 3)), 5, 10), BatchOptions{})
	be := binary.BigEndian
	for name, c := range map[string]struct {
		change func(b []byte)
		code   errcode.Code
	}{
		"size 0":                  {func(b []byte) { be.PutUint32(b[8:], 0) }, errcode.Corrupt},
		"size 1":                  {func(b []byte) { be.PutUint32(b[8:], 1) }, errcode.Corrupt},
		"size one short":          {func(b []byte) { be.PutUint32(b[8:], HeaderSize-12-1) }, errcode.Corrupt},
		"size max int32":          {func(b []byte) { be.PutUint32(b[8:], math.MaxInt32) }, errcode.Corrupt},
		"size max uint32":         {func(b []byte) { be.PutUint32(b[8:], math.MaxUint32) }, errcode.Corrupt},
		"size min int32":          {func(b []byte) { be.PutUint32(b[8:], 1<<31) }, errcode.Corrupt},
		"size one over":           {func(b []byte) { be.PutUint32(b[8:], MaxBatch-12+1) }, errcode.Corrupt},
		"magic 1":                 {func(b []byte) { b[16] = 1 }, errcode.UnsupportedVersion},
		"magic 3":                 {func(b []byte) { b[16] = 3 }, errcode.UnsupportedVersion},
		"negative base":           {func(b []byte) { be.PutUint64(b, 1<<63) }, errcode.Corrupt},
		"base overflows":          {func(b []byte) { be.PutUint64(b, math.MaxInt64-3) }, errcode.Corrupt},
		"next overflows":          {func(b []byte) { be.PutUint64(b, math.MaxInt64-uint64(be.Uint32(b[23:]))) }, errcode.Corrupt},
		"negative delta":          {func(b []byte) { be.PutUint32(b[23:], math.MaxUint32) }, errcode.Corrupt},
		"delta below the count":   {func(b []byte) { be.PutUint32(b[23:], 8) }, errcode.Corrupt},
		"negative count":          {func(b []byte) { be.PutUint32(b[57:], math.MaxUint32) }, errcode.Corrupt},
		"count over the bound":    {func(b []byte) { be.PutUint32(b[57:], MaxRecords+1); be.PutUint32(b[23:], MaxRecords+1) }, errcode.Corrupt},
		"count beyond the bytes":  {func(b []byte) { be.PutUint32(b[57:], 1000); be.PutUint32(b[23:], 1000); be.PutUint32(b[8:], 1000) }, errcode.Corrupt},
		"header cut by one byte":  {nil, errcode.Corrupt},
		"as it is, and unchanged": {func([]byte) {}, errcode.Internal},
	} {
		b := bytes.Clone(good)
		if c.change == nil {
			b = b[:HeaderSize-1]
		} else {
			c.change(b)
		}
		_, err := ParseHeader(b)
		if c.code == errcode.Internal {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errcode.Is(err, c.code) {
			t.Errorf("%s: %v, want code %v", name, err, c.code)
		}
	}
}

// Whatever bit flips in a batch, it is noticed, except in the two fields that
// the checksum leaves free for placing it.
func TestVerifyNoticesEveryBit(t *testing.T) {
	raw := mustBatch(t, someRecords(rand.New(rand.NewPCG(4, 4)), 5, 3), BatchOptions{})
	for i := range raw {
		for bit := range 8 {
			b := bytes.Clone(raw)
			b[i] ^= 1 << bit
			_, err := VerifyBatch(b)
			placed := i < 8 || i >= 12 && i < 16
			if !placed && err == nil {
				t.Fatalf("byte %d bit %d: not noticed", i, bit)
			}
			if placed && i > 0 && err != nil {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
		}
	}
	for n := range raw {
		if _, err := VerifyBatch(raw[:n]); err == nil {
			t.Fatalf("cut to %d bytes: not noticed", n)
		}
	}
}

// A run of batches splits into whole ones, and the beginning of the next one
// stays as rest, however the run is cut.
func TestNextBatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	a := mustBatch(t, someRecords(rng, 0, 4), BatchOptions{})
	b := mustBatch(t, someRecords(rng, 100, 2), BatchOptions{Codec: CodecZstd})
	run := append(bytes.Clone(a), b...)
	for n := range len(run) + 1 {
		var got []byte
		rest, whole := run[:n], 0
		for {
			batch, after, err := NextBatch(rest)
			if err != nil {
				t.Fatal(err)
			}
			if batch == nil {
				break
			}
			got, rest, whole = append(got, batch...), after, whole+1
		}
		want := 0
		if n >= len(a) {
			want++
		}
		if n == len(run) {
			want++
		}
		if whole != want || !bytes.Equal(append(got, rest...), run[:n]) {
			t.Fatalf("run of %d bytes: %d batches, want %d", n, whole, want)
		}
	}
	run[16] = 9
	_, _, err := NextBatch(run)
	wantCode(t, err, errcode.UnsupportedVersion)
}

// Records that cannot stand in one batch are refused, and dst stays as it was.
func TestEncodeRefuses(t *testing.T) {
	rec := func(o int64) broker.Record { return broker.Record{Offset: o, Value: []byte("v")} }
	for name, c := range map[string]struct {
		recs []broker.Record
		opts BatchOptions
		code errcode.Code
	}{
		"no records":           {nil, BatchOptions{}, errcode.InvalidArgument},
		"negative offset":      {[]broker.Record{rec(-1)}, BatchOptions{}, errcode.InvalidArgument},
		"last offset":          {[]broker.Record{rec(math.MaxInt64)}, BatchOptions{}, errcode.InvalidArgument},
		"next overflows":       {[]broker.Record{rec(math.MaxInt64 - 1), rec(math.MaxInt64)}, BatchOptions{}, errcode.InvalidArgument},
		"same offset":          {[]broker.Record{rec(1), rec(1)}, BatchOptions{}, errcode.InvalidArgument},
		"descending":           {[]broker.Record{rec(2), rec(1)}, BatchOptions{}, errcode.InvalidArgument},
		"offsets too far":      {[]broker.Record{rec(1), rec(1 + math.MaxInt32 + 1)}, BatchOptions{}, errcode.InvalidArgument},
		"too large":            {[]broker.Record{{Value: make([]byte, MaxBatch)}}, BatchOptions{}, errcode.TooLarge},
		"too large together":   {[]broker.Record{{Value: make([]byte, MaxBatch/2)}, {Offset: 1, Value: make([]byte, MaxBatch/2)}}, BatchOptions{}, errcode.TooLarge},
		"codec not written":    {[]broker.Record{rec(1)}, BatchOptions{Codec: CodecGzip}, errcode.InvalidArgument},
		"codec not in Kafka's": {[]broker.Record{rec(1)}, BatchOptions{Codec: 9}, errcode.InvalidArgument},
	} {
		out, err := AppendBatch([]byte("dst"), c.recs, c.opts)
		if !errcode.Is(err, c.code) || string(out) != "dst" {
			t.Errorf("%s: %q %v, want code %v", name, out, err, c.code)
		}
	}
}

// A record refused by Add leaves the batch as it was.
func TestAddAfterRefusal(t *testing.T) {
	var b Builder
	b.Reset(nil)
	recs := []broker.Record{{Offset: 3, Timestamp: 5, Value: []byte("a")}, {Offset: 9, Timestamp: 4, Value: []byte("b")}}
	for i := range recs {
		if err := b.Add(&recs[i]); err != nil {
			t.Fatal(err)
		}
		size := b.Size()
		wantCode(t, b.Add(&broker.Record{Offset: 2}), errcode.InvalidArgument)
		wantCode(t, b.Add(&broker.Record{Offset: 50, Value: make([]byte, MaxBatch)}), errcode.TooLarge)
		if b.Size() != size || b.Len() != i+1 {
			t.Fatalf("size %d, %d records", b.Size(), b.Len())
		}
	}
	raw, err := b.Finish(BatchOptions{})
	if err != nil || !bytes.Equal(raw, mustBatch(t, recs, BatchOptions{})) {
		t.Fatalf("%x %v", raw, err)
	}
}

// reseal sets length and checksum of a batch whose bytes a test changed.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	return b
}

// Records that do not parse are refused even under a right checksum: a client
// may have written them.
func TestDecodeRefusesBadRecords(t *testing.T) {
	good := mustBatch(t, []broker.Record{
		{Offset: 1, Key: []byte("k"), Value: []byte("v"), Headers: []broker.Header{{Name: "n", Value: []byte("x")}}},
		{Offset: 2, Value: []byte("w")},
	}, BatchOptions{})
	body := good[HeaderSize:]
	with := func(at int, v byte) []byte { b := bytes.Clone(body); b[at] = v; return b }
	for name, b := range map[string][]byte{
		"record length zero":       with(0, 0),
		"record length negative":   with(0, 1),
		"record length beyond":     with(0, 0x7e),
		"record length too short":  with(0, body[0]-2),
		"record length too long":   with(0, body[0]+2),
		"offset delta negative":    with(3, 1),
		"offset delta beyond last": with(3, 100),
		"key length below -1":      with(4, 3),
		"key length beyond":        with(4, 0x70),
		"value length beyond":      with(6, 0x70),
		"header count negative":    with(8, 1),
		"header count beyond":      with(8, 4),
		"header count zero":        with(8, 0),
		"header name null":         with(9, 1),
		"header value beyond":      with(11, 0x70),
		"second offset not above":  with(int(body[0]/2)+1+3, 0),
		"bytes behind the last":    append(bytes.Clone(body), 0),
		"last record cut":          body[:len(body)-1],
		"endless varint":           append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, body...),
	} {
		raw := reseal(append(bytes.Clone(good[:HeaderSize]), b...))
		got, err := DecodeBatch(make([]broker.Record, 0, 9), raw, nil)
		if !errcode.Is(err, errcode.Corrupt) || len(got) != 0 {
			t.Errorf("%s: %d records, %v", name, len(got), err)
		}
	}
	if _, err := DecodeBatch(nil, reseal(bytes.Clone(good)), nil); err != nil {
		t.Fatalf("unchanged: %v", err)
	}
}

// A null value (Kafka's tombstone) is read as an empty one, and a batch with
// one time for all records gives each of them that time.
func TestDecodeKafkaForms(t *testing.T) {
	recs := []broker.Record{{Offset: 1, Timestamp: 10, Value: []byte{}}, {Offset: 2, Timestamp: 20, Value: []byte{}}}
	null := []broker.Record{{Offset: 1, Timestamp: 10}, {Offset: 2, Timestamp: 20}} // kmsg writes null values
	got, err := DecodeBatch(nil, kmsgBatch(null, 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	sameRecords(t, recs, got)
	raw := mustBatch(t, recs, BatchOptions{})
	binary.BigEndian.PutUint16(raw[21:], attrLogAppendTime)
	binary.BigEndian.PutUint64(raw[35:], 777)
	got, err = DecodeBatch(nil, reseal(raw), nil)
	if err != nil || got[0].Timestamp != 777 || got[1].Timestamp != 777 {
		t.Fatalf("%+v %v", got, err)
	}
}

// A scratch that is used again gives the next batch's records, whatever the
// batch before held.
func TestScratchReuse(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	var s Scratch
	var got []broker.Record
	for i := range 50 {
		recs := someRecords(rng, int64(i), 1+rng.IntN(50))
		raw := mustBatch(t, recs, BatchOptions{Codec: []Codec{CodecNone, CodecZstd}[i%2]})
		var err error
		if got, err = DecodeBatch(got[:0], raw, &s); err != nil {
			t.Fatal(err)
		}
		sameRecords(t, recs, got)
	}
}

// The first record at or after a time is found among mixed times (B119).
func TestFirstAtOrAfter(t *testing.T) {
	raw := func(times ...int64) []byte {
		var recs []broker.Record
		for i, ms := range times {
			recs = append(recs, broker.Record{Offset: int64(100 + i), Timestamp: ms})
		}
		return mustBatch(t, recs, BatchOptions{})
	}
	for _, c := range []struct {
		batch  []byte
		ms     int64
		offset int64 // -1: none
	}{
		{raw(10, 20, 30), 15, 101}, {raw(10, 20, 30), 30, 102}, {raw(10, 20, 30), 31, -1}, {raw(10, 20, 30), 0, 100},
		{raw(30, 10, 20), 15, 100}, {raw(10, 30, 20), 15, 101}, {raw(10, 10, 10), 10, 100},
	} {
		offset, ms, found, err := FindTime(c.batch, c.ms, nil)
		if err != nil || found != (c.offset >= 0) || found && (offset != c.offset || ms < c.ms) {
			t.Errorf("time %d: offset %d time %d found %v %v, want %d", c.ms, offset, ms, found, err, c.offset)
		}
	}
}

// Encoding, checking, walking, decoding and merging allocate nothing once
// their buffers have grown.
func TestNoAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	recs := someRecords(rng, 0, 100)
	var one [][]byte
	for i := range recs {
		one = append(one, mustBatch(t, recs[i:i+1], BatchOptions{}))
	}
	buf := make([]byte, 0, 1<<20)
	raw, packed := mustBatch(t, recs, BatchOptions{}), mustBatch(t, recs, BatchOptions{Codec: CodecZstd})
	var s Scratch
	out, _ := DecodeBatch(nil, packed, &s)
	out, _ = DecodeBatch(out[:0], raw, &s)
	var b Builder
	for name, f := range map[string]func(){
		"encode": func() { buf, _ = AppendBatch(buf[:0], recs, BatchOptions{}) },
		"verify": func() { _, _ = VerifyBatch(raw) },
		"decode": func() { out, _ = DecodeBatch(out[:0], raw, &s) },
		"split":  func() { _, _, _ = NextBatch(raw) },
		"iterate": func() {
			it, _ := Records(raw, &s)
			var r broker.Record
			for it.Next(&r) {
			}
		},
		"merge": func() {
			b.Reset(buf[:0])
			for _, raw := range one {
				_ = b.AddBatch(raw)
			}
			buf, _ = b.Finish(BatchOptions{})
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	// The coders' pools may lose a few buffers, to the garbage collector or by
	// chance under the race detector; making a coder would show as far more.
	for name, f := range map[string]func(){
		"compress":   func() { buf, _ = AppendBatch(buf[:0], recs, BatchOptions{Codec: CodecZstd}) },
		"decompress": func() { out, _ = DecodeBatch(out[:0], packed, &s) },
	} {
		if n := testing.AllocsPerRun(100, f); n > 4 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Error texts name what they found and what they wanted.
func TestErrorTexts(t *testing.T) {
	raw := mustBatch(t, []broker.Record{{Offset: 42}}, BatchOptions{})
	raw[len(raw)-1] ^= 1
	_, err := VerifyBatch(raw)
	if s := err.Error(); !strings.Contains(s, "offset 42") || !strings.Contains(s, "want") || !strings.Contains(s, "got") {
		t.Fatal(s)
	}
}
