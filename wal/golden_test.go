package wal

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var writeGolden = flag.Bool("write-golden", false, "write testdata files that do not exist yet")

// A file of format version 1, written once, decodes for ever: header, two
// groups of user frames and a mark.
func TestGoldenVersion1(t *testing.T) {
	path := filepath.Join("testdata", "v1.wal")
	if _, err := os.Stat(path); os.IsNotExist(err) && *writeGolden {
		if err := os.WriteFile(path, goldenBytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := parseFileHeader(b)
	if err != nil || h != (fileHeader{Incarnation: testIncarnation, First: 1000, Salt: 0xa1b2c3d4e5f60718, CreatedMs: 1700000000123}) {
		t.Fatalf("header %+v, %v", h, err)
	}
	fs := vfs.NewMem()
	_ = fs.MkdirAll("wal", 0o755)
	overwrite(t, fs, fileName(1000), b)
	l := mustOpen(t, testOptions(fs))
	wantFrames(t, l.replayed, []entry{
		{1000, KindCommit, []byte("first")},
		{1001, KindIngress, nil},
		{1002, KindGroup, bytes.Repeat([]byte("long "), 1000)},
		{1003, KindMark, []byte{0, 0, 1, 0x8b, 0xcf, 0xe5, 0x6c, 0x00, 0, 0, 0, 0, 0, 0, 3, 0xe8}},
	})
	if l.info.Durable != 1002 || l.info.Rewritten != 1 {
		t.Fatalf("%+v", l.info)
	}
	// What this build writes is the same, byte for byte.
	if want := goldenBytes(); !bytes.Equal(b, want) {
		t.Fatal("the encoder has changed: a new version needs a new number and a new file")
	}
	mustClose(t, l)
}

// goldenBytes builds the file with this build's encoders.
func goldenBytes() []byte {
	h := fileHeader{Incarnation: testIncarnation, First: 1000, Salt: 0xa1b2c3d4e5f60718, CreatedMs: 1700000000123}
	out := make([]byte, blockSize)
	h.encode(out)
	mark := make([]byte, markBodySize)
	Mark{TimeMs: 1700000001024, LowWater: 1000}.encode(mark)
	for _, g := range [][]entry{
		{{1000, KindCommit, []byte("first")}, {1001, KindIngress, nil}},
		{{1002, KindGroup, bytes.Repeat([]byte("long "), 1000)}},
		{{1003, KindMark, mark}},
	} {
		b := make([]byte, groupHeaderSize)
		for _, e := range g {
			n := len(e.body)
			b = append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n), byte(e.kind))
			b = append(b, e.body...)
		}
		sealGroup(b, h.Salt, g[0].lsn, uint32(len(g)), g[0].lsn-1)
		out = append(out, append(b, make([]byte, roundUp(int64(len(b)))-int64(len(b)))...)...)
	}
	return out
}
