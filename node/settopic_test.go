package node

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

func ptr[T any](v T) *T { return &v }

func setTopic(t testing.TB, n *Node, name string, change broker.TopicSpec) broker.TopicInfo {
	t.Helper()
	info, err := n.SetTopic(context.Background(), name, change)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// settingsOf is what a description says of the settings alone.
func settingsOf(info broker.TopicInfo) broker.TopicInfo { //nolint:gocritic // a copy is what is wanted
	info.PartitionStats = nil
	return info
}

// Each setting is in force when the change is answered, without a restart: what is
// not named stays, and a restart keeps all of it.
func TestSettingsHoldAtOnce(t *testing.T) {
	o := testOptions(t.TempDir(), mem.New("test", nil))
	n := openNode(t, o)
	defer func() { closeNode(t, n) }()
	before := createTopic(t, n, "t", 1)

	// default_ack: the next produce is answered with it.
	info := setTopic(t, n, "t", broker.TopicSpec{DefaultAck: ptr(broker.AckArchived)})
	if got := produce(t, n, "t", broker.AckDefault, numbered(1, 4)...); got.Ack != broker.AckArchived || !got.Archived {
		t.Errorf("default ack: %+v", got)
	}
	if info.RetentionMS != before.RetentionMS || info.Failover != before.Failover || info.ID != before.ID {
		t.Errorf("what was not named changed: %+v", info)
	}
	// max_in_flight and visibility timeout: from the next lease on, also for a consumer that waits.
	setTopic(t, n, "t", broker.TopicSpec{MaxInFlightPerPartition: ptr(int64(1)), VisibilityTimeoutMS: ptr(int64(1000))})
	take := func(wait time.Duration) []broker.Message {
		t.Helper()
		msgs, err := n.Consume(context.Background(), broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 10, Wait: wait})
		if err != nil {
			t.Fatal(err)
		}
		return msgs
	}
	first := take(0)
	if len(first) != 1 || len(take(0)) != 0 {
		t.Fatalf("%d records are leased, one is allowed", len(first))
	}
	waiting := make(chan []broker.Message, 1)
	go func() { waiting <- take(20 * time.Second) }()
	setTopic(t, n, "t", broker.TopicSpec{MaxInFlightPerPartition: ptr(int64(2)), VisibilityTimeoutMS: ptr(int64(12 * 3600 * 1000))})
	if got := <-waiting; len(got) != 1 {
		t.Fatalf("a waiting consumer got %d records", len(got))
	}
	within(t, "the lease of a second is over, that of half a day is not", func() bool {
		got := take(0)
		return len(got) == 1 && got[0].Offset == first[0].Offset && got[0].Attempt == 2
	})
	// max_record_bytes is what the HTTP plane asks for before it reads.
	setTopic(t, n, "t", broker.TopicSpec{MaxRecordBytes: ptr(int64(7))})
	if info, err := n.TopicFor("t"); err != nil || info.MaxRecordBytes != 7 {
		t.Errorf("max_record_bytes: %d %v", info.MaxRecordBytes, err)
	}
	// failover is stored; compression holds for the next batch.
	setTopic(t, n, "t", broker.TopicSpec{Compression: ptr("none"), Failover: ptr("automatic")})
	p := n.topics.Load().byName["t"].partitions[0]
	codec := func() segment.Codec {
		t.Helper()
		at := p.HighWatermark()
		produce(t, n, "t", broker.AckAccepted, broker.NewRecord{Value: []byte(strings.Repeat("x", 100<<10))})
		return codecAt(t, p, at)
	}
	if c := codec(); c != segment.CodecNone {
		t.Errorf("after compression none: %v", c)
	}
	setTopic(t, n, "t", broker.TopicSpec{Compression: ptr("zstd")})
	if c := codec(); c != segment.CodecZstd {
		t.Errorf("after compression zstd: %v", c)
	}
	// A refused change changes nothing, names every field, and so does one of no topic.
	was := settingsOf(setTopic(t, n, "t", broker.TopicSpec{}))
	_, err := n.SetTopic(context.Background(), "t", broker.TopicSpec{Name: "u", Partitions: ptr(uint32(2)), RetentionMS: ptr(int64(1)), Compression: ptr("lz4"), MaxInFlightPerPartition: ptr(int64(1) << 40)})
	if !errcode.Is(err, errcode.InvalidArgument) {
		t.Fatal(err)
	}
	for _, field := range []string{"name:", "partitions:", "compression:", "max_in_flight_per_partition:"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	if _, err := n.SetTopic(context.Background(), "u", broker.TopicSpec{}); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("of no topic: %v", err)
	}
	closeNode(t, n)
	n = openNode(t, o)
	if now := settingsOf(setTopic(t, n, "t", broker.TopicSpec{})); !reflect.DeepEqual(now, was) {
		t.Errorf("after a restart %+v\nbefore %+v", now, was)
	}
}

// codecAt returns the compression of the batch that holds an offset.
func codecAt(t *testing.T, p *partition.Partition, offset int64) segment.Codec {
	t.Helper()
	run, err := p.Read(context.Background(), offset, 1, nil)
	if err != nil || len(run) == 0 {
		t.Fatalf("%d batches at %d: %v", len(run), offset, err)
	}
	h, err := segment.ParseHeader(run[0])
	if err != nil {
		t.Fatal(err)
	}
	return h.Codec()
}

// Shorter retention takes records away without a restart, and longer retention
// keeps them.
func TestRetentionIsChanged(t *testing.T) {
	r := newRetaining(t, nil, broker.TopicSpec{RetentionMS: ptr(int64(0))})
	defer func() { closeNode(t, r.Node) }()
	r.fill(20)
	r.archived()
	r.pass(2 * time.Minute)
	r.fill(20)
	r.archived()
	setTopic(t, r.Node, "logs", broker.TopicSpec{RetentionMS: ms(time.Minute)})
	within(t, "the older half goes by age", func() bool { return r.part().Oldest() == 20 })
	r.fill(20)
	r.archived()
	if n := len(r.part().Local().Pieces); n != 2 {
		t.Fatalf("%d segments are on disk", n)
	}
	setTopic(t, r.Node, "logs", broker.TopicSpec{RetentionMS: ptr(int64(0)), LocalRetentionMS: ptr(int64(0)), LocalRetentionBytes: ptr(int64(1))})
	within(t, "archived copies leave the disk by size, but for the one that crosses it", func() bool { return len(r.part().Local().Pieces) == 1 })
	r.pass(2 * time.Minute)
	setTopic(t, r.Node, "logs", broker.TopicSpec{RetentionBytes: ptr(int64(15 << 10))})
	within(t, "the next segment goes by size, and not by age", func() bool { return r.part().Oldest() == 40 })
	r.offsets(20)
}

// Changes of different settings at the same time all stay: none is laid over an
// outdated topic. Beside them the topic serves.
func TestChangesAtTheSameTime(t *testing.T) {
	m := newMemNode(t, nil)
	defer func() { m.close() }()
	createTopic(t, m.Node, "t", 2)
	var wg sync.WaitGroup
	for _, change := range []func(v int64) broker.TopicSpec{
		func(v int64) broker.TopicSpec { return broker.TopicSpec{RetentionMS: &v} },
		func(v int64) broker.TopicSpec { return broker.TopicSpec{RetentionBytes: &v} },
		func(v int64) broker.TopicSpec { return broker.TopicSpec{LocalRetentionBytes: &v} },
		func(v int64) broker.TopicSpec { return broker.TopicSpec{MaxRecordBytes: &v} },
	} {
		wg.Go(func() {
			for v := int64(1); v <= 20; v++ {
				if _, err := m.SetTopic(context.Background(), "t", change(v)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 200 {
			produce(t, m.Node, "t", broker.AckAccepted, numbered(i, 1)...)
		}
	})
	wg.Wait()
	check := func() {
		t.Helper()
		i := setTopic(t, m.Node, "t", broker.TopicSpec{})
		if i.RetentionMS != 20 || i.RetentionBytes != 20 || i.LocalRetentionBytes != 20 || i.MaxRecordBytes != 20 {
			t.Errorf("%+v", i)
		}
	}
	check()
	m.crash(0, 1) // what was answered is in the metadata
	check()
}
