package cold

import (
	"context"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/file"
)

// Sequential reads of one segment of 64 MiB: plain range requests of 4 MiB,
// cold with every byte downloaded, and from chunk files.
func BenchmarkScan(b *testing.B) {
	st, err := file.Open(b.TempDir(), file.Options{})
	if err != nil {
		b.Fatal(err)
	}
	seg, data := archived(b, st, 0, repeat(250, 256<<10)...)
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			buf := make([]byte, 4<<20)
			for at := int64(0); at < int64(len(data)); at += int64(len(buf)) {
				if _, err := st.GetRange(context.Background(), seg.Key(), buf, at); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("cold", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		c := open(b, vfs.Default, st, func(c *Config) { c.Dir = b.TempDir(); c.MaxBytes = 1 })
		b.ReportAllocs()
		for b.Loop() {
			through(b, c, seg)
		}
	})
	b.Run("kept", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		c := open(b, vfs.Default, st, func(c *Config) { c.Dir = b.TempDir() })
		if _, err := scan(b, c, seg, 0); err != nil {
			b.Fatal(err)
		}
		settle(b, c)
		b.ReportAllocs()
		for b.Loop() {
			through(b, c, seg)
		}
	})
}

// through reads a segment and keeps nothing.
func through(b *testing.B, c *Cache, seg manifest.Segment) {
	ctx := context.Background()
	r, err := c.Open(ctx, seg)
	if err != nil {
		b.Fatal(err)
	}
	s := r.Batches(0)
	defer s.Close()
	for {
		if _, _, err := s.Next(ctx); err == io.EOF {
			return
		} else if err != nil {
			b.Fatal(err)
		}
	}
}
