package raftmeta

import (
	"fmt"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Of the deletions that the metadata remembers, only those are forgotten whose
// objects are gone from the archive, the oldest first. When none is, a deletion
// is refused and the topic stays: a forgotten one would leave its objects in the
// bucket for ever (I7, I10, I12).
func TestUnpurgedDeletionsAreNotForgotten(t *testing.T) {
	s := newState()
	s.cluster.ID = "c"
	for i := range MaxDeleted {
		if err := s.addDeleted(Deleted{ID: broker.TopicID(i + 1), Name: fmt.Sprint("t", i), Seq: s.nextDeletedSeq()}); err != nil {
			t.Fatal(err)
		}
	}
	topic := func(id broker.TopicID) {
		s.put(&topicEntry{topic: Topic{ID: id, Name: fmt.Sprint("new", id), Partitions: 1}, assignments: make([]Assignment, 1)})
	}
	remove := func(id broker.TopicID) error {
		_, _, err := (&deleteTopic{ID: id, DeletedMs: 1}).apply(s, 9)
		return err
	}
	topic(900001)
	if err := remove(900001); !errcode.Is(err, errcode.TooMany) {
		t.Fatalf("a deletion over the bound: %v", err)
	}
	if _, ok := s.TopicByID(900001); !ok || s.deleted.Len() != MaxDeleted {
		t.Fatalf("the refused deletion changed something: topic there %v, %d deletions", ok, s.deleted.Len())
	}
	// Two in the middle are purged: they make room, in the order of their
	// deletion, and the unpurged ones before them stay.
	for _, id := range []broker.TopicID{700, 40} {
		if _, _, err := (&purgeTopic{ID: id}).apply(s, 10); err != nil {
			t.Fatal(err)
		}
	}
	for i, gone := range []broker.TopicID{40, 700} {
		id := broker.TopicID(900001 + i)
		topic(id)
		if err := remove(id); err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Deleted(gone); ok {
			t.Fatalf("deletion %d, which is purged, is still remembered", gone)
		}
		if _, ok := s.Deleted(id); !ok || s.deleted.Len() != MaxDeleted || s.deletedSeq.Len() != MaxDeleted {
			t.Fatalf("deletion of %d: known %v, %d and %d in all", id, ok, s.deleted.Len(), s.deletedSeq.Len())
		}
	}
	if _, ok := s.Deleted(1); !ok {
		t.Fatal("the oldest deletion, which is not purged, was forgotten")
	}
	topic(900003)
	if err := remove(900003); !errcode.Is(err, errcode.TooMany) {
		t.Fatalf("with every purged one gone: %v", err)
	}
}
