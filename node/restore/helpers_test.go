package restore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
	"github.com/tidemark-mq/tidemark/wal"
)

// Every test of the package must leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nodeID = "n1"
	firstI = 0x1111 // incarnation of the first writer
)

// world is an archive that a test writes object by object, and what a restore
// makes of it. Its objects are two days old, so no cluster seems alive.
type world struct {
	t     testing.TB
	mem   *mem.Store
	fault *fault.Store
	meta  *raftmeta.Meta
	topic raftmeta.Topic
	n     int // data directories made
}

// newWorld makes an archive with a claim, a topic "t" of that many partitions
// and its export.
func newWorld(t testing.TB, partitions uint32) *world {
	t.Helper()
	w := &world{t: t, mem: mem.New("world", func() time.Time { return time.Now().Add(-48 * time.Hour) })}
	w.fault = fault.New(w.mem, fault.Options{Seed: 1})
	ctx := context.Background()
	var err error
	w.meta, err = raftmeta.Open(ctx, raftmeta.Options{Dir: t.TempDir(), NodeID: nodeID, BindAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.meta.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.meta.RegisterIncarnation(ctx, firstI, nil); err != nil {
		t.Fatal(err)
	}
	topic := raftmeta.DefaultTopic("t")
	topic.Partitions = partitions
	if w.topic, err = w.meta.CreateTopic(ctx, topic); err != nil {
		t.Fatal(err)
	}
	w.put(manifest.ClusterKey(1), archive.Claim{ClusterID: w.meta.State().Cluster().ID, Generation: 1}.Encode())
	w.export()
	return w
}

func (w *world) id(p uint32) broker.PartitionID {
	return broker.PartitionID{Topic: w.topic.ID, Partition: p}
}

func (w *world) put(key string, data []byte) {
	w.t.Helper()
	if err := w.mem.Put(context.Background(), key, bytes.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: true}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get(key string) []byte {
	w.t.Helper()
	data, _, err := objstore.ReadAll(context.Background(), w.mem, key, 1<<30)
	if err != nil {
		w.t.Fatal(err)
	}
	return data
}

// replace does to an object what no program does: it changes it.
func (w *world) replace(key string, data []byte) {
	w.t.Helper()
	if err := w.mem.Delete(context.Background(), []string{key}); err != nil {
		w.t.Fatal(err)
	}
	if data != nil {
		w.put(key, data)
	}
}

func (w *world) keys(prefix string) (out []string) {
	w.t.Helper()
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

func (w *world) content() map[string]string {
	out := map[string]string{}
	for _, k := range w.keys("") {
		out[k] = string(w.get(k))
	}
	return out
}

// export puts the metadata as it is now and returns the key.
func (w *world) export() string {
	w.t.Helper()
	index, data, err := w.meta.Export()
	if err != nil {
		w.t.Fatal(err)
	}
	packed, err := archive.Pack(data)
	if err != nil {
		w.t.Fatal(err)
	}
	key := manifest.MetaKey(1, index)
	w.put(key, packed)
	return key
}

// segments publishes n segments of per records each, from the chain's end on.
// The objects themselves are not there: a restore does not read them.
func (w *world) segments(p uint32, n int, per int64) *manifest.Chain {
	w.t.Helper()
	ctx := context.Background()
	c, err := manifest.Load(ctx, w.mem, w.id(p), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	owner := manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: firstI, Node: nodeID}
	if _, err := c.Fence(ctx, owner, manifest.FenceParams{}); err != nil {
		w.t.Fatal(err)
	}
	var segs []manifest.Segment
	for at := c.End(); len(segs) < n; at += per {
		segs = append(segs, w.segment(p, at, at+per))
	}
	for len(segs) > 0 {
		k := min(len(segs), 100)
		if err := c.Add(ctx, owner, segs[:k]...); err != nil {
			w.t.Fatal(err)
		}
		segs = segs[k:]
	}
	return c
}

// segment is the entry of a segment of generation 1 with the offsets [base, next).
func (w *world) segment(p uint32, base, next int64) manifest.Segment {
	per := next - base
	size := 200*per + 160
	return manifest.Segment{
		Partition: w.id(p), Base: base, Next: next, Records: per, Bytes: size, MinTimestamp: 1, MaxTimestamp: 2, MinAppend: 1, MaxAppend: 2,
		FirstGeneration: 1, LastGeneration: 1, Generation: 1, Nonce: uint32(base / per), DataSHA256: manifest.Hash{byte(base / per)},
		DataLength: size - 16*per - 160, FooterPosition: size - 160, FooterLength: 160, OriginTopic: w.topic.ID,
	}
}

// writer is one incarnation that ships.
type writer struct {
	*world
	inc     uint64
	log     *wal.Log
	shipped uint64
}

// writer opens an incarnation, at that time.
func (w *world) writer(inc uint64, cluster uint64, openMS int64) *writer {
	w.t.Helper()
	log := w.openLog(inc)
	w.put(manifest.WALOpenKey(nodeID, inc), archive.Open{Node: nodeID, Incarnation: inc, ClusterGeneration: cluster, FirstLSN: 1, TimeMS: openMS}.Encode())
	return &writer{world: w, inc: inc, log: log}
}

// openLog opens an empty log in memory.
func (w *world) openLog(inc uint64) *wal.Log {
	w.t.Helper()
	log, _, err := wal.Open(wal.Options{FS: vfs.NewMem(), Dir: "wal", Incarnation: inc, FileSize: 16 << 20, PoolFiles: -1, AckSyncInterval: time.Hour},
		func(wal.Frame) error { return nil })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = log.Close() })
	return log
}

func (wr *writer) frame(kind wal.Kind, body []byte) uint64 {
	wr.t.Helper()
	slot, err := wr.log.Reserve(kind, len(body))
	if err != nil {
		wr.t.Fatal(err)
	}
	copy(slot.Body, body)
	slot.Done()
	if err := wr.log.WaitDurable(context.Background(), slot.LSN); err != nil {
		wr.t.Fatal(err)
	}
	return slot.LSN
}

func (wr *writer) base(b frame.Base) uint64 {
	body := make([]byte, frame.BaseSize(b))
	frame.PutBase(body, b)
	return wr.frame(wal.KindBase, body)
}

// records commits one batch whose values say writer, generation and offset.
func (wr *writer) records(p broker.PartitionID, gen uint32, base int64, n int) uint64 {
	wr.t.Helper()
	recs := make([]broker.Record, n)
	for i := range recs {
		recs[i] = broker.Record{Offset: int64(i), Timestamp: 1000, Value: fmt.Appendf(nil, "%x/%d/%d", wr.inc, gen, base+int64(i))}
	}
	b, err := segment.AppendBatch(nil, recs, segment.BatchOptions{})
	if err != nil {
		wr.t.Fatal(err)
	}
	segment.Stamp(b, base, gen)
	body := make([]byte, frame.CommitHeaderSize+frame.SectionHeaderSize)
	frame.PutCommitHeader(body, frame.CommitHeader{AppendMS: 1_700_000_000_000, OriginIncarnation: wr.inc})
	frame.PutSectionHeader(body[frame.CommitHeaderSize:], p, gen, len(b))
	return wr.frame(wal.KindCommit, append(body, b...))
}

// ack settles n offsets from from on for group "g".
func (wr *writer) ack(p broker.PartitionID, gen uint32, from int64, n int) uint64 {
	ops := binary.AppendUvarint([]byte{1, 1}, uint64(from)) // version, settle
	ops = binary.AppendUvarint(ops, uint64(n))
	g := frame.Group{Partition: p, Generation: gen, Name: "g", Ops: ops}
	body := make([]byte, frame.GroupSize(g))
	frame.PutGroup(body, g)
	return wr.frame(wal.KindGroup, body)
}

// ship puts what is new as one object and returns its key.
func (wr *writer) ship() string {
	wr.t.Helper()
	run, err := wr.log.ReadGroups(wr.shipped+1, 64<<20)
	if err != nil || run.Next <= wr.shipped+1 {
		wr.t.Fatalf("nothing to ship: %v", err)
	}
	data, err := archive.EncodeWAL(run)
	if err != nil {
		wr.t.Fatal(err)
	}
	key := manifest.WALKey(nodeID, wr.inc, run.First, run.Next)
	wr.put(key, data)
	wr.shipped = run.Next - 1
	return key
}

func (wr *writer) state(s archive.State) string {
	wr.t.Helper()
	s.Node, s.Incarnation = nodeID, wr.inc
	data, err := archive.EncodeState(&s)
	if err != nil {
		wr.t.Fatal(err)
	}
	key := manifest.StateKey(nodeID, wr.inc, s.LSN)
	wr.put(key, data)
	return key
}

// options of a restore into a new directory.
func (w *world) options() restore.Options {
	w.n++
	return restore.Options{
		Store: w.fault, Dir: filepath.Join(w.t.TempDir(), fmt.Sprintf("restored-%d", w.n)), NodeID: nodeID, RaftAddr: "127.0.0.1:0", TakeOver: true,
	}
}

// restore restores into a new directory, which it returns.
func (w *world) restore() (string, *restore.Report) {
	w.t.Helper()
	o := w.options()
	r, err := restore.Run(context.Background(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	return o.Dir, r
}

// refused expects a restore that fails with the code, says all of says, and
// leaves no data directory.
func (w *world) refused(code errcode.Code, says ...string) {
	w.t.Helper()
	o := w.options()
	_, err := restore.Run(context.Background(), o)
	if !errcode.Is(err, code) {
		w.t.Fatalf("restore: %v, want %s", err, code)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			w.t.Fatalf("restore: %v\nit does not say %q", err, s)
		}
	}
	if names, err := vfs.Default.List(o.Dir); err == nil {
		w.t.Fatalf("a failed restore left %v", names)
	}
	if len(w.keys("cluster/")) == 1 {
		if names, err := vfs.Default.List(o.Dir + ".restoring"); err == nil {
			w.t.Fatalf("a restore that was refused before its claim left %v", names)
		}
	}
}

// untouched runs fn and fails if the archive is not the same afterwards.
func (w *world) untouched(fn func()) {
	w.t.Helper()
	before := w.content()
	fn()
	if !maps.Equal(before, w.content()) {
		w.t.Fatal("the archive was changed")
	}
}

// entries reads the local state of a restored directory.
func (w *world) entries(dir string) map[broker.PartitionID]state.Entry {
	w.t.Helper()
	db, err := state.Open(vfs.Default, filepath.Join(dir, "state"), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	list, err := db.Load()
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[broker.PartitionID]state.Entry{}
	for _, e := range list {
		out[e.ID] = e
	}
	return out
}

// group returns group g of a restored partition.
func group(t testing.TB, e state.Entry) queue.State {
	t.Helper()
	for _, b := range e.Groups {
		s, err := queue.DecodeState(b)
		if err != nil {
			t.Fatal(err)
		}
		if s.Group == "g" {
			return s
		}
	}
	t.Fatalf("partition %s has no group g", e.ID)
	return queue.State{}
}

// records reads a restored partition from an offset on, as "offset value",
// through a node that serves it.
func (w *world) records(dir string, p uint32, from int64) (out []string) {
	w.t.Helper()
	n, err := node.Open(context.Background(), node.Options{
		Dir: dir, NodeID: nodeID, RaftAddr: "127.0.0.1:0", DiskReserve: 1, WALFileSize: 1 << 20,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			w.t.Error(err)
		}
	}()
	r, err := n.ReadLog(context.Background(), broker.ReadRequest{Topic: "t", Partition: p, From: from, To: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	for {
		recs, err := r.Next(context.Background())
		if err == io.EOF {
			return out
		}
		if err != nil {
			w.t.Fatal(err)
		}
		for _, rec := range recs {
			out = append(out, fmt.Sprintf("%d %s", rec.Offset, rec.Value))
		}
	}
}

// values are the records that a writer made.
func values(inc uint64, gen uint32, from, to int64) (out []string) {
	for at := from; at < to; at++ {
		out = append(out, fmt.Sprintf("%d %x/%d/%d", at, inc, gen, at))
	}
	return out
}
