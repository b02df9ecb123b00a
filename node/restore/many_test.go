package restore_test

import (
	"bytes"
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/s3server"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/file"
	"github.com/tidemark-mq/tidemark/tier/objstore/s3"
)

// BenchmarkManyPartitions restores 10,000 partitions of ten segments, each
// published by an entry of its own (T4). "segments" has no record in the log behind
// them and its archive in a directory, "s3" the same in an S3 server on this machine,
// "tails" one record in each, which is a file each. Next to the whole it reports how
// long the chains took that are read before and behind the claim, and the fences.
func BenchmarkManyPartitions(b *testing.B) {
	directory := func(b *testing.B) objstore.Store {
		store, err := file.Open(filepath.Join(b.TempDir(), "archive"), file.Options{})
		if err != nil {
			b.Fatal(err)
		}
		return store
	}
	b.Run("segments", func(b *testing.B) { manyPartitions(b, directory(b), 0) })
	b.Run("s3", func(b *testing.B) {
		srv := s3server.Start(b)
		backend, err := s3.Open(b.Context(), s3.Options{
			Bucket: srv.Bucket, Prefix: "many", Endpoint: srv.Endpoint, Region: srv.Region,
			AccessKeyID: srv.AccessKey, SecretAccessKey: srv.SecretKey,
		})
		if err != nil {
			b.Fatal(err)
		}
		manyPartitions(b, objstore.Stack(backend, objstore.StackOptions{}), 0)
	})
	b.Run("tails", func(b *testing.B) { manyPartitions(b, directory(b), 1) })
}

func manyPartitions(b *testing.B, store objstore.Store, tail int64) {
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	topics, partitions, segments := 10, uint32(1000), 10
	if testing.Short() {
		topics, partitions = 2, 100
	}
	w := newWorld(b, 1)
	wr := w.writer(firstI, 1, 1)
	ids := []broker.PartitionID{}
	for n := range topics {
		topic := raftmeta.DefaultTopic("many-" + string(rune('a'+n)))
		topic.Partitions = partitions
		topic, err := w.meta.CreateTopic(b.Context(), topic)
		if err != nil {
			b.Fatal(err)
		}
		for p := range partitions {
			ids = append(ids, broker.PartitionID{Topic: topic.ID, Partition: p})
		}
	}
	state := archive.State{LSN: 1, ReplayFrom: 1}
	for _, id := range ids {
		wr.base(frame.Base{Partition: id, Generation: 1})
		if tail > 0 {
			wr.records(id, 1, int64(10*segments), int(tail))
		}
		if wr.log.Durable() >= wr.shipped+2000 {
			wr.ship()
		}
		state.Partitions = append(state.Partitions, archive.PartitionState{Topic: id.Topic, Partition: id.Partition, Generation: 1, Doubts: [][3]int64{{1, 2, 3}}})
	}
	wr.ship()
	wr.state(state)
	w.export()
	for _, key := range w.keys("") {
		data := w.get(key)
		if err := store.Put(b.Context(), key, bytes.NewReader(data), int64(len(data)), objstore.PutOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(32)
	for _, id := range ids {
		g.Go(func() error { return publish(ctx, store, id, segments) })
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var mu sync.Mutex
		var chains, fences time.Duration
		o := w.options()
		o.Store = store
		// Without a look for signs of life.
		o.Now = func() time.Time { return time.Now().Add(48 * time.Hour) }
		begin := time.Now()
		stage, at := "", begin
		o.Progress = func(s string, _, _ int64) {
			mu.Lock()
			defer mu.Unlock()
			now := time.Now()
			if s == stage && s == "chains" {
				chains += now.Sub(at)
			} else if s == stage && s == "fences" {
				fences += now.Sub(at)
			}
			stage, at = s, now
		}
		r, err := restore.Run(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		if r.Segments != len(ids)*segments || r.TailRecords != tail*int64(len(ids)) {
			b.Fatalf("%+v", r)
		}
		b.ReportMetric(time.Since(begin).Seconds(), "restore-s")
		b.ReportMetric(chains.Seconds(), "chains-s")
		b.ReportMetric(fences.Seconds(), "fences-s")
	}
}

// publish makes the chain of a partition with n segments of ten records.
func publish(ctx context.Context, store objstore.Store, id broker.PartitionID, n int) error {
	c, err := manifest.Load(ctx, store, id, 0)
	if err != nil {
		return err
	}
	owner := manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: firstI, Node: nodeID}
	if _, err := c.Fence(ctx, owner, manifest.FenceParams{}); err != nil {
		return err
	}
	w := &world{topic: raftmeta.Topic{ID: id.Topic}}
	for k := range int64(n) {
		if err := c.Add(ctx, owner, w.segment(id.Partition, 10*k, 10*k+10)); err != nil {
			return err
		}
	}
	return nil
}
