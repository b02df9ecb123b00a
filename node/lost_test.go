package node

import (
	"context"
	"fmt"
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
	if _, err := restore.Run(ctx, restore.Options{Store: store, Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true}); err != nil {
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
