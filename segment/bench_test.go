package segment

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// plainRecords are n records of size bytes with a short key, as a producer sends.
func plainRecords(n, size int) []broker.Record {
	rng := rand.New(rand.NewPCG(1, 2))
	recs := make([]broker.Record, n)
	for i := range recs {
		recs[i] = broker.Record{Offset: int64(i), Timestamp: 1_700_000_000_000 + int64(i), Key: []byte("customer-4711"), Value: text(rng, size)}
	}
	return recs
}

func perRecord(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/record")
}

// BenchmarkEncode compares encoding with checksum against kmsg in one run.
func BenchmarkEncode(b *testing.B) {
	recs := plainRecords(100, 256)
	b.Run("segment", func(b *testing.B) {
		buf := make([]byte, 0, 1<<20)
		b.ReportAllocs()
		for b.Loop() {
			buf, _ = AppendBatch(buf[:0], recs, BatchOptions{})
		}
		b.SetBytes(int64(len(buf)))
		perRecord(b, len(recs))
	})
	b.Run("kmsg", func(b *testing.B) {
		buf, body := make([]byte, 0, 1<<20), make([]byte, 0, 1<<20)
		b.ReportAllocs()
		for b.Loop() {
			body = body[:0]
			for i := range recs {
				r := &recs[i]
				k := kmsg.Record{TimestampDelta64: r.Timestamp - recs[0].Timestamp, OffsetDelta: int32(i), Key: r.Key, Value: r.Value}
				k.Length = int32(1 + varintLen(k.TimestampDelta64) + varintLen(int64(i)) + varintLen(int64(len(r.Key))) + len(r.Key) + varintLen(int64(len(r.Value))) + len(r.Value) + 1)
				body = k.AppendTo(body)
			}
			batch := kmsg.RecordBatch{Magic: 2, NumRecords: int32(len(recs)), Records: body}
			buf = batch.AppendTo(buf[:0])
			binary.BigEndian.PutUint32(buf[17:], crc32.Checksum(buf[21:], castagnoli))
		}
		b.SetBytes(int64(len(buf)))
		perRecord(b, len(recs))
	})
}

// BenchmarkDecode compares decoding with checksum against kmsg in one run.
func BenchmarkDecode(b *testing.B) {
	recs := plainRecords(100, 256)
	raw, _ := AppendBatch(nil, recs, BatchOptions{})
	b.Run("segment-iterate", func(b *testing.B) {
		var s Scratch
		b.ReportAllocs()
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if _, err := VerifyBatch(raw); err != nil {
				b.Fatal(err)
			}
			it, _ := Records(raw, &s)
			var r broker.Record
			for it.Next(&r) {
			}
		}
		perRecord(b, len(recs))
	})
	b.Run("segment-decode", func(b *testing.B) {
		var s Scratch
		var out []broker.Record
		b.ReportAllocs()
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if _, err := VerifyBatch(raw); err != nil {
				b.Fatal(err)
			}
			out, _ = DecodeBatch(out[:0], raw, &s)
		}
		perRecord(b, len(recs))
	})
	b.Run("kmsg", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if crc32.Checksum(raw[21:], castagnoli) != binary.BigEndian.Uint32(raw[17:]) {
				b.Fatal("crc")
			}
			var batch kmsg.RecordBatch
			if err := batch.ReadFrom(raw); err != nil {
				b.Fatal(err)
			}
			for body := batch.Records; len(body) > 0; {
				n, k := binary.Varint(body)
				var r kmsg.Record
				if err := r.ReadFrom(body[:k+int(n)]); err != nil {
					b.Fatal(err)
				}
				body = body[k+int(n):]
			}
		}
		perRecord(b, len(recs))
	})
}

// BenchmarkVerify is header and checksum of a 256 KiB batch.
func BenchmarkVerify(b *testing.B) {
	raw, _ := AppendBatch(nil, plainRecords(1000, 256), BatchOptions{})
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := VerifyBatch(raw); err != nil {
			b.Fatal(err)
		}
	}
	perRecord(b, 1000)
}

// BenchmarkMerge merges 256 one-record batches of 1 KiB, as the flusher does,
// and compares with decoding and encoding the same.
func BenchmarkMerge(b *testing.B) {
	recs := plainRecords(256, 1024)
	var raws [][]byte
	for i := range recs {
		raw, _ := AppendBatch(nil, recs[i:i+1], BatchOptions{})
		raws = append(raws, raw)
	}
	buf := make([]byte, 0, 1<<20)
	b.Run("merge", func(b *testing.B) {
		var m Builder
		b.ReportAllocs()
		for b.Loop() {
			m.Reset(buf[:0])
			for _, raw := range raws {
				if err := m.AddBatch(raw); err != nil {
					b.Fatal(err)
				}
			}
			buf, _ = m.Finish(BatchOptions{})
		}
		b.SetBytes(int64(len(buf)))
		perRecord(b, len(recs))
	})
	b.Run("re-encode", func(b *testing.B) {
		var s Scratch
		var out []broker.Record
		b.ReportAllocs()
		for b.Loop() {
			out = out[:0]
			for _, raw := range raws {
				out, _ = DecodeBatch(out, raw, &s)
			}
			buf, _ = AppendBatch(buf[:0], out, BatchOptions{})
		}
		b.SetBytes(int64(len(buf)))
		perRecord(b, len(recs))
	})
}

// BenchmarkZstd is compressing and decompressing a 256 KiB batch of text.
func BenchmarkZstd(b *testing.B) {
	recs := plainRecords(1000, 256)
	buf := make([]byte, 0, 1<<20)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf, _ = AppendBatch(buf[:0], recs, BatchOptions{Codec: CodecZstd})
		}
		perRecord(b, len(recs))
	})
	raw, _ := AppendBatch(nil, recs, BatchOptions{Codec: CodecZstd})
	b.Run("decode", func(b *testing.B) {
		var s Scratch
		var out []broker.Record
		b.ReportAllocs()
		for b.Loop() {
			out, _ = DecodeBatch(out[:0], raw, &s)
		}
		perRecord(b, len(recs))
	})
}
