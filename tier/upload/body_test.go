package upload

import (
	"bytes"
	"context"
	"hash/crc32"
	"io"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// A body whose bytes are not the sealed ones never ends well, whether or not
// the store computes checksums: the last bytes are withheld. It reads the same
// again after a rewind, as stores do that send it twice (B199).
func TestBodyChecksItself(t *testing.T) {
	data := bytes.Repeat([]byte("segment "), 1000)
	sum := crc32.Checksum(data, castagnoli)
	for _, flip := range []int{-1, 0, len(data) / 2, len(data) - 1} {
		have := bytes.Clone(data)
		if flip >= 0 {
			have[flip] ^= 0x80
		}
		b := newBody(context.Background(), bytes.NewReader(have), "f.seg", int64(len(have)), sum, nil)
		for range 2 {
			if end, err := b.Seek(0, io.SeekEnd); err != nil || end != int64(len(data)) {
				t.Fatalf("end %d: %v", end, err)
			}
			if _, err := b.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(io.LimitReader(struct{ io.Reader }{b}, 1<<20))
			switch {
			case flip < 0 && (err != nil || !bytes.Equal(got, data)):
				t.Errorf("good body: %d bytes, %v", len(got), err)
			case flip >= 0 && (!errcode.Is(err, errcode.Corrupt) || len(got) >= len(data)):
				t.Errorf("byte %d flipped: %d of %d bytes, %v", flip, len(got), len(data), err)
			}
		}
	}
	short := newBody(context.Background(), bytes.NewReader(data[:100]), "f.seg", int64(len(data)), sum, nil)
	if _, err := io.ReadAll(struct{ io.Reader }{short}); !errcode.Is(err, errcode.Storage) {
		t.Errorf("file that ends early: %v", err)
	}
}
