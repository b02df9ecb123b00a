package node_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A node runs without its archive for a while, until its log has let go of frames
// that were never shipped. With the archive again it ships on by itself, answers
// archived once the segments of that while are uploaded, and what the bucket holds
// then restores everything, those records too (I16).
func TestArchiveIsSwitchedOffAndOn(t *testing.T) {
	base := t.TempDir()
	dir, store := filepath.Join(base, "data"), mem.New("archive", nil)
	var want []string
	put := func(n *node.Node, ack broker.Ack, size int) error {
		v := fmt.Sprintf("%d-%s", len(want), strings.Repeat("x", size))
		_, err := n.Produce(context.Background(), broker.ProduceRequest{
			Topic: "t", Ack: ack, Wait: 300 * time.Millisecond,
			Records: []broker.NewRecord{{Partition: 0, Key: []byte("k"), Value: []byte(v)}},
		})
		want = append(want, "k="+v)
		return err
	}
	n := open(t, dir, store)
	one := uint32(1)
	if _, err := n.CreateTopic(context.Background(), broker.TopicSpec{Name: "t", Partitions: &one}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(put(n, broker.AckCommitted, 10), n.Close()); err != nil {
		t.Fatal(err)
	}
	without := options(dir, nil)
	n, err := node.Open(context.Background(), without)
	if err != nil {
		t.Fatal(err)
	}
	first, err := filepath.Glob(filepath.Join(dir, "wal", "0*.wal"))
	if err != nil || len(first) == 0 {
		t.Fatal(first, err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if err := put(n, broker.AckCommitted, 32<<10); err != nil {
			t.Fatal(err)
		}
		if now, err := filepath.Glob(filepath.Join(dir, "wal", "0*.wal")); err == nil && len(now) > 0 && now[0] > first[len(first)-1] {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the log let nothing go")
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open(t, dir, store)
	for deadline := time.Now().Add(time.Minute); ; {
		if err := put(n, broker.AckArchived, 10); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("never archived: %+v", n.Readiness())
		}
	}
	if got, _ := logOf(t, n, "t", 0); strings.Join(got, "") != strings.Join(want, "") {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	// The disk is lost in this moment.
	restored := filepath.Join(base, "restored")
	take(t, restored, store)
	if err := n.Close(); err != nil {
		t.Log("the old node:", err)
	}
	n = open(t, restored, store)
	if got, _ := logOf(t, n, "t", 0); strings.Join(got, "") != strings.Join(want, "") {
		t.Fatalf("restored %d records, want %d", len(got), len(want))
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}
