package node

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// setAttempts is how often a change is laid over the topic anew when another
// change of the metadata came between reading and writing it.
const setAttempts = 4

// SetTopic changes the settings of a topic, all that are given or none. They
// are durable in the metadata and in force here when it returns; leases that
// were given out keep their length. Codes: InvalidArgument with every bad
// field, NotFound, NotConfirmed when the change may still come.
func (n *Node) SetTopic(ctx context.Context, name string, change broker.TopicSpec) (broker.TopicInfo, error) {
	var p broker.Problems
	change.CheckChange(&p)
	if err := p.Err("change of the topic"); err != nil {
		return broker.TopicInfo{}, err
	}
	n.topicsMu.Lock()
	defer n.topicsMu.Unlock()
	t, err := n.topic(name)
	if err != nil {
		return broker.TopicInfo{}, err
	}
	for attempt := 1; ; attempt++ {
		// The topic as the metadata has it now: what is not given stays that way,
		// whatever the table here lags behind.
		now, ok := n.meta.TopicByID(t.ID)
		if !ok {
			return broker.TopicInfo{}, errcode.New(errcode.NotFound, "topic %q does not exist any more", name)
		}
		_, err := n.meta.UpdateTopic(ctx, now, now.TopicSettings.With(&change))
		if err == nil {
			break
		}
		if attempt == setAttempts || !errcode.Is(err, errcode.Conflict) {
			return broker.TopicInfo{}, err
		}
	}
	n.publishTopics()
	n.sweeper.Kick() // shorter retention holds from now on
	n.opts.Logger.Info("topic changed by request", "topic", name, "topic_id", t.ID.String())
	return n.Topic(ctx, name)
}

// changed carries what a topic's settings mean for its queue over from the
// topic as it was, nil when there was none; the data plane reads the rest from
// the table or the metadata. The caller holds topicsMu.
func (n *Node) changed(was, is *topic) {
	if was == nil || was.ID != is.ID {
		return // its partitions are attached with its settings
	}
	is.turn.Store(was.turn.Load())
	for i := range is.partitions {
		id := broker.PartitionID{Topic: is.ID, Partition: uint32(i)}
		err := n.queue.Configure(id, msDuration(is.VisibilityTimeoutMs), int(is.MaxInFlightPerPartition))
		if err != nil && !errcode.Is(err, errcode.Unavailable) { // not attached yet: it is then, with these
			n.opts.Logger.Error("the queue does not take a topic's settings", "partition", id.String(), "error", err)
		}
	}
}
