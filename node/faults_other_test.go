package node

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/restore"
)

// The bucket of one cluster is restored by a node of another name, with topics of
// other sizes in it, and then by a third: each is healthy at once, has the topics,
// the records and the positions, takes more, archives it, and leaves what the
// ones before wrote as it was (B215, B222).
func TestRestoreByAnotherNode(t *testing.T) {
	store, want := archivedLog(t, 100, 20)
	b := newBadBucket(store)
	for _, id := range []string{"other-7", "third"} {
		before := b.sums(t)
		dir := filepath.Join(t.TempDir(), id)
		_, err := restore.Run(context.Background(), restore.Options{
			Store: b.stack, Dir: dir, NodeID: id, RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true,
			Now: func() time.Time { return time.Now().Add(time.Hour) },
		})
		if err != nil {
			t.Fatal(err)
		}
		o := testOptions(dir, b.stack)
		o.NodeID = id
		n := openNode(t, o)
		if r := n.Readiness(); !r.Ready {
			t.Fatalf("%s: %+v", id, r)
		}
		got, err := coldAll(n, "t")
		if err != nil || len(got) != len(want) {
			t.Fatalf("%s: %d of %d records: %v", id, len(got), len(want), err)
		}
		same(t, got, want)
		createTopic(t, n, "of-"+id, 5)
		produce(t, n, "of-"+id, broker.AckArchived, broker.NewRecord{Partition: 4, Value: []byte("x")})
		produce(t, n, "t", broker.AckArchived, broker.NewRecord{Value: []byte("of " + id)})
		if want, err = coldAll(n, "t"); err != nil || len(want) != len(got)+1 {
			t.Fatalf("%s: %d records after one more: %v", id, len(want), err)
		}
		info, err := n.Topic(context.Background(), "of-"+id)
		if err != nil || info.Partitions != 5 || info.PartitionStats[4].NextOffset == 0 {
			t.Fatalf("%s: %+v %v", id, info, err)
		}
		closeNode(t, n)
		after := b.sums(t)
		for key, sum := range before {
			if after[key] != sum {
				t.Fatalf("%s: %s changed", id, key)
			}
		}
	}
}
