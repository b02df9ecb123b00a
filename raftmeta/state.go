package raftmeta

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/btree"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// State is the metadata at one raft index. A State that was handed out never
// changes; slices and maps it returns are shared and must not be changed.
//
// Topics stand in B-trees that are cloned lazily, so publishing a change of
// one topic costs a few tree nodes whatever the number of topics.
type State struct {
	index    uint64
	cluster  Cluster
	nodes    map[string]Node // maps are replaced, never written in place
	fenced   map[Incarnation]Fenced
	settings map[string]string

	byName      *btree.BTreeG[namedTopic]
	byID        *btree.BTreeG[topicWithID]
	folded      *btree.BTreeG[string] // lower-case names: no twins
	deleted     *btree.BTreeG[Deleted]
	deletedSeq  *btree.BTreeG[deletedAt]
	assignments int
}

// topicEntry is replaced as a whole at every change.
type topicEntry struct {
	topic       Topic
	assignments []Assignment // one per partition
}

type namedTopic struct {
	name  string
	entry *topicEntry
}

type topicWithID struct {
	id    broker.TopicID
	entry *topicEntry
}

type deletedAt struct {
	seq uint64
	id  broker.TopicID
}

const treeDegree = 32

func newState() *State {
	return &State{
		byName:     btree.NewG(treeDegree, func(a, b namedTopic) bool { return a.name < b.name }),
		byID:       btree.NewG(treeDegree, func(a, b topicWithID) bool { return a.id < b.id }),
		folded:     btree.NewG(treeDegree, func(a, b string) bool { return a < b }),
		deleted:    btree.NewG(treeDegree, func(a, b Deleted) bool { return a.ID < b.ID }),
		deletedSeq: btree.NewG(treeDegree, func(a, b deletedAt) bool { return a.seq < b.seq }),
	}
}

// clone returns a copy that does not see later changes of s. Only the owner of
// s may call it.
func (s *State) clone() *State {
	out := *s
	out.byName, out.byID, out.folded = s.byName.Clone(), s.byID.Clone(), s.folded.Clone()
	out.deleted, out.deletedSeq = s.deleted.Clone(), s.deletedSeq.Clone()
	return &out
}

// Index returns the raft index of the last command that changed the state.
func (s *State) Index() uint64 { return s.index }

// Cluster returns the cluster's identity; its ID is empty before the cluster exists.
func (s *State) Cluster() Cluster { return s.cluster }

// Topic finds a topic by its exact name.
func (s *State) Topic(name string) (Topic, bool) {
	if it, ok := s.byName.Get(namedTopic{name: name}); ok {
		return it.entry.topic, true
	}
	return Topic{}, false
}

// TopicByID finds a topic by its incarnation id.
func (s *State) TopicByID(id broker.TopicID) (Topic, bool) {
	if e := s.entry(id); e != nil {
		return e.topic, true
	}
	return Topic{}, false
}

// Topics returns all topics, sorted by name (bytes).
func (s *State) Topics() []Topic { return s.TopicsAfter("", s.byName.Len()) }

// TopicsAfter returns up to limit topics whose names sort above after.
func (s *State) TopicsAfter(after string, limit int) []Topic {
	out := make([]Topic, 0, max(0, min(limit, s.byName.Len())))
	s.byName.AscendGreaterOrEqual(namedTopic{name: after}, func(it namedTopic) bool {
		if len(out) >= limit {
			return false
		}
		if it.name != after {
			out = append(out, it.entry.topic)
		}
		return true
	})
	return out
}

// NumTopics returns the number of topics.
func (s *State) NumTopics() int { return s.byName.Len() }

// NumPartitions returns the number of partitions of all topics.
func (s *State) NumPartitions() int { return s.assignments }

// Assignment returns who serves a partition.
func (s *State) Assignment(p broker.PartitionID) (Assignment, bool) {
	if e := s.entry(p.Topic); e != nil && p.Partition < uint32(len(e.assignments)) {
		return e.assignments[p.Partition], true
	}
	return Assignment{}, false
}

// Assignments returns the assignments of a topic, one per partition.
func (s *State) Assignments(id broker.TopicID) ([]Assignment, bool) {
	if e := s.entry(id); e != nil {
		return e.assignments, true
	}
	return nil, false
}

// Deleted returns the confirmation that the topic was deleted, if there is one.
func (s *State) Deleted(id broker.TopicID) (Deleted, bool) { return s.deleted.Get(Deleted{ID: id}) }

// DeletedTopics returns all confirmations, oldest first.
func (s *State) DeletedTopics() []Deleted {
	out := make([]Deleted, 0, s.deletedSeq.Len())
	s.deletedSeq.Ascend(func(at deletedAt) bool {
		d, _ := s.deleted.Get(Deleted{ID: at.id})
		out = append(out, d)
		return true
	})
	return out
}

// Node finds a node by its id.
func (s *State) Node(id string) (Node, bool) { n, ok := s.nodes[id]; return n, ok }

// Nodes returns all nodes, sorted by id.
func (s *State) Nodes() []Node {
	out := make([]Node, 0, len(s.nodes))
	for _, id := range slices.Sorted(maps.Keys(s.nodes)) {
		out = append(out, s.nodes[id])
	}
	return out
}

// Fenced reports whether an incarnation is fenced, and since when.
func (s *State) Fenced(i Incarnation) (Fenced, bool) { f, ok := s.fenced[i]; return f, ok }

// FencedIncarnations returns all fenced incarnations, sorted.
func (s *State) FencedIncarnations() []Fenced {
	out := make([]Fenced, 0, len(s.fenced))
	for _, i := range slices.Sorted(maps.Keys(s.fenced)) {
		out = append(out, s.fenced[i])
	}
	return out
}

// Setting returns a cluster setting.
func (s *State) Setting(key string) (string, bool) { v, ok := s.settings[key]; return v, ok }

// Settings returns a copy of all cluster settings.
func (s *State) Settings() map[string]string { return maps.Clone(s.settings) }

func (s *State) entry(id broker.TopicID) *topicEntry {
	it, _ := s.byID.Get(topicWithID{id: id})
	return it.entry
}

// put adds a topic or replaces it. Only the owner of s may call it, and the
// methods below.
func (s *State) put(e *topicEntry) {
	s.byName.ReplaceOrInsert(namedTopic{e.topic.Name, e})
	old, replaced := s.byID.ReplaceOrInsert(topicWithID{e.topic.ID, e})
	s.assignments += len(e.assignments)
	if replaced {
		s.assignments -= len(old.entry.assignments)
		return
	}
	s.folded.ReplaceOrInsert(strings.ToLower(e.topic.Name))
}

func (s *State) remove(e *topicEntry) {
	s.byName.Delete(namedTopic{name: e.topic.Name})
	s.byID.Delete(topicWithID{id: e.topic.ID})
	s.folded.Delete(strings.ToLower(e.topic.Name))
	s.assignments -= len(e.assignments)
}

// addDeleted appends a confirmation and, over the bound, forgets the oldest of
// those whose topics are gone from the archive: nobody asks for them any more.
// It refuses, and changes nothing, when no topic is: a deletion that is
// forgotten before leaves its objects in the bucket for ever, and the records
// that nodes have of it in their logs.
func (s *State) addDeleted(d Deleted) error {
	if s.deletedSeq.Len() >= MaxDeleted {
		old, ok := s.oldestPurged()
		if !ok {
			return errcode.New(errcode.TooMany, "the cluster has %d deleted topics whose objects are still in the archive; no more are kept: wait until some are collected (tidemark archive gc), then delete the topic again", s.deletedSeq.Len())
		}
		s.deletedSeq.Delete(deletedAt{old.Seq, old.ID})
		s.deleted.Delete(old)
	}
	s.deleted.ReplaceOrInsert(d)
	s.deletedSeq.ReplaceOrInsert(deletedAt{d.Seq, d.ID})
	return nil
}

func (s *State) oldestPurged() (out Deleted, ok bool) {
	s.deletedSeq.Ascend(func(at deletedAt) bool {
		out, ok = s.Deleted(at.id)
		ok = ok && out.Purged
		return !ok
	})
	return out, ok
}

func (s *State) nextDeletedSeq() uint64 {
	last, _ := s.deletedSeq.Max()
	return last.seq + 1
}

// put returns a copy of m with one more entry: maps of a State are shared.
func put[K comparable, V any](m map[K]V, k K, v V) map[K]V {
	out := make(map[K]V, len(m)+1)
	maps.Copy(out, m)
	out[k] = v
	return out
}

// notNil keeps a missing map from being exported as null.
func notNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
