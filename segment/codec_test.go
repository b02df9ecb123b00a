package segment

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// streamed is a zstd frame that does not declare its size.
func streamed(b []byte) []byte {
	var out bytes.Buffer
	w, _ := zstd.NewWriter(&out)
	for len(b) > 0 {
		n := min(len(b), 10_000)
		_, _ = w.Write(b[:n])
		_ = w.Flush()
		b = b[n:]
	}
	_ = w.Close()
	return out.Bytes()
}

// xerialFramed is snappy as the Java clients frame it.
func xerialFramed(b []byte) []byte {
	out := append(bytes.Clone(xerial), 0, 0, 0, 1, 0, 0, 0, 1)
	for len(b) > 0 {
		n := min(len(b), 32<<10)
		block := snappy.Encode(nil, b[:n])
		out = binary.BigEndian.AppendUint32(out, uint32(len(block)))
		out = append(out, block...)
		b = b[n:]
	}
	return out
}

// recoded returns raw, an uncompressed batch, with its records compressed.
func recoded(raw []byte, c Codec, compress func([]byte) []byte) []byte {
	b := append(bytes.Clone(raw[:HeaderSize]), compress(raw[HeaderSize:])...)
	binary.BigEndian.PutUint16(b[21:], uint16(c))
	return reseal(b)
}

// Every compression that clients use decodes to the same records.
func TestCodecsDecode(t *testing.T) {
	recs := someRecords(rand.New(rand.NewPCG(1, 9)), 77, 3000)
	raw := mustBatch(t, recs, BatchOptions{})
	var s Scratch
	for name, b := range map[string][]byte{
		"gzip":           recoded(raw, CodecGzip, gzipped),
		"snappy":         recoded(raw, CodecSnappy, func(b []byte) []byte { return snappy.Encode(nil, b) }),
		"snappy, framed": recoded(raw, CodecSnappy, xerialFramed),
		"lz4":            recoded(raw, CodecLZ4, lz4Framed()),
		"lz4, two frames": recoded(raw, CodecLZ4, func(b []byte) []byte {
			return append(lz4Framed()(b[:len(b)/8]), lz4Framed()(b[len(b)/8:])...)
		}),
		"zstd":           mustBatch(t, recs, BatchOptions{Codec: CodecZstd}),
		"zstd, streamed": recoded(raw, CodecZstd, streamed),
		"zstd, two frames": recoded(raw, CodecZstd, func(b []byte) []byte {
			return append(zstdEncoder().EncodeAll(b[:len(b)/8], nil), zstdEncoder().EncodeAll(b[len(b)/8:], nil)...)
		}),
	} {
		got, err := DecodeBatch(nil, b, &s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sameRecords(t, recs, got)
	}
}

// A batch that compression makes larger stays uncompressed.
func TestIncompressibleStaysRaw(t *testing.T) {
	recs := someRecords(rand.New(rand.NewPCG(2, 9)), 0, 1)
	recs[0].Value = make([]byte, 5000)
	for i := range recs[0].Value {
		recs[0].Value[i] = byte(rand.Uint32())
	}
	raw := mustBatch(t, recs, BatchOptions{Codec: CodecZstd})
	if h, _ := ParseHeader(raw); h.Codec() != CodecNone || !bytes.Equal(raw, mustBatch(t, recs, BatchOptions{})) {
		t.Fatalf("codec %v, %d bytes", h.Codec(), len(raw))
	}
}

// Numbers without a codec are refused by name.
func TestUnsupportedCodecs(t *testing.T) {
	raw := mustBatch(t, someRecords(rand.New(rand.NewPCG(3, 9)), 0, 2), BatchOptions{})
	for _, c := range []Codec{5, 6, 7} {
		_, err := DecodeBatch(nil, recoded(raw, c, bytes.Clone), nil)
		wantCode(t, err, errcode.UnsupportedType)
		if !bytes.Contains([]byte(err.Error()), []byte("use none, gzip, snappy, lz4 or zstd")) {
			t.Fatal(err)
		}
	}
}

// allocated runs f and returns the bytes that it allocated.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Decompression ends at its limit whatever the data do, and a declared size
// alone allocates nothing (I13).
func TestDecompressionIsBounded(t *testing.T) {
	bomb := make([]byte, 80<<20)
	const limit = 1 << 20
	zstdDecoder() // its pool is not what is measured
	for name, c := range map[string]struct {
		codec Codec
		src   []byte
		code  errcode.Code
		most  uint64
	}{
		"gzip bomb":            {CodecGzip, gzipped(bomb), errcode.TooLarge, 8 * limit},
		"zstd bomb":            {CodecZstd, zstdEncoder().EncodeAll(bomb, nil), errcode.TooLarge, 8 * limit},
		"zstd bomb, streamed":  {CodecZstd, streamed(bomb), errcode.TooLarge, 8 * limit},
		"snappy bomb":          {CodecSnappy, snappy.Encode(nil, bomb), errcode.TooLarge, 8 * limit},
		"framed snappy bomb":   {CodecSnappy, xerialFramed(bomb), errcode.TooLarge, 8 * limit},
		"lz4 bomb":             {CodecLZ4, lz4Framed()(bomb), errcode.TooLarge, 24 * limit}, // in blocks of 4 MiB
		"lz4 bomb, 64 KiB":     {CodecLZ4, lz4Framed(lz4.BlockSizeOption(lz4.Block64Kb))(bomb), errcode.TooLarge, 8 * limit},
		"lz4, empty":           {CodecLZ4, nil, errcode.Corrupt, 64 << 10},
		"lz4, garbage":         {CodecLZ4, []byte("no frame at all"), errcode.Corrupt, 64 << 10},
		"lz4 that declares":    {CodecLZ4, []byte{0x04, 0x22, 0x4d, 0x18, 0x40, 0x70, 0, 0xff, 0xff, 0x3f, 0, 'x'}, errcode.Corrupt, 64 << 10},
		"snappy that declares": {CodecSnappy, append(binary.AppendUvarint(nil, limit-1), 0, 'x'), errcode.Corrupt, 64 << 10},
		// Magic, single segment with an 8-byte size, the size, one raw block of a byte.
		"zstd that declares": {CodecZstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0, 9, 0, 0, 'x'}, errcode.Corrupt, 256 << 10},
		"zstd, wrong size":   {CodecZstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 'x'}, errcode.Corrupt, 1 << 20},
		"gzip, cut":          {CodecGzip, gzipped(bomb)[:1000], errcode.Corrupt, 8 * limit},
		"gzip, empty":        {CodecGzip, nil, errcode.Corrupt, 64 << 10},
		"zstd, empty":        {CodecZstd, nil, errcode.Corrupt, 64 << 10},
		"zstd, garbage":      {CodecZstd, []byte("no frame at all"), errcode.Corrupt, 64 << 10},
		"snappy, empty":      {CodecSnappy, nil, errcode.Corrupt, 64 << 10},
		"snappy, frame cut":  {CodecSnappy, xerial, errcode.Corrupt, 64 << 10},
		"snappy, block long": {CodecSnappy, append(append(bytes.Clone(xerial), make([]byte, 8)...), 0xff, 0xff, 0xff, 0xff), errcode.Corrupt, 64 << 10},
	} {
		if name == "gzip, cut" {
			c.src = gzipped(bomb[:limit/2])[:100]
		}
		var err error
		n := allocated(func() { _, err = decompress(nil, c.src, c.codec, limit) })
		if !errcode.Is(err, c.code) || n > c.most {
			t.Errorf("%s: %v (want %v), %d bytes allocated (at most %d)", name, err, c.code, n, c.most)
		}
	}
}
