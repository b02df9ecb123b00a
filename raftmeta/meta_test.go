package raftmeta

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// A new directory becomes a cluster with an identity that stays over restarts,
// and so does everything else.
func TestOpenCreatesAndKeepsTheCluster(t *testing.T) {
	o := testOptions(tempDir(t))
	m := openReady(t, o)
	c := m.State().Cluster()
	if !isHex16(c.ID) || c.Generation != 1 || c.Salt == (Salt{}) || c.CreatedMs == 0 {
		t.Fatalf("cluster %+v", c)
	}
	must(t)(m.CreateTopic(t.Context(), DefaultTopic("orders")))
	before := exportOf(t, m)
	closeMeta(t, m)
	m = open(t, o)
	if got := exportOf(t, m); got != before {
		t.Fatalf("after restart\n%s\nwant\n%s", got, before)
	}
	closeMeta(t, m)
	closeMeta(t, m)
}

// A restart leads at once instead of after Raft's election timeout of one to
// two seconds. The best of five counts: the machine is shared.
func TestStartToLeader(t *testing.T) {
	o := testOptions(tempDir(t))
	closeMeta(t, openReady(t, o))
	best := time.Hour
	for range 5 {
		start := time.Now()
		m := open(t, o)
		best = min(best, time.Since(start))
		closeMeta(t, m)
	}
	if best > 100*time.Millisecond {
		t.Fatalf("start to a complete state took %s; 100 ms are allowed", best)
	}
	t.Logf("start to a complete state: %s", best)
}

// The directory is bound to its node, and an address that is not loopback is
// refused, each with the way out.
func TestOpenRefuses(t *testing.T) {
	o := testOptions(tempDir(t))
	closeMeta(t, open(t, o))
	for name, c := range map[string]struct {
		change func(*Options)
		code   errcode.Code
		text   string
	}{
		"other node":      {func(o *Options) { o.NodeID = "n2" }, errcode.Conflict, "belongs to node n1, not n2"},
		"open address":    {func(o *Options) { o.BindAddr = "0.0.0.0:0" }, errcode.InvalidArgument, "not a loopback address"},
		"no port":         {func(o *Options) { o.BindAddr = "127.0.0.1" }, errcode.InvalidArgument, "not host:port"},
		"several at once": {func(o *Options) { o.NodeID, o.BindAddr = "a/b", "" }, errcode.InvalidArgument, "bind_addr: is empty"},
		"bad export":      {func(o *Options) { o.Bootstrap = &Bootstrap{Adopt: []byte("{}"), Generation: 2} }, errcode.InvalidArgument, "bootstrap: metadata export is of format"},
	} {
		o := o
		c.change(&o)
		_, err := tryOpen(t, o)
		if !errcode.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	open(t, o) // the refusals left nothing behind
}

// What each op refuses, with which code, and that a refusal changes nothing.
func TestOps(t *testing.T) {
	ctx := t.Context()
	m := open(t, testOptions(tempDir(t)))
	_, err := m.CreateTopic(ctx, DefaultTopic("early"))
	wantCode(t, err, errcode.Conflict, "has not registered its incarnation")
	must(t)(m.RegisterIncarnation(ctx, 0xa1, nil))

	orders, err := m.CreateTopic(ctx, DefaultTopic("Orders"))
	if err != nil {
		t.Fatal(err)
	}
	if orders.ID == 0 || orders.Failover != FailoverWait || orders.CreatedMs == 0 || orders.ChangedIndex != m.State().Index() {
		t.Fatalf("created %+v", orders)
	}
	if byID, ok := m.TopicByID(orders.ID); !ok || byID != orders {
		t.Fatalf("by id: %+v %v", byID, ok)
	}
	archived := DefaultTopic("audit")
	archived.DefaultAck = AckArchived
	if a, err := m.CreateTopic(ctx, archived); err != nil || a.Failover != FailoverAutomatic {
		t.Fatalf("%+v %v", a, err)
	}
	before := exportOf(t, m)
	p0 := broker.PartitionID{Topic: orders.ID}
	first, ok := m.Assignment(p0)
	if !ok || first != (Assignment{Owner: "n1", OwnerIncarnation: 0xa1, Generation: 1}) {
		t.Fatalf("first assignment %+v %v", first, ok)
	}
	next := Assignment{Owner: "n1", OwnerIncarnation: 0xa1, Generation: 2, PreviousEnd: 10, Start: 10}

	_, err = m.CreateTopic(ctx, DefaultTopic("Orders"))
	wantCode(t, err, errcode.Exists, "topic Orders exists")
	_, err = m.CreateTopic(ctx, DefaultTopic("oRDERS"))
	wantCode(t, err, errcode.Exists, "letter case")
	taken := DefaultTopic("other")
	taken.ID = orders.ID
	_, err = m.CreateTopic(ctx, taken)
	wantCode(t, err, errcode.Conflict, "id is taken")
	_, err = m.CreateTopic(ctx, Topic{Name: "x"})
	wantCode(t, err, errcode.InvalidArgument, "partitions")
	_, err = m.DeleteTopic(ctx, "orders") // exact case only
	wantCode(t, err, errcode.NotFound, "orders")
	_, err = m.DeleteTopicByID(ctx, 42)
	wantCode(t, err, errcode.NotFound, "does not exist")
	_, err = m.SetAssignment(ctx, p0, Expect{"n2", 1}, next)
	wantCode(t, err, errcode.Conflict, "owned by n1 in generation 1")
	_, err = m.SetAssignment(ctx, p0, Expect{"n1", 2}, next)
	wantCode(t, err, errcode.Conflict, "not by n1 in generation 2")
	_, err = m.SetAssignment(ctx, p0, Expect{"n1", 1}, Assignment{Owner: "n1", OwnerIncarnation: 0xa1, Generation: 1, Start: 5})
	wantCode(t, err, errcode.Conflict, "does not come after")
	_, err = m.SetAssignment(ctx, p0, Expect{"n1", 1}, Assignment{Owner: "n2", OwnerIncarnation: 0xb1, Generation: 2})
	wantCode(t, err, errcode.Conflict, "not registered")
	_, err = m.SetAssignment(ctx, p0, Expect{"n1", 1}, Assignment{Owner: "n1", OwnerIncarnation: 0xa2, Generation: 2})
	wantCode(t, err, errcode.Conflict, "has incarnation 00000000000000a1")
	_, err = m.SetAssignment(ctx, p0, Expect{"n1", 1}, Assignment{Owner: "n1", OwnerIncarnation: 0xa1, Generation: 2, PreviousEnd: 3, Start: 2})
	wantCode(t, err, errcode.InvalidArgument, "previous end 3 and start 2")
	_, err = m.SetAssignment(ctx, broker.PartitionID{Topic: orders.ID, Partition: 3}, Expect{"n1", 1}, next)
	wantCode(t, err, errcode.NotFound, "/3")
	wantCode(t, m.PutSetting(ctx, "a b", "x"), errcode.InvalidArgument, "setting name")
	wantCode(t, m.PutSetting(ctx, "a", strings.Repeat("x", MaxSettingBytes+1)), errcode.TooLarge, "at most")
	_, err = m.RegisterIncarnation(ctx, 0, nil)
	wantCode(t, err, errcode.InvalidArgument, "incarnation 0")
	_, err = m.UpdateTopic(ctx, Topic{ID: 42}, orders.TopicSettings)
	wantCode(t, err, errcode.NotFound, "does not exist")
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.CreateTopic(canceled, DefaultTopic("late"))
	wantCode(t, err, errcode.Canceled, "not applied")
	if got := exportOf(t, m); got != before {
		t.Fatalf("a refused change changed the state\n%s\n%s", before, got)
	}

	// The flip, its repetition after a lost answer, and the topic's index.
	for range 2 {
		if got, err := m.SetAssignment(ctx, p0, Expect{"n1", 1}, next); err != nil || got != next {
			t.Fatalf("flip: %+v %v", got, err)
		}
	}
	moved, _ := m.Topic("Orders")
	if moved.ChangedIndex <= orders.ChangedIndex {
		t.Fatalf("changed index %d after a flip, %d before", moved.ChangedIndex, orders.ChangedIndex)
	}
	changed := moved.TopicSettings
	changed.RetentionMs = 0
	_, err = m.UpdateTopic(ctx, orders, changed)
	wantCode(t, err, errcode.Conflict, "changed meanwhile")
	updated, err := m.UpdateTopic(ctx, moved, changed)
	if err != nil || updated.RetentionMs != 0 || updated.ChangedIndex <= moved.ChangedIndex {
		t.Fatalf("update: %+v %v", updated, err)
	}

	// Deletion leaves a confirmation; the name is free, the id is not.
	gone, err := m.DeleteTopic(ctx, "Orders")
	if err != nil || gone.ID != orders.ID || gone.Name != "Orders" || gone.Seq != 1 {
		t.Fatalf("delete: %+v %v", gone, err)
	}
	if d, ok := m.State().Deleted(orders.ID); !ok || d != gone {
		t.Fatalf("confirmation %+v %v", d, ok)
	}
	if _, ok := m.Assignment(p0); ok {
		t.Fatal("a deleted topic has an assignment")
	}
	again, err := m.CreateTopic(ctx, DefaultTopic("ORDERS"))
	if err != nil || again.ID == orders.ID {
		t.Fatalf("recreate: %+v %v", again, err)
	}
	taken.Name = "third"
	_, err = m.CreateTopic(ctx, taken)
	wantCode(t, err, errcode.Conflict, "id is taken")

	// A fenced incarnation owns nothing more; a new one does.
	must(t)(m.FenceIncarnation(ctx, "n1", 0xa1))
	must(t)(m.FenceIncarnation(ctx, "n1", 0xa1))
	_, err = m.CreateTopic(ctx, DefaultTopic("fenced"))
	wantCode(t, err, errcode.Conflict, "is fenced and cannot own")
	_, err = m.RegisterIncarnation(ctx, 0xa1, nil)
	wantCode(t, err, errcode.Conflict, "take a new incarnation")
	must(t)(m.RegisterIncarnation(ctx, 0xa2, nil))
	must(t)(m.CreateTopic(ctx, DefaultTopic("unfenced")))

	must(t)(nil, m.PutSetting(ctx, "k", "v"))
	if v, _ := m.State().Setting("k"); v != "v" {
		t.Fatalf("setting %q", v)
	}
	must(t)(nil, m.PutSetting(ctx, "k", ""))
	if _, ok := m.State().Setting("k"); ok {
		t.Fatal("an emptied setting is still there")
	}
	closeMeta(t, m)
	_, err = m.CreateTopic(ctx, DefaultTopic("closed"))
	wantCode(t, err, errcode.Closed, "closed")
	wantCode(t, m.Snapshot(ctx), errcode.Closed, "closed")
	if _, ok := m.Topic("unfenced"); !ok {
		t.Fatal("reads end with Close")
	}
}

func wantCode(t *testing.T, err error, code errcode.Code, text string) {
	t.Helper()
	if !errcode.Is(err, code) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v (%v), want %v with %q", err, errcode.Of(err), code, text)
	}
}

// A state that was handed out stays as it was, whatever happens after; topics
// are sorted and paged by name.
func TestStateIsImmutable(t *testing.T) {
	m := openReady(t, testOptions(tempDir(t)))
	for _, name := range []string{"b", "a", "C", "d"} {
		must(t)(m.CreateTopic(t.Context(), DefaultTopic(name)))
	}
	old, next := m.State(), m.Changed()
	_, before, _ := old.Export()
	must(t)(m.DeleteTopic(t.Context(), "b"))
	select {
	case <-next:
	default:
		t.Fatal("a change did not close the channel")
	}
	must(t)(m.CreateTopic(t.Context(), DefaultTopic("e")))
	if _, after, _ := old.Export(); string(after) != string(before) {
		t.Fatalf("changed under the reader\n%s\n%s", before, after)
	}
	var names []string
	for after := ""; ; after = names[len(names)-1] {
		page := m.State().TopicsAfter(after, 2)
		for _, tp := range page {
			names = append(names, tp.Name)
		}
		if len(page) < 2 {
			break
		}
	}
	if want := []string{"C", "a", "d", "e"}; !slices.Equal(names, want) {
		t.Fatalf("paged %v, want %v", names, want)
	}
	if all := m.Topics(); len(all) != 4 || all[0].Name != "C" || m.State().NumPartitions() != 12 {
		t.Fatalf("%v, %d partitions", all, m.State().NumPartitions())
	}
}

// Under the race detector: writers, readers of every kind, a watcher and
// snapshots together; the watcher sees the last change.
func TestConcurrency(t *testing.T) {
	o := testOptions(tempDir(t))
	o.SnapshotThreshold = 40
	m := openReady(t, o)
	const writers, each = 8, 25
	stop := make(chan struct{})
	var readers, group sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := m.State()
				for _, tp := range s.Topics() {
					if a, ok := s.Assignments(tp.ID); !ok || len(a) != int(tp.Partitions) || tp.ChangedIndex > s.Index() {
						t.Errorf("topic %s of %d has %d assignments", tp.Name, tp.ChangedIndex, len(a))
						return
					}
				}
				if _, _, err := s.Export(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	seen := make(chan int)
	go func() {
		for {
			next := m.Changed()
			if n := m.State().NumTopics(); n == writers*each {
				seen <- n
				return
			}
			<-next
		}
	}()
	for w := range writers {
		group.Go(func() {
			for i := range each {
				name := fmt.Sprintf("t-%d-%d", w, i)
				if _, err := m.CreateTopic(t.Context(), DefaultTopic(name)); err != nil {
					t.Error(err)
				}
				if i%5 == 0 {
					if err := m.Snapshot(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	group.Wait()
	select {
	case <-seen:
	case <-time.After(20 * time.Second):
		t.Fatal("the watcher missed the last change")
	}
	close(stop)
	readers.Wait()
	before := exportOf(t, m)
	closeMeta(t, m)
	if got := exportOf(t, open(t, o)); got != before {
		t.Fatal("state differs after a restart")
	}
}

// Close ends every goroutine, Pebble's and Raft's included, on a plane that
// was used and on a start that failed.
func TestCloseEndsEverything(t *testing.T) {
	here := goleak.IgnoreCurrent()
	o := testOptions(tempDir(t))
	m := openReady(t, o)
	create(t, m, "t", 3)
	must(t)(nil, m.Snapshot(t.Context()))
	other := o
	other.NodeID = "n2"
	closeMeta(t, m)
	_, err := tryOpen(t, other)
	wantCode(t, err, errcode.Conflict, "belongs to node n1")
	goleak.VerifyNone(t, here)
}

// Metrics are registered once, follow the state, and leave at Close so that
// the plane can be opened again in the process.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := testOptions(tempDir(t))
	o.Registerer = reg
	for range 2 {
		m := openReady(t, o)
		_, _ = m.CreateTopic(t.Context(), DefaultTopic("orders"))
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			if x := f.Metric[0]; x.Gauge != nil {
				got[f.GetName()] = x.Gauge.GetValue()
			}
		}
		if got["tidemark_meta_topics"] != 1 || got["tidemark_meta_partitions"] != 3 || got["tidemark_meta_leader"] != 1 || got["tidemark_meta_log_entries"] < 4 {
			t.Fatalf("gauges %v", got)
		}
		closeMeta(t, m)
	}
	if families, _ := reg.Gather(); len(families) != 0 {
		t.Fatalf("%d metrics are left after Close", len(families))
	}
}

// Adopting a restored export begins a cluster of the same identity and the
// next generation; doing it again is harmless, doing it over another is not.
func TestAdopt(t *testing.T) {
	source := openReady(t, testOptions(tempDir(t)))
	must(t)(source.CreateTopic(t.Context(), DefaultTopic("orders")))
	must(t)(source.CreateTopic(t.Context(), DefaultTopic("gone")))
	must(t)(source.DeleteTopic(t.Context(), "gone"))
	must(t)(source.FenceIncarnation(t.Context(), "n7", 0x77))
	must(t)(nil, source.PutSetting(t.Context(), "k", "v"))
	_, data, err := source.Export()
	if err != nil {
		t.Fatal(err)
	}

	o := testOptions(tempDir(t))
	o.Bootstrap = &Bootstrap{Adopt: data, Generation: 1}
	_, err = tryOpen(t, o)
	wantCode(t, err, errcode.InvalidArgument, "not above 1")
	o.Bootstrap.Generation = 2
	m := open(t, o)
	was, now := source.State(), m.State()
	c := was.Cluster()
	c.Generation = 2
	if now.Cluster() != c {
		t.Fatalf("cluster %+v, want %+v", now.Cluster(), c)
	}
	tp, ok := now.Topic("orders")
	if !ok || tp.ChangedIndex != now.Index() || now.NumPartitions() != 3 {
		t.Fatalf("topic %+v, state of index %d", tp, now.Index())
	}
	if d := now.DeletedTopics(); len(d) != 1 || d[0].Name != "gone" || d[0].ChangedIndex != now.Index() {
		t.Fatalf("deleted %+v", d)
	}
	if _, ok := now.Fenced(0x77); !ok {
		t.Fatal("a fence was lost")
	}
	// The restored node has a new incarnation and takes its partitions over.
	must(t)(m.RegisterIncarnation(t.Context(), 0xa2, nil))
	must(t)(m.SetAssignment(t.Context(), broker.PartitionID{Topic: tp.ID}, Expect{"n1", 1},
		Assignment{Owner: "n1", OwnerIncarnation: 0xa2, Generation: 9, PreviousEnd: 5, Start: 5 + 1<<32}))
	before := exportOf(t, m)
	closeMeta(t, m)
	m = open(t, o) // the caller repeats what it saw no end of
	if got := exportOf(t, m); got != before {
		t.Fatal("adopting again changed the state")
	}
	closeMeta(t, m)
	o.Bootstrap.Generation = 3
	_, err = tryOpen(t, o)
	wantCode(t, err, errcode.Exists, "into an empty directory only")
}

// A creation that a crash cut anywhere is finished by the next start (B159:
// with one cluster id, not two).
func TestUnfinishedCreation(t *testing.T) {
	o := testOptions(tempDir(t))
	o.Rand = rand.NewChaCha8([32]byte{1})
	f := newFatal()
	log := filepath.Join(o.Dir, "log")
	if err := os.MkdirAll(log, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(testFS, log, false, f, Options{}.withDefaults().Logger)
	if err != nil {
		t.Fatal(err)
	}
	// Claimed, and Raft had saved its term but not yet its configuration.
	must(t)(nil, s.claim("n1"))
	must(t)(nil, s.SetUint64([]byte("CurrentTerm"), 1))
	must(t)(nil, s.close())
	m := open(t, o)
	id := m.State().Cluster().ID
	closeMeta(t, m)
	if m = open(t, o); m.State().Cluster().ID != id || id == "" {
		t.Fatalf("cluster %q, then %q", id, m.State().Cluster().ID)
	}
}
