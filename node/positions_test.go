package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/node/state"
)

// Leased 1 to 10, acked 1 to 4 and 6 to 10, nacked 5: after a clean stop, a
// crash of the process and the loss of what was not synced, only 5 is
// delivered again (B67, I11). Acks answer before they are synced, so with the
// power the last second may come again; here it has passed.
func TestOnlyTheNackedComesAgain(t *testing.T) {
	for name, stop := range map[string]func(*memNode){
		"clean stop":   func(m *memNode) { m.close(); m.open() },
		"process dies": func(m *memNode) { m.crash(100, 1) },
		"power fails": func(m *memNode) {
			if err := m.log.WaitDurable(context.Background(), m.log.NextLSN()-1); err != nil {
				m.t.Fatal(err)
			}
			m.crash(0, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemNode(t, nil)
			createTopic(t, m.Node, "t", 1)
			produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 10)...)
			msgs := m.consume("t", 10)
			if got := valuesOf(msgs); got != "1 2 3 4 5 6 7 8 9 10" {
				t.Fatalf("leased %s", got)
			}
			m.settle("t", broker.SettleAck, msgs[:4]...)
			for _, msg := range msgs[5:] {
				m.settle("t", broker.SettleAck, msg)
			}
			m.settle("t", broker.SettleNack, msgs[4])
			stop(m)
			again := m.consume("t", 100)
			if valuesOf(again) != "5" || again[0].Attempt != 2 {
				t.Fatalf("delivered %q, attempt %d", valuesOf(again), again[0].Attempt)
			}
			m.settle("t", broker.SettleAck, again...)
			stop(m)
			if more := m.consume("t", 100); len(more) != 0 {
				t.Fatalf("delivered %q", valuesOf(more))
			}
			m.close()
		})
	}
}

// Consumers ack while the process dies: nothing whose ack was answered comes
// again, and everything else does (I1, I11, B72, B73).
func TestAnsweredAcksSurviveTheProcess(t *testing.T) {
	m := newMemNode(t, func(o *Options) { o.WALFileSize, o.FlushBytes = 256<<10, 1<<10 })
	createTopic(t, m.Node, "t", 2)
	rng := rand.New(rand.NewPCG(5, 5))
	acked := map[string]bool{} // over all rounds
	total := 0
	for round := range 6 {
		for range 10 {
			records := numbered(total, 20)
			for i := range records {
				records[i].Partition = int32(i % 2)
			}
			produce(t, m.Node, "t", broker.AckAccepted, records...)
			total += len(records)
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		var stop atomic.Bool
		n, now := m.Node, map[string]bool{}
		for w := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for !stop.Load() {
					msgs, err := n.Consume(context.Background(), broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 1 + w})
					if err != nil || len(msgs) == 0 {
						return
					}
					mu.Lock()
					for _, msg := range msgs {
						if acked[string(msg.Value)] {
							t.Errorf("round %d: %s was acked and came again", round, msg.Value)
						}
					}
					mu.Unlock()
					handles := make([]string, len(msgs))
					for i := range msgs {
						handles[i] = msgs[i].Handle
					}
					errs, err := n.Settle(context.Background(), broker.SettleRequest{Topic: "t", Action: broker.SettleAck, Handles: handles})
					if err != nil {
						return
					}
					mu.Lock()
					for i, err := range errs {
						if err == nil {
							now[string(msgs[i].Value)] = true
						}
					}
					mu.Unlock()
				}
			}()
		}
		target := 20 + rng.IntN(100)
		within(t, "some acks", func() bool { mu.Lock(); defer mu.Unlock(); return len(now) >= target || len(acked)+len(now) == total })
		mu.Lock()
		for v := range now { // answered before the moment of the crash
			acked[v] = true
		}
		mu.Unlock()
		clone := m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
		stop.Store(true)
		wg.Wait()
		m.kill(clone)
	}
	produce(t, m.Node, "t", broker.AckAccepted, numbered(total, 20)...)
	seen := map[string]bool{}
	for {
		msgs := m.consume("t", 100)
		if len(msgs) == 0 {
			break
		}
		for _, msg := range msgs {
			if acked[string(msg.Value)] || seen[string(msg.Value)] {
				t.Fatalf("%s was acked or leased and came again", msg.Value)
			}
			seen[string(msg.Value)] = true
		}
	}
	// Acks that were written while their answer was on its way may count too.
	if len(seen)-20+len(acked) > total {
		t.Fatalf("%d delivered, %d acked, %d produced", len(seen)-20, len(acked), total)
	}
	for i := range 20 {
		if !seen[fmt.Sprint(total+i)] {
			t.Fatalf("record %d is not delivered", total+i)
		}
	}
	m.close()
}

// The group state survived, the end of the log did not: the position is
// brought down to the end of the log, and the next record is delivered (B69).
func TestPositionAheadOfTheLog(t *testing.T) {
	m := newMemNode(t, nil)
	info := createTopic(t, m.Node, "t", 1)
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 10)...)
	m.settle("t", broker.SettleAck, m.consume("t", 3)...)
	m.close()
	db, err := state.Open(m.mem, filepath.Join(m.dir, "state"), nil)
	if err != nil {
		t.Fatal(err)
	}
	id := broker.PartitionID{Topic: info.ID}
	b := db.NewBatch()
	b.PutGroup(id, broker.DefaultGroup, (&queue.State{Group: broker.DefaultGroup, Committed: 14084}).Append(nil))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time from what the node itself wrote
		m.open()
		if msgs := m.consume("t", 10); len(msgs) != 0 {
			t.Fatalf("delivered %q", valuesOf(msgs))
		}
		m.close()
	}
	m.open()
	produce(t, m.Node, "t", broker.AckAccepted, numbered(11, 1)...)
	if msgs := m.consume("t", 10); valuesOf(msgs) != "11" {
		t.Fatalf("delivered %q", valuesOf(msgs))
	}
	m.close()
}

// A leases a record, the node restarts, B leases it: A's late ack is refused,
// B's holds, and the record is gone once (B80, B81). A handle of a lease that
// nobody took over settles after the restart.
func TestStaleHandleAfterARestart(t *testing.T) {
	m := newMemNode(t, nil)
	createTopic(t, m.Node, "t", 1)
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 2)...)
	a := m.consume("t", 2)
	m.crash(100, 2)
	m.settle("t", broker.SettleAck, a[0])
	b := m.consume("t", 2)
	if valuesOf(b) != "2" {
		t.Fatalf("delivered %q", valuesOf(b))
	}
	for _, action := range []broker.SettleAction{broker.SettleAck, broker.SettleNack, broker.SettleExtend} {
		if err := m.trySettle("t", action, a[1]); !errcode.Is(err, errcode.Gone) {
			t.Fatalf("%s of the lost lease: %v", action, err)
		}
	}
	m.settle("t", broker.SettleAck, b...)
	m.crash(100, 3)
	if msgs := m.consume("t", 2); len(msgs) != 0 {
		t.Fatalf("delivered %q", valuesOf(msgs))
	}
	m.close()
}

// The last checkpoint of a clean stop has the groups: the local state holds
// what the log is allowed to forget.
func TestCleanStopCapturesGroups(t *testing.T) {
	m := newMemNode(t, nil)
	createTopic(t, m.Node, "t", 1)
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 10)...)
	m.settle("t", broker.SettleAck, m.consume("t", 10)...)
	last := m.log.NextLSN() - 1
	m.close()
	db, err := state.Open(m.mem, filepath.Join(m.dir, "state"), nil)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := db.Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].GroupLSN < last || len(entries[0].Groups) != 1 {
		t.Fatalf("the local state has %+v, the last ack has LSN %d", entries, last)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	m.open()
	if msgs := m.consume("t", 10); len(msgs) != 0 {
		t.Fatalf("delivered %q", valuesOf(msgs))
	}
	m.close()
}

// The alarm clock of leases runs on the node's clock: a lease ends, another
// consumer gets the record, and the late ack is refused (B80).
func TestLateAck(t *testing.T) {
	var ahead atomic.Int64
	m := newMemNode(t, func(o *Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	createTopic(t, m.Node, "t", 1)
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 1)...)
	a := m.consume("t", 1)
	ahead.Store(int64(time.Hour))
	if err := m.trySettle("t", broker.SettleAck, a...); !errcode.Is(err, errcode.Gone) {
		t.Fatalf("late ack: %v", err)
	}
	m.crash(100, 4)
	b := m.consume("t", 1)
	if valuesOf(b) != "1" {
		t.Fatalf("delivered %q", valuesOf(b))
	}
	m.settle("t", broker.SettleAck, b...)
	m.close()
}
