package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// retaining is a node whose clock a test moves, with an archive that a test can
// break, and a topic of one partition.
type retaining struct {
	*Node
	t     *testing.T
	o     Options
	store *fault.Store
	begin time.Time
	wall  atomic.Int64 // by how much the wall clock is ahead of the system's
	mono  atomic.Int64 // and the monotonic one
}

func newRetaining(t *testing.T, change func(*Options), spec broker.TopicSpec) *retaining {
	t.Helper()
	r := &retaining{t: t, store: fault.New(mem.New("test", nil), fault.Options{Seed: 1}), begin: time.Now()}
	r.o = testOptions(t.TempDir(), r.store)
	r.o.RetentionInterval = 20 * time.Millisecond
	r.o.Now = func() time.Time { return time.Now().Add(time.Duration(r.wall.Load())) }
	r.o.Elapsed = func() time.Duration { return time.Since(r.begin) + time.Duration(r.mono.Load()) }
	if change != nil {
		change(&r.o)
	}
	r.Node = openNode(t, r.o)
	one := uint32(1)
	none := "none"
	spec.Name, spec.Partitions, spec.Compression = "logs", &one, &none
	if _, err := r.CreateTopic(context.Background(), spec); err != nil {
		t.Fatal(err)
	}
	return r
}

// pass lets time pass, on both clocks.
func (r *retaining) pass(d time.Duration) {
	r.mono.Add(int64(d))
	r.wall.Add(int64(d))
}

func (r *retaining) part() *partition.Partition { return r.topics.Load().byName["logs"].partitions[0] }

// fill appends n records of about a KiB.
func (r *retaining) fill(n int) {
	r.t.Helper()
	at := r.part().HighWatermark()
	for i := range n {
		value := fmt.Sprintf("%d-%s", at+int64(i), strings.Repeat("x", 1000))
		produce(r.t, r.Node, "logs", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: []byte(value)})
	}
}

// seal puts what is there into a sealed segment.
func (r *retaining) seal() {
	r.t.Helper()
	if err := r.engine.Seal(r.part()); err != nil {
		r.t.Fatal(err)
	}
}

// archived waits until the chain holds everything.
func (r *retaining) archived() {
	r.t.Helper()
	r.seal()
	within(r.t, "everything is archived", func() bool { end, _ := r.part().ArchivedEnd(); return end == r.part().HighWatermark() })
}

func (r *retaining) chain() *manifest.Chain {
	r.t.Helper()
	c, err := manifest.Load(context.Background(), r.store, r.part().ID, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// files lists the partition's segment files.
func (r *retaining) files() []string {
	r.t.Helper()
	id := r.part().ID
	names, err := r.o.fs().List(r.path("topics/" + id.Topic.String() + "/0"))
	if err != nil {
		r.t.Fatal(err)
	}
	return names
}

func (o Options) fs() interface {
	List(string) ([]string, error)
} {
	return o.withDefaults().FS
}

// offsets reads the log and checks that it holds every offset from its start on.
func (r *retaining) offsets(want int) {
	r.t.Helper()
	all := readAll(r.t, r.Node, "logs", 0)
	if len(all) != want {
		r.t.Fatalf("%d records, want %d", len(all), want)
	}
	for i, line := range all {
		if at := r.part().Oldest() + int64(i); !strings.HasPrefix(line, fmt.Sprintf("%d =%d-", at, at)) {
			r.t.Fatalf("record %d: %.40s", at, line)
		}
	}
}

func ms(d time.Duration) *int64 { v := d.Milliseconds(); return &v }

// Every record of an idle topic goes over age: log, disk and chain are empty, also
// what was never sealed, and the topic goes on with its offsets: the next segment
// is archived (B112, B117). The objects that the chain named are still there for
// a grace.
func TestTotalRetentionByAge(t *testing.T) {
	r := newRetaining(t, nil, broker.TopicSpec{RetentionMS: ms(2 * time.Minute)})
	defer func() { closeNode(t, r.Node) }()
	for range 3 {
		r.fill(20)
		r.archived()
	}
	r.fill(5) // in memory alone
	if c := r.chain(); c.Len() != 3 || r.part().Oldest() != 0 {
		t.Fatalf("%d segments are archived, the log begins at %d", c.Len(), r.part().Oldest())
	}
	r.pass(time.Minute)
	r.fill(5)
	r.pass(70 * time.Second) // those are young: they keep the segment that they are in
	within(t, "what is over age goes", func() bool { return r.part().Oldest() == 60 })
	r.offsets(10)
	r.pass(time.Minute)
	within(t, "log and chain are empty", func() bool {
		c := r.chain()
		return r.part().Oldest() == 70 && c.Start() == 70 && c.End() == 70 && c.Len() == 0 && len(r.files()) == 0
	})
	r.offsets(0)
	if info, err := r.Topic(context.Background(), "logs"); err != nil || info.PartitionStats[0].SizeBytes != 0 || info.PartitionStats[0].OldestOffset != 70 {
		t.Errorf("%+v %v", info.PartitionStats, err)
	}
	r.fill(10)
	r.archived()
	if c := r.chain(); c.Start() != 70 || c.End() != 80 || c.Len() != 1 {
		t.Errorf("the chain goes from %d to %d in %d segments", c.Start(), c.End(), c.Len())
	}
	closeNode(t, r.Node)
	r.Node = openNode(t, r.o)
	r.offsets(10)
	var e *errcode.Error
	_, err := r.ReadLog(context.Background(), broker.ReadRequest{Topic: "logs", From: 69, To: -1})
	if !errors.As(err, &e) || e.Code != errcode.Gone || e.Facts["oldest_offset"] != int64(70) {
		t.Errorf("read below the start: %v", err)
	}
	if at, err := r.OffsetForTime(context.Background(), "logs", 0, 1); err != nil || at != 70 {
		t.Errorf("the first record by time is %d %v", at, err)
	}
}

// Size counts each byte once: a log at 60 % of its limit, archived in full and on
// local disk in full, loses nothing, not after a restart either, when the chain
// is not loaded yet (B106, T20, T21). Then it grows, and stays within the limit
// and one segment, also with an odd file beside its own (B107).
func TestTotalRetentionBySize(t *testing.T) {
	limit := int64(200 << 10)
	r := newRetaining(t, nil, broker.TopicSpec{RetentionBytes: &limit})
	defer func() { closeNode(t, r.Node) }()
	r.fill(115)
	r.archived()
	for range 3 {
		r.sweeper.Turn(context.Background())
	}
	closeNode(t, r.Node)
	r.Node = openNode(t, r.o)
	r.sweeper.Turn(context.Background())
	if r.part().Oldest() != 0 {
		t.Fatalf("at 60 %% of the limit the log begins at %d", r.part().Oldest())
	}
	odd := r.path("topics/" + r.part().ID.Topic.String() + "/0/00000000000000099999.seg")
	if f, err := r.o.withDefaults().FS.Create(odd, ""); err != nil {
		t.Fatal(err)
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		r.fill(60)
		r.archived()
		within(t, "the size is within the limit and a segment", func() bool {
			info, err := r.Topic(context.Background(), "logs")
			return err == nil && info.PartitionStats[0].SizeBytes < limit+80<<10 && r.chain().Bytes() < limit+80<<10
		})
		info, err := r.Topic(context.Background(), "logs")
		if err != nil || info.PartitionStats[0].SizeBytes < limit && r.part().Oldest() > 0 {
			t.Fatalf("less than the limit is left: %+v %v", info.PartitionStats, err)
		}
	}
	if r.part().Oldest() == 0 {
		t.Error("nothing went")
	}
	r.offsets(int(r.part().HighWatermark() - r.part().Oldest()))
}

// Local copies of what the archive confirmed leave by age and by size, and are
// read from there; the log does not shrink.
func TestLocalRetention(t *testing.T) {
	size := int64(100 << 10)
	for name, spec := range map[string]broker.TopicSpec{
		"age": {LocalRetentionMS: ms(time.Minute)}, "size": {LocalRetentionMS: ms(0), LocalRetentionBytes: &size},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRetaining(t, nil, spec)
			defer func() { closeNode(t, r.Node) }()
			r.fill(300)
			r.archived()
			r.pass(2 * time.Minute)
			within(t, "local copies go", func() bool {
				st := r.part().Stats()
				return name == "age" && st.LocalBytes == 0 && len(r.files()) == 0 || name == "size" && st.LocalBytes < size+80<<10
			})
			if st := r.part().Stats(); name == "size" && st.LocalBytes < size {
				t.Errorf("%d bytes are left on disk", st.LocalBytes)
			}
			if r.part().Oldest() != 0 || r.chain().Start() != 0 {
				t.Errorf("the log begins at %d, the chain at %d", r.part().Oldest(), r.chain().Start())
			}
			r.offsets(300)
			info, err := r.Topic(context.Background(), "logs")
			if s := info.PartitionStats[0]; err != nil || s.SizeBytes != s.ArchivedBytes || s.LocalBytes >= s.ArchivedBytes {
				t.Errorf("%+v %v", s, err)
			}
		})
	}
}

// While the archive does not answer nothing leaves the local disk that is only
// readable there, and total retention works on: the local start stands. When the
// archive answers again the chain follows, with a gap for what was never
// uploaded, uploads go on behind it, and a restore finds no hole (T2, T14, B104).
func TestRetentionWhileTheArchiveIsDown(t *testing.T) {
	r := newRetaining(t, nil, broker.TopicSpec{RetentionMS: ms(4 * time.Minute), LocalRetentionMS: ms(time.Minute)})
	defer func() { closeNode(t, r.Node) }()
	r.fill(20)
	r.archived()
	down := r.store.Add(fault.Rule{Do: fault.Fail})
	within(t, "the node knows that the archive is down", func() bool {
		r.fill(1)
		return !retainedArchive{r.Node}.Readable()
	})
	r.fill(30)
	r.seal()
	r.pass(2 * time.Minute) // over local age
	for range 3 {
		r.sweeper.Turn(context.Background())
	}
	if st := r.part().Stats(); st.Segments != 2 {
		t.Errorf("%d segments are left on local disk: %+v", st.Segments, st)
	}
	hw := r.part().HighWatermark()
	r.fill(3)
	r.pass(150 * time.Second) // over age, but for the last ones
	r.fill(7)
	within(t, "the local start rises", func() bool { r.seal(); return r.part().Oldest() == hw })
	r.offsets(10)
	if c, err := manifest.Load(context.Background(), r.store.Unwrap(), r.part().ID, 0); err != nil || c.Start() != 0 {
		t.Errorf("the chain begins at %d while the archive is down (%v)", c.Start(), err)
	}
	down.Remove()
	within(t, "the chain follows, and uploads go on", func() bool {
		c := r.chain()
		return c.Start() == hw && c.End() == hw+10 && c.Len() == 1
	})
	r.offsets(10)
	within(t, "a restore does not need the log of what was trimmed", func() bool { _, ok := r.part().UnarchivedFrom(); return !ok })
}

// A slow upload holds a segment that goes over age: what is published is whole,
// nothing loops, and the chain ends where the log does (B104).
func TestRetentionDuringAnUpload(t *testing.T) {
	r := newRetaining(t, nil, broker.TopicSpec{RetentionMS: ms(time.Minute)})
	defer func() { closeNode(t, r.Node) }()
	goOn := make(chan struct{})
	slow := r.store.Add(fault.Rule{Ops: []string{fault.Put}, Key: "t/*/s/*", Times: 1, Wait: goOn})
	r.fill(20)
	r.seal()
	within(t, "the upload has begun", func() bool { return slow.Hits() == 1 })
	r.fill(5)
	r.pass(2 * time.Minute)
	within(t, "the start is raised over the upload", func() bool { return r.part().Oldest() == 25 })
	if files := r.files(); len(files) == 0 {
		t.Error("the file that is being uploaded is gone")
	}
	close(goOn)
	within(t, "chain and disk are empty", func() bool {
		c := r.chain()
		return c.Start() == 25 && c.End() == 25 && c.Len() == 0 && len(r.files()) == 0
	})
	r.fill(5)
	r.archived()
	if st := r.uploader.Statuses(); len(st) > 0 {
		t.Errorf("uploads: %+v", st)
	}
	r.offsets(5)
}

// The clock is set a day on, records come, and it is set back: nothing goes while
// the clocks disagree, which the node says, and then those records go a minute
// after they were seen, not in a day (B109).
func TestRetentionAfterTheClockJumped(t *testing.T) {
	r := newRetaining(t, nil, broker.TopicSpec{RetentionMS: ms(time.Minute)})
	defer func() { closeNode(t, r.Node) }()
	r.fill(5)
	r.seal()
	r.wall.Add(int64(24 * time.Hour))
	within(t, "retention pauses", func() bool { return r.sweeper.Paused() != "" })
	if d := r.Readiness().Degraded; !slices.ContainsFunc(d, func(s string) bool { return strings.HasPrefix(s, "retention is paused: ") }) {
		t.Errorf("readiness: %q", d)
	}
	r.fill(5)
	r.archived()
	for range 3 {
		r.sweeper.Turn(context.Background())
	}
	r.offsets(10) // by that clock the first ones are a day old
	r.wall.Add(-int64(24 * time.Hour))
	within(t, "retention goes on", func() bool { return r.sweeper.Paused() == "" })
	r.pass(50 * time.Second)
	r.sweeper.Turn(context.Background())
	if r.part().Oldest() > 5 {
		t.Errorf("too early the log begins at %d", r.part().Oldest())
	}
	r.pass(20 * time.Second)
	within(t, "they go in time", func() bool { return r.part().Oldest() == 10 })
}

// A trim moves the groups of its partition and nobody else's: next is the first
// record that stays, leases above stay and can be acked, an ack below gets a
// clean answer, a consumer that waits is not woken, lag follows, and a restart
// knows it all (B101, B102).
func TestTrimAndConsumers(t *testing.T) {
	o := testOptions(t.TempDir(), nil)
	n := openNode(t, o)
	defer func() { closeNode(t, n) }()
	createTopic(t, n, "q", 2)
	ctx := context.Background()
	for i := range 100 {
		for p := range int32(2) {
			produce(t, n, "q", broker.AckAccepted, broker.NewRecord{Partition: p, Value: fmt.Append(nil, i)})
		}
	}
	take := func(p int32, limit int) []broker.Message {
		t.Helper()
		msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "q", Partition: p, Max: limit})
		if err != nil {
			t.Fatal(err)
		}
		return msgs
	}
	settle := func(action broker.SettleAction, handles ...string) []error {
		t.Helper()
		errs, err := n.Settle(ctx, broker.SettleRequest{Topic: "q", Action: action, Handles: handles})
		if err != nil {
			t.Fatal(err)
		}
		return errs
	}
	for _, m := range take(0, 10) {
		settle(broker.SettleAck, m.Handle)
	}
	held := take(0, 21) // 10 to 30
	for _, m := range held[10:20] {
		settle(broker.SettleNack, m.Handle) // 20 to 29 go back
	}
	for _, m := range take(1, 7) {
		settle(broker.SettleAck, m.Handle)
	}
	oldest, err := n.Trim(ctx, "q", 0, 20)
	if err != nil || oldest != 20 {
		t.Fatalf("the log begins at %d %v", oldest, err)
	}
	if errs := settle(broker.SettleAck, held[5].Handle); !errcode.Is(errs[0], errcode.Gone) {
		t.Errorf("ack of 15: %v", errs[0])
	}
	if errs := settle(broker.SettleAck, held[20].Handle); errs[0] != nil {
		t.Errorf("ack of 30: %v", errs[0])
	}
	if got := take(0, 1); len(got) != 1 || got[0].Offset != 20 {
		t.Errorf("next is %+v", got)
	}
	for p, want := range map[uint32]int64{0: 79, 1: 93} { // 20 is leased: not settled
		ds, err := n.queue.Describe(n.topics.Load().byName["q"].ID, broker.DefaultGroup)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			if d.Partition == p && d.Lag != want {
				t.Errorf("partition %d lags by %d, want %d", p, d.Lag, want)
			}
		}
	}
	for _, before := range []int64{-1, 101} {
		if _, err := n.Trim(ctx, "q", 0, before); !errcode.Is(err, errcode.InvalidArgument) {
			t.Errorf("trim before %d: %v", before, err)
		}
	}
	if oldest, err := n.Trim(ctx, "q", 0, 7); err != nil || oldest != 20 {
		t.Errorf("a lower trim: %d %v", oldest, err)
	}
	closeNode(t, n)
	n = openNode(t, o)
	if got := take(0, 100); len(got) != 79 || got[0].Offset != 20 || got[10].Offset != 31 {
		t.Errorf("after a restart %d records from %+v", len(got), got[0])
	}
	if got := take(1, 1); got[0].Offset != 7 {
		t.Errorf("the other partition goes on at %d", got[0].Offset)
	}
	// A consumer that waits sleeps through a trim of everything, and gets the
	// next record.
	answer := make(chan []broker.Message, 1)
	go func() {
		msgs, err := n.Consume(ctx, broker.ConsumeRequest{Topic: "q", Partition: 0, Max: 1, Wait: 20 * time.Second})
		if err != nil {
			t.Error(err)
		}
		answer <- msgs
	}()
	if oldest, err := n.Trim(ctx, "q", 0, 100); err != nil || oldest != 100 {
		t.Fatalf("%d %v", oldest, err)
	}
	produce(t, n, "q", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: []byte("new")})
	if got := <-answer; len(got) != 1 || got[0].Offset != 100 {
		t.Errorf("the waiting consumer got %+v", got)
	}
}

// The disk is short of space: cached chunks go first, then confirmed local
// copies, long before their local retention is over; the log stays whole.
func TestPressure(t *testing.T) {
	store := mem.New("test", nil)
	m := newMemNode(t, func(o *Options) {
		o.Archive, o.DiskReserve, o.RetentionInterval = store, 4<<20, 20*time.Millisecond
	})
	defer m.close()
	createTopic(t, m.Node, "logs", 1)
	p := m.topics.Load().byName["logs"].partitions[0]
	for i := range 100 {
		produce(t, m.Node, "logs", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: fmt.Appendf(nil, "%d-%s", i, strings.Repeat("x", 3000))})
	}
	if err := m.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	within(t, "everything is archived", func() bool { end, _ := p.ArchivedEnd(); return end == 100 })
	m.sweeper.Turn(context.Background())
	if st := p.Stats(); st.LocalBytes == 0 {
		t.Fatalf("without pressure: %+v", st)
	}
	m.fs.set(nil, func() (uint64, bool) { return 9 << 20, true })
	m.disk.look()
	m.sweeper.Turn(context.Background())
	if st := p.Stats(); st.LocalBytes == 0 {
		t.Fatalf("with more than twice the reserve: %+v", st)
	}
	m.fs.set(nil, func() (uint64, bool) { return 5 << 20, true })
	within(t, "local copies leave", func() bool { return p.Stats().Segments == 0 })
	if got := readAll(t, m.Node, "logs", 0); len(got) != 100 || p.Oldest() != 0 {
		t.Errorf("%d records are left", len(got))
	}
}

// The store's time is asked for with three small requests at the start and then
// once an hour: turns without work ask the archive nothing.
func TestRetentionCostsNothingWhenIdle(t *testing.T) {
	r := newRetaining(t, func(o *Options) { o.WALInterval = time.Hour }, broker.TopicSpec{RetentionMS: ms(time.Hour)})
	defer func() { closeNode(t, r.Node) }()
	r.fill(20)
	r.archived()
	for range 3 {
		r.sweeper.Turn(context.Background())
	}
	data := r.store.Add(fault.Rule{Key: "t/*", Do: fault.Pass})
	clock := r.store.Add(fault.Rule{Key: "doctor/*", Do: fault.Pass})
	for range 100 {
		r.sweeper.Turn(context.Background())
	}
	if data.Hits()+clock.Hits() != 0 {
		t.Errorf("100 idle turns cost %d requests to the archive and %d about the time", data.Hits(), clock.Hits())
	}
}

// Turns over partitions whose chains were unloaded ask the archive nothing either:
// their limits are judged by what stays known. So are size and archived bytes, and
// when something is over a limit the chain comes back for it (I12).
func TestRetentionOfUnloadedChains(t *testing.T) {
	r := newRetaining(t, func(o *Options) { o.WALInterval = time.Hour }, broker.TopicSpec{RetentionMS: ms(2 * time.Minute)})
	defer func() { closeNode(t, r.Node) }()
	r.fill(20)
	r.archived()
	r.sweeper.Turn(context.Background())
	before := r.partitionStats(0, r.part())
	r.chains.mu.Lock()
	r.chains.most = 1
	r.chains.mu.Unlock()
	if _, err := r.chains.load(context.Background(), broker.PartitionID{Topic: 1}); err != nil { // any other
		t.Fatal(err)
	}
	unloaded := func() bool { return !r.chains.loaded(r.part().ID) }
	if !unloaded() {
		t.Fatal("the chain is loaded still")
	}
	gets := r.store.Add(fault.Rule{Key: "t/*", Do: fault.Pass})
	for range 100 {
		r.sweeper.Turn(context.Background())
	}
	if gets.Hits() != 0 || !unloaded() {
		t.Errorf("100 idle turns cost %d requests to the archive", gets.Hits())
	}
	if err := r.merger.Turn(context.Background()); err != nil { // passes it over
		t.Fatal(err)
	}
	after := r.partitionStats(0, r.part())
	if before.ArchivedBytes == 0 || after != before || !unloaded() {
		t.Errorf("stats were %+v, are %+v", before, after)
	}
	r.totals.mu.Lock()
	r.totals.at = time.Time{}
	r.totals.mu.Unlock()
	if _, archived := r.sums(); archived != before.ArchivedBytes {
		t.Errorf("%d archived bytes by the metric, %d by the partition", archived, before.ArchivedBytes)
	}
	r.pass(3 * time.Minute)
	within(t, "log and chain are trimmed", func() bool { return r.part().Oldest() == 20 && r.chain().Start() == 20 })
}
