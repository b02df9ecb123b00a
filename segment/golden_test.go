package segment

import (
	"bytes"
	"errors"
	"flag"
	iofs "io/fs"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// writeGolden writes golden files that do not exist yet. Existing ones are kept
// for ever: a format that changes gets a new version and a new file.
var writeGolden = flag.Bool("write-golden", false, "write golden files that are missing")

// golden returns the file of that name, which got stands for when it is new.
func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := "testdata/" + name
	if _, err := vfs.Default.Stat(path); errors.Is(err, iofs.ErrNotExist) && *writeGolden {
		writeFile(t, vfs.Default, path, got)
	}
	return readFile(t, vfs.Default, path)
}

var goldenRecords = []broker.Record{
	{Offset: 1000, Timestamp: 1_700_000_000_000, Value: []byte("no key, no headers")},
	{Offset: 1001, Timestamp: 1_700_000_000_500, Key: []byte{}, Value: []byte{}},
	{Offset: 1005, Timestamp: 1_699_999_999_000, Key: []byte("key"), Value: bytes.Repeat([]byte("tide "), 100),
		Headers: []broker.Header{{Name: "tm-attempt", Value: []byte("2")}, {Name: "null"}, {Name: "", Value: []byte{}}}},
}

// Version 1 of the batch format is written and read as it always was. Of the
// compressed one only reading is fixed: encoders get better.
func TestGoldenBatch(t *testing.T) {
	raw := mustBatch(t, goldenRecords, BatchOptions{Generation: 7})
	want := golden(t, "v1.batch", raw)
	if !bytes.Equal(raw, want) {
		t.Fatalf("got\n%x\nwant\n%x", raw, want)
	}
	for _, b := range [][]byte{want, golden(t, "v1-zstd.batch", mustBatch(t, goldenRecords, BatchOptions{Generation: 7, Codec: CodecZstd}))} {
		if h, err := VerifyBatch(b); err != nil || h.Generation != 7 {
			t.Fatalf("%+v %v", h, err)
		}
		got, err := DecodeBatch(nil, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		sameRecords(t, goldenRecords, got)
	}
}

// Version 1 of the segment format is written and read as it always was.
func TestGoldenSegment(t *testing.T) {
	o := Options{Topic: 0x0123456789abcdef, Partition: 5, Base: 1000}
	fs := newFS(t)
	w, err := Create(fs, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	b := mustBatch(t, goldenRecords, BatchOptions{Generation: 7})
	for i := range 3 {
		Stamp(b, 1000+int64(i)*10, uint32(7+i))
		if err := w.Append(b, 1_700_000_001_000+int64(i), 1_700_000_002_000+int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	in, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	raw := readFile(t, fs, w.Path())
	want := golden(t, "v1.seg", raw)
	if !bytes.Equal(raw, want) {
		t.Fatalf("got\n%x\nwant\n%x", raw, want)
	}
	rep, err := Verify("v1.seg", bytes.NewReader(want), int64(len(want)), true)
	if err != nil || rep.Err() != nil || rep.Info != in || rep.Records != 9 || in.Next != 1026 || in.LastGeneration != 9 {
		t.Fatalf("%+v %v", rep, err)
	}
}
