package merge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/sealed"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/upload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	pid   = broker.PartitionID{Topic: 0xfeed, Partition: 1}
	owner = manifest.Owner{ClusterGeneration: 1, Generation: 3, Incarnation: 0x77, Node: "n1"}
)

// world is an archive with one partition, and the local files of its owner.
type world struct {
	t         testing.TB
	store     objstore.Store // as the merger sees it
	fs        vfs.FS         // as the merger sees it
	real      objstore.Store
	disk      vfs.FS
	chain     *manifest.Chain
	local     map[int64]Copy // by base
	discarded []manifest.Segment
	want      map[int64]string // offset -> value
	next      int64
	nonce     uint32
	limits    Limits
	hindrance string
	reg       *prometheus.Registry // of the newest merger
}

func newWorld(t testing.TB, store, real objstore.Store) *world {
	t.Helper()
	fs := vfs.NewMem()
	w := &world{t: t, store: store, real: real, fs: fs, disk: fs, local: map[int64]Copy{}, want: map[int64]string{}}
	w.load()
	return w
}

// load reads the chain anew, as a restart does.
func (w *world) load() {
	w.t.Helper()
	c, err := manifest.Load(context.Background(), w.store, pid, 0, manifest.WithRetry(2, time.Millisecond), manifest.WithNonces(func() uint64 { w.nonce++; return uint64(w.nonce) }),
		manifest.WithClock(func() time.Time { return time.UnixMilli(1_700_000_000_000) }))
	if err == nil {
		_, err = c.Fence(context.Background(), owner, manifest.FenceParams{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.chain = c
}

// add archives a segment of n records, two a batch, with values of that size.
// The local file stays when keep says so.
func (w *world) add(n, size int, keep bool) manifest.Segment {
	w.t.Helper()
	base := w.next
	var batches []sealed.Batch
	for o := base; o < base+int64(n); o += 2 {
		batches = append(batches, sealed.Batch{
			Records: []broker.Record{w.record(o, size), w.record(o+1, size)},
			Options: segment.BatchOptions{Generation: uint32(1 + min(o/40, 2))}, First: 5000 + o, Last: 5000 + o + 1,
		})
	}
	w.next += int64(n)
	path, in := sealed.File(w.t, w.disk, "data", pid, base, batches...)
	w.nonce++
	x, err := upload.Send(context.Background(), w.disk, w.real, nil, pid, upload.Sealed{Path: path, Info: in}, upload.Attempt{Generation: owner.Generation, Nonce: w.nonce})
	if err == nil {
		err = w.chain.Add(context.Background(), owner, x)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.local[base] = Copy{Path: path, Settled: true}
	if !keep {
		delete(w.local, base)
		if err := w.disk.Remove(path); err != nil {
			w.t.Fatal(err)
		}
	}
	return x
}

func (w *world) record(o int64, size int) broker.Record {
	v := fmt.Sprintf("%d %s", o, strings.Repeat(fmt.Sprint(o%10), size))
	w.want[o] = v
	return broker.Record{Offset: o, Timestamp: 1000 + o*7%50, Value: []byte(v), Key: []byte("k")}
}

// merger returns a merger of the world's partition; change may be nil.
func (w *world) merger(change func(*Options)) *Merger {
	w.t.Helper()
	o := Options{
		FS: w.fs, Dir: "merge", Store: w.store, MinSegments: 4, TargetBytes: 1 << 20, BytesPerSecond: 1 << 30,
		Partitions: func() []broker.PartitionID { return []broker.PartitionID{pid} },
		Chain:      func(broker.PartitionID) Chain { return &Bound{w.chain, owner} },
		Copy: func(_ broker.PartitionID, base, _ int64) Copy {
			if c, ok := w.local[base]; ok {
				return c
			}
			return Copy{Settled: true}
		},
		Limits:    func(broker.PartitionID) Limits { return w.limits },
		Hindrance: func(int64) string { return w.hindrance },
		Discard:   func(_ broker.PartitionID, segs []manifest.Segment) { w.discarded = append(w.discarded, segs...) },
		Nonce:     func() uint32 { w.nonce++; return w.nonce },
	}
	if change != nil {
		change(&o)
	}
	w.reg = prometheus.NewRegistry()
	o.Registerer = w.reg
	m, err := New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// listed returns the segments of the chain as it is in the store now.
func (w *world) listed() []manifest.Segment {
	w.t.Helper()
	c, err := manifest.Load(context.Background(), w.real, pid, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	segs, err := c.Segments(context.Background(), 0, c.End())
	if err != nil {
		w.t.Fatal(err)
	}
	return segs
}

// complete fails unless the archive, read from nothing but the bucket, has every
// record once, in order, from offset start on, in segments that verify.
func (w *world) complete(start int64) []manifest.Segment {
	w.t.Helper()
	segs, next := w.listed(), start
	for i := range segs {
		x := &segs[i]
		data, _, err := objstore.ReadAll(context.Background(), w.real, x.Key(), 8<<20)
		if err != nil {
			w.t.Fatalf("segment %s: %v", x.Key(), err)
		}
		r := strings.NewReader(string(data))
		report, err := segment.Verify(x.Key(), r, int64(len(data)), true)
		if err == nil {
			err = report.Err()
		}
		in := report.Info
		if err != nil || in.Base != x.Base || in.Next != x.Next || in.Records != x.Records || manifest.Hash(in.DataSHA256) != x.DataSHA256 || in.Bytes != x.Bytes ||
			in.MinAppend != x.MinAppend || in.MaxAppend != x.MaxAppend || in.MinTimestamp != x.MinTimestamp || in.MaxTimestamp != x.MaxTimestamp ||
			in.FirstGeneration != x.FirstGeneration || in.LastGeneration != x.LastGeneration {
			w.t.Fatalf("segment %s says %+v, its entry %+v: %v", x.Key(), in, x, err)
		}
		for scan := segment.NewScanner(x.Key(), r, 0, x.DataLength, nil); ; {
			b, _, err := scan.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				w.t.Fatal(err)
			}
			recs, err := segment.DecodeBatch(nil, b, nil)
			if err != nil {
				w.t.Fatal(err)
			}
			for _, r := range recs {
				if r.Offset < start {
					continue
				}
				if r.Offset != next || string(r.Value) != w.want[next] {
					w.t.Fatalf("segment %s: offset %d, want %d: %.20q", x.Key(), r.Offset, next, r.Value)
				}
				next++
			}
		}
	}
	if next != w.next {
		w.t.Fatalf("the archive ends at offset %d, want %d", next, w.next)
	}
	return segs
}

// data returns the data part of a segment's object.
func (w *world) data(x manifest.Segment) string {
	w.t.Helper()
	data, _, err := objstore.ReadAll(context.Background(), w.real, x.Key(), 8<<20)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data[:x.DataLength])
}

// spoil puts other bytes in the place of an object.
func spoil(t testing.TB, store objstore.Store, key string, change func([]byte) []byte) {
	t.Helper()
	data, _, err := objstore.ReadAll(context.Background(), store, key, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	data = change(data)
	sum, crc := sha256.Sum256(data), crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	if err := store.Delete(context.Background(), []string{key}); err != nil {
		t.Fatal(err)
	}
	if err := store.Put(context.Background(), key, strings.NewReader(string(data)), int64(len(data)), objstore.PutOptions{CreateOnly: true, SHA256: &sum, CRC32C: &crc}); err != nil {
		t.Fatal(err)
	}
}

func turn(t testing.TB, m *Merger) {
	t.Helper()
	if err := m.Turn(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// count returns a counter of the newest merger, of one reason if there are some.
func (w *world) count(name string, r reason) float64 {
	w.t.Helper()
	all, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == "tidemark_merge_"+name && (r == "" || m.GetLabel()[0].GetValue() == string(r)) {
				return m.GetCounter().GetValue()
			}
		}
	}
	w.t.Fatalf("no metric %s %s", name, r)
	return 0
}
