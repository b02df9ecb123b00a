package cold

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/sealed"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

var pid = broker.PartitionID{Topic: 0xfeed, Partition: 1}

// archived puts a segment into the store, one record of each size a batch, and
// returns what the chain would say and the object's bytes. A size of -1 leaves
// an offset out.
func archived(t testing.TB, st objstore.Store, base int64, sizes ...int) (manifest.Segment, []byte) {
	t.Helper()
	rnd := rand.NewChaCha8([32]byte{1})
	var batches []sealed.Batch
	for i, n := range sizes {
		if n < 0 {
			continue
		}
		value := make([]byte, n)
		_, _ = rnd.Read(value)
		o := base + int64(i)
		batches = append(batches, sealed.Batch{
			Records: []broker.Record{{Offset: o, Timestamp: o, Value: value}},
			Options: segment.BatchOptions{Generation: 2}, First: 1, Last: 1,
		})
	}
	seg, data := sealed.Object(t, pid, base, 2, 7, batches...)
	if st != nil {
		if err := st.Put(context.Background(), seg.Key(), bytes.NewReader(data), int64(len(data)), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return seg, data
}

// store counts range requests; its hook may change or replace an answer.
type store struct {
	objstore.Store
	mu    sync.Mutex
	calls []call
	hook  func(ctx context.Context, n int, p []byte, got int, err error) (int, error) // n counts from 1
}

type call struct {
	off  int64
	size int
}

func newStore() *store { return &store{Store: mem.New("test", nil)} }

func (s *store) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	s.mu.Lock()
	s.calls = append(s.calls, call{off, len(p)})
	n, hook := len(s.calls), s.hook
	s.mu.Unlock()
	got, err := s.Store.GetRange(ctx, key, p, off)
	if hook != nil {
		return hook(ctx, n, p, got, err)
	}
	return got, err
}

func (s *store) gets() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func open(t testing.TB, fs vfs.FS, st objstore.Store, change func(*Config)) *Cache {
	t.Helper()
	cfg := Config{FS: fs, Dir: "cache", Store: st}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// scan reads every batch from an offset on and returns the offsets.
func scan(t testing.TB, c *Cache, seg manifest.Segment, from int64) ([]int64, error) {
	t.Helper()
	r, err := c.Open(context.Background(), seg)
	if err != nil {
		return nil, err
	}
	b := r.Batches(from)
	defer b.Close()
	var out []int64
	for {
		raw, h, err := b.Next(context.Background())
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if _, err := segment.VerifyBatch(raw); err != nil {
			t.Fatalf("a bad batch was served: %v", err)
		}
		out = append(out, h.BaseOffset)
	}
}

// settle waits until the writer has nothing left to do.
func settle(t testing.TB, c *Cache) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		c.mu.Lock()
		n := len(c.mu.flights)
		c.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d downloads have not landed", n)
		}
		time.Sleep(time.Millisecond) // polling with a deadline
	}
}
