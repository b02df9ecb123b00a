package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A node starts on a bucket of which one call goes wrong: it serves at once,
// says what is the matter, claims and registers once it can, and answers
// nothing as archived before that is true (I15, I16).
func TestStartFaults(t *testing.T) {
	calls := []badCall{
		{"claim", fault.Put, "cluster/*"},
		{"claim read", fault.Get, "cluster/*"},
		{"open", fault.Put, "wal/*/OPEN"},
		{"open read back", fault.Get, "wal/*/OPEN"},
		{"first list", fault.List, "wal/*"},
		{"first list of states", fault.List, "state/*"},
		{"first fence check", fault.Get, "wal/*/FENCE"},
		{"first export", fault.Put, "meta/*"},
		{"everything", "", "*"},
	}
	for i, c := range calls {
		t.Run(c.who, func(t *testing.T) {
			t.Parallel()
			for j, w := range badWays {
				if w.only != "" && w.only != c.op || w.damages(c) || testing.Short() && (i+j)%4 != 0 {
					continue // a damaged claim is somebody's to take away: TestArchiveFaults has an export
				}
				if w.rule.Do == fault.Pretend && (c.op == "" || c.op == fault.Get) {
					continue // a store that denies every object is empty to whoever asks it
				}
				startUnder(t, c, w)
			}
		})
	}
}

func startUnder(t *testing.T, c badCall, w badWay) {
	t.Helper()
	what := c.who + " " + w.name
	r := &faultRig{bucket: newBadBucket(mem.New("bad", nil)), sums: map[string][32]byte{}}
	rule := w.rule
	rule.Key = c.key
	if c.op != "" {
		rule.Ops = []string{c.op}
	}
	h := r.bucket.Add(rule)
	began := time.Now()
	r.memNode = newMemNode(t, func(o *Options) {
		o.Archive, o.StartTimeout = r.bucket.stack, 200*time.Millisecond
		o.WALInterval, o.StateInterval = 20*time.Millisecond, 50*time.Millisecond
	})
	if took := time.Since(began); took > startMost {
		t.Errorf("%s: the start took %v", what, took)
	}
	createTopic(t, r.Node, "t", 1)
	r.hot()
	r.archived(what, "t", 200*time.Millisecond)
	within(t, what+": the fault acts", func() bool { return h.Hits() > 0 })
	if w.stays && c.who != "open read back" { // the second try is told that it exists, which will do
		r.lasting(what)
		r.hot()
	}
	h.Remove()
	if !w.lies() {
		r.answers = nil
	}
	r.heal(what)
	r.truthful()
	r.close()
}

// A node on a bucket alone, as a restore leaves it, reads archived records while
// each kind of read goes wrong: a reader gets every record as it was, or an
// error that says why; never fewer, never others. It goes on once the fault is
// over, and hot work beside it never notices (B202, B209, B210).
func TestColdReadFaults(t *testing.T) {
	source, want := archivedLog(t, 400, 0)
	calls := []badCall{
		{"segment ranges", fault.GetRange, "t/*/s/*"},
		{"chain", fault.Get, "t/*/m/*"},
		{"everything", "", "*"},
	}
	for i, c := range calls {
		t.Run(c.who, func(t *testing.T) {
			t.Parallel()
			for j, w := range badWays {
				if w.only != "" || testing.Short() && (i+j)%3 != 0 || c.op == "" && w.lies() {
					continue
				}
				coldUnder(t, source.Clone(), want, c, w)
			}
		})
	}
}

// archivedLog returns a bucket whose topic t has n records in segments and tail
// more in the shipped log alone, and what a reader of it gets.
func archivedLog(t *testing.T, n, tail int) (*mem.Store, []string) {
	t.Helper()
	store := mem.New("source", nil)
	node := openNode(t, testOptions(filepath.Join(t.TempDir(), "a"), store))
	createTopic(t, node, "t", 1)
	for i := range n {
		produce(t, node, "t", broker.AckAccepted, broker.NewRecord{Value: []byte(fmt.Sprint(i, strings.Repeat("v", 500)))})
		if i%100 == 99 {
			if err := node.engine.Seal(node.engine.All()[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	within(t, "everything is in segments", func() bool {
		end, _ := node.engine.All()[0].ArchivedEnd()
		return end == int64(n)
	})
	for range tail {
		produce(t, node, "t", broker.AckArchived, broker.NewRecord{Value: []byte("tail")})
	}
	want, err := coldAll(node, "t")
	if err != nil || len(want) != n+tail {
		t.Fatal(len(want), err)
	}
	closeNode(t, node)
	return store, want
}

func coldUnder(t *testing.T, store *mem.Store, want []string, c badCall, w badWay) {
	t.Helper()
	what := c.who + " " + w.name
	dir := filepath.Join(t.TempDir(), "cold")
	if _, err := restore.Run(context.Background(), restore.Options{
		Store: store, Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true,
		Now: daysLater,
	}); err != nil {
		t.Fatal(err)
	}
	b := newBadBucket(store)
	rule := w.rule
	rule.Key = c.key
	if c.op != "" {
		rule.Ops = []string{c.op}
	}
	h := b.Add(rule)
	o := testOptions(dir, b.stack)
	o.StartTimeout = 200 * time.Millisecond
	n := openNode(t, o)
	defer closeNode(t, n)
	createTopic(t, n, "hot", 1)
	type reading struct {
		got []string
		err error
	}
	cold := make(chan reading, 1)
	go func() {
		got, err := coldAll(n, "t")
		cold <- reading{got, err}
	}()
	for began, i := time.Now(), 0; i < 20; i++ {
		produce(t, n, "hot", broker.AckCommitted, broker.NewRecord{Value: []byte("x")})
		if took := time.Since(began); took > hotMost {
			t.Errorf("%s: hot produce took %v", what, took)
		}
	}
	r := <-cold
	for i := range r.got {
		if r.got[i] != want[i] {
			t.Fatalf("%s: record %d reads %.60q", what, i, r.got[i])
		}
	}
	switch {
	case r.err == nil && len(r.got) < len(want):
		t.Fatalf("%s: %d of %d records, and no error", what, len(r.got), len(want))
	case r.err != nil && !errcode.Is(r.err, errcode.ArchiveUnavailable) && !errcode.Is(r.err, errcode.Corrupt):
		t.Fatalf("%s: %v (%s)", what, r.err, errcode.Of(r.err))
	case w.stays && r.err == nil:
		t.Fatalf("%s: everything was read although nothing could be", what)
	}
	if h.Hits() == 0 {
		t.Fatalf("%s: the fault did not act", what)
	}
	h.Remove()
	within(t, what+": everything is read again", func() bool {
		got, err := coldAll(n, "t")
		return err == nil && len(got) == len(want) && got[len(got)-1] == want[len(want)-1]
	})
}

// A restore during which each kind of call goes wrong ends with everything, or
// with an error and nothing changed that was there; run again when the fault is
// over it has everything. The node that it takes the cluster from is fenced by
// then, whatever the store said about the fence (B202, B214, I8, I16).
func TestRestoreFaults(t *testing.T) {
	source, want := archivedLog(t, 200, 30)
	calls := []badCall{
		{"claim", fault.Put, "cluster/*"},
		{"claim read", fault.Get, "cluster/*"},
		{"fence", fault.Put, "wal/*/FENCE"},
		{"export read", fault.Get, "meta/*"},
		{"shipped log read", fault.Get, "wal/*.ship"},
		{"state read", fault.Get, "state/*"},
		{"chain read", fault.Get, "t/*/m/*"},
		{"chain entry", fault.Put, "t/*/m/*"},
		{"list", fault.List, "*"},
	}
	for i, c := range calls {
		t.Run(c.who, func(t *testing.T) {
			t.Parallel()
			for j, w := range badWays {
				if w.only != "" && w.only != c.op || testing.Short() && (i+j)%4 != 0 || w.damages(c) && c.who != "chain entry" {
					continue // claims and fences have one key, and somebody takes away what is torn there
				}
				restoreUnder(t, source.Clone(), want, c, w)
			}
		})
	}
}

func restoreUnder(t *testing.T, store *mem.Store, want []string, c badCall, w badWay) {
	t.Helper()
	what := c.who + " " + w.name
	b := newBadBucket(store)
	before := b.sums(t)
	rule := w.rule
	rule.Key = c.key
	rule.Ops = []string{c.op}
	b.Add(rule)
	dir := filepath.Join(t.TempDir(), "r")
	run := func(s objstore.Store) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := restore.Run(ctx, restore.Options{
			Store: s, Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true,
			Now: daysLater,
		})
		return err
	}
	if err := run(b.stack); err != nil {
		if w.name == "is slow" || w.name == "fails once" {
			t.Fatalf("%s: %v", what, err)
		}
		b.Clear()
		if err := run(b.stack); err != nil {
			t.Fatalf("%s: the second restore: %v", what, err)
		}
	} else if w.stays {
		t.Fatalf("%s: the restore succeeded although that never worked", what)
	}
	b.Clear()
	after := b.sums(t)
	for key, sum := range before {
		if after[key] != sum {
			t.Fatalf("%s: %s changed", what, key)
		}
	}
	for _, key := range b.keys(t, "wal/") {
		if open, ok := strings.CutSuffix(key, "/OPEN"); ok {
			if _, fenced := after[open+"/FENCE"]; !fenced {
				t.Fatalf("%s: %s was not fenced", what, open)
			}
		}
	}
	n := openNode(t, testOptions(dir, b.stack))
	defer closeNode(t, n)
	got, err := coldAll(n, "t")
	if err != nil || len(got) != len(want) {
		t.Fatalf("%s: %d of %d records: %v", what, len(got), len(want), err)
	}
}
