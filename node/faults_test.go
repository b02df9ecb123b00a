package node

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

func (m *memNode) tryProduce(topic string, records ...broker.NewRecord) error {
	_, err := m.Produce(context.Background(), broker.ProduceRequest{Topic: topic, Records: records})
	return err
}

// waits fails unless err asks the caller to come back, with a time.
func waits(t *testing.T, what string, err error) {
	t.Helper()
	var e *errcode.Error
	if !errcode.Is(err, errcode.Storage) || !errors.As(err, &e) || e.Wait == 0 {
		t.Fatalf("%s: %v", what, err)
	}
}

// Another program fills the disk: produce to old and new topics is refused with
// a time to wait, readiness is red and stays so, acks and reads go on; when
// space is back so is produce, without a restart (B53, I15).
func TestDiskReserve(t *testing.T) {
	m := newMemNode(t, func(o *Options) { o.DiskReserve = 1 << 20 })
	createTopic(t, m.Node, "old", 1)
	produce(t, m.Node, "old", broker.AckAccepted, numbered(1, 10)...)
	var free atomic.Int64
	free.Store(512 << 10)
	m.fs.set(nil, func() (uint64, bool) { return uint64(free.Load()), true })
	within(t, "readiness is red", func() bool { return !m.Readiness().Data })
	createTopic(t, m.Node, "new", 1)
	for _, topic := range []string{"old", "new"} {
		waits(t, "produce to "+topic, m.tryProduce(topic, numbered(1, 1)...))
	}
	m.settle("old", broker.SettleAck, m.consume("old", 4)...)
	same(t, readAll(t, m.Node, "old", 0)[:1], []string{"0 =1"})
	free.Store(1 << 10) // now nothing may be flushed either
	within(t, "flushing waits", func() bool { return m.disk.write() != nil })
	old := m.topics.Load().byName["old"].partitions[0]
	if err := m.engine.Seal(old); !errcode.Is(err, errcode.Storage) {
		t.Fatalf("flush on a full disk: %v", err)
	}
	// Small tails go forward in the log, which has room that it took before, and
	// a checkpoint takes little: both let the log give its files back.
	if err := m.engine.Release(context.Background(), m.log.Durable()); err != nil {
		t.Fatalf("make room in the log on a full disk: %v", err)
	}
	if err := m.engine.Checkpoint(context.Background()); err != nil {
		t.Fatalf("checkpoint on a full disk: %v", err)
	}
	if m.Readiness().Ready {
		t.Fatal("ready with a full disk")
	}
	free.Store(1 << 30)
	within(t, "produce goes on", func() bool { return m.tryProduce("new", numbered(1, 1)...) == nil })
	if r := m.Readiness(); !r.Ready {
		t.Fatalf("not ready with space: %+v", r)
	}
	m.crash(100, 1)
	if got := valuesOf(m.consume("old", 100)); got != "5 6 7 8 9 10" {
		t.Fatalf("delivered %q", got)
	}
	m.close()
}

// Writes to the log fail for a while, as on a full disk: what was answered with
// an error is refused or unknown, never acknowledged, and the node goes on by
// itself with every acknowledged record (B54, B65).
func TestLogWritesFailForAWhile(t *testing.T) {
	m := newMemNode(t, nil)
	createTopic(t, m.Node, "t", 1)
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 3)...)
	leased := m.consume("t", 3)
	m.fs.set(func(op, path string) error {
		if op == "write" && inWAL(path) {
			return errNoSpace
		}
		return nil
	}, nil)
	if err := m.tryProduce("t", numbered(4, 1)...); !errcode.Is(err, errcode.NotConfirmed) {
		t.Fatalf("produce while the write fails: %v", err)
	}
	if err := m.tryProduce("t", numbered(5, 1)...); !errcode.Is(err, errcode.Storage) {
		t.Fatalf("produce while the log is stalled: %v", err)
	}
	if err := m.trySettle("t", broker.SettleAck, leased...); err == nil {
		t.Fatal("an ack is answered that nobody wrote")
	}
	if m.Readiness().Data {
		t.Fatal("ready while the log takes nothing")
	}
	two := uint32(2)
	if _, err := m.CreateTopic(context.Background(), broker.TopicSpec{Name: "later", Partitions: &two}); err == nil {
		t.Fatal("a topic whose partitions are not durable is answered")
	}
	waitsOrUnavailable := m.tryProduce("later", numbered(1, 1)...)
	if waitsOrUnavailable == nil {
		t.Fatal("produce to a topic without partitions is answered")
	}
	m.fs.set(nil, nil)
	within(t, "produce goes on", func() bool { return m.tryProduce("t", numbered(6, 1)...) == nil })
	// The topic that the metadata has gets its partitions without a restart.
	within(t, "the topic is served", func() bool { return m.tryProduce("later", numbered(1, 1)...) == nil })
	if got := valuesOf(m.consume("later", 10)); got != "1" {
		t.Fatalf("delivered %q", got)
	}
	got := readAll(t, m.Node, "t", 0)
	m.crash(100, 1)
	same(t, readAll(t, m.Node, "t", 0), got)
	for _, want := range []string{"0 =1", "1 =2", "2 =3"} {
		if !strings.Contains(strings.Join(got, ","), want) {
			t.Fatalf("%s is lost: %v", want, got)
		}
	}
	m.close()
}

// One fsync of the log fails with EIO: that produce is not acknowledged, and
// neither is anything after it, though the next fsync would succeed. Readiness
// is red until a restart, which has all that was acknowledged before (B63, I5).
func TestPoisonedLog(t *testing.T) {
	m := newMemNode(t, nil)
	createTopic(t, m.Node, "t", 1)
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 10)...)
	msgs := m.consume("t", 5)
	m.settle("t", broker.SettleAck, msgs[:3]...)
	if err := m.log.WaitDurable(context.Background(), m.log.NextLSN()-1); err != nil {
		t.Fatal(err)
	}
	m.fs.set(func(op, path string) error {
		if op == "sync" && inWAL(path) {
			return errBroken
		}
		return nil
	}, nil)
	ctx := context.Background()
	one := uint32(1)
	if err := m.tryProduce("t", numbered(11, 1)...); !errcode.Is(err, errcode.NotConfirmed) {
		t.Fatalf("produce whose fsync fails: %v", err)
	}
	m.fs.set(nil, nil) // the disk would take the next one
	calls := map[string]func() error{
		"produce": func() error { return m.tryProduce("t", numbered(12, 1)...) },
		"ack":     func() error { return m.trySettle("t", broker.SettleAck, msgs[3]) },
		"nack":    func() error { return m.trySettle("t", broker.SettleNack, msgs[4]) },
		"consume": func() error {
			_, err := m.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 1})
			return err
		},
		"create topic": func() error {
			_, err := m.CreateTopic(ctx, broker.TopicSpec{Name: "x", Partitions: &one})
			return err
		},
	}
	for range 2 {
		for name, call := range calls {
			if err := call(); err == nil {
				t.Fatalf("%s succeeds on a poisoned log", name)
			}
		}
	}
	if r := m.Readiness(); r.Ready || r.Data || len(r.Degraded) == 0 {
		t.Fatalf("readiness %+v", r)
	}
	m.crash(0, 1)
	got := readAll(t, m.Node, "t", 0)
	if len(got) < 10 || got[9] != "9 =10" {
		t.Fatalf("after the restart: %v", got)
	}
	if delivered := valuesOf(m.consume("t", 7)); delivered != "4 5 6 7 8 9 10" {
		t.Fatalf("delivered %q", delivered)
	}
	if err := m.tryProduce("x", numbered(1, 1)...); err != nil {
		t.Fatalf("the topic that the metadata has is not served: %v", err)
	}
	m.close()
}

// watchedContext tells when somebody begins to wait for its end.
type watchedContext struct {
	context.Context
	waits chan<- struct{}
}

func (c *watchedContext) Done() <-chan struct{} {
	c.waits <- struct{}{}
	return c.Context.Done()
}

// Every method of a node that was taken over is refused as fenced, and who
// waits hears it at once (I8).
func TestFencedNode(t *testing.T) {
	m := newMemNode(t, nil)
	createTopic(t, m.Node, "t", 1)
	produce(t, m.Node, "t", broker.AckAccepted, numbered(1, 2)...)
	msgs := m.consume("t", 2)
	ctx := context.Background()
	reader, err := m.ReadLog(ctx, broker.ReadRequest{Topic: "t", From: 0, To: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Next(ctx); err != nil {
		t.Fatal(err)
	}
	waiting, parked := make(chan error, 2), make(chan struct{}, 100)
	go func() { _, err := reader.Wait(&watchedContext{ctx, parked}, 0); waiting <- err }()
	<-parked
	go func() {
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := m.Consume(&watchedContext{child, parked}, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 1, Wait: time.Minute})
		waiting <- err
	}()
	<-parked
	m.fence(errcode.New(errcode.Fenced, "taken over by the test"))
	for range 2 {
		select {
		case err := <-waiting:
			if !errcode.Is(err, errcode.Fenced) {
				t.Errorf("a call that waited: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a call waits on a fenced node")
		}
	}
	one := uint32(1)
	for name, call := range map[string]func() error{
		"produce": func() error { return m.tryProduce("t", numbered(1, 1)...) },
		"consume": func() error {
			_, err := m.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 1})
			return err
		},
		"settle": func() error { return m.trySettle("t", broker.SettleAck, msgs...) },
		"read log": func() error {
			_, err := m.ReadLog(ctx, broker.ReadRequest{Topic: "t", From: 0, To: -1})
			return err
		},
		"offset for time": func() error { _, err := m.OffsetForTime(ctx, "t", 0, 1); return err },
		"topic for":       func() error { _, err := m.TopicFor("t"); return err },
		"topic":           func() error { _, err := m.Topic(ctx, "t"); return err },
		"topics":          func() error { _, _, err := m.Topics(ctx, "", 10); return err },
		"create": func() error {
			_, err := m.CreateTopic(ctx, broker.TopicSpec{Name: "x", Partitions: &one})
			return err
		},
		"delete": func() error { return m.DeleteTopic(ctx, "t", true) },
		"next":   func() error { _, err := reader.Next(ctx); return err },
	} {
		if err := call(); !errcode.Is(err, errcode.Fenced) {
			t.Errorf("%s on a fenced node: %v", name, err)
		}
	}
	if m.Readiness().Ready {
		t.Error("a fenced node is ready")
	}
	m.Release("t", "", msgs) // has no answer, and does no harm
	m.close()
}

// A damaged file takes one partition out of service, with the file's name in
// its status: the topic's other partitions are produced to, consumed and read,
// and checkpoints go on (B258).
func TestDamagedPartitionBesideOthers(t *testing.T) {
	m := newMemNode(t, nil)
	info := createTopic(t, m.Node, "t", 2)
	for p := range int32(2) {
		for i := range 20 {
			produce(t, m.Node, "t", broker.AckAccepted, broker.NewRecord{Partition: p, Value: []byte{'a' + byte(i)}})
		}
	}
	m.close()
	dir := filepath.Join(m.dir, "topics", info.ID.String(), "0")
	path := filepath.Join(dir, segment.ActiveName(0))
	d, err := m.mem.OpenDir(dir)
	if err == nil {
		err = errors.Join(m.mem.Remove(path), d.Sync(), d.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	m.open()
	if err := m.tryProduce("t", broker.NewRecord{Partition: 0, Value: []byte("x")}); err == nil {
		t.Fatal("a damaged partition takes a record")
	}
	if _, err := m.Consume(context.Background(), broker.ConsumeRequest{Topic: "t", Partition: 0, Max: 1}); !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.NotFound) || !strings.Contains(err.Error(), path) {
		t.Fatalf("consume of the damaged partition: %v", err)
	}
	got, err := m.Topic(context.Background(), "t")
	if err != nil || !strings.Contains(got.PartitionStats[0].Status, path) || got.PartitionStats[1].Status != "serving" {
		t.Fatalf("status %+v %v", got.PartitionStats, err)
	}
	produce(t, m.Node, "t", broker.AckAccepted, broker.NewRecord{Partition: 1, Value: []byte("u")})
	msgs := m.consume("t", 100)
	if len(msgs) != 21 {
		t.Fatalf("%d records of the sound partition", len(msgs))
	}
	m.settle("t", broker.SettleAck, msgs...)
	if err := m.engine.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	m.crash(0, 1)
	if again := m.consume("t", 100); len(again) != 0 {
		t.Fatalf("delivered %q", valuesOf(again))
	}
	m.close()
}

// A partition goes out of service while the node runs: a consumer of the whole
// topic gets the records of the others.
func TestPartitionGoesOutOfService(t *testing.T) {
	m := newMemNode(t, nil)
	info := createTopic(t, m.Node, "t", 2)
	for p := range int32(2) {
		produce(t, m.Node, "t", broker.AckAccepted, broker.NewRecord{Partition: p, Value: []byte("v")})
	}
	m.fs.set(func(op, path string) error {
		if op == "sync" && strings.Contains(path, info.ID.String()+"/0/") {
			return errBroken
		}
		return nil
	}, nil)
	for _, p := range m.engine.All() {
		_ = m.engine.Seal(p) // one of them fails
	}
	if r := m.Readiness(); !r.Ready || len(r.Degraded) != 1 {
		t.Fatalf("readiness %+v", r)
	}
	msgs := m.consume("t", 10)
	if len(msgs) != 1 || msgs[0].Partition != 1 {
		t.Fatalf("delivered %+v", msgs)
	}
	m.settle("t", broker.SettleAck, msgs...)
	// An ack survives a power loss once it is synced, which a checkpoint waits for.
	if err := m.engine.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	m.crash(50, 1) // a restart has both
	if msgs := m.consume("t", 10); len(msgs) != 1 || msgs[0].Partition != 0 {
		t.Fatalf("delivered %+v", msgs)
	}
	m.close()
}

// Frames of a topic that the metadata does not know are kept in the log, over
// restarts and whatever else is written, until somebody says what they are (I10).
func TestFramesOfAnUnknownTopicAreKept(t *testing.T) {
	m := newMemNode(t, func(o *Options) { o.WALFileSize = 64 << 10 })
	createTopic(t, m.Node, "t", 1)
	id := uint64(m.id.Incarnation)
	m.close()
	stray := broker.PartitionID{Topic: 0x1234}
	log, _, err := wal.Open(wal.Options{FS: m.mem, Dir: filepath.Join(m.dir, "wal"), Incarnation: id, FileSize: 64 << 10},
		func(wal.Frame) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	g := frame.Group{Partition: stray, Generation: 1, Name: "g", Ops: []byte("x")}
	slot, err := log.Reserve(wal.KindGroup, frame.GroupSize(g))
	if err != nil {
		t.Fatal(err)
	}
	frame.PutGroup(slot.Body, g)
	slot.Done()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		m.open()
		for range 50 {
			produce(t, m.Node, "t", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: make([]byte, 4<<10)})
		}
		if err := m.engine.Release(context.Background(), m.log.NextLSN()); err != nil {
			t.Fatal(err)
		}
		if oldest := m.log.Stats().Oldest; oldest > slot.LSN {
			t.Fatalf("the log begins at %d, the frame has LSN %d", oldest, slot.LSN)
		}
		m.close()
	}
}
