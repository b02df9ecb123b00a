package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// lz4Framed is one LZ4 frame with these options.
func lz4Framed(options ...lz4.Option) func([]byte) []byte {
	return func(b []byte) []byte {
		var out bytes.Buffer
		w := lz4.NewWriter(&out)
		_ = w.Apply(options...)
		_, _ = w.Write(b)
		_ = w.Close()
		return out.Bytes()
	}
}

// lz4Linked is a frame by hand whose second block points back into the first, as
// librdkafka and the lz4 tool make them; it holds "0123456789abcdef89abcdeftail!".
func lz4Linked() []byte {
	out := binary.LittleEndian.AppendUint32(nil, lz4Magic)
	out = append(out, 0x40, 0x40, 0) // version 1, linked, 64 KiB; the header's checksum is not looked at
	out = binary.LittleEndian.AppendUint32(out, 16|1<<31)
	out = append(out, "0123456789abcdef"...)
	// A match of 8 from 8 back, then 5 literals.
	block := append([]byte{0x04, 8, 0, 0x50}, "tail!"...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(block)))
	out = append(out, block...)
	return binary.LittleEndian.AppendUint32(out, 0)
}

// LZ4 frames decode however they are laid out, one or several; what is cut off,
// damaged or no frame is corrupt.
func TestLZ4Frames(t *testing.T) {
	text := bytes.Repeat([]byte("a text that repeats itself. "), 40_000)
	for name, encode := range map[string]func([]byte) []byte{
		"plain":     lz4Framed(),
		"64 KiB":    lz4Framed(lz4.BlockSizeOption(lz4.Block64Kb)),
		"checksums": lz4Framed(lz4.BlockChecksumOption(true), lz4.ChecksumOption(true), lz4.SizeOption(uint64(len(text)))),
		"bare":      lz4Framed(lz4.ChecksumOption(false)),
		"two":       func(b []byte) []byte { return append(lz4Framed()(b[:1000]), lz4Framed()(b[1000:])...) },
	} {
		src := encode(text)
		if got, err := unlz4(nil, src, len(text)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes %v", name, len(got), err)
		}
		if _, err := unlz4(nil, src, len(text)-1); !errcode.Is(err, errcode.TooLarge) {
			t.Errorf("%s over the limit: %v", name, err)
		}
		for cut := 0; cut < len(src); cut += 1 + cut/40 {
			if got, err := unlz4(nil, src[:cut], len(text)); err == nil && len(got) != 1000 {
				t.Errorf("%s cut at %d gives %d bytes", name, cut, len(got))
			}
		}
		if _, err := unlz4(nil, append(src, 0), len(text)); !errcode.Is(err, errcode.Corrupt) {
			t.Errorf("%s and a byte: %v", name, err)
		}
	}
	if got, err := unlz4(nil, lz4Linked(), 1000); err != nil || string(got) != "0123456789abcdef89abcdeftail!" {
		t.Errorf("linked: %q %v", got, err)
	}
	// A frame does not see what an earlier one held.
	second := lz4Linked()
	second = append(second[:7], second[7+4+16:]...)
	if got, err := unlz4(nil, append(lz4Framed()([]byte("0123456789abcdef")), second...), 1000); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("a link into another frame: %q %v", got, err)
	}
	for name, at := range map[string]struct {
		i int
		b byte
	}{"magic": {0, 5}, "version": {4, 0x80}, "reserved": {4, 0x66}, "dictionary": {4, 0x65}, "block size": {5, 0x30}, "reserved size bits": {5, 0xc0}} {
		src := lz4Framed()([]byte("x"))
		src[at.i] = at.b
		if _, err := unlz4(nil, src, 1000); !errcode.Is(err, errcode.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// dense are records with offsets from 0 on and all that a record can have.
func dense(n int) []broker.Record {
	var out []broker.Record
	for i := range n {
		r := broker.Record{Offset: int64(i), Timestamp: 1_764_405_000_000 + int64(i%7), Value: []byte(strings.Repeat(fmt.Sprint(i), 1+i%50))}
		if i%3 == 0 {
			r.Key = []byte(fmt.Sprint("k", i))
		}
		if i%5 == 0 {
			r.Headers = []broker.Header{{Name: "trace", Value: []byte("a")}, {Name: "none"}}
		}
		out = append(out, r)
	}
	return out
}

// put16, put32 and put64 overwrite a field and make the checksum right again.
func put16(at int, v uint16) func([]byte) []byte {
	return func(b []byte) []byte { binary.BigEndian.PutUint16(b[at:], v); return b }
}

func put32(at int, v uint32) func([]byte) []byte {
	return func(b []byte) []byte { binary.BigEndian.PutUint32(b[at:], v); return b }
}

func put64(at int, v uint64) func([]byte) []byte {
	return func(b []byte) []byte { binary.BigEndian.PutUint64(b[at:], v); return b }
}

// A client's batch is taken with every compression, whatever base offset and
// generation it comes with, and refused, with the reason and before a record of it
// is used, when anything is not as a log needs it.
func TestCheckClient(t *testing.T) {
	recs := dense(100)
	raw := mustBatch(t, recs, BatchOptions{})
	none := func(int, *broker.Record) error { return nil }
	var s Scratch
	for name, b := range map[string][]byte{
		"none": raw, "gzip": recoded(raw, CodecGzip, gzipped), "snappy, framed": recoded(raw, CodecSnappy, xerialFramed),
		"lz4": recoded(raw, CodecLZ4, lz4Framed()), "zstd": recoded(raw, CodecZstd, streamed),
		"from elsewhere": put64(0, 1<<40)(put32(12, 77)(bytes.Clone(raw))),
		"one time":       reseal(put16(21, attrLogAppendTime)(bytes.Clone(raw))),
	} {
		n := 0
		h, err := CheckClient(b, 100, 1<<20, &s, func(i int, r *broker.Record) error {
			if i != n || string(r.Value) != string(recs[i].Value) || string(r.Key) != string(recs[i].Key) || len(r.Headers) != len(recs[i].Headers) {
				t.Errorf("%s: record %d is %+v", name, i, r)
			}
			n++
			return nil
		})
		if err != nil || n != 100 || h.Records != 100 {
			t.Errorf("%s: %d records %v", name, n, err)
		}
	}
	gap := dense(3)
	gap[2].Offset = 3
	late := append([]broker.Record{}, recs...)
	sparse := mustBatch(t, gap, BatchOptions{})
	shifted := mustBatch(t, late[1:], BatchOptions{})
	for name, c := range map[string]struct {
		b    []byte
		code errcode.Code
		says string
	}{
		"empty":           {nil, errcode.InvalidArgument, "0 bytes"},
		"short":           {raw[:HeaderSize-1], errcode.InvalidArgument, "60 bytes"},
		"cut":             {raw[:len(raw)-1], errcode.InvalidArgument, "cut off"},
		"trailing":        {append(bytes.Clone(raw), 0), errcode.InvalidArgument, "1 bytes follow it"},
		"two batches":     {append(bytes.Clone(raw), raw...), errcode.InvalidArgument, "a body is one batch"},
		"magic 1":         {append(append(bytes.Clone(raw[:16]), 1), raw[17:]...), errcode.InvalidArgument, "magic is 1"},
		"checksum":        {append(bytes.Clone(raw[:len(raw)-1]), raw[len(raw)-1]^1), errcode.InvalidArgument, "crc32c"},
		"length 0":        {put32(8, 0)(bytes.Clone(raw)), errcode.InvalidArgument, "size"},
		"length < 0":      {put32(8, 1<<31)(bytes.Clone(raw)), errcode.InvalidArgument, "size"},
		"length max":      {put32(8, 1<<31-1)(bytes.Clone(raw)), errcode.InvalidArgument, "cut off"},
		"codec 5":         {reseal(put16(21, 5)(bytes.Clone(raw))), errcode.UnsupportedType, "compression is 5"},
		"transactional":   {reseal(put16(21, 0x10)(bytes.Clone(raw))), errcode.InvalidArgument, "transaction"},
		"control":         {reseal(put16(21, 0x20)(bytes.Clone(raw))), errcode.InvalidArgument, "control"},
		"delete horizon":  {reseal(put16(21, 0x40)(bytes.Clone(raw))), errcode.InvalidArgument, "attributes"},
		"unknown bit":     {reseal(put16(21, 0x80)(bytes.Clone(raw))), errcode.InvalidArgument, "attributes"},
		"producer":        {reseal(put64(43, 7)(bytes.Clone(raw))), errcode.InvalidArgument, "producer id 7"},
		"producer -2":     {reseal(put64(43, 1<<64-2)(bytes.Clone(raw))), errcode.InvalidArgument, "producer id -2"},
		"no records":      {emptyBatch(t), errcode.InvalidArgument, "no messages"},
		"count low":       {reseal(put32(23, 98)(put32(57, 99)(bytes.Clone(raw)))), errcode.InvalidArgument, "message 99"},
		"count high":      {reseal(put32(23, 100)(put32(57, 101)(bytes.Clone(raw)))), errcode.InvalidArgument, "message 100"},
		"count < 0":       {reseal(put32(57, 1<<31)(bytes.Clone(raw))), errcode.InvalidArgument, "records"},
		"count max":       {reseal(put32(57, 1<<31-1)(bytes.Clone(raw))), errcode.InvalidArgument, "records"},
		"last delta":      {reseal(put32(23, 100)(bytes.Clone(raw))), errcode.InvalidArgument, "last offset delta 100"},
		"gap":             {reseal(put32(23, 2)(bytes.Clone(sparse))), errcode.InvalidArgument, "message 2"},
		"base offset < 0": {put64(0, 1<<63)(bytes.Clone(raw)), errcode.InvalidArgument, "offsets"},
		"last offset max": {put64(0, 1<<63-2)(bytes.Clone(raw)), errcode.InvalidArgument, "offsets"},
		"max timestamp":   {reseal(put64(35, 1_764_405_000_999)(bytes.Clone(raw))), errcode.InvalidArgument, "max timestamp"},
		"no gzip":         {reseal(put16(21, 1)(bytes.Clone(raw))), errcode.InvalidArgument, "gzip"},
		"no snappy":       {reseal(put16(21, 2)(bytes.Clone(raw))), errcode.InvalidArgument, "snappy"},
		"no lz4":          {reseal(put16(21, 3)(bytes.Clone(raw))), errcode.InvalidArgument, "lz4"},
		"no zstd":         {reseal(put16(21, 4)(bytes.Clone(raw))), errcode.InvalidArgument, "zstd"},
		"cut inside":      {recoded(raw, CodecLZ4, func(b []byte) []byte { return lz4Framed()(b[:len(b)-1]) }), errcode.InvalidArgument, "message 99"},
		"more inside":     {recoded(raw, CodecZstd, func(b []byte) []byte { return streamed(append(bytes.Clone(b), 0)) }), errcode.InvalidArgument, "behind the last"},
		"bomb":            {recoded(raw, CodecGzip, func(b []byte) []byte { return gzipped(append(bytes.Clone(b), make([]byte, 2<<20)...)) }), errcode.TooLarge, "decodes to more than"},
		"too many":        {mustBatch(t, dense(102), BatchOptions{}), errcode.TooLarge, "102 messages"},
	} {
		_, err := CheckClient(c.b, 101, 1<<20, &s, none)
		if !errcode.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v: %v", name, errcode.Of(err), err)
		}
	}
	if _, err := CheckClient(shifted, 100, 1<<20, &s, none); err != nil {
		t.Errorf("base offset 1, deltas from 0: %v", err)
	}
	stop := errcode.New(errcode.Conflict, "enough")
	if _, err := CheckClient(raw, 100, 1<<20, &s, func(i int, _ *broker.Record) error {
		if i == 3 {
			return stop
		}
		return nil
	}); !errcode.Is(err, errcode.Conflict) {
		t.Errorf("the caller's own error: %v", err)
	}
}

func emptyBatch(t *testing.T) []byte {
	t.Helper()
	b, err := AppendEmpty(nil, 0, 3, 1, 1_764_405_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What is taken is a batch that deep verification has nothing to say about, and
// whatever it is, the check ends within its bounds of memory.
func FuzzCheckClient(f *testing.F) {
	raw := mustBatch(f, dense(20), BatchOptions{})
	f.Add(raw)
	f.Add(recoded(raw, CodecGzip, gzipped))
	f.Add(recoded(raw, CodecSnappy, xerialFramed))
	f.Add(recoded(raw, CodecLZ4, lz4Framed()))
	f.Add(recoded(raw, CodecLZ4, func([]byte) []byte { return lz4Linked() }))
	f.Add(recoded(raw, CodecZstd, streamed))
	zstdDecoder()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > HeaderSize {
			reseal(b)
		}
		wantBounded(t, 64<<20, func() {
			h, err := CheckClient(b, 1000, 4<<20, new(Scratch), func(int, *broker.Record) error { return nil })
			if err != nil {
				switch errcode.Of(err) {
				case errcode.InvalidArgument, errcode.TooLarge, errcode.UnsupportedType:
					return
				}
				t.Fatal(err)
			}
			Stamp(b, 41, 3)
			v := verifier{sums: newSums(), next: 41 + int64(h.Records)}
			got, err := VerifyBatch(b)
			if err != nil {
				t.Fatal(err)
			}
			v.records(Entry{Base: 41}, b, &got)
			if err := v.report.Err(); err != nil {
				t.Fatal(err)
			}
		})
	})
}
