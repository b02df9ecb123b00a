package ship

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
	"github.com/tidemark-mq/tidemark/wal"
)

// Every test of the package must leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testNode        = "n1"
	testIncarnation = 0x77
	testCluster     = "00000000000000c1"
)

var testPID = broker.PartitionID{Topic: 0xabc, Partition: 2}

// bucket is an archive whose calls are counted and may fail. It outlives the
// shippers that use it.
type bucket struct {
	mem   *mem.Store
	fault *fault.Store
	count *count.Store
}

func newBucket() *bucket {
	b := &bucket{mem: mem.New("test", nil)}
	b.fault = fault.New(b.mem, fault.Options{Seed: 1})
	b.count = count.New(b.fault)
	return b
}

// keys lists the bucket behind everybody's back.
func (b *bucket) keys(t testing.TB, prefix string) (out []string) {
	t.Helper()
	after := ""
	for {
		page, err := b.mem.List(context.Background(), prefix, after, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Objects {
			out = append(out, o.Key)
			after = o.Key
		}
		if !page.More {
			return out
		}
	}
}

// content returns every object, for byte-for-byte comparisons.
func (b *bucket) content(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, k := range b.keys(t, "") {
		out[k] = string(b.get(t, k))
	}
	return out
}

func (b *bucket) get(t testing.TB, key string) []byte {
	t.Helper()
	data, _, err := objstore.ReadAll(context.Background(), b.mem, key, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (b *bucket) put(t testing.TB, key string, data []byte) {
	t.Helper()
	if err := put(context.Background(), b.mem, key, data); err != nil {
		t.Fatal(err)
	}
}

func (b *bucket) fence(t testing.TB) {
	t.Helper()
	b.put(t, manifest.WALFenceKey(testNode, testIncarnation), archive.Fence{ClusterGeneration: 2}.Encode())
}

// shippedFrames decodes all shipped objects and fails on a hole or on two
// frames of one LSN. It returns "kind body" by LSN-1.
func (b *bucket) shippedFrames(t testing.TB) (out []string) {
	t.Helper()
	var objects []*archive.WAL
	for _, key := range b.keys(t, manifest.WALPrefix(testNode, testIncarnation)) {
		k, err := manifest.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if k.Kind != manifest.KindWAL {
			continue
		}
		w, err := archive.DecodeWAL(b.get(t, key))
		if err != nil {
			t.Fatal(err)
		}
		if w.First != k.First || w.Next != k.End {
			t.Fatalf("%s holds %d to %d", key, w.First, w.Next)
		}
		objects = append(objects, w)
	}
	sort.SliceStable(objects, func(i, j int) bool { return objects[i].First < objects[j].First })
	for _, w := range objects {
		err := w.Each(func(f wal.Frame) error {
			text := fmt.Sprintf("%s %x", f.Kind, f.Body)
			switch at := int(f.LSN) - 1; {
			case at > len(out):
				t.Fatalf("frames %d to %d are missing", len(out)+1, f.LSN-1)
			case at < len(out) && out[at] != text:
				t.Fatalf("frame %d is there twice and differs", f.LSN)
			case at == len(out):
				out = append(out, text)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// metadata is a Metadata whose index the test sets.
type metadata struct {
	mu      sync.Mutex
	index   uint64
	changed chan struct{}
}

func newMetadata() *metadata { return &metadata{index: 1, changed: make(chan struct{})} }

func (m *metadata) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *metadata) Export() (uint64, []byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index, fmt.Appendf(nil, "export %d", m.index), nil
}

func (m *metadata) change() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index++
	close(m.changed)
	m.changed = make(chan struct{})
	return m.index
}

// states captures the log as it is: also what is staged and not durable yet.
type states struct{ log *wal.Log }

func (s states) Capture() (*archive.State, error) {
	next := s.log.NextLSN()
	return &archive.State{LSN: next - 1, ReplayFrom: next}, nil
}

// rig is one running process: a log and its shipper.
type rig struct {
	t       testing.TB
	bucket  *bucket
	meta    *metadata
	log     *wal.Log
	ship    *Shipper
	opts    Options
	mu      sync.Mutex
	marks   []uint64
	fenced  []error
	stop    func()
	stopped bool
}

func openLog(t testing.TB, fs vfs.FS) *wal.Log {
	t.Helper()
	log, _, err := wal.Open(wal.Options{
		FS: fs, Dir: "wal", Incarnation: testIncarnation, FileSize: 1 << 20, MaxBytes: 1 << 30, PoolFiles: -1,
		AckSyncInterval: 1300 * time.Millisecond,      // marks never coincide with a ship
		Holds:           map[string]uint64{"test": 1}, // nothing is recycled, so the log can be compared with the archive
	}, func(wal.Frame) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// start opens the log on fs and runs a shipper for it. shipped is the mark that
// the local state has. Call it in a bubble, and stop before the bubble ends.
func start(t testing.TB, b *bucket, fs vfs.FS, shipped uint64, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, bucket: b, meta: newMetadata(), log: openLog(t, fs)}
	r.opts = Options{
		Store: b.count, Log: r.log, Metadata: r.meta, Node: testNode, Incarnation: testIncarnation,
		ClusterGeneration: 1, ClusterID: testCluster, FirstLSN: 1, Shipped: shipped,
		OnShipped: func(lsn uint64) { r.mu.Lock(); r.marks = append(r.marks, lsn); r.mu.Unlock() },
		OnFenced:  func(err error) { r.mu.Lock(); r.fenced = append(r.fenced, err); r.mu.Unlock() },
	}
	if change != nil {
		change(&r.opts)
	}
	r.ship = New(r.opts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.ship.Run(ctx) }()
	r.stop = func() {
		if r.stopped {
			return
		}
		r.stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := r.log.Close(); err != nil {
			t.Errorf("close log: %v", err)
		}
	}
	synctest.Wait()
	return r
}

func (r *rig) fences() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.fenced...)
}

// stage puts one frame into the log without waiting for it.
func (r *rig) stage(kind wal.Kind, body []byte) uint64 {
	r.t.Helper()
	slot, err := r.log.Reserve(kind, len(body))
	if err != nil {
		r.t.Fatal(err)
	}
	copy(slot.Body, body)
	slot.Done()
	return slot.LSN
}

// append puts one durable group frame into the log.
func (r *rig) append(body string) uint64 {
	r.t.Helper()
	lsn := r.stage(wal.KindGroup, []byte(body))
	if err := r.log.WaitDurable(context.Background(), lsn); err != nil {
		r.t.Fatal(err)
	}
	return lsn
}

// appendCommit puts one durable commit of a one-record batch into the log.
func (r *rig) appendCommit(offset int64, value []byte) uint64 {
	r.t.Helper()
	batch, err := segment.AppendBatch(nil, []broker.Record{{Value: value, Timestamp: 1000}}, segment.BatchOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	segment.Stamp(batch, offset, 1)
	body := make([]byte, frame.CommitHeaderSize+frame.SectionHeaderSize, frame.CommitHeaderSize+frame.SectionHeaderSize+len(batch))
	frame.PutCommitHeader(body, frame.CommitHeader{AppendMS: 1000, OriginIncarnation: testIncarnation})
	frame.PutSectionHeader(body[frame.CommitHeaderSize:], testPID, 1, len(batch))
	lsn := r.stage(wal.KindCommit, append(body, batch...))
	if err := r.log.WaitDurable(context.Background(), lsn); err != nil {
		r.t.Fatal(err)
	}
	return lsn
}

// wait lets d of the bubble's time pass and everything settle.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// archived asks for an answer within d of the bubble's time.
func (r *rig) archived(lsn, meta uint64, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return r.ship.WaitArchived(ctx, lsn, meta)
}

// localFrames reads the whole log in the form of shippedFrames.
func (r *rig) localFrames() (out []string) {
	r.t.Helper()
	for at := uint64(1); ; {
		run, err := r.log.ReadGroups(at, 1<<20)
		if err != nil {
			r.t.Fatal(err)
		}
		if run.Next <= at {
			return out
		}
		err = wal.ForEachFrame(bytes.Join(run.Groups, nil), run.Salt, func(f wal.Frame) error {
			if f.LSN >= at {
				out = append(out, fmt.Sprintf("%s %x", f.Kind, f.Body))
			}
			return nil
		})
		if err != nil {
			r.t.Fatal(err)
		}
		at = run.Next
	}
}

// sameLog fails unless the archive holds exactly the first n frames of the log,
// n being the shipped mark.
func (r *rig) sameLog() {
	r.t.Helper()
	local, shipped := r.localFrames(), r.bucket.shippedFrames(r.t)
	if len(shipped) > len(local) {
		r.t.Fatalf("%d frames shipped, %d in the log", len(shipped), len(local))
	}
	for i := range shipped {
		if local[i] != shipped[i] {
			r.t.Fatalf("frame %d differs in the archive", i+1)
		}
	}
	if mark := r.ship.Status().Shipped; uint64(len(shipped)) < mark {
		r.t.Fatalf("the mark is %d, the archive holds %d frames", mark, len(shipped))
	}
}
