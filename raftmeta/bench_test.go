package raftmeta

import (
	"fmt"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

func bigState(b *testing.B, topics int) *State {
	s := newState()
	for i, c := range []command{&initCluster{goldenCluster()}, &registerIncarnation{Node: "n1", Incarnation: 0xa1}} {
		if _, _, err := c.apply(s, uint64(i+1)); err != nil {
			b.Fatal(err)
		}
	}
	for i := range topics {
		t := DefaultTopic(fmt.Sprintf("topic-%06d", i))
		t.ID = broker.TopicID(i + 1)
		t.resolve()
		if _, _, err := (&createTopic{Topic: t, Owner: "n1", OwnerIncarnation: 0xa1}).apply(s, uint64(i+3)); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

// The look-up that each produce makes, among 10,000 topics.
func BenchmarkTopic(b *testing.B) {
	s := bigState(b, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := s.Topic("topic-007777"); !ok {
			b.Fatal("not found")
		}
	}
}

// The look-up that each routed batch makes.
func BenchmarkAssignment(b *testing.B) {
	s := bigState(b, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := s.Assignment(broker.PartitionID{Topic: 7777, Partition: 2}); !ok {
			b.Fatal("not found")
		}
	}
}

// One change and its publication among 10,000 topics, without Raft.
func BenchmarkApplyAndPublish(b *testing.B) {
	m := newFSM(newFatal(), func() {})
	m.work = bigState(b, 10_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		id := broker.TopicID(i%10_000 + 1)
		e := m.work.entry(id)
		next := *e
		next.topic.ChangedIndex++
		m.work.put(&next)
		m.publish()
	}
}

// One change through Raft and its fsync.
func BenchmarkPutSetting(b *testing.B) {
	m := open(b, testOptions(tempDir(b)))
	for i := 0; b.Loop(); i++ {
		if err := m.PutSetting(b.Context(), "k", fmt.Sprint(i)); err != nil {
			b.Fatal(err)
		}
	}
}

// An export of 10,000 topics, and reading it back.
func BenchmarkExport(b *testing.B) {
	s := bigState(b, 10_000)
	for b.Loop() {
		_, data, err := s.Export()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(data)))
	}
}

func BenchmarkParseExport(b *testing.B) {
	_, data, err := bigState(b, 10_000).Export()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := ParseExport(data); err != nil {
			b.Fatal(err)
		}
	}
}
