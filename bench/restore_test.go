package bench

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	restoreRounds  = 7
	restoreRecords = 2 << 20   // of 1 KiB: 2 GiB, in batches that zstd has made about 600 MB before they reach the log
	shippedMost    = 256 << 20 // of one object
)

// BenchmarkRestoreWAL restores a cluster whose records stand in shipped log
// alone, against fetching and decompressing the same objects one after the
// other, in turns, into memory that is new for each object, and into memory that is
// used again. Time counts from the moment when the chains are known, before
// the first object is asked for, to the last record that is written and synced;
// whatever lies between the two is in it. It reports restored/fetched,
// restored/reused, restored/got (memory used again, no decompression), and run/fetched
// for the whole restore, from its first list to the data directory that has its name.
func BenchmarkRestoreWAL(b *testing.B) {
	st := s3Store(b)
	shipOnly(b, st)
	keys := shipped(b, st)
	var fetched, reused, got, whole, rates, fetches, replays, runs series
	var stored, groups []byte // memory that is used again
	for b.Loop() {
		for round := range rounds(restoreRounds) {
			start := time.Now()
			var bytes int64
			for _, key := range keys {
				stored = fetch(b, st, key, stored)
				bytes += int64(len(stored))
			}
			plain := time.Since(start)
			start = time.Now()
			var raw int64
			for _, key := range keys {
				stored = fetch(b, st, key, stored)
				w, err := archive.DecodeWALInto(stored, groups)
				if err != nil {
					b.Fatal(err)
				}
				groups = w.Groups
				raw += int64(len(groups))
			}
			again := time.Since(start)
			start = time.Now()
			for _, key := range keys {
				if _, err := archive.DecodeWAL(fetch(b, st, key, nil)); err != nil {
					b.Fatal(err)
				}
			}
			reference := time.Since(start)
			replay, run := restored(b, st)
			if round == 0 {
				b.Logf("%d objects, %d MB", len(keys), bytes/1e6)
				continue // warms
			}
			fetched.add(reference.Seconds() / replay.Seconds())
			reused.add(again.Seconds() / replay.Seconds())
			got.add(plain.Seconds() / replay.Seconds())
			whole.add(reference.Seconds() / run.Seconds())
			rates.add(float64(raw) / 1e6 / replay.Seconds())
			fetches.add(reference.Seconds() * 1e3)
			replays.add(replay.Seconds() * 1e3)
			runs.add(run.Seconds() * 1e3)
		}
	}
	fetched.report(b, "restored/fetched", true)
	reused.report(b, "restored/reused", true)
	got.report(b, "restored/got", false)
	whole.report(b, "run/fetched", true)
	rates.report(b, "log-MB/s", false)
	fetches.report(b, "fetch-ms", false)
	replays.report(b, "restore-ms", false)
	runs.report(b, "run-ms", false)
}

// restored restores into a new directory, which it removes, and returns how long
// the log took, from its first object to its last record, and the whole.
func restored(b *testing.B, st objstore.Store) (replay, run time.Duration) {
	b.Helper()
	dir := b.TempDir()
	var mu sync.Mutex
	var first, last time.Time
	start := time.Now()
	_, err := restore.Run(b.Context(), restore.Options{
		Store: st, Dir: filepath.Join(dir, "data"), NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true,
		// So late that it does not watch the archive for signs of life, which takes three seconds.
		Now: func() time.Time { return time.Now().Add(48 * time.Hour) },
		Progress: func(stage string, _, _ int64) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.HasPrefix(stage, "shipped WAL"):
				last = time.Now()
			case stage == "chains" && last.IsZero():
				first = time.Now()
			}
		},
	})
	run = time.Since(start)
	if err == nil {
		err = vfs.Default.RemoveAll(dir)
	}
	if err != nil {
		b.Fatal(err)
	}
	return last.Sub(first), run
}

// shipOnly fills the bucket with the log of a node that seals nothing.
func shipOnly(b *testing.B, st objstore.Store) {
	b.Helper()
	n, err := node.Open(b.Context(), node.Options{
		Dir: filepath.Join(b.TempDir(), "data"), NodeID: "node-1", RaftAddr: "127.0.0.1:0", Archive: st,
		SegmentBytes: 1 << 30, SealAge: time.Hour, StateInterval: time.Hour, WALInterval: time.Second, DiskReserve: 1,
	})
	if err != nil {
		b.Fatal(err)
	}
	six := uint32(6)
	if _, err := n.CreateTopic(b.Context(), broker.TopicSpec{Name: "log", Partitions: &six}); err != nil {
		b.Fatal(err)
	}
	src := newTexts(7)
	recs := make([]broker.NewRecord, batchRecords)
	for done := 0; done < sized(restoreRecords); done += len(recs) {
		if done%(16*len(recs)) == 0 {
			src.batch(b)
		}
		for i := range recs {
			recs[i] = broker.NewRecord{Partition: int32(done / len(recs) % 6), Value: src.value[i][:]}
		}
		ack := broker.AckAccepted
		if quarter := sized(restoreRecords) / 4; done/quarter != (done+len(recs))/quarter {
			ack = broker.AckArchived // so that even a short run ships several objects
		}
		if _, err := n.Produce(b.Context(), broker.ProduceRequest{Topic: "log", Records: recs, Ack: ack, Wait: time.Minute}); err != nil {
			b.Fatal(err)
		}
	}
	if err := n.Close(); err != nil {
		b.Fatal(err)
	}
}

// shipped returns the keys of the shipped log, in order.
func shipped(b *testing.B, st objstore.Store) (keys []string) {
	b.Helper()
	for after := ""; ; {
		page, err := st.List(b.Context(), "wal/node-1/", after, 0)
		if err != nil {
			b.Fatal(err)
		}
		for _, o := range page.Objects {
			if filepath.Ext(o.Key) == ".ship" {
				keys = append(keys, o.Key)
			}
			after = o.Key
		}
		if len(page.Objects) == 0 || !page.More {
			break
		}
	}
	if len(keys) < 3 {
		b.Fatalf("%d objects", len(keys))
	}
	return keys
}

func fetch(b *testing.B, st objstore.Store, key string, buf []byte) []byte {
	data, _, err := objstore.ReadInto(context.Background(), st, key, shippedMost, buf)
	if err != nil {
		b.Fatal(err)
	}
	return data
}
