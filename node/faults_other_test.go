package node

import (
	"context"
	"path/filepath"
	"testing"

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
	settled := int64(0) // of the default group, in the only partition of t
	for _, id := range []string{"other-7", "third"} {
		before := b.sums(t)
		dir := filepath.Join(t.TempDir(), id)
		_, err := restore.Run(context.Background(), restore.Options{
			Store: b.stack, Dir: dir, NodeID: id, RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true,
			Now: daysLater,
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
		msgs, err := n.Consume(context.Background(), broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 10})
		if err != nil || len(msgs) != 10 || msgs[0].Offset != settled {
			t.Fatalf("%s: the group goes on with %d records, want 10 from %d: %v %v", id, len(msgs), settled, msgs, err)
		}
		for _, m := range msgs {
			errs, err := n.Settle(context.Background(), broker.SettleRequest{Topic: "t", Action: broker.SettleAck, Handles: []string{m.Handle}})
			if err != nil || errs[0] != nil {
				t.Fatal(err, errs)
			}
		}
		settled += 10
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
