package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// coldNode is a node with one partition: six archived segments of ten records,
// of which the first local ones are gone, and records in memory.
type coldNode struct {
	*Node
	t     *testing.T
	store objstore.Store
	id    broker.PartitionID
	chain *manifest.Chain // another one than the node's, which learns of changes only when it looks
	local []string        // segment files that are left, ascending
}

const coldRecords = 75

func newColdNode(t *testing.T, gone int) *coldNode {
	t.Helper()
	return newColdNodeIn(t, mem.New("test", nil), gone)
}

// timeOf is the timestamp of the record at an offset.
func timeOf(offset int64) int64 { return 1_700_000_000_000 + 10*offset }

func newColdNodeIn(t *testing.T, store objstore.Store, gone int) *coldNode {
	t.Helper()
	dir := t.TempDir()
	o := testOptions(dir, store)
	var clock atomic.Int64 // offset of the record that is produced now
	o.Now = func() time.Time { return time.UnixMilli(timeOf(clock.Load())) }
	n := openNode(t, o)
	c := &coldNode{t: t, store: store, id: broker.PartitionID{Topic: createTopic(t, n, "t", 1).ID}}
	p := n.engine.Get(c.id)
	for i := range coldRecords {
		clock.Store(int64(i))
		produce(t, n, "t", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: fmt.Appendf(nil, "%d %s", i, strings.Repeat("0123456789", 300))})
		if i%10 == 9 && i < 60 {
			if err := n.engine.Seal(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	within(t, "the segments are archived", func() bool { end, _ := p.ArchivedEnd(); return end == 60 })
	var err error
	if c.local, err = filepath.Glob(filepath.Join(dir, "topics", "*", "*", "*.seg")); err != nil || len(c.local) < 6 {
		t.Fatalf("%d local segments: %v", len(c.local), err)
	}
	slices.Sort(c.local)
	closeNode(t, n) // memory holds what was flushed, too
	for range gone {
		c.dropLocal()
	}
	c.Node = openNode(t, o)
	t.Cleanup(func() { closeNode(t, c.Node) })
	if c.chain, err = manifest.Load(context.Background(), store, c.id, 0); err != nil {
		t.Fatal(err)
	}
	return c
}

// dropLocal removes the oldest local segment file.
func (c *coldNode) dropLocal() {
	c.t.Helper()
	if err := os.Remove(c.local[0]); err != nil {
		c.t.Fatal(err)
	}
	c.local = c.local[1:]
}

func (c *coldNode) owner() manifest.Owner { return c.chains.owner(c.chain.Generation()) }

func (c *coldNode) delete(segs ...manifest.Segment) {
	c.t.Helper()
	for _, s := range segs {
		if err := c.store.Delete(context.Background(), []string{s.Key()}); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *coldNode) segments(from, to int64) []manifest.Segment {
	c.t.Helper()
	segs, err := c.chain.Segments(context.Background(), from, to)
	if err != nil {
		c.t.Fatal(err)
	}
	return segs
}

// merge puts one object in the place of the segments in [from, to), behind the
// back of the node's own view of the chain, and deletes theirs.
func (c *coldNode) merge(from, to int64) {
	c.t.Helper()
	ctx := context.Background()
	segs := c.segments(from, to)
	fs := vfs.NewMem()
	w, err := segment.Create(fs, "", segment.Options{Topic: c.id.Topic, Partition: c.id.Partition, Base: segs[0].Base})
	if err != nil {
		c.t.Fatal(err)
	}
	out := segs[0]
	for _, s := range segs {
		data := make([]byte, s.DataLength)
		if _, err := c.store.GetRange(ctx, s.Key(), data, 0); err != nil {
			c.t.Fatal(err)
		}
		for len(data) > 0 {
			b, rest, err := segment.NextBatch(data)
			if err == nil {
				err = w.Append(b, s.MinAppend, s.MaxAppend)
			}
			if err != nil {
				c.t.Fatal(err)
			}
			data = rest
		}
	}
	in, err := w.Seal()
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Close()
	out.Next, out.Records, out.Bytes, out.Nonce = in.Next, in.Records, in.Bytes, 0xfeed
	out.MinTimestamp, out.MaxTimestamp, out.MinAppend, out.MaxAppend = in.MinTimestamp, in.MaxTimestamp, in.MinAppend, in.MaxAppend
	out.FirstGeneration, out.LastGeneration, out.Generation = in.FirstGeneration, in.LastGeneration, c.chain.Generation()
	out.DataSHA256, out.DataLength, out.FooterPosition, out.FooterLength = in.DataSHA256, in.DataLength, in.FooterPosition, in.FooterLength
	f, err := fs.Open(w.Path())
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	if err := c.store.Put(ctx, out.Key(), io.NewSectionReader(f, 0, in.Bytes), in.Bytes, objstore.PutOptions{CreateOnly: true}); err != nil {
		c.t.Fatal(err)
	}
	if err := c.chain.Replace(ctx, c.owner(), segs, out); err != nil {
		c.t.Fatal(err)
	}
	c.delete(segs...)
}

// replay reads the log from an offset on and calls step before each run. Every
// offset has to come once and in order.
func (c *coldNode) replay(from int64, step func(next int64)) error {
	c.t.Helper()
	r, err := c.ReadLog(context.Background(), broker.ReadRequest{Topic: "t", From: from, To: -1})
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Close()
	for {
		step(from)
		recs, err := r.Next(context.Background())
		if errors.Is(err, io.EOF) {
			if from != coldRecords {
				c.t.Fatalf("the replay ended at offset %d, want %d", from, coldRecords)
			}
			return nil
		}
		if err != nil {
			return err
		}
		for _, rec := range recs {
			if rec.Offset != from || !strings.HasPrefix(string(rec.Value), fmt.Sprintf("%d ", from)) {
				c.t.Fatalf("offset %d, %.10q; want %d", rec.Offset, rec.Value, from)
			}
			from++
		}
	}
}

// A replay begins in the bucket and runs on into local files and memory. Local
// copies go away under it, at whatever place it stands, and archived segments are
// merged by somebody else, their objects deleted: every offset comes once (B207,
// B103).
func TestReplayWhileTiersMove(t *testing.T) {
	for _, at := range []int64{0, 10, 20, 30, 40, 50} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			c := newColdNode(t, 4)
			done := false
			if err := c.replay(0, func(next int64) {
				if next < at || done {
					return
				}
				done = true
				c.dropLocal()
				c.merge(20, 40)
			}); err != nil {
				t.Fatal(err)
			}
			c.merge(40, 60) // after the node's view: each read finds its object gone first
			c.dropLocal()
			c.reader.scans.close() // no scan goes on where it was
			if err := c.replay(0, func(int64) {}); err != nil {
				t.Fatal(err)
			}
			rec, err := c.engine.Get(c.id).Record(context.Background(), 45)
			if err != nil || !strings.HasPrefix(string(rec.Value), "45 ") {
				t.Fatalf("record 45: %.10q %v", rec.Value, err)
			}
		})
	}
}

// What was trimmed meanwhile is Gone, with the log's new beginning, and only once
// the chain says so; an object that the chain still names is lost, which is not
// Gone, names its range, and leaves the others readable (B209, B210).
func TestTrimmedIsNotLost(t *testing.T) {
	ctx := context.Background()
	c := newColdNode(t, 6)
	segs := c.segments(0, 60)
	if _, err := c.chain.Trim(ctx, c.owner(), 20); err != nil {
		t.Fatal(err)
	}
	c.delete(segs[0], segs[1], segs[3])
	err := c.replay(5, func(int64) {})
	var e *errcode.Error
	if !errcode.Is(err, errcode.Gone) || !errors.As(err, &e) || e.Facts["oldest_offset"] != int64(20) {
		t.Errorf("read of a trimmed offset: %v %+v", err, e)
	}
	if err = c.replay(20, func(int64) {}); !errcode.Is(err, errcode.Corrupt) || !errors.As(err, &e) || e.Facts["from_offset"] != int64(30) || e.Facts["next_offset"] != int64(40) {
		t.Errorf("read of a lost offset: %v %+v", err, e)
	}
	if err := c.replay(40, func(int64) {}); err != nil {
		t.Errorf("read behind the lost range: %v", err)
	}
	p := c.engine.Get(c.id)
	if _, err := p.Record(ctx, 5); !errcode.Is(err, errcode.Gone) {
		t.Errorf("a trimmed record: %v", err)
	}
	if _, err := p.Record(ctx, 35); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("a lost record: %v", err)
	}
	if rec, err := p.Record(ctx, 45); err != nil || rec.Offset != 45 {
		t.Errorf("a record behind them: %+v %v", rec, err)
	}
}

// What readers hold of the cache's memory is bounded: beyond that runs are
// copied. Both are the same to the reader, and what is given back is free again.
func TestLentRuns(t *testing.T) {
	ctx := context.Background()
	c := newColdNode(t, 6)
	var releases []func()
	for i := range 2 * maxLent {
		run, release, err := c.reader.Read(ctx, c.id, 30, 1<<20, 60)
		if err != nil || len(run) == 0 {
			t.Fatalf("%d batches: %v", len(run), err)
		}
		if h, err := segment.VerifyBatch(run[0]); err != nil || h.BaseOffset > 30 || h.NextOffset() <= 30 {
			t.Fatalf("run %d begins with %+v: %v", i, h, err)
		}
		releases = append(releases, release)
		if n := c.reader.lent.Load(); n != int64(min(i+1, maxLent)) {
			t.Fatalf("%d runs are lent after %d reads", n, i+1)
		}
	}
	for _, release := range releases {
		release()
	}
	if n := c.reader.lent.Load(); n != 0 {
		t.Fatalf("%d runs are still lent", n)
	}
}

// counting counts the reads of chains and segments.
type counting struct {
	objstore.Store
	reads atomic.Int64
}

func (c *counting) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	c.count(key)
	return c.Store.Get(ctx, key)
}

func (c *counting) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	c.count(key)
	return c.Store.GetRange(ctx, key, p, off)
}

func (c *counting) count(key string) {
	if strings.HasPrefix(key, "t/") { // the shipper looks at other objects now and then
		c.reads.Add(1)
	}
}

// A lookup by time lands in the archive, in a local file and in memory; a time
// after all records is answered without a read of the store, and one that the
// archive holds with an index and a chunk (B122, B125). What was trimmed is not
// found, to within a segment (B123).
func TestFindTimeAcrossTiers(t *testing.T) {
	ctx := context.Background()
	store := &counting{Store: mem.New("test", nil)}
	c := newColdNodeIn(t, store, 4)
	at := func(ms, want int64) {
		t.Helper()
		if got, err := c.OffsetForTime(ctx, "t", 0, ms); err != nil || got != want {
			t.Errorf("the first record at or after %d is at %d, want %d: %v", ms, got, want, err)
		}
	}
	first := timeOf(25) // loads the chain
	at(first, 25)
	store.reads.Store(0)
	at(timeOf(coldRecords)+3_600_000, coldRecords)
	at(timeOf(45), 45) // a local file, and the archive knows that it has none before
	at(timeOf(70), 70) // memory
	at(timeOf(70)+1, 71)
	if n := store.reads.Load(); n != 0 {
		t.Errorf("%d reads of the store for times that it does not hold alone", n)
	}
	at(timeOf(12), 12)
	at(timeOf(13)-1, 13)
	if n := store.reads.Load(); n > 2 {
		t.Errorf("%d reads of the store for times in one segment", n)
	}
	if _, err := c.chain.Trim(ctx, c.owner(), 15); err != nil {
		t.Fatal(err)
	}
	if err := c.chains.refresh(ctx, c.id); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := c.reader.FindTime(ctx, c.id, 15, 40, timeOf(2)); err != nil || !ok || got != 15 {
		t.Errorf("a trimmed time: %d %v %v", got, ok, err)
	}
}
