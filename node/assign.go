package node

import (
	"context"
	"errors"
	iofs "io/fs"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
)

// followRetry is how long a change of the metadata that could not be carried
// out here waits for the next try.
const followRetry = time.Second

// reconcile makes the partitions here those that the metadata assigns: a crash,
// or a full disk, may have come between a change of a topic and its partitions.
func (n *Node) reconcile(ctx context.Context) error {
	st := n.meta.State()
	var bases []frame.Base
	for _, t := range n.meta.Topics() {
		assignments, _ := st.Assignments(t.ID)
		for i, a := range assignments {
			id := broker.PartitionID{Topic: t.ID, Partition: uint32(i)}
			if a.Owner != n.opts.NodeID || a.OwnerIncarnation != n.id.Incarnation {
				continue
			}
			p := n.engine.Get(id)
			switch {
			case p == nil && a.Generation == 1:
				bases = append(bases, frame.Base{Partition: id, Generation: 1})
			case p == nil || p.Generation() != a.Generation:
				return errcode.New(errcode.Corrupt, "partition %d of topic %s is assigned here with generation %d, the data directory does not have it: restore the node from the archive", i, t.Name, a.Generation)
			}
		}
	}
	if err := n.engine.Create(ctx, bases); err != nil {
		return err
	}
	var errs []error
	gone := map[broker.TopicID]bool{}
	for _, p := range n.engine.All() {
		if _, deleted := st.Deleted(p.ID.Topic); deleted && !gone[p.ID.Topic] {
			gone[p.ID.Topic] = true
			errs = append(errs, n.drop(p.ID.Topic))
		}
	}
	return errors.Join(errs...)
}

// drop removes what this node has of a topic whose deletion the metadata
// confirms. What the archive holds of it goes after a grace, see package garbage.
func (n *Node) drop(topic broker.TopicID) error {
	for _, p := range n.engine.All() {
		if p.ID.Topic != topic {
			continue
		}
		n.queue.Detach(p.ID)
		if n.uploader != nil {
			n.uploader.Drop(p.ID)
		}
	}
	err := n.engine.Drop(topic)
	if n.chains != nil {
		n.chains.forget(topic)
		n.reader.forget(topic)
	}
	return err
}

// sweepDirectories removes what a crash left of deleted topics. A directory of
// a topic that the metadata does not know stays (I10).
func (n *Node) sweepDirectories() error {
	names, err := n.opts.FS.List(n.path("topics"))
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "list %s", n.path("topics"))
	}
	var errs []error
	for _, name := range names {
		id, err := broker.ParseTopicID(name)
		if err != nil || id.String() != name {
			continue // not ours
		}
		if _, known := n.meta.TopicByID(id); known {
			continue
		}
		if _, deleted := n.meta.State().Deleted(id); !deleted {
			n.opts.Logger.Warn("a directory of a topic that the metadata does not know is kept", "topic", name)
			continue
		}
		errs = append(errs, n.engine.RemoveFiles(id))
	}
	return errors.Join(errs...)
}

// follow carries out changes of the metadata that the call which made them
// could not: its answer was lost, or the disk was full. It tries until the
// partitions here are those of the metadata.
func (n *Node) follow(ctx context.Context) error {
	for {
		changed := n.meta.Changed()
		var retry <-chan time.Time
		if err := n.catchUp(ctx); err != nil && ctx.Err() == nil {
			n.opts.Logger.Warn("a change of topics is not carried out here yet", "error", err)
			retry = time.After(followRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry:
		}
	}
}

// catchUp brings partitions, queue and topic table to what the metadata says.
func (n *Node) catchUp(ctx context.Context) error {
	n.topicsMu.Lock()
	defer n.topicsMu.Unlock()
	if n.refusal() != nil || !n.behind() {
		return nil
	}
	defer n.publishTopics()
	n.unattached = true
	if err := n.reconcile(ctx); err != nil {
		return err
	}
	for _, t := range n.meta.Topics() {
		if err := n.attachTopic(t.ID, t.Partitions); err != nil {
			return err
		}
	}
	n.unattached = false
	return nil
}

// behind says whether the topic table differs from the metadata, or the table or
// the queue lacks a partition. The caller holds topicsMu.
func (n *Node) behind() bool {
	table, topics := n.topics.Load(), n.meta.Topics()
	if n.unattached || len(table.names) != len(topics) {
		return true
	}
	for i := range topics {
		t := table.byName[topics[i].Name]
		if t == nil || t.ID != topics[i].ID || t.ChangedIndex != topics[i].ChangedIndex || !t.complete() {
			return true
		}
	}
	return false
}

// attachTopic gives the topic's new partitions to the queue.
func (n *Node) attachTopic(id broker.TopicID, partitions uint32) error {
	for i := range partitions {
		p := n.engine.Get(broker.PartitionID{Topic: id, Partition: i})
		if p == nil || p.Refused() != nil {
			continue
		}
		if err := n.attach(p, nil, false); err != nil && !errcode.Is(err, errcode.Conflict) { // it has it
			return err
		}
		// Records may come already, and have become visible a moment ago.
		n.queue.Advance(p.ID, p.HighWatermark())
	}
	return nil
}
