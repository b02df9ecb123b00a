package raftmeta

import (
	"context"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Confirm gives a state behind a barrier: what was committed before is in it,
// and it confirms nothing for a caller that left or a plane that ended (I7, I10).
func TestConfirm(t *testing.T) {
	m := open(t, testOptions(tempDir(t)))
	ctx := t.Context()
	must(t)(m.RegisterIncarnation(ctx, 0xa1, nil))
	topic, err := m.CreateTopic(ctx, DefaultTopic("t"))
	must(t)(topic, err)
	s, err := m.Confirm(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.TopicByID(topic.ID); !ok || s.Index() != m.State().Index() {
		t.Fatalf("confirmed state of index %d lacks what index %d has", s.Index(), m.State().Index())
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.Confirm(gone)
	wantCode(t, err, errcode.Unavailable, "does not confirm")
	closeMeta(t, m)
	_, err = m.Confirm(ctx)
	wantCode(t, err, errcode.Unavailable, "does not confirm")
}

// What the collector remembers is durable and never taken back: a deletion
// whose objects are gone, an incarnation that no restore needs (T16, B116).
func TestPurgedAndRetired(t *testing.T) {
	o := testOptions(tempDir(t))
	m := open(t, o)
	ctx := t.Context()
	must(t)(m.RegisterIncarnation(ctx, 0xa1, nil))
	topic, err := m.CreateTopic(ctx, DefaultTopic("t"))
	must(t)(topic, err)
	_, err = m.PurgeTopic(ctx, topic.ID)
	wantCode(t, err, errcode.NotFound, "not among the deleted")
	gone, err := m.DeleteTopic(ctx, "t")
	must(t)(gone, err)
	purged, err := m.PurgeTopic(ctx, topic.ID)
	must(t)(purged, err)
	if !purged.Purged || purged.ChangedIndex != gone.ChangedIndex {
		t.Fatalf("purged %+v, deleted %+v", purged, gone)
	}

	_, err = m.RetireIncarnation(ctx, "n1", 0xa1)
	wantCode(t, err, errcode.Conflict, "is active")
	_, err = m.RetireIncarnation(ctx, "n1", 0)
	wantCode(t, err, errcode.InvalidArgument, "incarnation 0")
	must(t)(m.FenceIncarnation(ctx, "n1", 0xb1))
	_, err = m.RetireIncarnation(ctx, "n2", 0xb1)
	wantCode(t, err, errcode.Conflict, "is node n1's")
	first, err := m.RetireIncarnation(ctx, "n1", 0xb1)
	must(t)(first, err)
	again, err := m.RetireIncarnation(ctx, "n1", 0xb1)
	must(t)(again, err)
	unfenced, err := m.RetireIncarnation(ctx, "n9", 0xc1)
	must(t)(unfenced, err)
	if first.RetiredMs == 0 || again != first || unfenced.FencedMs == 0 {
		t.Fatalf("retired %+v, again %+v, unfenced %+v", first, again, unfenced)
	}
	must(t)(m.RegisterIncarnation(ctx, 0xa2, nil))
	_, err = m.RegisterIncarnation(ctx, 0xc1, nil)
	wantCode(t, err, errcode.Conflict, "fenced for ever")
	closeMeta(t, m)

	m = open(t, o)
	defer closeMeta(t, m)
	if d, _ := m.State().Deleted(topic.ID); d != purged {
		t.Fatalf("after a restart the deletion is %+v, was %+v", d, purged)
	}
	if f, _ := m.State().Fenced(0xb1); f != first {
		t.Fatalf("after a restart the incarnation is %+v, was %+v", f, first)
	}
}
