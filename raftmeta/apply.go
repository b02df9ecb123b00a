package raftmeta

import (
	"slices"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// The rules that every command has to pass at its place in the log, where the
// proposer's view may be outdated: identity, uniqueness, compare-and-swap and
// bounds. Ranges of settings are checked by the proposer alone: nodes of two
// versions that judged them differently would diverge.

func (c *initCluster) apply(s *State, index uint64) (any, bool, error) {
	if s.cluster.ID != "" {
		if s.cluster.ID == c.Cluster.ID {
			return s.cluster, false, nil
		}
		return nil, false, errcode.New(errcode.Exists, "cluster %s exists already; cluster %s cannot be created over it", s.cluster.ID, c.Cluster.ID)
	}
	if err := c.Cluster.validate(); err != nil {
		return nil, false, err
	}
	s.cluster = c.Cluster
	return s.cluster, true, nil
}

// apply of adopt replaces the whole state. The indexes in the export count the
// log of another cluster generation, so every topic and deletion gets this one.
func (c *adopt) apply(s *State, index uint64) (any, bool, error) {
	restored, err := ParseExport(c.Export)
	if err != nil {
		return nil, false, err
	}
	if s.cluster.ID != "" {
		if s.cluster.ID == restored.cluster.ID && s.cluster.Generation == c.Generation {
			return s.cluster, false, nil
		}
		return nil, false, errcode.New(errcode.Exists, "cluster %s of generation %d exists already; an export of cluster %s cannot be adopted over it",
			s.cluster.ID, s.cluster.Generation, restored.cluster.ID)
	}
	if c.Generation <= restored.cluster.Generation {
		return nil, false, errcode.New(errcode.Conflict, "cluster generation %d is not above %d, the generation of the export", c.Generation, restored.cluster.Generation)
	}
	restored.cluster.Generation = c.Generation
	restored.reindex(index)
	*s = *restored
	return s.cluster, true, nil
}

// reindex gives every topic and deletion one changed index.
func (s *State) reindex(index uint64) {
	topics := make([]*topicEntry, 0, s.byName.Len())
	s.byName.Ascend(func(it namedTopic) bool {
		e := *it.entry
		e.topic.ChangedIndex = index
		topics = append(topics, &e)
		return true
	})
	for _, e := range topics {
		s.put(e)
	}
	for _, d := range s.DeletedTopics() {
		d.ChangedIndex = index
		s.deleted.ReplaceOrInsert(d)
	}
}

func (c *registerIncarnation) apply(s *State, index uint64) (any, bool, error) {
	if err := s.ready(); err != nil {
		return nil, false, err
	}
	if err := validateMember(c.Node, c.Incarnation, c.Addresses); err != nil {
		return nil, false, err
	}
	if _, fenced := s.fenced[c.Incarnation]; fenced {
		return nil, false, errcode.New(errcode.Conflict, "incarnation %s of node %s is fenced for ever; the node has to take a new incarnation", c.Incarnation, c.Node)
	}
	for _, other := range s.nodes {
		if other.Incarnation == c.Incarnation && other.ID != c.Node {
			return nil, false, errcode.New(errcode.Conflict, "incarnation %s belongs to node %s already; node %s needs a data directory of its own", c.Incarnation, other.ID, c.Node)
		}
	}
	next := Node{ID: c.Node, Incarnation: c.Incarnation, State: NodeActive, Addresses: notNil(c.Addresses)}
	old, known := s.nodes[c.Node]
	if known && old.equal(next) {
		return old, false, nil
	}
	if !known && len(s.nodes) >= MaxNodes {
		return nil, false, errcode.New(errcode.TooMany, "the cluster has %d nodes; no more are kept", MaxNodes)
	}
	s.nodes = put(s.nodes, c.Node, next)
	return next, true, nil
}

func (c *createTopic) apply(s *State, index uint64) (any, bool, error) {
	t := c.Topic
	if err := s.ready(); err != nil {
		return nil, false, err
	}
	if err := broker.ValidateName("topic", t.Name); err != nil {
		return nil, false, err
	}
	if t.Partitions < 1 || t.Partitions > broker.MaxPartitions || t.ID == 0 {
		return nil, false, errcode.New(errcode.InvalidArgument, "topic %s has %d partitions and id %s; 1 to %d and a random id are needed", t.Name, t.Partitions, t.ID, broker.MaxPartitions)
	}
	if _, ok := s.Topic(t.Name); ok {
		return nil, false, errcode.New(errcode.Exists, "topic %s exists already", t.Name)
	}
	if s.folded.Has(strings.ToLower(t.Name)) {
		return nil, false, errcode.New(errcode.Exists, "a topic that differs from %s only in letter case exists already; choose another name", t.Name)
	}
	_, gone := s.Deleted(t.ID)
	if s.entry(t.ID) != nil || gone {
		return nil, false, errIDTaken
	}
	if s.NumTopics() >= MaxTopics || s.assignments+int(t.Partitions) > MaxAssignments {
		return nil, false, errcode.New(errcode.TooMany, "the cluster has %d topics with %d partitions; %d and %d are the most", s.NumTopics(), s.assignments, MaxTopics, MaxAssignments)
	}
	if err := s.mayOwn(c.Owner, c.OwnerIncarnation); err != nil {
		return nil, false, err
	}
	t.ChangedIndex = index
	first := Assignment{Owner: c.Owner, OwnerIncarnation: c.OwnerIncarnation, Generation: 1}
	s.put(&topicEntry{topic: t, assignments: slices.Repeat([]Assignment{first}, int(t.Partitions))})
	return t, true, nil
}

// errIDTaken makes the proposer choose another random id.
var errIDTaken = errcode.New(errcode.Conflict, "the topic id is taken; try again")

func (c *updateTopic) apply(s *State, index uint64) (any, bool, error) {
	e := s.entry(c.ID)
	if e == nil {
		return nil, false, errcode.New(errcode.NotFound, "topic %s does not exist", c.ID)
	}
	if e.topic.TopicSettings == c.Settings {
		return e.topic, false, nil
	}
	if e.topic.ChangedIndex != c.ChangedIndex {
		return nil, false, errcode.New(errcode.Conflict, "topic %s was changed meanwhile; read it again and repeat the change", e.topic.Name)
	}
	next := *e
	next.topic.TopicSettings = c.Settings
	next.topic.ChangedIndex = index
	s.put(&next)
	return next.topic, true, nil
}

func (c *deleteTopic) apply(s *State, index uint64) (any, bool, error) {
	e := s.entry(c.ID)
	if e == nil {
		return nil, false, errcode.New(errcode.NotFound, "topic %s does not exist", c.ID)
	}
	d := Deleted{ID: c.ID, Name: e.topic.Name, DeletedMs: c.DeletedMs, Seq: s.nextDeletedSeq(), ChangedIndex: index}
	if err := s.addDeleted(d); err != nil {
		return nil, false, err
	}
	s.remove(e)
	return d, true, nil
}

// apply of setAssignment is the flip: a compare-and-swap on {owner, generation} (I9).
func (c *setAssignment) apply(s *State, index uint64) (any, bool, error) {
	e := s.entry(c.Topic)
	if e == nil || c.Partition >= uint32(len(e.assignments)) {
		return nil, false, errcode.New(errcode.NotFound, "partition %s does not exist", broker.PartitionID{Topic: c.Topic, Partition: c.Partition})
	}
	now := e.assignments[c.Partition]
	if now == c.Next {
		return now, false, nil // the answer to the first attempt was lost
	}
	if now.Owner != c.ExpectOwner || now.Generation != c.ExpectGeneration {
		return nil, false, errcode.New(errcode.Conflict, "partition %d of topic %s is owned by %s in generation %d, not by %s in generation %d",
			c.Partition, e.topic.Name, now.Owner, now.Generation, c.ExpectOwner, c.ExpectGeneration).With("owner", now.Owner).With("generation", now.Generation)
	}
	if err := c.Next.validate(); err != nil {
		return nil, false, err
	}
	// A generation is never used twice, and offsets only rise (I3).
	if c.Next.Generation <= now.Generation || c.Next.PreviousEnd < now.Start {
		return nil, false, errcode.New(errcode.Conflict, "partition %d of topic %s is in generation %d from offset %d on; generation %d with previous end %d does not come after it",
			c.Partition, e.topic.Name, now.Generation, now.Start, c.Next.Generation, c.Next.PreviousEnd)
	}
	if err := s.mayOwn(c.Next.Owner, c.Next.OwnerIncarnation); err != nil {
		return nil, false, err
	}
	next := topicEntry{topic: e.topic, assignments: slices.Clone(e.assignments)}
	next.topic.ChangedIndex = index
	next.assignments[c.Partition] = c.Next
	s.put(&next)
	return c.Next, true, nil
}

func (c *putSetting) apply(s *State, index uint64) (any, bool, error) {
	if err := s.ready(); err != nil {
		return nil, false, err
	}
	if err := validateSetting(c.Key, c.Value); err != nil {
		return nil, false, err
	}
	old, known := s.settings[c.Key]
	switch {
	case old == c.Value:
		return nil, false, nil
	case !known && len(s.settings) >= MaxSettings:
		return nil, false, errcode.New(errcode.TooMany, "the cluster has %d settings; no more are kept", MaxSettings)
	}
	next := put(s.settings, c.Key, c.Value)
	if c.Value == "" {
		delete(next, c.Key)
	}
	s.settings = next
	return nil, true, nil
}

func (c *fenceIncarnation) apply(s *State, index uint64) (any, bool, error) {
	if err := s.ready(); err != nil {
		return nil, false, err
	}
	if err := c.Fenced.validate(); err != nil {
		return nil, false, err
	}
	if old, ok := s.fenced[c.Fenced.Incarnation]; ok {
		return old, false, nil
	}
	if len(s.fenced) >= MaxFenced {
		return nil, false, errcode.New(errcode.TooMany, "the cluster has %d fenced incarnations; no more are kept", MaxFenced)
	}
	if n, ok := s.nodes[c.Fenced.Node]; ok && n.Incarnation == c.Fenced.Incarnation {
		n.State = NodeFenced
		s.nodes = put(s.nodes, n.ID, n)
	}
	s.fenced = put(s.fenced, c.Fenced.Incarnation, c.Fenced)
	return c.Fenced, true, nil
}

// apply of purgeTopic closes a deletion. It does not move the index of the
// deletion: that is what an export has to include before anything goes.
func (c *purgeTopic) apply(s *State, _ uint64) (any, bool, error) {
	d, ok := s.Deleted(c.ID)
	switch {
	case !ok:
		return nil, false, errcode.New(errcode.NotFound, "topic %s is not among the deleted ones", c.ID)
	case d.Purged:
		return d, false, nil
	}
	d.Purged = true
	s.deleted.ReplaceOrInsert(d)
	return d, true, nil
}

// apply of retireIncarnation fences it too, when nothing had: whoever may be
// forgotten must never come back.
func (c *retireIncarnation) apply(s *State, _ uint64) (any, bool, error) {
	if err := s.ready(); err != nil {
		return nil, false, err
	}
	next := Fenced{Incarnation: c.Incarnation, Node: c.Node, FencedMs: c.RetiredMs, RetiredMs: max(1, c.RetiredMs)}
	if err := next.validate(); err != nil {
		return nil, false, err
	}
	for _, n := range s.nodes {
		if n.Incarnation == c.Incarnation && n.State == NodeActive {
			return nil, false, errcode.New(errcode.Conflict, "incarnation %s of node %s is active and cannot be retired", c.Incarnation, n.ID)
		}
	}
	old, known := s.fenced[c.Incarnation]
	switch {
	case known && old.Node != c.Node:
		return nil, false, errcode.New(errcode.Conflict, "incarnation %s is node %s's, not %s's", c.Incarnation, old.Node, c.Node)
	case known && old.RetiredMs > 0:
		return old, false, nil
	case known:
		next.FencedMs = old.FencedMs
	case len(s.fenced) >= MaxFenced:
		return nil, false, errcode.New(errcode.TooMany, "the cluster has %d fenced incarnations; no more are kept", MaxFenced)
	}
	s.fenced = put(s.fenced, c.Incarnation, next)
	return next, true, nil
}

// ready refuses changes before the cluster exists.
func (s *State) ready() error {
	if s.cluster.ID == "" {
		return errcode.New(errcode.Conflict, "the cluster has not been created yet")
	}
	return nil
}

// mayOwn refuses an owner that is not the registered, active incarnation.
func (s *State) mayOwn(node string, inc Incarnation) error {
	n, ok := s.nodes[node]
	switch {
	case !ok:
		return errcode.New(errcode.Conflict, "node %.40q has not registered its incarnation and cannot own partitions", node)
	case n.Incarnation != inc:
		return errcode.New(errcode.Conflict, "node %s has incarnation %s, not %s; partitions go to the current one", node, n.Incarnation, inc)
	case n.State != NodeActive:
		return errcode.New(errcode.Conflict, "incarnation %s of node %s is %s and cannot own partitions", inc, node, n.State)
	}
	return nil
}
