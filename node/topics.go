package node

import (
	"context"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/raftmeta"
)

// topicTable is the node's view of its topics, replaced as a whole.
type topicTable struct {
	byName map[string]*topic
	names  []string // sorted
}

// topic is what the data plane needs of a topic without asking the metadata.
type topic struct {
	raftmeta.Topic
	partitions []*partition.Partition // by index
	turn       atomic.Uint32          // of keyless records
	traffic    *topicTraffic          // survives changes of the topic
}

func msDuration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// publishTopics replaces the table by what metadata and engine say. The caller
// holds topicsMu, or nobody else runs yet.
func (n *Node) publishTopics() {
	old := n.topics.Load()
	table := &topicTable{byName: make(map[string]*topic)}
	for _, meta := range n.meta.Topics() {
		if old != nil {
			if t := old.byName[meta.Name]; t != nil && t.ID == meta.ID && t.ChangedIndex == meta.ChangedIndex && t.complete() {
				table.add(t)
				continue
			}
		}
		t := &topic{Topic: meta, partitions: make([]*partition.Partition, meta.Partitions), traffic: n.traffic.of(meta.ID)}
		for i := range t.partitions {
			t.partitions[i] = n.engine.Get(broker.PartitionID{Topic: meta.ID, Partition: uint32(i)})
		}
		if old != nil {
			n.changed(old.byName[meta.Name], t)
		}
		table.add(t)
	}
	sort.Strings(table.names)
	n.traffic.forget(table)
	n.topics.Store(table)
}

// complete says whether every partition is served here.
func (t *topic) complete() bool { return !slices.Contains(t.partitions, nil) }

func (t *topicTable) add(x *topic) {
	t.byName[x.Name] = x
	t.names = append(t.names, x.Name)
}

// topic finds a topic, and refuses when this node serves no more.
func (n *Node) topic(name string) (*topic, error) {
	if err := n.refusal(); err != nil {
		return nil, err
	}
	if t := n.topics.Load().byName[name]; t != nil {
		return t, nil
	}
	if err := broker.ValidateName("topic", name); err != nil {
		return nil, err
	}
	return nil, errcode.New(errcode.NotFound, "topic %q does not exist: create it with POST /v1/topics or tidemark topic create", name)
}

// partition finds a partition of t.
func (t *topic) partition(index int64) (*partition.Partition, error) {
	if index < 0 || index >= int64(len(t.partitions)) {
		return nil, errcode.New(errcode.NotFound, "topic %q has no partition %d: it has %d, numbered from 0", t.Name, index, len(t.partitions))
	}
	p := t.partitions[index]
	if p == nil {
		return nil, errcode.New(errcode.Unavailable, "partition %d of topic %q is not served by this node", index, t.Name)
	}
	return p, nil
}

// CreateTopic creates the topic: in the metadata first, then its partitions,
// whose base frames are durable when it returns. When that is not possible now
// the topic exists without partitions, and gets them as soon as it is (follow),
// after a crash at the next start.
func (n *Node) CreateTopic(ctx context.Context, spec broker.TopicSpec) (broker.TopicInfo, error) {
	if err := n.refusal(); err != nil {
		return broker.TopicInfo{}, err
	}
	// A change of topics waits for the local state; one that cannot be written
	// now would hold up every other.
	if err := n.db.Err(); err != nil {
		return broker.TopicInfo{}, err
	}
	n.topicsMu.Lock()
	defer n.topicsMu.Unlock()
	want, err := topicOf(spec)
	if err != nil {
		return broker.TopicInfo{}, err
	}
	meta, err := n.meta.CreateTopic(ctx, want)
	if err != nil {
		return broker.TopicInfo{}, err
	}
	defer n.publishTopics()
	before := n.unattached
	n.unattached = true // until the end: follow does what is left out here
	// The topic exists: a client that leaves now does not leave half of it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), defaultWait)
	defer cancel()
	bases := make([]frame.Base, meta.Partitions)
	for i := range bases {
		bases[i] = frame.Base{Partition: broker.PartitionID{Topic: meta.ID, Partition: uint32(i)}, Generation: 1}
	}
	if err := n.engine.Create(ctx, bases); err != nil {
		return broker.TopicInfo{}, err
	}
	if err := n.attachTopic(meta.ID, meta.Partitions); err != nil {
		return broker.TopicInfo{}, err
	}
	n.unattached = before
	n.publishTopics()
	return n.Topic(ctx, meta.Name)
}

// topicOf lays the given settings over the defaults.
func topicOf(spec broker.TopicSpec) (raftmeta.Topic, error) {
	var p broker.Problems
	spec.CheckNew(&p)
	if err := p.Err("topic"); err != nil {
		return raftmeta.Topic{}, err
	}
	t := raftmeta.DefaultTopic(spec.Name)
	if spec.Partitions != nil {
		t.Partitions = *spec.Partitions
	}
	t.TopicSettings = t.TopicSettings.With(&spec)
	return t, nil
}

// TopicFor returns what must be known before a body is read. It does not block.
func (n *Node) TopicFor(name string) (broker.TopicInfo, error) {
	t, err := n.topic(name)
	if err != nil {
		return broker.TopicInfo{}, err
	}
	return t.info(), nil
}

// Topic describes one topic with the numbers of its partitions.
func (n *Node) Topic(_ context.Context, name string) (broker.TopicInfo, error) {
	t, err := n.topic(name)
	if err != nil {
		return broker.TopicInfo{}, err
	}
	info := t.info()
	info.PartitionStats = make([]broker.PartitionStats, len(t.partitions))
	for i, p := range t.partitions {
		info.PartitionStats[i] = n.partitionStats(uint32(i), p)
	}
	return info, nil
}

func (t *topic) info() broker.TopicInfo {
	return broker.TopicInfo{
		Name: t.Name, ID: t.ID, Partitions: t.Partitions, CreatedAt: t.CreatedMs / 1000,
		RetentionMS: t.RetentionMs, RetentionBytes: t.RetentionBytes,
		LocalRetentionMS: t.LocalRetentionMs, LocalRetentionBytes: t.LocalRetentionBytes,
		VisibilityTimeoutMS: t.VisibilityTimeoutMs, MaxInFlightPerPartition: int64(t.MaxInFlightPerPartition),
		MaxRecordBytes: t.MaxRecordBytes, DefaultAck: broker.Ack(t.DefaultAck), Failover: t.Failover, Compression: t.Compression,
	}
}

func (n *Node) partitionStats(index uint32, p *partition.Partition) broker.PartitionStats {
	s := broker.PartitionStats{Index: index, OwnerNode: n.opts.NodeID, Status: "serving"}
	if p == nil {
		s.Status = "not served here"
		return s
	}
	st := p.Stats()
	s.Generation, s.OldestOffset, s.NextOffset, s.HighWatermark = st.Generation, st.Oldest, st.Next, st.HighWatermark
	s.ArchivedOffset, s.LocalBytes, s.Segments, s.OldestSegmentAt = st.ArchivedEnd, st.LocalBytes, st.Segments, st.OldestAppend/1000
	s.SizeBytes = s.LocalBytes
	if n.chains != nil {
		if c, ok := n.chains.summary(p.ID); ok {
			// What the archive has counts once, whatever is local of it too.
			s.ArchivedOffset, s.ArchivedBytes = c.End, c.Totals.Bytes
			s.SizeBytes, s.Segments = s.ArchivedBytes, int(c.Totals.Segments)
			for _, x := range p.Local().Pieces {
				if x.Next > c.End {
					s.SizeBytes += x.Bytes
					s.Segments++
				}
			}
		}
	}
	if st.Refused != nil {
		s.Status = st.Refused.Error()
	}
	return s
}

// Topics lists topics by name.
func (n *Node) Topics(_ context.Context, after string, limit int) ([]broker.TopicInfo, bool, error) {
	if err := n.refusal(); err != nil {
		return nil, false, err
	}
	table := n.topics.Load()
	i := sort.Search(len(table.names), func(i int) bool { return table.names[i] > after })
	end := min(i+max(limit, 0), len(table.names))
	out := make([]broker.TopicInfo, 0, end-i)
	for _, name := range table.names[i:end] {
		out = append(out, table.byName[name].info())
	}
	return out, end < len(table.names), nil
}

// DeleteTopic deletes the topic: in the metadata first, whose answer is the
// leader's confirmation that its data is garbage, then here. What the archive
// holds of it goes after a grace.
func (n *Node) DeleteTopic(ctx context.Context, name string, force bool) error {
	if err := n.db.Err(); err != nil {
		return err
	}
	n.topicsMu.Lock()
	defer n.topicsMu.Unlock()
	t, err := n.topic(name)
	if err != nil {
		return err
	}
	if !force {
		if err := n.settled(t); err != nil {
			return err
		}
	}
	if _, err := n.meta.DeleteTopicByID(ctx, t.ID); err != nil {
		return err
	}
	n.publishTopics()
	return n.drop(t.ID)
}

// settled refuses a topic with records that a group has not settled, and one of
// which nobody can tell.
func (n *Node) settled(t *topic) error {
	for i, p := range t.partitions {
		if p == nil {
			continue // never began here: it has no records
		}
		if err := p.Refused(); err != nil {
			return errcode.New(errcode.Conflict, "partition %d of topic %q is out of service, so nobody can tell what is unsettled there: repair it, or delete the topic with force=true, which gives up its records (%w)", i, t.Name, err)
		}
	}
	groups := n.queue.Groups(t.ID)
	if len(groups) == 0 {
		groups = []string{""} // nobody consumed yet: everything is unsettled
	}
	for _, g := range groups {
		lag := int64(0)
		if g == "" {
			for _, p := range t.partitions {
				if p != nil {
					lag += p.HighWatermark() - p.Oldest()
				}
			}
		} else if ds, err := n.queue.Describe(t.ID, g); err == nil {
			for _, d := range ds {
				lag += d.Lag
			}
		}
		if lag > 0 {
			return errcode.New(errcode.Conflict, "topic %q still has %d unsettled records: consume them, or delete it with force=true", t.Name, lag).With("unsettled", lag)
		}
	}
	return nil
}
