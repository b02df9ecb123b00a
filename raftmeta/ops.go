package raftmeta

import (
	"context"
	"errors"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// maxIDAttempts bounds the search for a free random topic id; one is enough in
// practice.
const maxIDAttempts = 3

// RegisterIncarnation says who this node is now: its incarnation and its
// addresses by plane. It is a no-op when nothing changed; conflict when the
// incarnation is fenced or another node's.
func (m *Meta) RegisterIncarnation(ctx context.Context, inc Incarnation, addresses map[string]string) (Node, error) {
	if err := validateMember(m.opts.NodeID, inc, addresses); err != nil {
		return Node{}, err
	}
	return propose[Node](ctx, m, &registerIncarnation{Node: m.opts.NodeID, Incarnation: inc, Addresses: addresses})
}

// FenceIncarnation forbids an incarnation, for ever, to register and to own.
func (m *Meta) FenceIncarnation(ctx context.Context, node string, inc Incarnation) (Fenced, error) {
	f := Fenced{Incarnation: inc, Node: node, FencedMs: m.opts.Now().UnixMilli()}
	if err := f.validate(); err != nil {
		return Fenced{}, err
	}
	return propose[Fenced](ctx, m, &fenceIncarnation{f})
}

// CreateTopic creates t with all its partitions on this node's registered
// incarnation, generation 1, offset 0. An id of 0 is chosen at random; the
// creation time and an empty Failover are filled in. Errors: exists for a name
// that exists, in any letter case; invalid_argument with every bad field;
// conflict before RegisterIncarnation.
func (m *Meta) CreateTopic(ctx context.Context, t Topic) (Topic, error) {
	t.resolve()
	if err := t.Validate(); err != nil {
		return Topic{}, err
	}
	t.CreatedMs, t.ChangedIndex = m.opts.Now().UnixMilli(), 0
	self, _ := m.State().Node(m.opts.NodeID)
	for attempt, chosen := 1, t.ID != 0; ; attempt++ {
		if !chosen {
			id, err := random(m.opts.Rand)
			if err != nil {
				return Topic{}, err
			}
			t.ID = broker.TopicID(id)
		}
		out, err := propose[Topic](ctx, m, &createTopic{Topic: t, Owner: m.opts.NodeID, OwnerIncarnation: self.Incarnation})
		if chosen || attempt == maxIDAttempts || !errors.Is(err, errIDTaken) {
			return out, err
		}
	}
}

// UpdateTopic replaces the settings of the topic as the caller read it:
// conflict when it was changed since, not_found when it is gone.
func (m *Meta) UpdateTopic(ctx context.Context, read Topic, settings TopicSettings) (Topic, error) {
	settings.resolve()
	if err := settings.Validate(); err != nil {
		return Topic{}, err
	}
	return propose[Topic](ctx, m, &updateTopic{ID: read.ID, ChangedIndex: read.ChangedIndex, Settings: settings})
}

// DeleteTopic deletes a topic and returns the confirmation that its data is
// garbage; not_found when there is none of that name.
func (m *Meta) DeleteTopic(ctx context.Context, name string) (Deleted, error) {
	t, ok := m.Topic(name)
	if !ok {
		return Deleted{}, errcode.New(errcode.NotFound, "topic %.200q does not exist", name)
	}
	return m.DeleteTopicByID(ctx, t.ID)
}

// DeleteTopicByID deletes one incarnation of a topic and no other.
func (m *Meta) DeleteTopicByID(ctx context.Context, id broker.TopicID) (Deleted, error) {
	return propose[Deleted](ctx, m, &deleteTopic{ID: id, DeletedMs: m.opts.Now().UnixMilli()})
}

// PurgeTopic remembers that the archive holds nothing of a deleted topic any
// more, so that it is not looked for again. not_found when the topic is not
// among the deleted ones.
func (m *Meta) PurgeTopic(ctx context.Context, id broker.TopicID) (Deleted, error) {
	return propose[Deleted](ctx, m, &purgeTopic{ID: id})
}

// RetireIncarnation says, for ever, that no restore needs what a fenced
// incarnation shipped. Conflict when it is active, or another node's.
func (m *Meta) RetireIncarnation(ctx context.Context, node string, inc Incarnation) (Fenced, error) {
	ms := m.opts.Now().UnixMilli()
	f := Fenced{Incarnation: inc, Node: node, RetiredMs: ms}
	if err := f.validate(); err != nil {
		return Fenced{}, err
	}
	return propose[Fenced](ctx, m, &retireIncarnation{Node: node, Incarnation: inc, RetiredMs: ms})
}

// Expect is the compare part of SetAssignment.
type Expect struct {
	Owner      string
	Generation uint32
}

// SetAssignment changes the owner of a partition if it is still the expected
// one: conflict otherwise, with facts owner and generation. The generation has
// to rise and next.PreviousEnd to be at or above the present start. Asking for
// what already stands succeeds.
func (m *Meta) SetAssignment(ctx context.Context, p broker.PartitionID, expect Expect, next Assignment) (Assignment, error) {
	if err := next.validate(); err != nil {
		return Assignment{}, err
	}
	return propose[Assignment](ctx, m, &setAssignment{Topic: p.Topic, Partition: p.Partition,
		ExpectOwner: expect.Owner, ExpectGeneration: expect.Generation, Next: next})
}

// PutSetting sets a cluster setting; an empty value removes it.
func (m *Meta) PutSetting(ctx context.Context, key, value string) error {
	if err := validateSetting(key, value); err != nil {
		return err
	}
	_, err := m.propose(ctx, &putSetting{key, value})
	return err
}

// propose is Meta.propose with the result's type.
func propose[T any](ctx context.Context, m *Meta, c command) (T, error) {
	result, err := m.propose(ctx, c)
	out, _ := result.(T)
	return out, err
}
