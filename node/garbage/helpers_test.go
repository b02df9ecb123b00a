package garbage

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// Every test of the package must leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testNode  = "n1"
	testInc   = 0x77
	testGrace = time.Hour
)

// world is an archive, the metadata of its cluster and a collector of it, on a
// clock that only the test moves. The metadata, the chains and the codecs are
// the real ones; the shipper is the test.
type world struct {
	t       testing.TB
	mem     *mem.Store
	fault   *fault.Store
	count   *count.Store
	meta    *raftmeta.Meta
	fence   *fence
	now     time.Time
	chains  map[broker.PartitionID]*manifest.Chain
	inUse   map[string]bool
	pinned  map[string]bool
	nonce   uint32
	c       *Collector
	changed func(*Options)
}

// fence is the archive's word about an incarnation, as the shipper asks for it.
type fence struct {
	mu        sync.Mutex
	inc       uint64
	cluster   uint64
	confirmed uint64
}

func (f *fence) Confirm(ctx context.Context, store objstore.Store) error {
	for _, key := range []string{manifest.WALFenceKey(testNode, f.inc), manifest.ClusterKey(f.cluster + 1)} {
		_, err := ship.ReadSmall(ctx, store, key)
		if err == nil {
			return errcode.New(errcode.Fenced, "%s stands", key)
		}
		if !errcode.Is(err, errcode.NotFound) {
			return err
		}
	}
	return nil
}

func (f *fence) Confirmed() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.confirmed
}

func newWorld(t testing.TB, change func(*Options)) *world {
	t.Helper()
	w := &world{
		t: t, now: time.Unix(1_700_000_000, 0), fence: &fence{inc: testInc, cluster: 1}, changed: change,
		chains: map[broker.PartitionID]*manifest.Chain{}, inUse: map[string]bool{}, pinned: map[string]bool{},
	}
	w.mem = mem.New("garbage", func() time.Time { return w.now })
	w.fault = fault.New(w.mem, fault.Options{Seed: 1})
	w.count = count.New(w.fault)
	var err error
	w.meta, err = raftmeta.Open(context.Background(), raftmeta.Options{Dir: t.TempDir(), NodeID: testNode, BindAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	meta := w.meta
	t.Cleanup(func() {
		if err := meta.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.meta.RegisterIncarnation(context.Background(), testInc, nil); err != nil {
		t.Fatal(err)
	}
	w.put(manifest.ClusterKey(1), archive.Claim{ClusterID: w.meta.State().Cluster().ID, Generation: 1}.Encode())
	w.put(manifest.WALOpenKey(testNode, testInc), archive.Open{Node: testNode, Incarnation: testInc, ClusterGeneration: 1, FirstLSN: 1}.Encode())
	w.start()
	return w
}

// start makes a new collector, as a new process does: it knows nothing.
func (w *world) start() {
	w.t.Helper()
	o := Options{
		Store: w.count, Metadata: w.meta, Fence: w.fence, Chain: w.chain,
		InUse:  func(_ broker.PartitionID, key string) bool { return w.inUse[key] },
		Pinned: func(key string) bool { return w.pinned[key] },
		Node:   testNode, Incarnation: testInc, ClusterGeneration: w.fence.cluster,
		Grace: testGrace, Window: time.Hour, Now: func() time.Time { return w.now },
	}
	if w.changed != nil {
		w.changed(&o)
	}
	var err error
	if w.c, err = New(o); err != nil {
		w.t.Fatal(err)
	}
	w.chains = map[broker.PartitionID]*manifest.Chain{}
}

// owner is this incarnation with the partition's assigned generation.
func (w *world) owner(id broker.PartitionID) manifest.Owner {
	a, _ := w.meta.Assignment(id)
	return manifest.Owner{ClusterGeneration: w.fence.cluster, Generation: a.Generation, Incarnation: testInc, Node: testNode}
}

// chain returns the fenced chain, as node's does.
func (w *world) chain(ctx context.Context, id broker.PartitionID) (Chain, error) {
	return w.manifest(ctx, id)
}

func (w *world) manifest(ctx context.Context, id broker.PartitionID) (*manifest.Chain, error) {
	if c := w.chains[id]; c != nil {
		return c, nil
	}
	c, err := manifest.Load(ctx, w.count, id, 0, manifest.WithRetry(1, 0))
	if err != nil {
		return nil, err
	}
	if _, err := c.Fence(ctx, w.owner(id), manifest.FenceParams{}); err != nil {
		return nil, err
	}
	w.chains[id] = c
	return c, nil
}

func (w *world) put(key string, data []byte) {
	w.t.Helper()
	err := w.mem.Put(context.Background(), key, bytes.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: true})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) has(key string) bool {
	_, _, err := objstore.ReadAll(context.Background(), w.mem, key, 1<<30)
	return err == nil
}

func (w *world) keys(prefix string) (out []string) {
	for after := ""; ; {
		page, err := w.mem.List(context.Background(), prefix, after, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, o := range page.Objects {
			out, after = append(out, o.Key), o.Key
		}
		if !page.More {
			return out
		}
	}
}

// topic creates a topic and returns its first partition.
func (w *world) topic(name string) broker.PartitionID {
	w.t.Helper()
	spec := raftmeta.DefaultTopic(name)
	spec.Partitions = 1
	t, err := w.meta.CreateTopic(context.Background(), spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return broker.PartitionID{Topic: t.ID}
}

// segment returns the next segment of a partition, n records long.
func (w *world) segment(id broker.PartitionID, base, n int64) manifest.Segment {
	w.nonce++
	size := 200*n + 176
	a, _ := w.meta.Assignment(id)
	return manifest.Segment{
		Partition: id, Base: base, Next: base + n, Records: n, Bytes: size, MaxTimestamp: 1, MaxAppend: 1,
		FirstGeneration: 1, LastGeneration: a.Generation, Generation: a.Generation, Nonce: w.nonce, DataSHA256: manifest.Hash{byte(w.nonce)},
		DataLength: size - 176, FooterPosition: size - 160, FooterLength: 160, OriginTopic: id.Topic,
	}
}

// upload puts and publishes n segments.
func (w *world) upload(id broker.PartitionID, n int) (segs []manifest.Segment) {
	w.t.Helper()
	ctx := context.Background()
	c, err := w.manifest(ctx, id)
	if err != nil {
		w.t.Fatal(err)
	}
	for range n {
		s := w.segment(id, c.End(), 10)
		w.put(s.Key(), []byte("segment"))
		if err := c.Add(ctx, w.owner(id), s); err != nil {
			w.t.Fatal(err)
		}
		segs = append(segs, s)
	}
	return segs
}

// trim raises the chain's start and hands over what it let go.
func (w *world) trim(id broker.PartitionID, start int64) []manifest.Segment {
	w.t.Helper()
	c, err := w.manifest(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	gone, err := c.Trim(context.Background(), w.owner(id), start)
	if err != nil {
		w.t.Fatal(err)
	}
	w.c.Discard(id, gone)
	return gone
}

// export puts the metadata as it is and confirms it.
func (w *world) export() {
	w.t.Helper()
	index, data, err := w.meta.Export()
	if err != nil {
		w.t.Fatal(err)
	}
	packed, err := archive.Pack(data)
	if err != nil {
		w.t.Fatal(err)
	}
	k := manifest.Key{Kind: manifest.KindMeta, Cluster: w.fence.cluster, Index: index}
	if !w.has(k.String()) {
		w.put(k.String(), packed)
		w.c.Note(ship.Object{Key: k, Bytes: int64(len(packed))})
	}
	w.fence.mu.Lock()
	w.fence.confirmed = index
	w.fence.mu.Unlock()
}

// state puts a state object at an LSN.
func (w *world) state(lsn, replayFrom uint64, partitions ...archive.PartitionState) string {
	w.t.Helper()
	s := &archive.State{Node: testNode, Incarnation: testInc, LSN: lsn, ReplayFrom: replayFrom, Partitions: partitions}
	data, err := archive.EncodeState(s)
	if err != nil {
		w.t.Fatal(err)
	}
	k := manifest.Key{Kind: manifest.KindState, Node: testNode, Incarnation: testInc, First: lsn}
	w.put(k.String(), data)
	w.c.Note(ship.Object{Key: k, Bytes: int64(len(data)), ReplayFrom: replayFrom})
	return k.String()
}

// wal puts shipped WAL of [first, next); nothing here reads its bytes.
func (w *world) wal(first, next uint64) string {
	w.t.Helper()
	k := manifest.Key{Kind: manifest.KindWAL, Node: testNode, Incarnation: testInc, First: first, End: next}
	w.put(k.String(), []byte("wal"))
	w.c.Note(ship.Object{Key: k, Bytes: 3})
	return k.String()
}

// turn takes a turn that has to work.
func (w *world) turn() {
	w.t.Helper()
	for range 100 {
		more, err := w.c.Turn(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		if !more {
			return
		}
	}
	w.t.Fatal("the collector does not come to an end")
}

// fails takes a turn that has to fail with the code and say so.
func (w *world) fails(code errcode.Code, says string) {
	w.t.Helper()
	_, err := w.c.Turn(context.Background())
	if !errcode.Is(err, code) || !strings.Contains(err.Error(), says) {
		w.t.Fatalf("the turn ended with %v, want %s: %q", err, code, says)
	}
	if r := w.c.Report(); !strings.Contains(r.Paused, says) {
		w.t.Fatalf("the report says %q", r.Paused)
	}
}

// kept fails unless all keys are there.
func (w *world) kept(what string, keys ...string) {
	w.t.Helper()
	for _, k := range keys {
		if !w.has(k) {
			w.t.Fatalf("%s: %s was deleted", what, k)
		}
	}
}

// gone fails unless none of the keys is there.
func (w *world) gone(keys ...string) {
	w.t.Helper()
	for _, k := range keys {
		if w.has(k) {
			w.t.Fatalf("%s is still there", k)
		}
	}
}

// untouched runs fn and fails if an object went.
func (w *world) untouched(fn func(), except ...string) {
	w.t.Helper()
	before := w.keys("")
	fn()
	after := w.keys("")
	for _, k := range before {
		skip := slices.ContainsFunc(except, func(p string) bool { return strings.HasPrefix(k, p) })
		if !skip && !slices.Contains(after, k) {
			w.t.Fatalf("%s was deleted", k)
		}
	}
}

func (w *world) pass(d time.Duration) { w.now = w.now.Add(d) }

func keysOf(segs []manifest.Segment) (out []string) {
	for i := range segs {
		out = append(out, segs[i].Key())
	}
	return out
}

// cause returns a cause's line of the report.
func (w *world) cause(c Cause) broker.GarbageCause {
	for _, x := range w.c.Report().Causes {
		if x.Cause == c.String() {
			return x
		}
	}
	w.t.Fatalf("no cause %s in the report", c)
	return broker.GarbageCause{}
}

// calls are the requests since the last reset, by operation, and only under the
// garbage cause.
func (w *world) calls() map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for c, n := range w.count.Calls() {
		if c.Cause == objstore.CauseGarbage {
			out[c.Op] += n
		}
	}
	return maps.Clone(out)
}
