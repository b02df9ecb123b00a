package storetest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Proves the arithmetic of ranges at every edge: whole, first and last byte, one
// byte before and after a border, across the end, at and past the end. B213.
func testRanges(t *testing.T, b *bucket) {
	for _, size := range []int{1, 2, 4096, 4097} {
		key := fmt.Sprintf("r/%d", size)
		data := pattern(uint64(size), size)
		b.put(t, key, data)
		offs := []int{0, 1, size/2 - 1, size / 2, size - 2, size - 1, size, size + 1, size + 5000}
		lens := []int{0, 1, 2, size / 2, size - 1, size, size + 1, size + 5000}
		for _, off := range offs {
			for _, n := range lens {
				if off < 0 || n < 0 {
					continue
				}
				p := bytes.Repeat([]byte{0xee}, n+1)
				got, err := b.GetRange(b.ctx, key, p[:n], int64(off))
				want := data[min(off, size):min(off+n, size)]
				if err != nil || !bytes.Equal(p[:got], want) {
					t.Fatalf("%d bytes at %d of %d: got %d, %v; want %d equal ones", n, off, size, got, err, len(want))
				}
				if p[n] != 0xee {
					t.Fatalf("%d bytes at %d of %d: wrote past the slice", n, off, size)
				}
			}
		}
	}
}

// Proves that a key that is not there is NotFound, however near other keys are.
func testMissing(t *testing.T, b *bucket) {
	b.put(t, "dir/sub/key", []byte("x"))
	for _, key := range []string{"none", "dir", "dir/sub", "dir/sub/ke", "dir/sub/keys", "dir/other/key", "dir/sub/key/below"} {
		_, _, err := b.Get(b.ctx, key)
		wantCode(t, "get "+key, err, errcode.NotFound)
		_, err = b.GetRange(b.ctx, key, make([]byte, 4), 0)
		wantCode(t, "range "+key, err, errcode.NotFound)
		_, err = b.Head(b.ctx, key)
		wantCode(t, "head "+key, err, errcode.NotFound)
	}
}

// Proves that deletes take what is there, mind nothing that is not, leave the
// neighbours, and that a deleted key can be created again.
func testDelete(t *testing.T, b *bucket) {
	const n = 1205 // more than one batch of S3
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("d/%d/k%04d", i%7, i)
	}
	putMany(t, b, keys)
	b.put(t, "d/0/stays", []byte("x"))
	if err := b.Delete(b.ctx, append([]string{"d/none", "none/at/all"}, keys...)); err != nil {
		t.Fatalf("delete: %v", err)
	}
	page, err := b.List(b.ctx, "", "", 0)
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "d/0/stays" {
		t.Fatalf("after the delete: %d objects, %v; want d/0/stays alone", len(page.Objects), err)
	}
	_, _, err = b.Get(b.ctx, keys[0])
	wantCode(t, "get of a deleted key", err, errcode.NotFound)
	if err := b.Delete(b.ctx, keys[:10]); err != nil {
		t.Fatalf("delete again: %v", err)
	}
	if err := b.Delete(b.ctx, nil); err != nil {
		t.Fatalf("delete nothing: %v", err)
	}
	if err := b.Put(b.ctx, keys[0], bytes.NewReader([]byte("new")), 3, objstore.PutOptions{CreateOnly: true}); err != nil {
		t.Fatalf("create after delete: %v", err)
	}
	b.check(t, keys[0], []byte("new"))
}

// Proves that puts, reads, lists and deletes of neighbours at the same time do
// not disturb each other: directories come and go under them. A store may say
// Transient, as one that keeps objects in directories does when it loses such a
// race, but not for ever.
func testConcurrent(t *testing.T, b *bucket) {
	const workers, rounds = 8, 15
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range rounds {
				key := fmt.Sprintf("c/shared/%d/%d/k", r%3, w)
				data := pattern(uint64(w*rounds+r), 200+r)
				err := patiently(func() error {
					return b.Put(ctx, key, bytes.NewReader(data), int64(len(data)), sums(data))
				})
				if err != nil {
					t.Errorf("put %s: %v", key, err)
					return
				}
				got, _, err := objstore.ReadAll(ctx, b, key, 1<<20)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("get %s: %d bytes, %v", key, len(got), err)
					return
				}
				if _, err := b.List(ctx, "c/", "", 5); err != nil {
					t.Errorf("list: %v", err)
					return
				}
				if err := patiently(func() error { return b.Delete(ctx, []string{key}) }); err != nil {
					t.Errorf("delete %s: %v", key, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// patiently repeats a call a few times as long as it says Transient.
func patiently(call func() error) error {
	err := call()
	for try := 0; try < 20 && errcode.Is(err, errcode.Transient); try++ {
		err = call()
	}
	return err
}

// Proves that the store says what it is, and that it can fence.
func testCapabilities(t *testing.T, b *bucket) {
	c := b.Capabilities()
	if c.Kind == "" || c.URL == "" || !c.CreateOnly {
		t.Errorf("capabilities are %+v", c)
	}
}

// putMany puts a small object under every key, several at a time.
func putMany(t *testing.T, b *bucket, keys []string) {
	t.Helper()
	const writers = 16
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < len(keys); i += writers {
				data := []byte(keys[i])
				if err := b.Put(b.ctx, keys[i], bytes.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: true}); err != nil {
					t.Errorf("put %s: %v", keys[i], err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}
