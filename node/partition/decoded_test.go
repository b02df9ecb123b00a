package partition

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

func encoded(t testing.TB, base int64, values ...string) []byte {
	t.Helper()
	var recs []broker.Record
	for i, v := range values {
		recs = append(recs, broker.Record{Offset: base + int64(i), Timestamp: 1, Value: []byte(v)})
	}
	b, err := segment.AppendBatch(nil, recs, segment.BatchOptions{Generation: 1, Codec: segment.CodecZstd})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Readers that want one batch at once cost one load and one decoding. The one
// that loads may give up: it takes nobody with it, another one loads; one that
// waits may leave.
func TestDecodedOnce(t *testing.T) {
	batch := encoded(t, 0, "a", "b")
	synctest.Test(t, func(t *testing.T) {
		c := newDecodedCache(1 << 20)
		key := decodedKey{base: 0, next: 2}
		first, giveUp := context.WithCancel(context.Background())
		loads := 0
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := c.get(first, key, func() ([]byte, error) {
				loads++
				<-first.Done()
				return nil, first.Err()
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the reader that gave up: %v", err)
			}
		})
		synctest.Wait()
		leaves, leave := context.WithCancel(context.Background())
		wg.Go(func() {
			if _, err := c.get(leaves, key, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("the reader that left: %v", err)
			}
		})
		var good atomic.Int64
		for range 8 {
			wg.Go(func() {
				recs, err := c.get(context.Background(), key, func() ([]byte, error) { loads++; return batch, nil })
				if err != nil || len(recs) != 2 || string(recs[1].Value) != "b" {
					t.Errorf("%d records: %v", len(recs), err)
					return
				}
				good.Add(1)
			})
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		giveUp()
		wg.Wait()
		if loads != 2 || good.Load() != 8 {
			t.Errorf("%d loads, %d readers served; want 2 and 8", loads, good.Load())
		}
	})
}

// What the cache keeps stays below its bound, the batch used last stays, and an
// error is not kept.
func TestDecodedBound(t *testing.T) {
	const limit = 1 << 20
	c := newDecodedCache(limit)
	ctx := context.Background()
	value := strings.Repeat("v", 100_000)
	load := func(base int64) func() ([]byte, error) {
		return func() ([]byte, error) { return encoded(t, base, value), nil }
	}
	for i := range int64(100) {
		if _, err := c.get(ctx, decodedKey{base: i, next: i + 1}, load(i)); err != nil {
			t.Fatal(err)
		}
		if c.size > limit || c.lru.Len() > 10 {
			t.Fatalf("%d bytes of %d batches are kept, the bound is %d", c.size, c.lru.Len(), limit)
		}
	}
	if c.peek(decodedKey{base: 99, next: 100}) == nil || c.peek(decodedKey{base: 0, next: 1}) != nil {
		t.Error("the batch used last went before one used long ago")
	}
	bad := decodedKey{base: 500, next: 501}
	if _, err := c.get(ctx, bad, func() ([]byte, error) { return nil, errcode.New(errcode.ArchiveUnavailable, "no") }); !errcode.Is(err, errcode.ArchiveUnavailable) {
		t.Errorf("a load that fails: %v", err)
	}
	if recs, err := c.get(ctx, bad, load(500)); err != nil || len(recs) != 1 {
		t.Errorf("after a load that failed: %v", err)
	}
}

// Consumers of one archived batch, each reading records of its own, cost one read
// of the archive; what they hold is theirs although the archive's memory is given
// back. A record that is cached costs no allocation, in files and archive alike.
func TestOneReadForManyConsumers(t *testing.T) {
	for _, tier := range []string{"file", "archive"} {
		t.Run(tier, func(t *testing.T) {
			fs := vfs.NewMem()
			archive := newMemArchive()
			r := open(t, fs, func(o *Options) { o.Archive, o.Compress = archive, noCompression })
			r.create(0)
			values, _ := wants(400)
			if _, err := r.produce(0, values...); err != nil {
				t.Fatal(err)
			}
			p := r.engine.Get(pid(0))
			if err := r.engine.Seal(p); err != nil {
				t.Fatal(err)
			}
			r.archiveAll(archive, 0)
			r.checkpoint()
			p.evict(1 << 30)
			want := 0
			if tier == "archive" {
				want = 1
				for _, path := range r.segments(0) {
					if err := fs.Remove(path); err != nil {
						t.Fatal(err)
					}
				}
			}
			var wg sync.WaitGroup
			for k := range 8 {
				wg.Go(func() {
					for i := k; i < len(values); i += 8 {
						rec, err := p.Record(context.Background(), int64(i))
						if err != nil || string(rec.Value) != values[i] {
							t.Errorf("record %d: %.20q %v", i, rec.Value, err)
							return
						}
					}
				})
			}
			wg.Wait()
			if archive.reads != want {
				t.Errorf("%d reads of the archive for one batch, want %d", archive.reads, want)
			}
			ctx := context.Background()
			if n := testing.AllocsPerRun(100, func() {
				if _, err := p.Record(ctx, 7); err != nil {
					t.Error(err)
				}
			}); n > 1 {
				t.Errorf("%.0f allocations for a record that is cached", n)
			}
			r.close()
		})
	}
}

// An archive that changes between the question where a batch stands and its read,
// as a merge does, never makes a record look as if it did not exist.
func TestBatchesChangeUnderARead(t *testing.T) {
	fs := vfs.NewMem()
	archive := newMemArchive()
	r := open(t, fs, func(o *Options) { o.Archive = archive })
	r.create(0)
	values, _ := wants(10)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	p := r.engine.Get(pid(0))
	if err := r.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	r.archiveAll(archive, 0)
	r.checkpoint()
	p.evict(1 << 30)
	for _, path := range r.segments(0) {
		if err := fs.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	var all, one [][]byte
	for i := range values {
		one = append(one, encoded(t, int64(i), values[i]))
	}
	all = append(all, encoded(t, 0, values...))
	archive.parts[p.ID].batches = all
	archive.afterBounds = func() { archive.parts[p.ID].batches = one }
	for i := range values {
		if rec, err := p.Record(context.Background(), int64(i)); err != nil || string(rec.Value) != values[i] {
			t.Errorf("record %d: %q %v", i, rec.Value, err)
		}
	}
	if _, err := p.Record(context.Background(), 10); !errcode.Is(err, errcode.Gone) {
		t.Errorf("a record that is not there: %v", err)
	}
	r.close()
}
