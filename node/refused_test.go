package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

// smallDisk makes the node's disk one of size bytes of which its log takes its
// part, with a reserve of a megabyte.
func (m *memNode) smallDisk(size int64) {
	n := m.Node
	m.fs.set(nil, func() (uint64, bool) { return uint64(max(size-n.log.Stats().Bytes, 0)), true })
}

// takeFile takes a file out of the node's directory, durably, and returns what
// puts it back. The node is closed.
func (m *memNode) takeFile(path string) (putBack func()) {
	m.t.Helper()
	f, err := m.mem.Open(path)
	if err != nil {
		m.t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close(), m.mem.Remove(path), m.syncDir(filepath.Dir(path))); err != nil {
		m.t.Fatal(err)
	}
	return func() {
		f, err := m.mem.Create(path, vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write(data)
			err = errors.Join(err, f.Sync(), f.Close(), m.syncDir(filepath.Dir(path)))
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *memNode) syncDir(dir string) error {
	d, err := m.mem.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// refusedNode is a node with a topic whose one partition is out of service, and
// which the log keeps frames of, beside a sound topic.
func refusedNode(t *testing.T) (m *memNode, reg *prometheus.Registry, repair func()) {
	t.Helper()
	m = newMemNode(t, func(o *Options) {
		o.WALFileSize, o.WALMaxBytes, o.DiskReserve = 256<<10, 1<<20, 1<<20
		o.FlushBytes, o.SegmentBytes = 64<<10, 1<<20
	})
	info := createTopic(t, m.Node, "bad", 1)
	createTopic(t, m.Node, "good", 1)
	produce(t, m.Node, "bad", broker.AckAccepted, numbered(1, 20)...)
	p := m.engine.Get(broker.PartitionID{Topic: info.ID})
	if err := m.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	// These are in the log alone when the process dies.
	produce(t, m.Node, "bad", broker.AckAccepted, numbered(21, 10)...)
	image := m.mem.CrashClone(vfs.CrashCloneCfg{})
	if err := m.Node.Close(); err != nil {
		t.Fatal(err)
	}
	m.mem = image
	repair = m.takeFile(filepath.Join(m.dir, "topics", info.ID.String(), "0", segment.SealedName(0)))
	reg = prometheus.NewRegistry()
	m.o.Registerer = reg
	m.open()
	m.smallDisk(6 << 20)
	if r := m.Readiness(); !r.Ready || len(r.Degraded) != 1 || !strings.Contains(r.Degraded[0], "out of service") || !strings.Contains(r.Degraded[0], "bytes for it") {
		t.Fatalf("readiness %+v", r)
	}
	return m, reg, repair
}

// fillDisk produces to the sound topic until the reserve is reached. Every
// record that was answered is counted.
func (m *memNode) fillDisk() (stored int) {
	m.t.Helper()
	value := make([]byte, 32<<10)
	for range 2000 {
		err := m.tryProduce("good", broker.NewRecord{Partition: 0, Value: fmt.Appendf(value[:0:0], "%d %s", stored, value)})
		if err == nil {
			stored++
			continue
		}
		waits(m.t, "produce at the reserve", err)
		if !strings.Contains(err.Error(), "out of service keep") {
			m.t.Fatalf("the refusal does not name its cause: %v", err)
		}
		return stored
	}
	m.t.Fatal("the log of a node with a partition out of service has no bound")
	return 0
}

func value(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// A partition out of service keeps the log: it grows past its size, up to the
// disk's reserve, while the other partitions go on. There produce is refused
// with the cause, consumers and acks go on, and the numbers are visible. When
// the topic is deleted the log gives its files back and produce goes on without
// a restart (I12, I15).
func TestRefusedPartitionIsBoundedByTheReserve(t *testing.T) {
	m, reg, _ := refusedNode(t)
	stored := m.fillDisk()
	within(t, "the numbers are there", func() bool {
		return value(t, reg, "tidemark_partitions_refused") == 1 && value(t, reg, "tidemark_refused_log_bytes") > 3<<20
	})
	if r := m.Readiness(); r.Ready || r.Data {
		t.Fatalf("readiness %+v", r)
	}
	msgs := m.consume("good", 5)
	if len(msgs) != 5 {
		t.Fatalf("%d records at the reserve", len(msgs))
	}
	m.settle("good", broker.SettleAck, msgs...)
	// Nothing changes any more but the topic.
	if err := m.engine.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := m.DeleteTopic(context.Background(), "bad", true); err != nil {
		t.Fatal(err)
	}
	within(t, "produce goes on", func() bool {
		return m.tryProduce("good", broker.NewRecord{Partition: 0, Value: []byte("after")}) == nil
	})
	within(t, "the numbers fall", func() bool {
		return value(t, reg, "tidemark_partitions_refused") == 0 && value(t, reg, "tidemark_refused_log_bytes") == 0
	})
	m.o.Registerer = nil
	m.crash(0, 1)
	if got := len(readAll(t, m.Node, "good", 0)); got != stored+1 {
		t.Fatalf("%d records, %d were stored", got, stored+1)
	}
	m.close()
}

// The file is put back while the node is at its reserve: a restart serves the
// partition with everything that was acknowledged, and the log lets go (I1, I4).
func TestRefusedPartitionIsRepaired(t *testing.T) {
	m, _, repair := refusedNode(t)
	if err := m.tryProduce("bad", numbered(31, 1)...); !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.Storage) {
		t.Fatalf("produce to the partition out of service: %v", err)
	}
	stored := m.fillDisk()
	m.o.Registerer = nil
	if err := m.Node.Close(); err != nil {
		t.Log("close:", err)
	}
	repair()
	m.open()
	m.smallDisk(6 << 20)
	if got := readAll(t, m.Node, "bad", 0); len(got) != 30 || got[29] != "29 =30" {
		t.Fatalf("the repaired partition has %v", got)
	}
	// Small tails keep the log, and at the reserve no append makes it ask for room:
	// it asks again by itself.
	within(t, "the log lets go", func() bool {
		r := m.Readiness()
		return m.log.Stats().Bytes <= 2<<20 && r.Ready && len(r.Degraded) == 0
	})
	if err := m.tryProduce("good", broker.NewRecord{Partition: 0, Value: []byte("after")}); err != nil {
		t.Fatalf("produce does not go on: %v", err)
	}
	if got := len(readAll(t, m.Node, "good", 0)); got != stored+1 {
		t.Fatalf("%d records, %d were stored", got, stored+1)
	}
	if r := m.Readiness(); !r.Ready || len(r.Degraded) != 0 {
		t.Fatalf("readiness %+v", r)
	}
	m.close()
}

// A topic is not deleted without force while one of its partitions is out of
// service: nobody can tell what is unsettled there, and a file that is put back
// would have brought it back (I10).
func TestDeleteOfATopicWithARefusedPartition(t *testing.T) {
	m := newMemNode(t, nil)
	info := createTopic(t, m.Node, "half", 2)
	numbers := numbered(1, 20)
	for i := range numbers {
		numbers[i].Partition = int32(i % 2)
	}
	produce(t, m.Node, "half", broker.AckAccepted, numbers...)
	if err := m.engine.Seal(m.engine.Get(broker.PartitionID{Topic: info.ID})); err != nil {
		t.Fatal(err)
	}
	m.close()
	repair := m.takeFile(filepath.Join(m.dir, "topics", info.ID.String(), "0", segment.SealedName(0)))
	m.open()
	m.settle("half", broker.SettleAck, m.consume("half", 10)...) // all that can be had
	err := m.DeleteTopic(context.Background(), "half", false)
	if !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), "out of service") || !strings.Contains(err.Error(), "force=true") {
		t.Fatalf("deleted, or refused without a reason: %v", err)
	}
	m.close()
	repair()
	m.open()
	if got := readAll(t, m.Node, "half", 0); len(got) != 10 {
		t.Fatalf("the repaired partition has %v", got)
	}
	m.close()
}
