package segment

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// wantBounded fails when f allocates more than limit bytes.
func wantBounded(t *testing.T, limit uint64, f func()) {
	t.Helper()
	if n := allocated(f); n > limit {
		t.Fatalf("%d bytes allocated, at most %d are expected", n, limit)
	}
}

// A header that parses keeps its promises; bytes never size an allocation.
func FuzzParseHeader(f *testing.F) {
	f.Add(mustBatch(f, someRecords(newRand(1), 3, 4), BatchOptions{}))
	f.Add(make([]byte, HeaderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		wantBounded(t, 64<<10, func() {
			h, err := ParseHeader(b)
			if err == nil && (h.Size < HeaderSize || h.Size > MaxBatch || h.Records < 0 || h.Records > MaxRecords || h.NextOffset() <= h.BaseOffset || h.BaseOffset < 0) {
				t.Fatalf("%+v", h)
			}
			batch, rest, err := NextBatch(b)
			if len(batch)+len(rest) != len(b) || err != nil && batch != nil {
				t.Fatalf("%d and %d of %d bytes, %v", len(batch), len(rest), len(b), err)
			}
		})
	})
}

// A batch that decodes encodes to the same records, and merges to the same
// records behind another one.
func FuzzDecodeBatch(f *testing.F) {
	recs := someRecords(newRand(2), 3, 5)
	raw := mustBatch(f, recs, BatchOptions{})
	f.Add(raw)
	f.Add(mustBatch(f, someRecords(newRand(3), 3, 40), BatchOptions{Codec: CodecZstd}))
	f.Add(recoded(raw, CodecGzip, gzipped))
	f.Add(recoded(raw, CodecSnappy, xerialFramed))
	f.Add(recoded(raw, CodecZstd, streamed))
	f.Add(recoded(raw, CodecLZ4, bytes.Clone))
	f.Add(recoded(raw, CodecLZ4, lz4Framed()))
	f.Add(recoded(raw, CodecLZ4, func([]byte) []byte { return lz4Linked() }))
	first := mustBatch(f, []broker.Record{{Offset: 0, Timestamp: 1, Value: []byte("first")}}, BatchOptions{})
	zstdDecoder()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > HeaderSize {
			reseal(b) // length and checksum would stop nearly every input
		}
		var got []broker.Record
		var err error
		// The records' memory and that of their headers is in proportion to the
		// decompressed bytes, whose bound is MaxDecoded.
		wantBounded(t, 40*MaxDecoded, func() { got, err = DecodeBatch(nil, b, nil) })
		if err != nil || len(got) == 0 {
			return
		}
		again := mustBatch(t, got, BatchOptions{})
		back, err := DecodeBatch(nil, again, nil)
		if err != nil {
			t.Fatal(err)
		}
		sameRecords(t, got, back)
		h, _ := ParseHeader(b)
		var m Builder
		m.Reset(nil)
		Stamp(first, 0, h.Generation)
		if err := m.AddBatch(first); err != nil {
			t.Fatal(err)
		}
		if !m.Accepts(&h) {
			return
		}
		if err := m.AddBatch(b); err != nil {
			t.Fatal(err)
		}
		merged, err := m.Finish(BatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		back, err = DecodeBatch(nil, merged, nil)
		if err != nil {
			t.Fatal(err)
		}
		sameRecords(t, got, back[1:])
	})
}

// A footer that parses encodes to the same bytes.
func FuzzParseFooter(f *testing.F) {
	raw, in, _ := sealedSegment(f, 1)
	f.Add(raw[in.FooterPosition:])
	f.Fuzz(func(t *testing.T, b []byte) {
		wantBounded(t, 64<<10, func() {
			if len(b) == FooterSize {
				copy(b[footerCRCAt:], appendFooter(nil, &Footer{})[footerCRCAt:])
				crc := newCRC(b[:footerCRCAt])
				b[152], b[153], b[154], b[155] = byte(crc>>24), byte(crc>>16), byte(crc>>8), byte(crc)
			}
			foot, err := ParseFooter(b)
			if err == nil && !bytes.Equal(appendFooter(nil, &foot), b) {
				t.Fatalf("%+v", foot)
			}
		})
	})
}

// An index that parses has only batches that lie in the segment, and every
// offset and time finds one of them.
func FuzzParseIndex(f *testing.F) {
	raw, in, _ := sealedSegment(f, 2)
	f.Add(raw[in.DataLength:in.FooterPosition], in.Base, in.Next, in.DataLength, in.MaxTimestamp)
	f.Fuzz(func(t *testing.T, b []byte, base, next, data, highest int64) {
		foot := Footer{Base: base, Next: next, Records: 1, MinTimestamp: highest, MaxTimestamp: highest, DataLength: data, IndexLength: int64(len(b)), IndexCRC32C: newCRC(b)}
		if foot.check() != nil {
			return
		}
		wantBounded(t, 64<<10, func() {
			x, err := ParseIndex(b, &foot)
			if err != nil {
				return
			}
			for i := range x.Len() {
				e := x.At(i)
				if e.Base < base || e.Base >= next || e.End() > data || x.SeekOffset(e.Base) != i {
					t.Fatalf("batch %d: %+v", i, e)
				}
			}
			if x.SeekTime(highest) == x.Len() {
				t.Fatal("the highest time is not found")
			}
		})
	})
}

// Whatever an active segment holds, recovery either refuses and changes
// nothing or keeps a prefix of it, and can then go on.
func FuzzRecoverLog(f *testing.F) {
	batches := someBatches(f, newRand(3), testOptions.Base, 3)
	whole := bytes.Join(batches, nil)
	sealed, _, _ := sealedSegment(f, 3)
	for _, b := range [][]byte{nil, whole, whole[:len(whole)-5], append(bytes.Clone(whole), make([]byte, 5000)...), sealed} {
		f.Add(b, int64(100))
		f.Add(b, int64(115))
	}
	f.Fuzz(func(t *testing.T, b []byte, flushed int64) {
		fs := newFS(t)
		writeFile(t, fs, logPath(), b)
		var w *Writer
		var cut int64
		var err error
		// The file system of this test keeps copies of its own in memory.
		wantBounded(t, 4<<20+uint64(len(b))*16, func() { w, cut, err = Recover(fs, dir, recoverOptions(flushed)) })
		if err != nil {
			if got := readFile(t, fs, logPath()); !errcode.Is(err, errcode.Corrupt) || !bytes.Equal(got, b) {
				t.Fatalf("%v, %d bytes of %d", err, len(got), len(b))
			}
			return
		}
		if w.Next() < flushed || w.Size()+cut != int64(len(b)) {
			t.Fatalf("next %d, flushed %d, size %d, cut %d of %d", w.Next(), flushed, w.Size(), cut, len(b))
		}
		kept := bytes.Clone(b[:w.Size()])
		if got := readFile(t, fs.CrashClone(vfs.CrashCloneCfg{}), logPath()); !bytes.Equal(got, kept) {
			t.Fatal("what was kept is not durable")
		}
		if w.Next() < 1<<62 {
			next := mustBatch(t, []broker.Record{{Offset: w.Next()}}, BatchOptions{Generation: 1<<32 - 1})
			checkGoesOn(t, fs, w, kept, next)
		}
	})
}
