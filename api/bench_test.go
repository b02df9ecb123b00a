package api

import (
	"fmt"
	"strings"
	"testing"
)

// line256 is an NDJSON line of 256 bytes with a key, text like a log's.
func line256(i int) string {
	head := fmt.Sprintf(`{"user":{"id":"u%06d"},"at":%d,"ok":true,"text":"`, i, 1_700_000_000_000+i)
	return head + strings.Repeat("the quick brown fox ", 20)[:255-len(head)-2] + `"}` + "\n"
}

func benchDecode(b *testing.B, body string, decode func(*batch, []byte) error) {
	b.Helper()
	l := DefaultLimits()
	x := &exchange{s: &Server{limits: l}, info: TopicInfo{Partitions: 3}}
	src, dst := []byte(body), make([]byte, len(body))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		copy(dst, src)
		x.records, x.headers = x.records[:0], x.headers[:0]
		bt := &batch{x: x, partition: -1, valueMax: l.RecordBytes, keyMax: l.KeyBytes, arena: &buffer{}}
		if err := decode(bt, dst); err != nil {
			b.Fatal(err)
		}
		if len(x.records) != 1000 {
			b.Fatal(len(x.records))
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "records/s")
}

// What the decoders cost for 1,000 records of 256 bytes.
func BenchmarkDecode(b *testing.B) {
	var nd, js, fr strings.Builder
	js.WriteString(`{"messages":[`)
	for i := range 1000 {
		line := line256(i)
		nd.WriteString(line)
		if i > 0 {
			js.WriteByte(',')
		}
		js.WriteString(`{"key":"k","payload":` + strings.TrimSpace(line) + `}`)
		fr.WriteString(frame("k", strings.TrimSpace(line)))
	}
	js.WriteString(`]}`)
	b.Run("ndjson", func(b *testing.B) {
		benchDecode(b, nd.String(), func(bt *batch, body []byte) error { return (&lines{batch: bt}).decode(body) })
	})
	p, err := parsePointer("/user/id")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("ndjson-key", func(b *testing.B) {
		benchDecode(b, nd.String(), func(bt *batch, body []byte) error { return (&lines{batch: bt, key: p}).decode(body) })
	})
	b.Run("json", func(b *testing.B) { benchDecode(b, js.String(), (*batch).decodeJSON) })
	b.Run("frames", func(b *testing.B) { benchDecode(b, fr.String(), (*batch).decodeFrames) })
}

// What it costs to write a record of 256 bytes of JSON.
func BenchmarkAppendRecord(b *testing.B) {
	m := Message{Partition: 1, Attempt: 1, Handle: strings.Repeat("h", 80)}
	m.Key, m.Value = []byte("some-key"), []byte(strings.TrimSpace(line256(1)))
	out := make([]byte, 0, 4096)
	b.SetBytes(int64(len(m.Value)))
	b.ReportAllocs()
	for b.Loop() {
		out = appendMessage(out[:0], "orders", &m, true)
	}
}
