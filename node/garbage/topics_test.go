package garbage

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// doom makes a topic with n segments and some of everything, and deletes it.
func (w *world) doom(name string, n int) broker.PartitionID {
	w.t.Helper()
	id := w.topic(name)
	w.upload(id, n)
	w.put(manifest.PageKey(id, 0, manifest.Hash{1}), []byte("page"))
	if _, err := w.meta.DeleteTopic(context.Background(), name); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// A deleted topic goes a grace after the deletion, once the archive holds an
// export that knows of it: its tombstone is there before the first object goes,
// and stays. What was created again under the same name has another id and is
// untouched. When two lists, a grace apart, have found nothing left, it is never
// listed again, after a restart neither (T16).
func TestTopicPurge(t *testing.T) {
	w := newWorld(t, nil)
	id := w.doom("orders", 3)
	again := w.topic("orders")
	segs := w.upload(again, 2)
	prefix, tomb := manifest.TopicPrefix(id.Topic), manifest.TombstoneKey(id.Topic)

	w.turn() // sees the deletion
	w.pass(testGrace - time.Second)
	w.untouched(w.turn)
	w.pass(time.Second)
	w.untouched(w.turn) // no export knows of it yet: a take-over would bring it back
	if holds := w.cause(Topic).Holds; len(holds) != 1 || w.has(tomb) {
		t.Fatalf("holds %v, tombstone %v", holds, w.has(tomb))
	}
	w.export()
	w.turn()
	if left := w.keys(prefix); len(left) != 0 || !w.has(tomb) {
		t.Fatalf("tombstone %v, left %v", w.has(tomb), left)
	}
	got, _, err := objstore.ReadAll(t.Context(), w.mem, tomb, 1<<10)
	if x, derr := archive.DecodeTombstone(got); err != nil || derr != nil || x.Topic != id.Topic || x.Name != "orders" {
		t.Fatalf("%+v %v %v", x, err, derr)
	}
	w.kept("recreated", keysOf(segs)...)
	if d, _ := w.meta.State().Deleted(id.Topic); d.Purged {
		t.Fatal("one list ended it")
	}
	w.pass(testGrace)
	w.turn()
	if d, _ := w.meta.State().Deleted(id.Topic); !d.Purged {
		t.Fatal("the metadata does not remember that it is done")
	}
	w.start()
	w.turn() // the list at the start
	w.count.Reset()
	for range 5 {
		w.pass(testGrace)
		w.turn()
	}
	if calls := w.count.Transcript(); strings.Contains(calls, id.Topic.String()) {
		t.Fatalf("a closed deletion costs\n%s", calls)
	}
}

// A purge that is killed anywhere resumes after a restart until nothing is left:
// 500 objects, a kill at the 200th (B116), and at every other call too, with the
// answer of the last one lost or not.
func TestPurgeResumes(t *testing.T) {
	for _, do := range []fault.Action{fault.Fail, fault.LoseAnswer, fault.Cut} {
		for _, op := range []string{fault.Put, fault.List, fault.Delete, fault.GetRange, fault.Get} {
			t.Run(fmt.Sprint(do, op), func(t *testing.T) {
				w := newWorld(t, nil)
				id := w.topic("t")
				for i := range 500 {
					w.put(manifest.SegmentKey(id, int64(i), int64(i+1), 1, 1), []byte("s"))
				}
				if _, err := w.meta.DeleteTopic(t.Context(), "t"); err != nil {
					t.Fatal(err)
				}
				w.export()
				for skip := range 4 {
					w.start()
					_, _ = w.c.Turn(t.Context())
					w.pass(testGrace)
					h := w.fault.Add(fault.Rule{Ops: []string{op}, Skip: skip, Times: 1, Do: do})
					_, err := w.c.Turn(t.Context())
					h.Remove()
					left := len(w.keys(manifest.TopicPrefix(id.Topic)))
					if left < 500 && !w.has(manifest.TombstoneKey(id.Topic)) {
						t.Fatal("objects went before the tombstone was there")
					}
					if d, _ := w.meta.State().Deleted(id.Topic); d.Purged && left > 0 {
						t.Fatalf("closed with %d objects left (%v)", left, err)
					}
				}
				w.start()
				w.turn()
				w.pass(testGrace)
				w.turn()
				if left := w.keys(manifest.TopicPrefix(id.Topic)); len(left) != 0 {
					t.Fatalf("%d objects stay for ever", len(left))
				}
			})
		}
	}
}

// A list that shows a part of a topic, or nothing, where there is something does
// not end its purge: what it hid goes at the second look, a grace later, and in
// between nobody lists. A restart in between begins the look anew.
func TestPurgeLooksTwice(t *testing.T) {
	for name, do := range map[string]fault.Action{"shows nothing": fault.Pretend, "shows a part": fault.Tear} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(name, restart), func(t *testing.T) {
				w := newWorld(t, nil)
				id := w.doom("orders", 6)
				prefix := manifest.TopicPrefix(id.Topic)
				w.turn()
				w.pass(testGrace)
				w.export()
				h := w.fault.Add(fault.Rule{Ops: []string{fault.List}, Key: prefix + "*", Do: do})
				w.turn()
				if len(w.keys(prefix)) == 0 || h.Hits() == 0 {
					t.Fatal("the lists hid nothing")
				}
				h.Remove()
				w.count.Reset()
				w.pass(testGrace - time.Second)
				w.turn()
				if d, _ := w.meta.State().Deleted(id.Topic); d.Purged || w.calls()["list"] != 0 {
					t.Fatalf("before the second look: purged %v, %v", d.Purged, w.calls())
				}
				if c := w.cause(Topic); len(c.Holds) != 1 || !strings.Contains(c.Holds[0], "asked again") {
					t.Fatalf("%+v", c)
				}
				if restart {
					w.start()
					w.turn()
					w.pass(testGrace)
				}
				w.pass(time.Second)
				w.turn()
				if left := w.keys(prefix); len(left) != 0 {
					t.Fatalf("left: %v", left)
				}
				w.pass(testGrace)
				w.turn()
				if d, _ := w.meta.State().Deleted(id.Topic); !d.Purged {
					t.Fatal("it does not come to an end")
				}
			})
		}
	}
}

// A topic whose deletion the confirmed metadata does not know is not purged,
// whatever the state here said; nor is anything when a list answers with keys of
// something else (B58, I10).
func TestPurgeIsConfirmed(t *testing.T) {
	w := newWorld(t, nil)
	live := w.topic("live")
	segs := w.upload(live, 2)
	w.c.mu.purges[live.Topic] = &purge{since: w.now.Add(-2 * testGrace)}
	w.c.mu.purges[live.Topic].deleted.ID = live.Topic
	w.fence.confirmed = 1 << 40
	w.untouched(func() { w.fails(errcode.Conflict, "does not confirm its deletion") })
	if w.has(manifest.TombstoneKey(live.Topic)) {
		t.Fatal("a live topic has a tombstone")
	}
	w.kept("live", keysOf(segs)...)

	id := w.doom("gone", 1)
	w.turn()
	w.pass(testGrace)
	w.export()
	w.fence.confirmed = 1 << 40
	w.c.opts.Store = confused{w.c.opts.Store, keysOf(segs)[0]}
	w.untouched(func() { w.fails(errcode.Corrupt, "nothing is deleted on such an answer") })
	w.kept("of a live topic", keysOf(segs)...)
	if d, _ := w.meta.State().Deleted(id.Topic); d.Purged {
		t.Fatal("it counts as purged")
	}
}

// confused lists a foreign key below every topic.
type confused struct {
	objstore.Store
	key string
}

func (s confused) List(ctx context.Context, prefix, after string, limit int) (objstore.Page, error) {
	p, err := s.Store.List(ctx, prefix, after, limit)
	if len(prefix) > 2 && prefix[:2] == manifest.PrefixTopics {
		p.Objects = append(p.Objects, objstore.Info{Key: s.key})
	}
	return p, err
}

// Objects of a topic that the metadata does not know at all stay for ever: it
// may be this metadata that lost something (B58, B159).
func TestUnknownTopicStays(t *testing.T) {
	w := newWorld(t, nil)
	unknown := broker.PartitionID{Topic: 0xdead}
	w.put(manifest.SegmentKey(unknown, 0, 10, 1, 1), []byte("s"))
	w.put(manifest.EntryKey(unknown, 1), []byte("e"))
	w.untouched(func() {
		for range 60 {
			w.pass(time.Hour)
			w.turn()
		}
	})
}

// Segments that were trimmed shortly before their topic was deleted go with the
// topic. That is nothing to report: no error is logged.
func TestRetiredSegmentsOfADeletedTopic(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	id := w.topic("t")
	segs := keysOf(w.upload(id, 4))
	w.trim(id, 20)
	if _, err := w.meta.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	w.export()
	w.turn()
	w.pass(testGrace)
	w.turn()
	w.turn()
	w.gone(segs...)
	if c := w.cause(Retired); c.Waiting != 0 || strings.Contains(log.String(), "level=ERROR") {
		t.Fatalf("%+v, and the log says\n%s", c, log.String())
	}
}
