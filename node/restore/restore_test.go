package restore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

const skip = int64(1) << 32

// A restore of segments, a tail and positions: the tail is on disk with its
// offsets and generations, the next generation begins behind a gap, and an
// empty partition is restored as an empty partition.
func TestTailPositionsAndGenerations(t *testing.T) {
	w := newWorld(t, 2)
	w.segments(0, 3, 10)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	wr.base(frame.Base{Partition: w.id(1), Generation: 1})
	wr.records(w.id(0), 1, 20, 10) // the chain has them
	wr.records(w.id(0), 1, 30, 5)
	wr.ack(w.id(0), 1, 0, 31)
	wr.ship()
	wr.ack(w.id(0), 1, 33, 1)
	wr.records(w.id(0), 1, 35, 2)
	wr.ship()
	dir, report := w.restore()
	if report.TailRecords != 7 || report.MayBeMissing != 2 || report.Segments != 3 || report.ArchivedRecords != 30 || report.Topics != 1 || report.Partitions != 2 || report.NewGeneration != 2 ||
		report.UnknownFrames != 0 || report.NewestRecord.UnixMilli() != 1_700_000_000_000 {
		t.Fatalf("%+v", report)
	}
	entries := w.entries(dir)
	e := entries[w.id(0)]
	if e.Generation != 2 || e.PreviousEnd != 37 || e.Start != 37+skip || e.ArchivedEnd != 30 || !slices.Equal(e.Gaps, [][2]int64{{37, 37 + skip}}) {
		t.Fatalf("%+v", e.Partition)
	}
	if g := group(t, e); g.Committed != 31 || !slices.Equal(g.Ranges, [][2]int64{{33, 34}, {37, 37 + skip}}) {
		t.Fatalf("%+v", g)
	}
	if e := entries[w.id(1)]; e.Generation != 2 || e.PreviousEnd != 0 || e.Start != skip || len(e.Sealed) != 0 {
		t.Fatalf("empty partition: %+v", e.Partition)
	}
	if got := w.records(dir, 0, 30); !slices.Equal(got, values(firstI, 1, 30, 37)) {
		t.Fatalf("%q", got)
	}
	if got := w.records(dir, 1, -1); len(got) != 0 {
		t.Fatalf("%q", got)
	}
}

// Positions are never ahead of the records (I16): acks that were shipped of
// records that were not are cut off, and what then gets those offsets' places
// is delivered.
func TestPositionsAreCutAtTheRecords(t *testing.T) {
	w := newWorld(t, 1)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	wr.records(w.id(0), 1, 0, 5)
	wr.ack(w.id(0), 1, 0, 20)
	wr.ack(w.id(0), 1, 40, 10)
	wr.ack(w.id(0), 1, 1<<40, 10) // also what the gap of the restore would not cover
	wr.ship()
	dir, _ := w.restore()
	g := group(t, w.entries(dir)[w.id(0)])
	if g.Committed != 5+skip || len(g.Ranges) != 0 {
		t.Fatalf("five records, a gap, and a group at %d with %v", g.Committed, g.Ranges)
	}
}

// Ranges ahead of the position, returned and leased records of a state object
// come back; entries behind the state are applied on top, those it covers not
// again.
func TestGroupsOfAStateObject(t *testing.T) {
	w := newWorld(t, 1)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	from := wr.records(w.id(0), 1, 0, 100)
	covered := wr.ack(w.id(0), 1, 50, 10) // the state says otherwise: a seek back came after it
	wr.ship()
	s := queue.State{Group: "g", Committed: 10, Ranges: [][2]int64{{20, 30}}, Returned: []queue.Returned{{Offset: 12, Attempt: 3}}}
	wr.state(archive.State{LSN: covered, ReplayFrom: from, Partitions: []archive.PartitionState{{
		Topic: w.topic.ID, Generation: 1, Next: 100, GroupLSN: covered, Groups: [][]byte{s.Append(nil)},
	}}})
	wr.ack(w.id(0), 1, 70, 5)
	wr.ship()
	dir, report := w.restore()
	if report.TailRecords != 100 || report.Frames != 3 {
		t.Fatalf("%+v", report)
	}
	g := group(t, w.entries(dir)[w.id(0)])
	if want := [][2]int64{{20, 30}, {70, 75}, {100, 100 + skip}}; g.Committed != 10 || !slices.Equal(g.Ranges, want) {
		t.Fatalf("%+v", g)
	}
	if len(g.Returned) != 1 || g.Returned[0].Offset != 12 || g.Returned[0].Attempt != 3 {
		t.Fatalf("%+v", g.Returned)
	}
}

// Records of a generation that had lost the partition do not count, wherever
// the zombie shipped them to: behind the end that its successor set, and in the
// log of an incarnation that opened earlier or later. Its group entries do not
// move the successor's groups either.
func TestZombieRecordsDoNotCount(t *testing.T) {
	w := newWorld(t, 1)
	id := w.id(0)
	zombie := w.writer(firstI, 1, 1)
	zombie.base(frame.Base{Partition: id, Generation: 1})
	zombie.records(id, 1, 0, 10)
	zombie.ship()
	dir1, _ := w.restore()
	if got := w.entries(dir1)[id]; got.Generation != 2 || got.Start != 10+skip {
		t.Fatalf("%+v", got.Partition)
	}
	// The zombie had one put under way when it was fenced, and it arrives now.
	zombie.records(id, 1, 10, 5)
	zombie.ack(id, 1, 0, 10)
	zombie.ship()
	// The successor, of the second cluster generation, ships too.
	heir := w.writer(0x2222, 2, 2)
	heir.base(frame.Base{Partition: id, Generation: 2, PreviousEnd: 10, Start: 10 + skip, End: 10 + skip, Gaps: [][2]int64{{10, 10 + skip}}})
	heir.records(id, 2, 10+skip, 3)
	heir.ack(id, 2, 2, 1)
	heir.ship()
	dir, report := w.restore()
	if report.TailRecords != 13 || report.NewGeneration != 3 {
		t.Fatalf("%+v", report)
	}
	e := w.entries(dir)[id]
	if want := [][2]int64{{10, 10 + skip}, {13 + skip, 13 + 2*skip}}; e.Generation != 3 || e.PreviousEnd != 13+skip || !slices.Equal(e.Gaps, want) {
		t.Fatalf("%+v", e.Partition)
	}
	if got, want := w.records(dir, 0, -1), append(values(firstI, 1, 0, 10), values(0x2222, 2, 10+skip, 13+skip)...); !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
}

// A partition that was restored twice without anything in between has two gaps
// in its chain; the tail that only old shipped WAL holds is still there after a
// third time, whether its generation ever published or not.
func TestGapsOfEarlierRestores(t *testing.T) {
	for _, segments := range []int{0, 1} {
		w := newWorld(t, 1)
		begin := int64(10 * segments)
		if segments > 0 {
			w.segments(0, segments, 10)
		}
		wr := w.writer(firstI, 1, 1)
		wr.base(frame.Base{Partition: w.id(0), Generation: 1})
		wr.records(w.id(0), 1, begin, 4)
		wr.ack(w.id(0), 1, 0, int(begin)+2)
		wr.ship()
		for round := range 3 {
			dir, report := w.restore()
			if report.TailRecords != 4 {
				t.Fatalf("round %d: %+v", round, report)
			}
			e := w.entries(dir)[w.id(0)]
			if e.Generation != uint32(2+round) || e.Start != begin+4+skip*int64(round+1) || e.ArchivedEnd != begin {
				t.Fatalf("round %d: %+v", round, e.Partition)
			}
			if g := group(t, e); g.Committed != begin+2 || !slices.Equal(g.Ranges, [][2]int64{{begin + 4, begin + 4 + skip*int64(round+1)}}) {
				t.Fatalf("round %d: %+v", round, g)
			}
			if got := w.records(dir, 0, begin); !slices.Equal(got, values(firstI, 1, begin, begin+4)) {
				t.Fatalf("round %d: %q", round, got)
			}
		}
	}
}

// Frames of a topic that was created after the last export are counted and left
// out; the rest is restored.
func TestTopicWithoutAnExport(t *testing.T) {
	w := newWorld(t, 1)
	wr := w.writer(firstI, 1, 1)
	other := broker.PartitionID{Topic: w.topic.ID + 1}
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	wr.base(frame.Base{Partition: other, Generation: 1})
	wr.records(other, 1, 0, 3)
	wr.records(w.id(0), 1, 0, 2)
	wr.ack(other, 1, 0, 1)
	wr.ship()
	dir, report := w.restore()
	if report.UnknownFrames != 3 || report.TailRecords != 2 {
		t.Fatalf("%+v", report)
	}
	if got := w.records(dir, 0, -1); !slices.Equal(got, values(firstI, 1, 0, 2)) {
		t.Fatalf("%q", got)
	}
}

// Objects overlap after a lost answer: each frame is taken once. Objects of two
// copies of one data directory overlap with other frames: that is refused.
func TestOverlappingObjects(t *testing.T) {
	w := newWorld(t, 1)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	wr.records(w.id(0), 1, 0, 1)
	wr.ship()
	before := wr.shipped
	wr.records(w.id(0), 1, 1, 1)
	wr.ship()
	middle := wr.shipped
	wr.shipped = before
	wr.records(w.id(0), 1, 2, 1)
	wr.ship() // holds the frame of the object before, too
	wr.shipped = middle
	wr.ship() // and this one is inside that
	dir, report := w.restore()
	if report.TailRecords != 3 || report.Frames != 4 {
		t.Fatalf("%+v", report)
	}
	if got := w.records(dir, 0, -1); !slices.Equal(got, values(firstI, 1, 0, 3)) {
		t.Fatalf("%q", got)
	}

	other := newWorld(t, 1)
	copied := other.writer(firstI, 1, 1)
	copied.base(frame.Base{Partition: w.id(0), Generation: 1})
	copied.records(w.id(0), 1, 0, 1)
	copied.shipped = before
	copied.ack(w.id(0), 1, 0, 1) // where the other one has a record
	copied.ack(w.id(0), 1, 0, 1)
	copied.ack(w.id(0), 1, 0, 1)
	key := copied.ship()
	w.put(key, other.get(key))
	w.refused(errcode.Corrupt, "two copies of one data directory", "frame 3")
}

// 2,501 segments and as many shipped objects, in pages of 7 and of 1,000: all
// are found (B220).
func TestEveryPageIsRead(t *testing.T) {
	const n = 2501
	w := newWorld(t, 1)
	w.segments(0, n, 10)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	for i := range int64(n) {
		wr.records(w.id(0), 1, 10*n+i, 1)
		wr.ship()
	}
	for _, size := range []int{7, 1000} {
		o := w.options()
		o.Store = pages{w.mem, size}
		report, err := restore.Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if report.Segments != n || report.ArchivedRecords != 10*n || report.TailRecords != n || report.WALObjects != n {
			t.Fatalf("pages of %d: %+v", size, report)
		}
		if e := w.entries(o.Dir)[w.id(0)]; e.Gaps[0][0] != 11*n {
			t.Fatalf("pages of %d: %+v", size, e.Partition)
		}
	}
}

// pages lists at most size objects at once.
type pages struct {
	objstore.Store
	size int
}

func (p pages) List(ctx context.Context, prefix, after string, limit int) (objstore.Page, error) {
	if limit == 0 || limit > p.size {
		limit = p.size
	}
	return p.Store.List(ctx, prefix, after, limit)
}

// A cluster that writes while we watch is not taken over without force, and
// nothing of it is touched; one whose newest object is old is not waited for.
func TestAliveClusterIsRefused(t *testing.T) {
	w := newWorld(t, 1) // outside of the bubble: it talks over the network
	content := w.content()
	synctest.Test(t, func(t *testing.T) {
		store := mem.New("alive", nil)
		alive := &world{t: t, mem: store, fault: fault.New(store, fault.Options{}), topic: w.topic}
		for k, v := range content {
			alive.put(k, []byte(v))
		}
		wr := alive.writer(firstI, 1, 1)
		wr.base(frame.Base{Partition: w.id(0), Generation: 1})
		wr.ship()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range int64(8) {
				time.Sleep(time.Second)
				wr.records(w.id(0), 1, i, 1)
				wr.ship()
			}
		}()
		o := restore.Options{Store: store, Dir: w.options().Dir, NodeID: nodeID, RaftAddr: "127.0.0.1:0", TakeOver: true}
		begin := time.Now()
		_, err := restore.Run(context.Background(), o)
		if !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), "alive") || !strings.Contains(err.Error(), "--force") {
			t.Fatalf("%v", err)
		}
		if d := time.Since(begin); d != 3*time.Second {
			t.Fatalf("watched for %v", d)
		}
		if plan, err := restore.Look(context.Background(), o); err != nil || !plan.Alive {
			t.Fatalf("%+v %v", plan, err)
		}
		// The clock of the machine that restores may be hours ahead of the store's:
		// that makes no living cluster look dead.
		o.Now = func() time.Time { return time.Now().Add(12 * time.Hour) }
		if plan, err := restore.Look(context.Background(), o); err != nil || !plan.Alive {
			t.Fatalf("a clock that is ahead: %+v %v", plan, err)
		}
		o.Now = nil
		<-done
		if keys := append(alive.keys("cluster/"), slices.DeleteFunc(alive.keys("wal/"), func(k string) bool { return !strings.HasSuffix(k, "FENCE") })...); len(keys) != 1 {
			t.Fatalf("the archive was claimed or fenced: %v", keys)
		}
		time.Sleep(25 * time.Hour)
		begin = time.Now()
		if plan, err := restore.Look(context.Background(), o); err != nil || plan.Alive || time.Since(begin) != 0 {
			t.Fatalf("%+v %v after %v", plan, err, time.Since(begin))
		}
		if err := wr.log.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Of two restores at one time one wins; the other is told so and leaves no
// directory. The claim that won is the one whose directory is there.
func TestConcurrentRestores(t *testing.T) {
	w := newWorld(t, 1)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	wr.records(w.id(0), 1, 0, 3)
	wr.ship()
	hold := make(chan struct{})
	held := w.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "cluster/*", Wait: hold})
	type result struct {
		dir string
		err error
	}
	results := make(chan result, 2)
	for range 2 {
		o := w.options()
		go func() {
			_, err := restore.Run(context.Background(), o)
			results <- result{o.Dir, err}
		}()
	}
	for deadline := time.Now().Add(20 * time.Second); held.Hits() < 2; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they do not come to the claim")
		}
	}
	close(hold)
	won := 0
	for range 2 {
		switch r := <-results; {
		case r.err == nil:
			won++
			if got := w.records(r.dir, 0, -1); len(got) != 3 {
				t.Fatalf("%q", got)
			}
		case !errcode.Is(r.err, errcode.Conflict):
			t.Fatal(r.err)
		}
	}
	if won != 1 {
		t.Fatalf("%d restores won", won)
	}
}

// A second restore into a directory that one is building is refused before it
// takes the cluster from the first, which then ends well.
func TestTwoRestoresIntoOneDirectory(t *testing.T) {
	w := newWorld(t, 1)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	wr.records(w.id(0), 1, 0, 3)
	wr.ship()
	hold := make(chan struct{})
	held := w.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "t/*", Wait: hold})
	o := w.options()
	first := make(chan error, 1)
	go func() { _, err := restore.Run(context.Background(), o); first <- err }()
	for deadline := time.Now().Add(20 * time.Second); held.Hits() == 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come to the chain")
		}
	}
	w.untouched(func() {
		if _, err := restore.Run(context.Background(), o); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), o.Dir) {
			t.Errorf("the second: %v", err)
		}
	})
	close(hold)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if got := w.records(o.Dir, 0, -1); len(got) != 3 {
		t.Fatalf("%q", got)
	}
}

// An incarnation opens and ships between the first list and the claim, and has
// its last object put just before its fence: the restore looks until everything
// it lists was fenced before the list.
func TestIncarnationThatOpensDuringTheClaim(t *testing.T) {
	w := newWorld(t, 1)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	wr.records(w.id(0), 1, 0, 3)
	wr.ship()
	var late *writer
	o := w.options()
	o.Store = before{w.fault, func(op, key string) {
		switch {
		case op == "put" && key == manifest.ClusterKey(2):
			late = w.writer(0x2222, 1, 2)
			late.base(frame.Base{Partition: w.id(0), Generation: 1})
			late.ship()
		case op == "put" && key == manifest.WALFenceKey(nodeID, 0x2222):
			late.records(w.id(0), 1, 3, 2)
			late.ship()
		}
	}}
	report, err := restore.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if report.TailRecords != 5 {
		t.Fatalf("%d records, want also the two that were shipped before the fence", report.TailRecords)
	}
	if got := w.records(o.Dir, 0, -1); len(got) != 5 || got[4] != fmt.Sprintf("4 %x/1/4", 0x2222) {
		t.Fatalf("%q", got)
	}
}
