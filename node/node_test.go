package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

func testOptions(dir string, archive objstore.Store) Options {
	return Options{
		Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", Archive: archive,
		WALInterval: 50 * time.Millisecond, SegmentBytes: 64 << 10, FlushBytes: 8 << 10,
		WALFileSize: 1 << 20, DiskReserve: 1,
	}
}

func openNode(t testing.TB, o Options) *Node {
	t.Helper()
	n, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func closeNode(t testing.TB, n *Node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

func createTopic(t testing.TB, n *Node, name string, partitions uint32) broker.TopicInfo {
	t.Helper()
	info, err := n.CreateTopic(context.Background(), broker.TopicSpec{Name: name, Partitions: &partitions})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func produce(t testing.TB, n *Node, topic string, ack broker.Ack, records ...broker.NewRecord) broker.Produced {
	t.Helper()
	got, err := n.Produce(context.Background(), broker.ProduceRequest{Topic: topic, Records: records, Ack: ack})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func keyed(key, value string) broker.NewRecord {
	return broker.NewRecord{Partition: -1, Key: []byte(key), Value: []byte(value)}
}

// readAll reads a partition's log as "offset key=value".
func readAll(t testing.TB, n *Node, topic string, partition uint32) []string {
	t.Helper()
	r, err := n.ReadLog(context.Background(), broker.ReadRequest{Topic: topic, Partition: partition, From: -1, To: -1})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for {
		recs, err := r.Next(context.Background())
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range recs {
			out = append(out, fmt.Sprintf("%d %s=%s", rec.Offset, rec.Key, rec.Value))
		}
	}
}

func same(t testing.TB, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("record %d: %q, want %q", i, got[i], want[i])
		}
	}
}

func within(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen", what)
		}
	}
}

// A node keeps topics, records and positions over a restart: what was acked is
// not delivered again (I11), what was not is.
func TestRestartKeepsRecordsAndPositions(t *testing.T) {
	dir, store := t.TempDir(), mem.New("test", nil)
	n := openNode(t, testOptions(dir, store))
	createTopic(t, n, "orders", 3)
	for i := range 300 {
		produce(t, n, "orders", broker.AckAccepted, keyed(fmt.Sprintf("k%d", i), fmt.Sprintf("v%d", i)))
	}
	before := [][]string{readAll(t, n, "orders", 0), readAll(t, n, "orders", 1), readAll(t, n, "orders", 2)}
	acked := map[string]bool{}
	for range 10 {
		msgs, err := n.Consume(context.Background(), broker.ConsumeRequest{Topic: "orders", Partition: -1, Max: 10})
		if err != nil {
			t.Fatal(err)
		}
		for i := range msgs {
			if i%2 == 0 {
				errs, err := n.Settle(context.Background(), broker.SettleRequest{Topic: "orders", Action: broker.SettleAck, Handles: []string{msgs[i].Handle}})
				if err = errors.Join(append(errs, err)...); err != nil {
					t.Fatal(err)
				}
				acked[string(msgs[i].Value)] = true
			}
		}
	}
	closeNode(t, n)

	n = openNode(t, testOptions(dir, store))
	defer closeNode(t, n)
	for p := range uint32(3) {
		same(t, readAll(t, n, "orders", p), before[p])
	}
	seen := map[string]bool{}
	for {
		msgs, err := n.Consume(context.Background(), broker.ConsumeRequest{Topic: "orders", Partition: -1, Max: 100})
		if err != nil {
			t.Fatal(err)
		}
		if len(msgs) == 0 {
			break
		}
		for _, m := range msgs {
			if acked[string(m.Value)] {
				t.Fatalf("%s was acked and came again", m.Value)
			}
			seen[string(m.Value)] = true
		}
	}
	if len(seen)+len(acked) != 300 {
		t.Fatalf("%d delivered after the restart, %d acked before, 300 produced", len(seen), len(acked))
	}
}

// Sealed segments reach the archive, and ack=archived answers after its records
// are in the bucket.
func TestArchive(t *testing.T) {
	store := mem.New("test", nil)
	o := testOptions(t.TempDir(), store)
	n := openNode(t, o)
	defer closeNode(t, n)
	createTopic(t, n, "t", 1)
	got := produce(t, n, "t", broker.AckArchived, keyed("a", "b"))
	if !got.Archived {
		t.Fatal("not archived")
	}
	page, err := store.List(context.Background(), "wal/", "", 0)
	if err != nil || len(page.Objects) < 2 {
		t.Fatalf("no shipped WAL: %v %v", page.Objects, err)
	}
	value := strings.Repeat("0123456789abcdef", 256)
	for i := range 200 {
		produce(t, n, "t", broker.AckAccepted, keyed(fmt.Sprint(i), fmt.Sprint(i, value)))
	}
	if err := n.engine.Seal(n.engine.All()[0]); err != nil {
		t.Fatal(err)
	}
	within(t, "everything is archived", func() bool {
		info, err := n.Topic(context.Background(), "t")
		if err != nil {
			t.Fatal(err)
		}
		return info.PartitionStats[0].ArchivedOffset == 201
	})
}

// A second process on a data directory, and a second cluster on an archive, are
// refused by name.
func TestSecondUserIsRefused(t *testing.T) {
	dir, store := t.TempDir(), mem.New("test", nil)
	n := openNode(t, testOptions(dir, store))
	defer closeNode(t, n)
	if _, err := Open(context.Background(), testOptions(dir, store)); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("second process: %v", err)
	}
	if _, err := Open(context.Background(), testOptions(t.TempDir(), store)); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), "belongs to cluster") {
		t.Fatalf("second cluster: %v", err)
	}
}

// Bad directories are refused with the path and change nothing (B257).
func TestForeignDirectoryIsRefused(t *testing.T) {
	dir, store := t.TempDir(), mem.New("test", nil)
	n := openNode(t, testOptions(dir, store))
	closeNode(t, n)
	o := testOptions(dir, store)
	o.NodeID = "node-2"
	if _, err := Open(context.Background(), o); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), "node-1") {
		t.Fatalf("another node's directory: %v", err)
	}
}

// A directory that lost its metadata is refused, not begun anew (B159).
func TestLostMetadataIsRefused(t *testing.T) {
	dir, store := t.TempDir(), mem.New("test", nil)
	closeNode(t, openNode(t, testOptions(dir, store)))
	if err := os.RemoveAll(filepath.Join(dir, "raft")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), testOptions(dir, store)); !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), "raft") {
		t.Fatalf("start without metadata: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "raft")); !os.IsNotExist(err) {
		t.Fatalf("the refused start made something: %v", err)
	}
}

// A cluster that has shipped is not moved to an archive that lacks it: what is
// there could not be restored. (An emptied bucket, or a mistyped prefix.)
func TestEmptiedArchiveIsRefused(t *testing.T) {
	dir := t.TempDir()
	n := openNode(t, testOptions(dir, mem.New("first", nil)))
	createTopic(t, n, "t", 1)
	produce(t, n, "t", broker.AckArchived, keyed("a", "b"))
	closeNode(t, n)
	empty := mem.New("second", nil)
	if _, err := Open(context.Background(), testOptions(dir, empty)); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), "claim") {
		t.Fatalf("start on an emptied archive: %v", err)
	}
	page, err := empty.List(context.Background(), "", "", 0)
	if err != nil || len(page.Objects) != 0 {
		t.Fatalf("the refused start wrote %v %v", page.Objects, err)
	}
}

// overwriting is a store that does not honour create-only.
type overwriting struct{ objstore.Store }

func (o overwriting) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	opts.CreateOnly = false
	return o.Store.Put(ctx, key, body, size, opts)
}

// A store that overwrites is refused at start.
func TestOverwritingStoreIsRefused(t *testing.T) {
	if _, err := Open(context.Background(), testOptions(t.TempDir(), overwriting{mem.New("lax", nil)})); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), "overwrites") {
		t.Fatalf("start on a store that overwrites: %v", err)
	}
}
