package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// A node that deletes all the time, of everything that can be deleted: log that is
// covered, old states and exports, segments behind a trim, topics. Its deletes go
// wrong in each way, one after the other. Hot work does not notice, what lasts is
// told in readiness and asked for ever more rarely, and the bucket gives back every
// record at each of these moments; when it is over, what was due goes (I7, I15,
// I16).
func TestDeleteFaults(t *testing.T) {
	r := newFaultRig(t, func(o *Options) {
		o.GarbageGrace, o.PITRWindow = 30*time.Millisecond, 30*time.Millisecond
		o.GarbageInterval, o.OrphanInterval = 5*time.Millisecond, 100*time.Millisecond
	})
	ways := []struct {
		badWay
		says string
	}{
		{badWay{name: "fails once", rule: fault.Rule{Do: fault.Fail, Times: 1}}, ""},
		{badWay{name: "fails", rule: fault.Rule{Do: fault.Fail}, stays: true}, "delete "},
		{badWay{name: "hangs", rule: fault.Rule{Do: fault.Hang}, stays: true}, "delete "},
		{badWay{name: "loses its answers", rule: fault.Rule{Do: fault.LoseAnswer, Times: 4}}, ""},
		{badWay{name: "is not done", rule: fault.Rule{Do: fault.Pretend}, stays: true}, "still has it"},
		{badWay{name: "is done by half and fails", rule: fault.Rule{Do: fault.Cut, Times: 4}}, ""},
		{badWay{name: "is done by half", rule: fault.Rule{Do: fault.Tear, Times: 4}}, ""},
		{badWay{name: "is denied", rule: fault.Rule{Do: fault.Fail, Err: coded(errcode.Denied)}, stays: true}, "refuses deletes"},
		{badWay{name: "is throttled", rule: fault.Rule{Do: fault.Fail, Err: coded(errcode.Throttled)}, stays: true}, "delete "},
	}
	ctx := context.Background()
	one := uint32(1)
	id := broker.PartitionID{Topic: r.topics.Load().byName["t"].ID}
	for i, w := range ways {
		if testing.Short() && i%3 != 1 {
			continue
		}
		rule := w.rule
		rule.Ops = []string{fault.Delete}
		h := r.bucket.Add(rule)
		doomed := fmt.Sprintf("doomed-%d", i)
		info, err := r.CreateTopic(ctx, broker.TopicSpec{Name: doomed, Partitions: &one})
		if err != nil {
			t.Fatal(err)
		}
		produce(t, r.Node, doomed, broker.AckAccepted, numbered(1, 3)...)
		r.hot()
		r.seal()
		r.hot()
		r.seal()
		within(t, w.name+": all is in segments", func() bool { return len(r.uploader.Statuses()) == 0 })
		if err := r.DeleteTopic(ctx, doomed, true); err != nil {
			t.Fatal(err)
		}
		end, _ := r.engine.Get(id).ArchivedEnd()
		start, err := r.Trim(ctx, "t", 0, end-3)
		if err != nil {
			t.Fatal(err)
		}
		within(t, w.name+": the fault acts", func() bool { return h.Hits() > 0 })
		if w.stays {
			within(t, w.name+": it is told", func() bool {
				ready := r.Readiness()
				return ready.Ready && slices.ContainsFunc(ready.Degraded, func(s string) bool {
					return strings.HasPrefix(s, "garbage: ") && strings.Contains(s, w.says)
				})
			})
			before := r.bucket.count.Count("delete")
			<-time.After(300 * time.Millisecond)
			if n := r.bucket.count.Count("delete") - before; n > 3*12 {
				t.Errorf("%s: %d deletes in 0.3 s", w.name, n)
			}
		}
		r.hot()
		r.archived(w.name, "t", 20*time.Second) // its bucket is restored from at the end
		want, err := coldAll(r.Node, "t")
		if err != nil {
			t.Fatal(err)
		}
		h.Remove()
		topic, segments := manifest.TopicPrefix(info.ID), manifest.PartitionPrefix(id)+"s/"
		within(t, w.name+": what is due goes", func() bool {
			if _, err := r.CollectGarbage(ctx); err != nil {
				t.Fatal(err)
			}
			return len(r.bucket.keys(t, topic)) == 0 && !slices.ContainsFunc(r.bucket.keys(t, segments), func(key string) bool {
				k, err := manifest.ParseKey(key)
				return err == nil && k.Next <= start
			})
		})
		r.heal(w.name)
		if got, err := coldAll(r.Node, "t"); err != nil || len(got) < len(want) {
			t.Fatalf("%s: %d of %d records: %v", w.name, len(got), len(want), err)
		}
	}
	// What is left gives everything back.
	want, err := coldAll(r.Node, "t")
	if err != nil {
		t.Fatal(err)
	}
	r.truthful()
	r.close()
	n := restored(t, objstore.Store(r.bucket.below.Clone()))
	got, err := coldAll(n, "t")
	closeNode(t, n)
	if err != nil || len(got) < len(want) || got[len(got)-1] != want[len(want)-1] {
		t.Fatalf("%d of %d records come back: %v", len(got), len(want), err)
	}
}
