package segment

import (
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

func TestSmoke(t *testing.T) {
	fs := vfs.NewCrashableMem()
	if err := MakeDir(fs, "", "a/b"); err != nil {
		t.Log(err)
	}
	if err := fs.MkdirAll("x", 0o755); err != nil {
		t.Fatal(err)
	}
	o := Options{Topic: 1, Partition: 2, Base: 10}
	w, err := Create(fs, "x", o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		c := Codec(CodecNone)
		if i%2 == 1 {
			c = CodecZstd
		}
		var recs []broker.Record
		for j := range 100 {
			recs = append(recs, broker.Record{Offset: int64(10 + i*100 + j), Timestamp: int64(1000 + j), Value: []byte("hello world hello world"), Headers: []broker.Header{{Name: "a", Value: nil}}})
		}
		b, err := AppendBatch(nil, recs, BatchOptions{Codec: c})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Append(b, 5, 6); err != nil {
			t.Fatal(err)
		}
		got, err := DecodeBatch(nil, b, nil)
		if err != nil || len(got) != 100 {
			t.Fatal(err, len(got))
		}
	}
	if err := w.Sync(); err != nil {
		t.Fatal(err)
	}
	s := w.Reader().Scan(500, nil)
	n := 0
	for {
		_, _, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 6 {
		t.Fatal(n)
	}
	in, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	in2, err := Adopt(fs, "x", o)
	if err != nil || in != in2 {
		t.Fatal(err, in, in2)
	}
	f, _ := fs.Open("x/" + SealedName(10))
	rep, err := Verify("x", f, in.Bytes, true)
	if err != nil || rep.Err() != nil || rep.Info != in {
		t.Fatal(err, rep)
	}
}
