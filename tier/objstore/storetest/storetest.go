package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"io"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// patience bounds one test of the suite.
const patience = 3 * time.Minute

// Open returns an empty store that nobody else uses.
type Open func(t *testing.T) objstore.Store

// Run runs the whole suite: the big object alone, because it looks at what the
// process allocates, the rest in parallel.
func Run(t *testing.T, open Open) {
	t.Run("BigObject", func(t *testing.T) { runOne(t, open, testBigObject) })
	for _, c := range []struct {
		name string
		run  func(*testing.T, *bucket)
	}{
		{"PutGet", testPutGet},
		{"Overwrite", testOverwrite},
		{"EmptyObject", testEmptyObject},
		{"BodyChecks", testBodyChecks},
		{"CreateOnlyRace", testCreateOnlyRace},
		{"ReadAfterWrite", testReadAfterWrite},
		{"BadArguments", testBadArguments},
		{"Cancel", testCancel},
		{"Ranges", testRanges},
		{"Missing", testMissing},
		{"Delete", testDelete},
		{"Concurrent", testConcurrent},
		{"ListEdges", testListEdges},
		{"ListOrder", testListOrder},
		{"ListPages", testListPages},
		{"Capabilities", testCapabilities},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			runOne(t, open, c.run)
		})
	}
}

func runOne(t *testing.T, open Open, run func(*testing.T, *bucket)) {
	store := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(func() {
		cancel()
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	run(t, &bucket{Store: store, ctx: ctx})
}

// bucket is a store with the short words of the tests.
type bucket struct {
	objstore.Store
	ctx context.Context
}

func (b *bucket) put(t *testing.T, key string, data []byte) {
	t.Helper()
	if err := b.Put(b.ctx, key, bytes.NewReader(data), int64(len(data)), sums(data)); err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
}

// check fails the test unless key holds exactly data, by every way of reading.
func (b *bucket) check(t *testing.T, key string, data []byte) {
	t.Helper()
	body, info, err := b.Get(b.ctx, key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("get %s: %d bytes, %v; want the %d that were put", key, len(got), err, len(data))
	}
	checkInfo(t, info, key, int64(len(data)))
	head, err := b.Head(b.ctx, key)
	if err != nil {
		t.Fatalf("head %s: %v", key, err)
	}
	checkInfo(t, head, key, int64(len(data)))
}

func checkInfo(t *testing.T, info objstore.Info, key string, size int64) {
	t.Helper()
	if info.Key != key || info.Size != size {
		t.Fatalf("info is %+v; want key %s, size %d", info, key, size)
	}
	if d := time.Since(info.Modified); d < -time.Minute || d > time.Hour {
		t.Fatalf("%s was modified at %v, %v ago", key, info.Modified, d)
	}
}

// wantCode fails the test unless err carries code.
func wantCode(t *testing.T, what string, err error, code errcode.Code) {
	t.Helper()
	if !errcode.Is(err, code) {
		t.Fatalf("%s: error %v (code %v); want code %v", what, err, errcode.Of(err), code)
	}
}

// sums returns create-anything options with both checksums of data.
func sums(data []byte) objstore.PutOptions {
	sha := sha256.Sum256(data)
	crc := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return objstore.PutOptions{SHA256: &sha, CRC32C: &crc}
}

// pattern returns n bytes that differ from position to position and by seed.
func pattern(seed uint64, n int) []byte {
	p := make([]byte, n)
	fill(p, seed, 0)
	return p
}

// fill writes the bytes of the endless pattern seed from position off, a word of
// eight at a time where it can: under the race detector each write counts.
func fill(p []byte, seed uint64, off int64) {
	for pos := uint64(off); len(p) > 0; {
		word := (pos>>3 + seed) * 0x9e3779b97f4a7c15
		word ^= word >> 29
		word *= 0xbf58476d1ce4e5b9
		if pos&7 == 0 && len(p) >= 8 {
			binary.LittleEndian.PutUint64(p, word)
			p, pos = p[8:], pos+8
			continue
		}
		p[0] = byte(word >> (8 * (pos & 7)))
		p, pos = p[1:], pos+1
	}
}

// endless reads size bytes of a pattern without holding them.
type endless struct {
	seed      uint64
	size, off int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.off >= e.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), e.size-e.off))
	fill(p[:n], e.seed, e.off)
	e.off += int64(n)
	return n, nil
}

func (e *endless) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += e.off
	case io.SeekEnd:
		off += e.size
	}
	if off < 0 {
		return e.off, errcode.New(errcode.InvalidArgument, "seek to %d", off)
	}
	e.off = off
	return off, nil
}
