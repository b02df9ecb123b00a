package node

import (
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A partition that got one record keeps the shipped log of a busy one from that
// record on; the node seals it before its age, and the archive lets the log go
// (I12). With the usual bound, which is far above what is shipped here, it does not.
func TestArchiveLetsTheLogOfASlowPartitionGo(t *testing.T) {
	const slow, busy = "slow", "busy"
	store := mem.New("test", nil)
	m := newMemNode(t, func(o *Options) {
		o.Archive, o.PITRWindow, o.WALInterval, o.StateInterval = store, time.Millisecond, 10*time.Millisecond, 50*time.Millisecond
		o.SealMinBytes, o.GarbageInterval = 1, 20*time.Millisecond
	})
	bucket := &badBucket{below: store}
	slowID := createTopic(t, m.Node, slow, 1).ID
	busyID := createTopic(t, m.Node, busy, 1).ID
	p := m.engine.Get(broker.PartitionID{Topic: slowID})
	produce(t, m.Node, slow, broker.AckAccepted, numbered(1, 1)...)
	q := m.engine.Get(broker.PartitionID{Topic: busyID})
	more := func() {
		produce(t, m.Node, busy, broker.AckArchived, numbered(1, 5)...)
		if err := m.engine.Seal(q); err != nil {
			t.Fatal(err)
		}
		m.engine.SealOld()
	}
	for range 20 {
		more()
	}
	if p.Local().Sealed != 0 {
		t.Fatal("it is sealed although little is kept for it")
	}
	m.o.SealLogBytes = 1 << 10
	m.crash(100, 1)
	p, q = m.engine.Get(p.ID), m.engine.Get(q.ID)
	within(t, "the slow partition is sealed", func() bool { more(); return p.Local().Sealed == 1 })
	within(t, "the log goes", func() bool {
		more()
		for _, key := range bucket.keys(t, manifest.PrefixWAL) {
			if k, err := manifest.ParseKey(key); err == nil && k.Kind == manifest.KindWAL && k.First <= 5 {
				return false
			}
		}
		return true
	})
	m.close()
}
