package repair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
	"github.com/tidemark-mq/tidemark/wal"
)

// Tests that fail a sync of the local state leave a goroutine inside Pebble: it
// stays there for the life of the process, see node/state.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/tidemark-mq/tidemark/node/state.(*guard).stop"))
}

var ctx = context.Background()

func options(dir string, archive objstore.Store) node.Options {
	return node.Options{
		Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", Archive: archive, WALInterval: 20 * time.Millisecond,
		SegmentBytes: 64 << 10, WALFileSize: 64 << 10, DiskReserve: 1,
	}
}

func start(t *testing.T, dir string, archive objstore.Store) *node.Node {
	t.Helper()
	n, err := node.Open(ctx, options(dir, archive))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func stop(t *testing.T, n *node.Node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// place is where a record was stored.
type place struct {
	partition uint32
	offset    int64
}

// world is a data directory as a killed node leaves it, the archive as it was
// at that moment, and what the node had answered.
type world struct {
	dir     string
	archive objstore.Store // nil: none
	stored  map[place]string
	lsn     map[place]uint64 // of the frame that holds it
	acked   map[place]uint64 // LSN of the frame that holds the ack
}

const topic = "orders"

// live runs a node: records into three partitions, large enough that the log
// has several files, some of them consumed. flush says how much of a tail stays
// in memory; shipped, that the archive has everything.
func live(t *testing.T, flush int64, archived, shipped bool) *world {
	t.Helper()
	root := t.TempDir()
	w := &world{dir: root + "/copy", stored: map[place]string{}, lsn: map[place]uint64{}, acked: map[place]uint64{}}
	o := options(root+"/data", nil)
	o.FlushBytes = flush
	store := mem.New("repair", nil)
	if archived {
		o.Archive = store
		if !shipped {
			o.WALInterval = time.Hour
		}
	}
	metrics := prometheus.NewRegistry()
	o.Registerer = metrics
	n, err := node.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	partitions := uint32(3)
	if _, err := n.CreateTopic(ctx, broker.TopicSpec{Name: topic, Partitions: &partitions}); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	ack := broker.AckCommitted
	produce := func(i int) {
		value := fmt.Sprintf("record %d %s", i, strings.Repeat("x", 50+r.IntN(4000)))
		got, err := n.Produce(ctx, broker.ProduceRequest{Topic: topic, Ack: ack, Records: []broker.NewRecord{{Partition: int32(r.IntN(3)), Value: []byte(value)}}})
		if err != nil {
			t.Fatal(err)
		}
		w.stored[place{got.Placements[0].Partition, got.Placements[0].FirstOffset}] = value
	}
	for i := range 100 {
		produce(i)
		if i%10 == 9 {
			w.consume(t, n)
		}
	}
	if archived && !shipped { // a part is: what an ack=archived has waited for
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: topic, Ack: broker.AckArchived, Records: []broker.NewRecord{{Partition: 0, Value: []byte("shipped")}}}); err != nil {
			t.Fatal(err)
		}
		w.stored[w.top(0)] = "shipped"
	}
	checkpointed(t, metrics)
	// Until the log has as many files as the tests need, with one to spare: a
	// checkpoint on a slow machine has let more of them go.
	for i := 0; i < 30 || i < 300 && len(logFiles(t, root+"/data")) <= fewestFiles; i++ {
		produce(100 + i)
	}
	if shipped {
		ack = broker.AckArchived
	}
	for i := 130; i == 130 || groupsOfLast(t, root+"/data/wal") < 3; i++ { // of which one in the middle can be damaged
		produce(i)
	}
	// Parts that may be newer than those before them are copied later, as a kill
	// leaves them.
	for _, part := range []string{"raft", "state", "topics", "wal"} {
		if ok, err := vfs.Clone(vfs.Default, vfs.Default, root+"/data/"+part, w.dir+"/"+part); err != nil || !ok && part != "topics" {
			t.Fatal(err)
		}
	}
	identity, err := os.ReadFile(root + "/data/identity.json")
	if err == nil {
		err = os.WriteFile(w.dir+"/identity.json", identity, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if archived {
		w.archive = copyStore(t, store)
	}
	stop(t, n)
	w.readLog(t)
	return w
}

// checkpointed waits for a checkpoint: from then on the
// local state says that frames of the log were durable.
func checkpointed(t *testing.T, metrics *prometheus.Registry) {
	t.Helper()
	count := func() float64 {
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "tidemark_checkpoints_total" {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return 0
	}
	// The first one is the start's own, before there was anything.
	within(t, "a checkpoint", func() bool { return count() > 1 })
}

// top is the place that the next record of a partition had got.
func (w *world) top(partition uint32) place {
	next := int64(0)
	for p := range w.stored {
		if p.partition == partition {
			next = max(next, p.offset+1)
		}
	}
	return place{partition, next}
}

// consume takes and acks a few records.
func (w *world) consume(t *testing.T, n *node.Node) {
	t.Helper()
	msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: topic, Group: broker.DefaultGroup, Partition: -1, Max: 5})
	if err != nil || len(msgs) == 0 {
		t.Fatal(len(msgs), err)
	}
	for _, m := range msgs {
		errs, err := n.Settle(ctx, broker.SettleRequest{Topic: topic, Group: broker.DefaultGroup, Action: broker.SettleAck, Handles: []string{m.Handle}})
		if err = errors.Join(append(errs, err)...); err != nil {
			t.Fatal(err)
		}
		w.acked[place{m.Partition, m.Offset}] = 0
	}
}

func copyStore(t *testing.T, from objstore.Store) objstore.Store {
	t.Helper()
	to := mem.New("repair", nil)
	for after := ""; ; {
		page, err := from.List(ctx, "", after, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Objects {
			after = o.Key
			b, _, err := objstore.ReadAll(ctx, from, o.Key, 1<<30)
			if err == nil {
				err = to.Put(ctx, o.Key, bytes.NewReader(b), int64(len(b)), objstore.PutOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !page.More {
			return to
		}
	}
}

// readLog notes in which frame each record stands.
func (w *world) readLog(t *testing.T) {
	t.Helper()
	s := w.survey(t)
	err := s.Each(func(at wal.Located) error {
		return at.Group.Each(func(f wal.Frame) error {
			if f.Kind != wal.KindCommit {
				return nil
			}
			_, sections, err := frame.ParseCommit(f.Body)
			if err != nil {
				return err
			}
			for s := range sections {
				h, err := segment.ParseHeader(s.Batches)
				if err != nil {
					return err
				}
				w.lsn[place{s.Partition.Partition, h.BaseOffset}] = f.LSN
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) survey(t *testing.T) *wal.Survey {
	t.Helper()
	s, err := wal.Examine(wal.SurveyOptions{FS: vfs.Default, Dir: w.dir + "/wal"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) files(t *testing.T) []string {
	t.Helper()
	names := logFiles(t, w.dir)
	if len(names) < fewestFiles {
		t.Fatalf("log files %v", names)
	}
	return names
}

// fewestFiles is how many files of the log the tests need.
const fewestFiles = 4

// logFiles lists the files of the log of a data directory, oldest first.
func logFiles(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(dir + "/wal/*.wal")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// copy returns the same world in another directory.
func (w *world) copy(t *testing.T) *world {
	t.Helper()
	c := *w
	c.stored, c.lsn, c.acked = maps.Clone(w.stored), maps.Clone(w.lsn), maps.Clone(w.acked)
	c.dir = t.TempDir() + "/data"
	if _, err := vfs.Clone(vfs.Default, vfs.Default, w.dir, c.dir); err != nil {
		t.Fatal(err)
	}
	if w.archive != nil {
		c.archive = copyStore(t, w.archive)
	}
	return &c
}

// damaged says which frames a damage has hit.
type damaged func(lsn uint64) bool

// flip damages the group in the middle of a file, and says which LSNs it held.
func flip(t *testing.T, path string) damaged {
	t.Helper()
	s, err := wal.Examine(wal.SurveyOptions{FS: vfs.Default, Dir: path})
	if err != nil {
		t.Fatal(err)
	}
	var at []wal.Located
	// A file that had to grow ends when there is a spare, so it may have one only.
	if err := s.Each(func(l wal.Located) error { at = append(at, l); return nil }); err != nil || len(at) == 0 {
		t.Fatal(len(at), err)
	}
	hit := at[len(at)/2]
	b, err := os.ReadFile(path)
	if err == nil {
		b[hit.Position+60] ^= 0x20
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(lsn uint64) bool { return hit.Group.First <= lsn && lsn < hit.Group.Next() }
}

// groupsOfLast is how many groups the last file of a log holds.
func groupsOfLast(t *testing.T, dir string) int {
	t.Helper()
	s, err := wal.Examine(wal.SurveyOptions{FS: vfs.Default, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s.Files[len(s.Files)-1].Groups
}

// remove removes a log file, and says which LSNs it held.
func remove(t *testing.T, path string) damaged {
	t.Helper()
	s, err := wal.Examine(wal.SurveyOptions{FS: vfs.Default, Dir: path})
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(lsn uint64) bool { return s.First <= lsn && lsn < s.Next }
}

// readBack returns every record that the node has.
func readBack(t *testing.T, n *node.Node) map[place]string {
	t.Helper()
	out := map[place]string{}
	for p := range uint32(3) {
		r, err := n.ReadLog(ctx, broker.ReadRequest{Topic: topic, Partition: p, From: -1, To: -1})
		if err != nil {
			t.Fatal(err)
		}
		for {
			recs, err := r.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("partition %d: %v", p, err)
			}
			for _, rec := range recs {
				at := place{p, rec.Offset}
				if _, twice := out[at]; twice {
					t.Fatalf("%v comes twice", at)
				}
				out[at] = string(rec.Value)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// check starts a node on the repaired directory and proves: a record whose
// frame was not hit, or that is in a file, is where it was (I4); no record is
// one that never was; offsets that had been answered are not given out again
// (I3); every record that was not acked is delivered, and the others only when
// their ack was hit (I11); a restart changes nothing.
func (w *world) check(t *testing.T, hit damaged) {
	t.Helper()
	n := start(t, w.dir, w.archive)
	got := readBack(t, n)
	lost := 0
	for at, value := range w.stored {
		switch have, ok := got[at]; {
		case ok && have != value:
			t.Fatalf("%v is another record now", at)
		case !ok && !hit(w.lsn[at]):
			t.Fatalf("%v, LSN %d, survived the damage and is gone", at, w.lsn[at])
		case !ok:
			lost++
		}
	}
	for at := range got {
		if _, ok := w.stored[at]; !ok {
			t.Fatalf("%v is a record that nobody stored", at)
		}
	}
	after := w.giveOut(t, n)
	w.consumeAll(t, n, got)
	stop(t, n)
	n = start(t, w.dir, w.archive)
	again := readBack(t, n)
	stop(t, n)
	if len(again) != len(got)+len(after) {
		t.Fatalf("%d records after a restart, want %d", len(again), len(got)+len(after))
	}
	for at := range after {
		w.stored[at] = "after"
		w.lsn[at] = 1 << 60
	}
	t.Logf("%d of %d records lost", lost, len(w.stored))
}

// giveOut stores a record in each partition and proves that its offset is new.
func (w *world) giveOut(t *testing.T, n *node.Node) map[place]string {
	t.Helper()
	tops := map[uint32]int64{}
	for at := range w.stored {
		tops[at.partition] = max(tops[at.partition], at.offset)
	}
	after := map[place]string{}
	for p := range uint32(3) {
		placed, err := n.Produce(ctx, broker.ProduceRequest{Topic: topic, Ack: broker.AckCommitted, Records: []broker.NewRecord{{Partition: int32(p), Value: []byte("after")}}})
		if err != nil {
			t.Fatal(err)
		}
		at := place{p, placed.Placements[0].FirstOffset}
		if at.offset <= tops[p] {
			t.Fatalf("offset %d of partition %d was given out before, up to %d", at.offset, p, tops[p])
		}
		after[at] = "after"
	}
	return after
}

func (w *world) consumeAll(t *testing.T, n *node.Node, have map[place]string) {
	t.Helper()
	delivered := map[place]bool{}
	within(t, "every record that is not acked is delivered", func() bool {
		msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: topic, Group: broker.DefaultGroup, Partition: -1, Max: 50, Wait: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range msgs {
			delivered[place{m.Partition, m.Offset}] = true
		}
		for at := range have {
			if _, acked := w.acked[at]; !acked && !delivered[at] {
				return false
			}
		}
		return true
	})
}
