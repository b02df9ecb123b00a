package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Proves that what was put comes back byte for byte, at sizes around the borders
// of buffers, and under keys at the border of the alphabet and of the lengths.
func testPutGet(t *testing.T, b *bucket) {
	for i, n := range []int{1, 2, 511, 4096, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1<<20 + 1} {
		key := fmt.Sprintf("sizes/%d", n)
		data := pattern(uint64(i), n)
		b.put(t, key, data)
		b.check(t, key, data)
	}
	long := strings.Repeat(strings.Repeat("x", objstore.MaxComponentBytes-1)+"/", 3) + strings.Repeat("y", objstore.MaxComponentBytes)
	for i, key := range []string{
		"a", "0", "-", "_", "...", "..a", "a..", ".a", "--/-/-", "FENCE", "A-Z", "z/.hidden", "a.b/c_d-e/f.ship", long,
	} {
		data := pattern(uint64(i), 100+i)
		b.put(t, key, data)
		b.check(t, key, data)
	}
}

// Proves that a put without CreateOnly replaces the object at once and whole.
func testOverwrite(t *testing.T, b *bucket) {
	for i := range 5 {
		data := pattern(uint64(i), 10_000-1_000*i)
		b.put(t, "k", data)
		b.check(t, "k", data)
	}
}

// Proves that an object of no bytes is an object: read, ranged, listed.
func testEmptyObject(t *testing.T, b *bucket) {
	b.put(t, "empty", nil)
	b.check(t, "empty", nil)
	p := make([]byte, 8)
	for _, off := range []int64{0, 1, 100} {
		if n, err := b.GetRange(b.ctx, "empty", p, off); n != 0 || err != nil {
			t.Errorf("range at %d of an empty object: %d, %v; want 0, nil", off, n, err)
		}
	}
	page, err := b.List(b.ctx, "", "", 0)
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Size != 0 {
		t.Errorf("list: %+v, %v; want the empty object", page, err)
	}
}

// Proves that a body which is not what the caller said is refused and leaves no
// object: wrong sums, wrong length, an error while reading.
func testBodyChecks(t *testing.T, b *bucket) {
	data := pattern(1, 5000)
	put := func(key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
		opts.CreateOnly = true
		return b.Put(b.ctx, key, body, size, opts)
	}
	other := sums(pattern(2, 5000))
	wantCode(t, "wrong sha", put("sha", bytes.NewReader(data), 5000, objstore.PutOptions{SHA256: other.SHA256}), errcode.Corrupt)
	wantCode(t, "wrong crc", put("crc", bytes.NewReader(data), 5000, objstore.PutOptions{CRC32C: other.CRC32C}), errcode.Corrupt)
	wantCode(t, "wrong both", put("both", bytes.NewReader(data), 5000, other), errcode.Corrupt)
	wantCode(t, "short body", put("short", bytes.NewReader(data[:4999]), 5000, objstore.PutOptions{}), errcode.InvalidArgument)
	wantCode(t, "long body", put("long", bytes.NewReader(data), 4999, objstore.PutOptions{}), errcode.InvalidArgument)
	wantCode(t, "negative size", put("negative", bytes.NewReader(nil), -1, objstore.PutOptions{}), errcode.InvalidArgument)
	if err := put("broken", &brokenBody{Reader: bytes.NewReader(data), after: 3000}, 5000, objstore.PutOptions{}); err == nil {
		t.Error("a body whose read fails was stored")
	}
	page, err := b.List(b.ctx, "", "", 0)
	if err != nil || len(page.Objects) != 0 {
		t.Errorf("after refused puts the list is %+v, %v; want nothing", page, err)
	}
	// The position that a caller left its body at does not matter.
	body := bytes.NewReader(data)
	if _, err := io.CopyN(io.Discard, body, 1234); err != nil {
		t.Fatal(err)
	}
	if err := put("rewound", body, 5000, sums(data)); err != nil {
		t.Fatalf("body not at its start: %v", err)
	}
	b.check(t, "rewound", data)
}

// brokenBody fails once more than after bytes were read.
type brokenBody struct {
	*bytes.Reader
	after int64
}

func (r *brokenBody) Read(p []byte) (int, error) {
	if r.Size()-int64(r.Len()) >= r.after {
		return 0, os.ErrDeadlineExceeded
	}
	return r.Reader.Read(p[:min(len(p), 1000)])
}

// WriteTo hides bytes.Reader's, which would go around Read.
func (r *brokenBody) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{r})
}

// Proves that of many create-only writers exactly one wins, every loser is told
// Exists, and the winner's bytes stay. Fencing rests on this alone.
func testCreateOnlyRace(t *testing.T, b *bucket) {
	const writers, keys = 16, 12
	for k := range keys {
		key := fmt.Sprintf("race/%d/FENCE", k)
		errs := make([]error, writers)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				data := pattern(uint64(w), 1000+w)
				opts := sums(data)
				opts.CreateOnly = true
				<-start
				errs[w] = b.Put(b.ctx, key, bytes.NewReader(data), int64(len(data)), opts)
			})
		}
		close(start)
		wg.Wait()
		winner := -1
		for w, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("%s: writers %d and %d both created it", key, winner, w)
			case err == nil:
				winner = w
			default:
				wantCode(t, "loser", err, errcode.Exists)
			}
		}
		if winner < 0 {
			t.Fatalf("%s: nobody won", key)
		}
		data := pattern(uint64(winner), 1000+winner)
		b.check(t, key, data)
		err := b.Put(b.ctx, key, bytes.NewReader([]byte("later")), 5, objstore.PutOptions{CreateOnly: true})
		wantCode(t, "late writer", err, errcode.Exists)
		b.check(t, key, data)
	}
}

// Proves that an object is seen by every way of reading as soon as Put returns,
// also when its absence was seen just before (negative caching).
func testReadAfterWrite(t *testing.T, b *bucket) {
	for i := range 20 {
		key := fmt.Sprintf("raw/%02d", i)
		_, _, err := b.Get(b.ctx, key)
		wantCode(t, "before", err, errcode.NotFound)
		data := pattern(uint64(i), 64)
		b.put(t, key, data)
		b.check(t, key, data)
		page, err := b.List(b.ctx, "raw/", "", 0)
		if err != nil || len(page.Objects) != i+1 || page.Objects[i].Key != key {
			t.Fatalf("list after put %d: %d objects, %v", i, len(page.Objects), err)
		}
	}
}

// Proves that 70 MiB go through, create-only, without being held in memory.
func testBigObject(t *testing.T, b *bucket) {
	const size = 70 << 20
	sha := sha256.New()
	if _, err := io.Copy(sha, &endless{seed: 9, size: size}); err != nil {
		t.Fatal(err)
	}
	opts := objstore.PutOptions{CreateOnly: true, SHA256: (*[32]byte)(sha.Sum(nil))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := b.Put(b.ctx, "big/object", &endless{seed: 9, size: size}, size, opts); err != nil {
		t.Fatalf("put: %v", err)
	}
	body, info, err := b.Get(b.ctx, "big/object")
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	defer body.Close()
	got := sha256.New()
	if n, err := io.Copy(got, body); err != nil || n != size || info.Size != size {
		t.Fatalf("read %d bytes, %v, info %+v; want %d", n, err, info, size)
	}
	if !bytes.Equal(got.Sum(nil), opts.SHA256[:]) {
		t.Fatal("the bytes differ")
	}
	runtime.ReadMemStats(&after)
	// The counter covers the whole process, a server in it included; what is
	// allowed is still far below one copy.
	if used := after.TotalAlloc - before.TotalAlloc; used > size/2 && b.Capabilities().Kind != "mem" {
		t.Errorf("%d MiB were allocated on the way of a %d MiB object", used>>20, size>>20)
	}
	p, want := make([]byte, 1<<20), make([]byte, 1<<20)
	for _, off := range []int64{0, 16<<20 - 5, size - 1<<20, size - 7} {
		n, err := b.GetRange(b.ctx, "big/object", p, off)
		fill(want, 9, off)
		wantN := int(min(1<<20, size-off))
		if err != nil || n != wantN || !bytes.Equal(p[:n], want[:wantN]) {
			t.Fatalf("range at %d: %d bytes, %v; want %d equal ones", off, n, err, wantN)
		}
	}
	err = b.Put(b.ctx, "big/object", &endless{seed: 1, size: size}, size, objstore.PutOptions{CreateOnly: true})
	wantCode(t, "second create", err, errcode.Exists)
}

// Proves that keys outside the alphabet never reach the store, whatever the call.
func testBadArguments(t *testing.T, b *bucket) {
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/./b", "a b", "a:b", "a\x00b", "ä", "a\\b", "~tmp/x", "a%2fb", "a?b", "a#b", "a\nb",
		strings.Repeat("x", objstore.MaxComponentBytes+1), strings.Repeat("x/", objstore.MaxKeyBytes/2) + "x",
	} {
		wantCode(t, "put "+key, b.Put(b.ctx, key, bytes.NewReader(nil), 0, objstore.PutOptions{}), errcode.InvalidArgument)
		_, _, err := b.Get(b.ctx, key)
		wantCode(t, "get "+key, err, errcode.InvalidArgument)
		_, err = b.GetRange(b.ctx, key, make([]byte, 1), 0)
		wantCode(t, "range "+key, err, errcode.InvalidArgument)
		_, err = b.Head(b.ctx, key)
		wantCode(t, "head "+key, err, errcode.InvalidArgument)
		wantCode(t, "delete "+key, b.Delete(b.ctx, []string{"ok", key}), errcode.InvalidArgument)
	}
	for _, prefix := range []string{"/", "a//", "../", "a/../", "a b", "~"} {
		_, err := b.List(b.ctx, prefix, "", 0)
		wantCode(t, "list "+prefix, err, errcode.InvalidArgument)
	}
	_, err := b.List(b.ctx, "", "", -1)
	wantCode(t, "list -1", err, errcode.InvalidArgument)
	b.put(t, "k", []byte("x"))
	_, err = b.GetRange(b.ctx, "k", make([]byte, 1), -1)
	wantCode(t, "range at -1", err, errcode.InvalidArgument)
}

// Proves that a call whose context is over ends with Canceled, before it began or
// in the middle of a body, and that a put which was cut off leaves no part of an
// object.
func testCancel(t *testing.T, b *bucket) {
	data := pattern(3, 1<<20)
	b.put(t, "there", data)
	done, cancel := context.WithCancel(b.ctx)
	cancel()
	past, stop := context.WithDeadline(b.ctx, time.Now().Add(-time.Second))
	defer stop()
	for _, ctx := range []context.Context{done, past} {
		wantCode(t, "put", b.Put(ctx, "new", bytes.NewReader(data), int64(len(data)), objstore.PutOptions{}), errcode.Canceled)
		_, _, err := b.Get(ctx, "there")
		wantCode(t, "get", err, errcode.Canceled)
		_, err = b.GetRange(ctx, "there", make([]byte, 10), 0)
		wantCode(t, "range", err, errcode.Canceled)
		_, err = b.Head(ctx, "there")
		wantCode(t, "head", err, errcode.Canceled)
		_, err = b.List(ctx, "", "", 0)
		wantCode(t, "list", err, errcode.Canceled)
		wantCode(t, "delete", b.Delete(ctx, []string{"there"}), errcode.Canceled)
	}

	ctx, cancel := context.WithCancel(b.ctx)
	body, _, err := b.Get(ctx, "there")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err = io.Copy(io.Discard, body)
	wantCode(t, "body", err, errcode.Canceled)

	for name, opts := range map[string]objstore.PutOptions{
		"plain": {}, "sha": {SHA256: new([32]byte)}, "crc": {CRC32C: new(uint32)},
	} {
		cutPut(t, b, name, opts)
	}
	b.check(t, "there", data)
}

// cutPut ends a put's context in the middle of its body.
func cutPut(t *testing.T, b *bucket, name string, opts objstore.PutOptions) {
	t.Helper()
	const size = 20 << 20
	whole := make([]byte, size)
	fill(whole, 0, 0)
	known := sums(whole)
	if opts.SHA256 != nil {
		opts.SHA256 = known.SHA256
	}
	if opts.CRC32C != nil {
		opts.CRC32C = known.CRC32C
	}
	opts.CreateOnly = true
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	key := "cut/" + name
	err := b.Put(ctx, key, &cancelBody{endless: endless{size: size}, cancel: cancel}, size, opts)
	wantCode(t, "put that was cut", err, errcode.Canceled)
	// The last bytes may have been on their way already: then the object is there,
	// whole. What must not be is a part of it.
	got, _, err := objstore.ReadAll(b.ctx, b, key, size)
	if err == nil {
		if !bytes.Equal(got, whole) {
			t.Fatalf("%s: a put that was cut left %d bytes of %d", name, len(got), size)
		}
	} else {
		wantCode(t, "object that was cut", err, errcode.NotFound)
	}
}

// cancelBody ends its context once half of it was read.
type cancelBody struct {
	endless
	cancel context.CancelFunc
}

func (c *cancelBody) Read(p []byte) (int, error) {
	if c.off > c.size/2 {
		c.cancel()
	}
	return c.endless.Read(p[:min(len(p), 64<<10)])
}
