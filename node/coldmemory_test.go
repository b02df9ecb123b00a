package node

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/file"
)

// residentBound is what a replay may add to the process's memory, whatever its
// length: a window of 64 MiB, downloads on their way to disk, a run, and what the
// collector has not taken yet.
const residentBound = 256 << 20

// bigArchive fills a store with a chain of segments of 32 MiB, together size
// bytes, and returns the end of its offsets.
func bigArchive(t *testing.T, st objstore.Store, id broker.PartitionID, size int64) int64 {
	t.Helper()
	ctx := context.Background()
	owner := manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: 1, Node: "node-1"}
	chain, err := manifest.Load(ctx, st, id, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chain.Fence(ctx, owner, manifest.FenceParams{}); err != nil {
		t.Fatal(err)
	}
	const perBatch = 64
	recs := make([]broker.Record, perBatch)
	noise := rand.NewChaCha8([32]byte{7})
	for i := range recs {
		value := make([]byte, 4<<10)
		_, _ = noise.Read(value[:2<<10]) // the other half compresses
		recs[i] = broker.Record{Offset: int64(i), Timestamp: 1, Value: value}
	}
	batch, err := segment.AppendBatch(nil, recs, segment.BatchOptions{Codec: segment.CodecZstd, Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	fs := vfs.NewMem()
	next := int64(0)
	for done := int64(0); done < size; {
		w, err := segment.Create(fs, "", segment.Options{Topic: id.Topic, Partition: id.Partition, Base: next})
		if err != nil {
			t.Fatal(err)
		}
		for range (32 << 20) / len(batch) {
			segment.Stamp(batch, next, 1)
			if err := w.Append(batch, 1, 1); err != nil {
				t.Fatal(err)
			}
			next += perBatch
		}
		in, err := w.Seal()
		if err != nil {
			t.Fatal(err)
		}
		seg := manifest.Segment{
			Partition: id, Base: in.Base, Next: in.Next, Records: in.Records, Bytes: in.Bytes,
			MinTimestamp: in.MinTimestamp, MaxTimestamp: in.MaxTimestamp, MinAppend: in.MinAppend, MaxAppend: in.MaxAppend,
			FirstGeneration: in.FirstGeneration, LastGeneration: in.LastGeneration, Generation: 1,
			DataSHA256: in.DataSHA256, DataLength: in.DataLength,
			FooterPosition: in.FooterPosition, FooterLength: in.FooterLength, OriginTopic: id.Topic,
		}
		f, err := fs.Open(w.Path())
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Put(ctx, seg.Key(), io.NewSectionReader(f, 0, seg.Bytes), seg.Bytes, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := chain.Add(ctx, owner, seg); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := fs.Remove(w.Path()); err != nil {
			t.Fatal(err)
		}
		done += seg.Bytes
	}
	return next
}

// resident is the process's anonymous memory in bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "RssAnon:")
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 {
		t.Fatalf("no RssAnon in %.200q", b)
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// A replay of much more than memory and cache hold does not make the process
// grow: not beyond the bound, and not from the first quarter to the last (I12).
// TIDEMARK_REPLAY_GIB sets its length; 1 GiB by default, an eighth in short runs.
func TestReplayKeepsItsMemory(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() {
		size = 128 << 20
	}
	if v := os.Getenv("TIDEMARK_REPLAY_GIB"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		size = n << 30
	}
	st, err := file.Open(t.TempDir(), file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	id := broker.PartitionID{Topic: 0xb16, Partition: 0}
	end := bigArchive(t, st, id, size)
	cache, err := cold.New(cold.Config{FS: vfs.Default, Dir: t.TempDir(), Store: st, MaxBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	r := newColdReader(&chains{store: st, most: chainMemory, hint: func(broker.PartitionID) uint64 { return 0 }, m: make(map[broker.PartitionID]*chainSlot)}, cache, time.Now)
	// What other tests of this process left alive would let garbage grow to its
	// own size before it is collected, and look like growth.
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	debug.FreeOSMemory()
	before := resident(t)
	var scratch segment.Scratch
	var recs []broker.Record
	var peaks [4]int64
	for next := int64(0); next < end; {
		run, release, err := r.Read(context.Background(), id, next, readChunk, end)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range run {
			if recs, err = segment.DecodeBatch(recs[:0], b, &scratch); err != nil {
				t.Fatal(err)
			}
			if recs[0].Offset != next {
				t.Fatalf("offset %d, want %d", recs[0].Offset, next)
			}
			next += int64(len(recs))
		}
		release()
		q := min(3, 4*next/end)
		peaks[q] = max(peaks[q], resident(t)-before)
	}
	t.Logf("replayed %d MiB; growth by quarter: %d, %d, %d, %d MiB", size>>20, peaks[0]>>20, peaks[1]>>20, peaks[2]>>20, peaks[3]>>20)
	for q, n := range peaks {
		if n > residentBound {
			t.Errorf("%d MiB more memory in quarter %d, the bound is %d", n>>20, q+1, residentBound>>20)
		}
	}
	if peaks[3] > max(peaks[0], peaks[1])+64<<20 {
		t.Errorf("memory grows with the length of the replay: %d bytes in the first half, %d at the end", max(peaks[0], peaks[1]), peaks[3])
	}
	r.close()
	if err := cache.Close(); err != nil {
		t.Fatal(err)
	}
}
