package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// An object that the archive lost is reported, and settles nothing: once it is
// back, its records are delivered (B210, I10).
func TestLostObjectSettlesNothing(t *testing.T) {
	ctx := context.Background()
	store := mem.New("lost", nil)
	root := t.TempDir()
	n := openNode(t, testOptions(filepath.Join(root, "a"), store))
	createTopic(t, n, "t", 1)
	for i := range 50 {
		produce(t, n, "t", broker.AckAccepted, keyed(fmt.Sprint(i), strings.Repeat("v", 200)))
	}
	if err := n.engine.Seal(n.engine.All()[0]); err != nil {
		t.Fatal(err)
	}
	within(t, "the segment is archived", func() bool {
		end, _ := n.engine.All()[0].ArchivedEnd()
		return end == 50
	})
	closeNode(t, n)
	dir := filepath.Join(root, "b")
	if _, err := restore.Run(ctx, restore.Options{Store: store, Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true, Now: daysLater}); err != nil {
		t.Fatal(err)
	}
	page, err := store.List(ctx, "t/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	key := ""
	for _, o := range page.Objects {
		if strings.HasSuffix(o.Key, ".seg") {
			key = o.Key
		}
	}
	body, info, err := store.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, info.Size)
	if _, err := body.Read(data); err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(ctx, []string{key}); err != nil {
		t.Fatal(err)
	}
	n = openNode(t, testOptions(dir, store))
	defer closeNode(t, n)
	for range 3 {
		if _, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 10}); !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), key) {
			t.Fatalf("consume of a lost object: %v", err)
		}
	}
	if err := store.Put(ctx, key, strings.NewReader(string(data)), info.Size, objstore.PutOptions{CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	got := 0
	within(t, "all records are delivered once the object is back", func() bool {
		msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 50, Wait: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		got += len(msgs)
		return got == 50
	})
}

// An object in the middle of a partition is lost for good. Whoever reads the log
// or consumes is told which offsets are lost and where it goes on; records before
// and behind them are read; the group waits in front of them and the topic's
// other partition is served in full meanwhile, however much a consumer asks for at
// a time. A trim to the offset behind them is what the operator has: the group
// goes on there, which is counted, and a restart knows it (B130, B210).
func TestTrimPassesALostObject(t *testing.T) {
	ctx := context.Background()
	store := mem.New("lost", nil)
	n := openNode(t, testOptions(filepath.Join(t.TempDir(), "a"), store))
	createTopic(t, n, "t", 2)
	for seg := range 3 {
		for i := range 10 {
			for p := range int32(2) {
				produce(t, n, "t", broker.AckAccepted, broker.NewRecord{Partition: p, Value: fmt.Appendf(nil, "%d/%d", p, seg*10+i)})
			}
		}
		for _, p := range n.engine.All() {
			if err := n.engine.Seal(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, p := range n.engine.All() {
		within(t, "the partition is archived", func() bool { end, _ := p.ArchivedEnd(); return end == 30 })
	}
	closeNode(t, n)
	dir := filepath.Join(t.TempDir(), "b")
	if _, err := restore.Run(ctx, restore.Options{Store: store, Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true, Now: daysLater}); err != nil {
		t.Fatal(err)
	}
	page, err := store.List(ctx, "t/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	deleted := 0
	for _, o := range page.Objects {
		if strings.Contains(o.Key, "/00000000000000000000/s/00000000000000000010-") {
			deleted++
			if err := store.Delete(ctx, []string{o.Key}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if deleted != 1 {
		t.Fatalf("%d objects deleted", deleted)
	}
	o := testOptions(dir, store)
	n = openNode(t, o)
	defer func() { closeNode(t, n) }()

	lostRange := func(who string, err error) {
		t.Helper()
		var e *errcode.Error
		if !errcode.Is(err, errcode.Corrupt) || !errors.As(err, &e) || e.Facts["from_offset"] != int64(10) || e.Facts["next_offset"] != int64(20) {
			t.Fatalf("%s: %v", who, err)
		}
	}
	read := func(from int64) (int, error) {
		r, err := n.ReadLog(ctx, broker.ReadRequest{Topic: "t", From: from, To: 30})
		if err != nil {
			return 0, err
		}
		defer r.Close()
		for total := 0; ; {
			recs, err := r.Next(ctx)
			if errors.Is(err, io.EOF) {
				return total, nil
			}
			if err != nil {
				return total, err
			}
			total += len(recs)
		}
	}
	if got, err := read(0); got != 10 {
		t.Fatalf("%d records before the lost ones: %v", got, err)
	} else {
		lostRange("a reader", err)
	}
	if got, err := read(20); got != 10 || err != nil {
		t.Fatalf("%d records behind the lost ones: %v", got, err)
	}

	// The other partition gets in line behind the damaged one.
	others, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: 1, Max: 64})
	if err != nil || len(others) != 30 {
		t.Fatalf("%d records of the other partition: %v", len(others), err)
	}
	n.Release("t", "", others)
	got := map[uint32]int{}
	take := func() error {
		msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 64})
		for _, m := range msgs {
			got[m.Partition]++
			if errs, err := n.Settle(ctx, broker.SettleRequest{Topic: "t", Action: broker.SettleAck, Handles: []string{m.Handle}}); err != nil || errs[0] != nil {
				t.Fatal(errs, err)
			}
		}
		return err
	}
	for range 4 {
		if err := take(); err != nil {
			lostRange("a consumer", err)
		}
	}
	if got[0] != 10 || got[1] != 30 {
		t.Fatalf("consumed of each partition: %v", got)
	}
	lostRange("a consumer of what is left", take())

	if start, err := n.Trim(ctx, "t", 0, 20); err != nil || start != 20 {
		t.Fatalf("the log begins at %d: %v", start, err)
	}
	if err := take(); err != nil || got[0] != 20 {
		t.Fatalf("the group goes on: %v %v", got, err)
	}
	if _, err := read(10); !errcode.Is(err, errcode.Gone) {
		t.Fatalf("a trimmed offset: %v", err)
	}
	closeNode(t, n)
	n = openNode(t, o)
	if err := take(); err != nil || got[0] != 20 || got[1] != 30 {
		t.Fatalf("after a restart: %v %v", got, err)
	}
	produce(t, n, "t", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: []byte("next")})
	if err := take(); err != nil || got[0] != 21 {
		t.Fatalf("what is produced next: %v %v", got, err)
	}
}
