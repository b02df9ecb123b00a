package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

func options(dir string, store objstore.Store) node.Options {
	return node.Options{
		Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", Archive: store,
		WALInterval: 20 * time.Millisecond, SegmentBytes: 64 << 10, FlushBytes: 4 << 10,
		SealAge: 200 * time.Millisecond, SealMinBytes: 1, WALFileSize: 1 << 20, DiskReserve: 1,
	}
}

func open(t testing.TB, dir string, store objstore.Store) *node.Node {
	t.Helper()
	n, err := node.Open(context.Background(), options(dir, store))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func take(t testing.TB, dir string, store objstore.Store) *restore.Report {
	t.Helper()
	r, err := restore.Run(context.Background(), restore.Options{
		Store: store, Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true,
		Now: func() time.Time { return time.Now().Add(48 * time.Hour) }, // long dead: it need not be watched
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func logOf(t testing.TB, n *node.Node, topic string, partition uint32) (out []string, offsets []int64) {
	t.Helper()
	r, err := n.ReadLog(context.Background(), broker.ReadRequest{Topic: topic, Partition: partition, From: -1, To: -1})
	if err != nil {
		t.Fatal(err)
	}
	for {
		recs, err := r.Next(context.Background())
		if err == io.EOF {
			return out, offsets
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range recs {
			out = append(out, string(rec.Key)+"="+string(rec.Value))
			offsets = append(offsets, rec.Offset)
		}
	}
}

// The disk is lost and the node restored from the bucket, again and again,
// with random amounts sealed, uploaded and shipped in between: what was
// answered archived is there, at the offset of the answer; no offset is ever
// seen with two contents; what was acked and shipped does not come back;
// positions are never ahead of the records (I3, I11, I16).
func TestLostDiskAgainAndAgain(t *testing.T) {
	store := mem.New("again", nil)
	rng := rand.New(rand.NewPCG(7, 7))
	ctx := context.Background()
	root := t.TempDir()
	n := open(t, filepath.Join(root, "d0"), store)
	partitions := uint32(2)
	if _, err := n.CreateTopic(ctx, broker.TopicSpec{Name: "t", Partitions: &partitions}); err != nil {
		t.Fatal(err)
	}
	archived := map[string]int64{} // "partition/key=value" -> offset
	content := map[string]string{} // "partition/offset" -> record, over all rounds
	acked := map[string]bool{}
	k := 0
	for round := range 8 {
		for range 60 + rng.IntN(200) {
			ack := broker.AckAccepted
			if rng.IntN(30) == 0 {
				ack = broker.AckArchived
			}
			key, value := fmt.Sprintf("k%d", k), fmt.Sprintf("v%d-%s", k, strings.Repeat("x", rng.IntN(600)))
			k++
			got, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Ack: ack, Records: []broker.NewRecord{{Partition: -1, Key: []byte(key), Value: []byte(value)}}})
			if err != nil {
				t.Fatal(err)
			}
			if ack == broker.AckArchived {
				// It says the same of everything before it in this log.
				archived[fmt.Sprintf("%d/%s=%s", got.Placements[0].Partition, key, value)] = got.Placements[0].FirstOffset
			}
		}
		for range rng.IntN(80) {
			msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 1})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range msgs {
				if acked[string(m.Key)] {
					t.Fatalf("round %d: %s was acked and shipped, and came again", round, m.Key)
				}
				errs, err := n.Settle(ctx, broker.SettleRequest{Topic: "t", Action: broker.SettleAck, Handles: []string{m.Handle}})
				if err = errors.Join(append(errs, err)...); err != nil {
					t.Fatal(err)
				}
				acked[string(m.Key)] = true
			}
		}
		// The barrier: everything before it, acks too, is in the archive.
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Ack: broker.AckArchived, Records: []broker.NewRecord{{Partition: 0, Value: []byte("barrier")}}}); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(root, fmt.Sprintf("d%d", round+1))
		report := take(t, dir, store)
		old := n
		n = open(t, dir, store)
		// The old process still runs; it must notice, and damages nothing.
		if _, err := old.Produce(ctx, broker.ProduceRequest{Topic: "t", Ack: broker.AckArchived, Wait: 5 * time.Second, Records: []broker.NewRecord{{Partition: 0, Value: []byte("zombie")}}}); err == nil {
			t.Fatal("the old node answered archived after the take-over")
		}
		if err := old.Close(); err != nil {
			t.Error(err)
		}
		found := map[string]int64{}
		for p := range partitions {
			records, offsets := logOf(t, n, "t", p)
			for i := range records {
				at := fmt.Sprintf("%d/%d", p, offsets[i])
				if before, ok := content[at]; ok && before != records[i] {
					t.Fatalf("round %d: offset %s was %q, is %q", round, at, before, records[i])
				}
				content[at] = records[i]
				if records[i] == "=zombie" {
					t.Fatalf("round %d: a record that the old node took in after the take-over is there", round)
				}
				found[fmt.Sprintf("%d/%s", p, records[i])] = offsets[i]
			}
		}
		for rec, offset := range archived {
			if at, ok := found[rec]; !ok || at != offset {
				t.Fatalf("round %d: %.40s was archived at %d, found at %d (%v); report %+v", round, rec, offset, at, ok, report)
			}
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// A clean stop ships everything: a restore then has all records at their
// offsets, and a restart of the restored node too.
func TestRestoreAfterCleanStop(t *testing.T) {
	store := mem.New("clean", nil)
	ctx := context.Background()
	root := t.TempDir()
	n := open(t, filepath.Join(root, "a"), store)
	one := uint32(1)
	if _, err := n.CreateTopic(ctx, broker.TopicSpec{Name: "t", Partitions: &one}); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: []broker.NewRecord{{Partition: 0, Value: fmt.Appendf(nil, "%d", i)}}}); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := logOf(t, n, "t", 0)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := restore.Run(ctx, restore.Options{Store: store, Dir: filepath.Join(root, "a"), NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true}); !errcode.Is(err, errcode.Conflict) {
		t.Fatalf("restore over a data directory: %v", err)
	}
	plan, err := restore.Look(ctx, restore.Options{Store: store, Dir: filepath.Join(root, "b"), NodeID: "node-1"})
	if err != nil || plan.Topics != 1 || plan.Partitions != 1 || plan.NewGeneration != 2 {
		t.Fatalf("plan %+v %v", plan, err)
	}
	take(t, filepath.Join(root, "b"), store)
	for range 2 {
		n = open(t, filepath.Join(root, "b"), store)
		got, offsets := logOf(t, n, "t", 0)
		if len(got) != len(want) || got[499] != want[499] || offsets[499] != 499 {
			t.Fatalf("%d records, want %d", len(got), len(want))
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := node.Open(ctx, options(filepath.Join(root, "a"), store)); !errcode.Is(err, errcode.Fenced) {
		t.Fatalf("the old directory starts after a take-over: %v", err)
	}
}

// A changed setting is part of what the archive has: what was answered before a
// record that is archived is there after a restore, and stays in force (I16).
func TestRestoreHasChangedSettings(t *testing.T) {
	store, root, ctx := mem.New("settings", nil), t.TempDir(), context.Background()
	n := open(t, filepath.Join(root, "d0"), store)
	if _, err := n.CreateTopic(ctx, broker.TopicSpec{Name: "t"}); err != nil {
		t.Fatal(err)
	}
	seven, wait, none := int64(7_000), "wait", "none"
	if _, err := n.SetTopic(ctx, "t", broker.TopicSpec{VisibilityTimeoutMS: &seven, Failover: &wait, Compression: &none, RetentionBytes: &seven}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Ack: broker.AckArchived, Records: []broker.NewRecord{{Value: []byte("x")}}}); err != nil {
		t.Fatal(err)
	}
	before, err := n.Topic(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	take(t, filepath.Join(root, "d1"), store)
	n = open(t, filepath.Join(root, "d1"), store)
	after, err := n.Topic(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	before.PartitionStats, after.PartitionStats = nil, nil
	if fmt.Sprint(before) != fmt.Sprint(after) || after.VisibilityTimeoutMS != 7000 || after.Compression != "none" {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
	// The metadata of the restored cluster takes changes too.
	if info, err := n.SetTopic(ctx, "t", broker.TopicSpec{RetentionBytes: new(int64)}); err != nil || info.RetentionBytes != 0 || info.VisibilityTimeoutMS != 7000 {
		t.Errorf("%+v %v", info, err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}
