package upload_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/sealed"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
	"github.com/tidemark-mq/tidemark/tier/upload"
)

// chains loads and fences each chain once.
type chains struct {
	store objstore.Store
	mu    sync.Mutex
	known map[broker.PartitionID]*upload.Bound
}

func (c *chains) Chain(ctx context.Context, pid broker.PartitionID) (upload.Chain, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.known[pid]; b != nil {
		return b, nil
	}
	owner := manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: 7, Node: "n1"}
	chain, err := manifest.Load(ctx, c.store, pid, 0, manifest.WithRetry(3, time.Millisecond))
	if err != nil {
		return nil, err
	}
	if _, err := chain.Fence(ctx, owner, manifest.FenceParams{}); err != nil {
		return nil, err
	}
	c.known[pid] = &upload.Bound{Chain: chain, Owner: owner}
	return c.known[pid], nil
}

// The way of records into the archive and back, with a store that fails, loses
// answers, cuts, tears and flips at random: everything comes back byte for
// byte and once, and the archive verifies (B202, B212).
func TestJourney(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { journey(t, seed) })
	}
}

func journey(t *testing.T, seed uint64) {
	t.Helper()
	ctx := context.Background()
	fs, plain := vfs.NewMem(), mem.New("journey", nil)
	st := fault.New(plain, fault.Options{Seed: seed})
	for _, r := range []fault.Rule{
		{Ops: []string{fault.Put}, Do: fault.Fail, Chance: 0.1},
		{Ops: []string{fault.Put}, Do: fault.LoseAnswer, Chance: 0.1},
		{Ops: []string{fault.Put}, Do: fault.Cut, Chance: 0.05},
		{Ops: []string{fault.Get, fault.GetRange}, Do: fault.Fail, Chance: 0.1},
		{Ops: []string{fault.Get, fault.GetRange}, Do: fault.Cut, Chance: 0.05},
		{Ops: []string{fault.GetRange}, Do: fault.Tear, Chance: 0.05},
		{Ops: []string{fault.Get, fault.GetRange}, Do: fault.Flip, Chance: 0.05},
	} {
		st.Add(r)
	}
	u, err := upload.New(upload.Config{FS: fs, Store: st, Chains: &chains{store: st, known: map[broker.PartitionID]*upload.Bound{}},
		Hooks: upload.Hooks{Missed: func(pid broker.PartitionID) { t.Errorf("%s asked for", pid) }}, Backoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[broker.PartitionID][]byte)
	for p := range uint32(3) {
		pid := broker.PartitionID{Topic: 5, Partition: p}
		for i := range int64(12) {
			s, data := fileOf(t, fs, pid, 20*i, 20)
			want[pid] = append(want[pid], data...)
			if err := u.Enqueue(pid, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	drain, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := u.Close(drain); err != nil {
		t.Fatal(err)
	}
	c, err := cold.New(cold.Config{FS: fs, Dir: "cache", Store: st})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	for pid, data := range want {
		if got := readAll(t, c, plain, pid); !bytes.Equal(got, data) {
			t.Errorf("partition %s: %d bytes came back, want %d", pid, len(got), len(data))
		}
	}
	sum, err := bucket.Verify(ctx, plain, bucket.Options{Deep: true}, func(f bucket.Finding) {
		if !f.What.Note() {
			t.Error(f)
		}
	})
	if err != nil || sum.Segments.Segments != 36 {
		t.Errorf("%+v: %v", sum, err)
	}
}

// readAll reads a partition from its start to its end, through failures.
func readAll(t *testing.T, c *cold.Cache, st objstore.Store, pid broker.PartitionID) []byte {
	t.Helper()
	ctx := context.Background()
	chain, err := manifest.Load(ctx, st, pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	failures := 0
	for at := chain.Start(); at < chain.End(); {
		l, err := chain.Find(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Open(ctx, l.Segment)
		for b := (*cold.Batches)(nil); err == nil; {
			if b == nil {
				b = r.Batches(at)
				defer b.Close()
			}
			var raw []byte
			var h segment.BatchHeader
			if raw, h, err = b.Next(ctx); err == nil {
				out = append(out, raw...)
				at = h.NextOffset()
			}
		}
		if err != io.EOF {
			if failures++; failures > 1000 {
				t.Fatalf("at offset %d: %v", at, err)
			}
		}
	}
	return out
}

// fileOf writes a segment and returns it with its data.
func fileOf(t *testing.T, fs vfs.FS, pid broker.PartitionID, base, n int64) (upload.Sealed, []byte) {
	t.Helper()
	var (
		batches []sealed.Batch
		data    []byte
	)
	for o := base; o < base+n; o++ {
		b := sealed.Batch{
			Records: []broker.Record{{Offset: o, Timestamp: o, Value: bytes.Repeat([]byte{byte(o)}, int(1+o%100)*1000)}},
			Options: segment.BatchOptions{Generation: 1}, First: 1 + o, Last: 1 + o,
		}
		batches = append(batches, b)
		encoded, err := segment.AppendBatch(nil, b.Records, b.Options)
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, encoded...)
	}
	path, info := sealed.File(t, fs, "data/"+strings.ReplaceAll(pid.String(), "/", "-"), pid, base, batches...)
	return upload.Sealed{Path: path, Info: info}, data
}
