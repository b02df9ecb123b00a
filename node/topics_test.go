package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A topic is deleted and made again under the same name: its positions, leases
// and records are new, also after a restart, and an old handle settles nothing
// (B114).
func TestRecreateUnderTheSameName(t *testing.T) {
	m := newMemNode(t, nil)
	ctx := context.Background()
	old := createTopic(t, m.Node, "t", 1)
	for i := range 50 {
		produce(t, m.Node, "t", broker.AckAccepted, numbered(10*i, 10)...)
	}
	msgs := m.consume("t", 500)
	m.settle("t", broker.SettleAck, msgs[:400]...)
	if err := m.DeleteTopic(ctx, "t", false); !errcode.Is(err, errcode.Conflict) {
		t.Fatalf("delete with unsettled records: %v", err)
	}
	if err := m.DeleteTopic(ctx, "t", true); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 1}); !errcode.Is(err, errcode.NotFound) {
		t.Fatalf("consume of a deleted topic: %v", err)
	}
	info := createTopic(t, m.Node, "t", 1)
	if info.ID == old.ID {
		t.Fatal("the same incarnation")
	}
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 5)...)
	for range 2 {
		if err := m.trySettle("t", broker.SettleAck, msgs[400]); !errcode.Is(err, errcode.Gone) {
			t.Fatalf("an old handle: %v", err)
		}
		if got := m.consume("t", 100); valuesOf(got) != "1 2 3 4 5" || got[0].Offset != 0 {
			t.Fatalf("delivered %q", valuesOf(got))
		}
		m.crash(100, 1)
	}
	m.close()
}

// Topics are deleted and made again under everything that uses them: readers
// that follow end with not found, nobody hangs, no answer is of the wrong
// incarnation, and nothing of the deleted ones is left.
func TestDeleteBesideEverything(t *testing.T) {
	store := mem.New("test", nil)
	o := testOptions(t.TempDir(), store)
	o.FlushBytes, o.SealAge, o.SealMinBytes = 1<<10, 10*time.Millisecond, 1
	n := openNode(t, o)
	defer closeNode(t, n)
	ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
	defer stop()
	createTopic(t, n, "t", 2)
	fine := func(err error) bool {
		switch errcode.Of(err) {
		case errcode.NotFound, errcode.Unavailable, errcode.Gone, errcode.Canceled, errcode.OutOfRange:
			return true
		}
		return err == nil || errors.Is(err, io.EOF) || ctx.Err() != nil
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(what string, f func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := f(); !fine(err) {
					t.Errorf("%s: %v", what, err)
					return
				}
			}
		}()
	}
	for range 3 {
		loop("produce", func() error {
			_, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: []broker.NewRecord{keyed("k", "v"), keyed("l", "w")}})
			return err
		})
	}
	loop("consume", func() error {
		msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 10, Wait: 5 * time.Millisecond})
		if err != nil || len(msgs) == 0 {
			return err
		}
		handles := make([]string, len(msgs))
		for i := range msgs {
			handles[i] = msgs[i].Handle
		}
		errs, err := n.Settle(ctx, broker.SettleRequest{Topic: "t", Action: broker.SettleAck, Handles: handles})
		for _, err := range errs {
			if !fine(err) {
				return err
			}
		}
		return err
	})
	for p := range uint32(2) {
		loop("follow", func() error {
			r, err := n.ReadLog(ctx, broker.ReadRequest{Topic: "t", Partition: p, From: 0, To: -1, Follow: true})
			if err != nil {
				return err
			}
			for next := int64(0); ; {
				recs, err := r.Next(ctx)
				if err == nil && len(recs) == 0 {
					_, err = r.Wait(ctx, 0)
				}
				if err != nil {
					return err // ends by itself when the topic is deleted
				}
				for _, rec := range recs {
					if rec.Offset != next {
						return fmt.Errorf("offset %d, want %d", rec.Offset, next)
					}
					next++
				}
			}
		})
	}
	loop("describe", func() error { _, err := n.Topic(ctx, "t"); return err })
	loop("time", func() error { _, err := n.OffsetForTime(ctx, "t", 0, 1); return err })
	loop("seal", func() error {
		for _, p := range n.engine.All() {
			if err := n.engine.Seal(p); err != nil && p.Refused() == nil {
				return err
			}
		}
		<-time.After(time.Millisecond)
		return nil
	})
	var ids []broker.TopicID
	for range 15 {
		info, err := n.Topic(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, info.ID)
		within(t, "some records", func() bool {
			return n.engine.Get(broker.PartitionID{Topic: info.ID}).HighWatermark()+n.engine.Get(broker.PartitionID{Topic: info.ID, Partition: 1}).HighWatermark() > 20
		})
		if err := n.DeleteTopic(ctx, "t", true); err != nil {
			t.Fatal(err)
		}
		createTopic(t, n, "t", 2)
	}
	if err := n.DeleteTopic(ctx, "t", true); err != nil {
		t.Fatal(err)
	}
	close(done)
	wg.Wait()
	if ctx.Err() != nil {
		t.Fatal("somebody waited for a deleted topic")
	}
	if all := n.engine.All(); len(all) != 0 {
		t.Fatalf("%d partitions are left", len(all))
	}
	if m := n.engine.Release(ctx, n.log.NextLSN()); m != nil {
		t.Fatal(m)
	}
	entries, err := n.db.Load()
	if err != nil || len(entries) != 0 {
		t.Fatalf("the local state has %d partitions %v", len(entries), err)
	}
	for _, id := range ids {
		if _, err := vfs.Default.Stat(filepath.Join(o.Dir, "topics", id.String())); err == nil {
			t.Fatalf("the directory of %s is left", id)
		}
	}
}

// The client that creates a topic goes away: the topic is complete all the same.
func TestCreateForAClientThatLeft(t *testing.T) {
	m := newMemNode(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	m.fs.set(func(op, path string) error {
		// While the base frames become durable; spares are synced before, too.
		if _, created := m.meta.Topic("t"); created && op == "sync" && inWAL(path) {
			cancel()
		}
		return nil
	}, nil)
	two := uint32(2)
	_, err := m.CreateTopic(ctx, broker.TopicSpec{Name: "t", Partitions: &two})
	if ctx.Err() == nil {
		t.Fatal("the client did not leave")
	}
	if err != nil {
		t.Fatalf("the topic is created, the answer is %v", err)
	}
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 1)...)
	m.close()
}

// A crash at any point of creating and deleting topics, with any part of what
// was not synced lost: the next start serves what the metadata has, whole, and
// nothing of what it deleted is left.
func TestCrashWhileTopicsChange(t *testing.T) {
	m := newMemNode(t, nil)
	ctx := context.Background()
	kept := createTopic(t, m.Node, "kept", 2)
	produce(t, m.Node, "kept", broker.AckAccepted, numbered(1, 3)...)
	for round := range 12 {
		// Copies of the disk at each sync; the metadata stands on another.
		var mu sync.Mutex
		var clones []*vfs.MemFS
		name := fmt.Sprintf("t%d", round)
		m.fs.set(func(op, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			if op == "sync" && len(clones) < 8 {
				clones = append(clones, m.mem.CrashClone(vfs.CrashCloneCfg{}))
			}
			return nil
		}, nil)
		createTopic(t, m.Node, name, 2)
		if round%2 == 1 {
			produce(t, m.Node, name, broker.AckAccepted, numbered(1, 3)...)
			if err := m.DeleteTopic(ctx, name, true); err != nil {
				t.Fatal(err)
			}
		}
		m.fs.set(nil, nil)
		mu.Lock()
		clone := clones[(round/2)%len(clones)]
		mu.Unlock()
		m.kill(clone)
		if got := readAll(t, m.Node, "kept", 0); len(got) != 3 {
			t.Fatalf("round %d: kept has %v", round, got)
		}
		if round%2 == 0 { // acknowledged, but the disk went back behind it
			if err := m.tryProduce(name, numbered(1, 1)...); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if err := m.DeleteTopic(ctx, name, true); err != nil {
				t.Fatal(err)
			}
		}
		names, err := m.mem.List(filepath.Join(m.dir, "topics"))
		if err != nil || len(names) != 1 || names[0] != kept.ID.String() {
			t.Fatalf("round %d: directories %v %v, kept is %s", round, names, err, kept.ID)
		}
	}
	m.close()
}

// A crash left the directory of a deleted topic: the next start removes it. One
// of a topic that the metadata does not know stays (I10), and so does what is
// none of ours.
func TestLeftDirectories(t *testing.T) {
	m := newMemNode(t, func(o *Options) { o.WALFileSize = 64 << 10 })
	info := createTopic(t, m.Node, "t", 1)
	if err := m.DeleteTopic(context.Background(), "t", true); err != nil {
		t.Fatal(err)
	}
	// The log does not know the topic any more.
	createTopic(t, m.Node, "other", 1)
	for range 50 {
		produce(t, m.Node, "other", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: make([]byte, 4<<10)})
	}
	if err := m.engine.Release(context.Background(), m.log.NextLSN()); err != nil {
		t.Fatal(err)
	}
	within(t, "the log is recycled", func() bool { return m.log.Stats().Files == 1 })
	m.close()
	unknown := broker.TopicID(0x1234)
	for _, name := range []string{info.ID.String(), unknown.String(), "notes"} {
		dir := filepath.Join(m.dir, "topics", name, "0")
		if err := m.mem.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := m.mem.Create(filepath.Join(dir, segment.SealedName(0)), vfs.WriteCategoryUnspecified)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m.open()
	for name, want := range map[string]bool{info.ID.String(): false, unknown.String(): true, "notes": true} {
		if _, err := m.mem.Stat(filepath.Join(m.dir, "topics", name)); (err == nil) != want {
			t.Errorf("directory %s: %v", name, err)
		}
	}
	m.close()
}

// The disk takes nothing for the moment in which a topic is created: the answer is
// an error, and yet the topic is there. It is a queue as soon as the disk takes
// writes again, without another change and without a restart (I14).
func TestCreateOnADiskThatIsFullForAMoment(t *testing.T) {
	m := newMemNode(t, nil)
	ctx := context.Background()
	createTopic(t, m.Node, "before", 1)
	m.fs.set(func(op, path string) error {
		if op == "write" && inWAL(path) {
			return errNoSpace
		}
		return nil
	}, nil)
	if _, err := m.CreateTopic(ctx, broker.TopicSpec{Name: "t", Partitions: new(uint32(2))}); err == nil {
		t.Fatal("created on a disk that is full")
	}
	m.fs.set(nil, nil)
	within(t, "a record is produced", func() bool {
		_, err := m.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: numbered(1, 1)})
		return err == nil
	})
	within(t, "the record is delivered", func() bool {
		got, err := m.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 10})
		if err != nil && !errcode.Is(err, errcode.Unavailable) {
			t.Fatal(err)
		}
		return len(got) > 0
	})
	m.close()
}
