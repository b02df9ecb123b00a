package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// badCall is one kind of call that the parts of a node make.
type badCall struct {
	who string
	op  string
	key string
}

var badCalls = []badCall{
	{"segment", fault.Put, "t/*/s/*"},
	{"segment read back", fault.GetRange, "t/*/s/*"},
	{"chain entry", fault.Put, "t/*/m/*"},
	{"chain entry read back", fault.Get, "t/*/m/*"},
	{"shipped log", fault.Put, "wal/*.ship"},
	{"shipped log read back", fault.Get, "wal/*.ship"},
	{"list of the shipped log", fault.List, "wal/*"},
	{"fence check", fault.Get, "wal/*/FENCE"},
	{"state", fault.Put, "state/*"},
	{"state read back", fault.Get, "state/*"},
	{"export", fault.Put, "meta/*"},
	{"export read back", fault.Get, "meta/*"},
	{"everything", "", "*"},
}

// badWay is how a call goes wrong. stays: until the rule is taken away.
type badWay struct {
	name  string
	rule  fault.Rule
	stays bool
	only  string // operations that it is about, by their beginning; "" = all
}

func coded(c errcode.Code) error { return errcode.New(c, "as the test said") }

var badWays = []badWay{
	{name: "fails once", rule: fault.Rule{Do: fault.Fail, Times: 1}},
	{name: "fails for longer than the retries", rule: fault.Rule{Do: fault.Fail}, stays: true},
	{name: "is slow", rule: fault.Rule{Delay: badAttempt * 2 / 3, Times: 4}},
	{name: "hangs", rule: fault.Rule{Do: fault.Hang}, stays: true},
	{name: "loses its answers", rule: fault.Rule{Do: fault.LoseAnswer, Times: 5}},
	{name: "answers without effect", rule: fault.Rule{Do: fault.Pretend, Times: 2}},
	{name: "stops in the middle", rule: fault.Rule{Do: fault.Cut, Times: 2}},
	{name: "is torn", rule: fault.Rule{Do: fault.Tear, Times: 1}},
	{name: "flips a bit", rule: fault.Rule{Do: fault.Flip, Times: 1}},
	{name: "is old", rule: fault.Rule{Do: fault.Stale, Age: 3, Times: 3}, only: fault.List},
	{name: "is denied", rule: fault.Rule{Do: fault.Fail, Err: coded(errcode.Denied)}, stays: true},
	{name: "is throttled", rule: fault.Rule{Do: fault.Fail, Err: coded(errcode.Throttled)}, stays: true},
}

// damages says whether a way leaves another object in the bucket than was put:
// a store that compares no sum. No store here does that; what a node makes of
// it is tested all the same.
func (w badWay) damages(c badCall) bool {
	return (w.rule.Do == fault.Tear || w.rule.Do == fault.Flip) && (c.op == fault.Put || c.op == "")
}

func (w badWay) lies() bool {
	switch w.rule.Do {
	case fault.LoseAnswer, fault.Pretend, fault.Tear, fault.Flip, fault.Stale, fault.Cut:
		return true
	}
	return false
}

// Each call of each part of a node goes wrong in each way. Meanwhile produce and
// consume go on as if nothing was (I15), what lasts is told in readiness and the
// status, what is asked of the store is bounded (B184), and an answer archived is
// the truth: the bucket of that very moment restores the record. When it is over
// the node makes up for it without a restart, nothing is lost, and no object that
// stood in the bucket was changed (I7, I8, B191, B192, B202).
func TestArchiveFaults(t *testing.T) {
	for i, c := range badCalls {
		t.Run(c.who, func(t *testing.T) {
			t.Parallel()
			r := newFaultRig(t, nil)
			for j, w := range badWays {
				if w.only != "" && w.only != c.op || testing.Short() && (i+j)%4 != 0 {
					continue
				}
				if c.op == "" && (w.damages(c) || w.rule.Do == fault.Pretend) {
					continue // no store loses or damages all it is given and then works
				}
				r.round(c, w)
			}
			r.truthful()
			r.close()
		})
	}
}

// round is one fault, from its beginning to the last trace of it.
func (r *faultRig) round(c badCall, w badWay) {
	r.t.Helper()
	what := c.who + " " + w.name
	r.unchanged(what + ", before")
	if c.op == fault.List {
		r.watched(what)
	}
	rule := w.rule
	rule.Key = c.key
	if c.op != "" {
		rule.Ops = []string{c.op}
	}
	h := r.bucket.Add(rule)
	r.hot()
	ctx, cancel := context.WithTimeout(context.Background(), hotMost)
	one := uint32(1)
	fresh := fmt.Sprintf("x%d", r.made)
	if _, err := r.CreateTopic(ctx, broker.TopicSpec{Name: fresh, Partitions: &one}); err != nil {
		r.t.Fatalf("%s: create a topic: %v", what, err)
	}
	cancel()
	var lies *fault.Handle
	if c.op == fault.List {
		// A list is needed when an object is not there that was put, to find out
		// how far back that goes; for as long as none is.
		lie := fault.Rule{Ops: []string{fault.Put}, Key: "wal/*.ship", Times: 1, Do: fault.Pretend}
		if w.stays {
			lie.Times = 0
		}
		lies = r.bucket.Add(lie)
		r.hot()
	}
	r.spoils = r.spoils || w.damages(c) // what was spoiled stays until a state object stands behind it
	r.archived(what, "t", 300*time.Millisecond)
	r.archived(what, fresh, 300*time.Millisecond) // it needs the export of its topic, too
	r.seal()
	within(r.t, what+": the fault acts", func() bool { return h.Hits() > 0 })
	if w.stays {
		r.lasting(what)
	}
	r.hot()
	h.Remove()
	if lies != nil {
		lies.Remove()
	}
	var taken []string
	if w.damages(c) && c.who == "export" {
		// What only one key may hold stays in the way until somebody takes it away;
		// a chain entry is passed by the next one.
		taken = h.Keys()
		for _, key := range taken {
			if err := r.bucket.Lose(context.Background(), key); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	if !w.lies() {
		r.answers = nil // there was no temptation, and one restore each is dear
	}
	r.heal(what)
	r.unchanged(what, taken...)
}

// watched has somebody wait for ack=archived, so that from then on each object of
// the shipped log is read back as it is put. Else, on a slow machine, a state
// object may stand behind one that is not there before anybody looks: nothing
// needs a list then.
func (r *faultRig) watched(what string) {
	r.t.Helper()
	before := r.answers
	if !r.archived(what+", before", "t", 20*time.Second) {
		r.t.Fatalf("%s: ack=archived does not work before it", what)
	}
	r.answers = before // no fault was on
}

// lasting holds what is true while a fault lasts.
func (r *faultRig) lasting(what string) {
	r.t.Helper()
	within(r.t, what+": it is told", func() bool {
		ready := r.Readiness()
		return ready.Ready && strings.Contains(strings.Join(ready.Degraded, " "), "archive: ")
	})
	before := r.bucket.requests()
	<-time.After(300 * time.Millisecond)
	if n := r.bucket.requests() - before; n > 100 {
		r.t.Errorf("%s: %d requests in 0.3 s", what, n)
	}
}
