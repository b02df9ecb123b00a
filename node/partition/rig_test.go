package partition

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

const testIncarnation = 77

// tb is what helpers need of a test; *rapid.T has it too.
type tb interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// rig is an engine with its log and local state on one file system.
type rig struct {
	t      tb
	fs     vfs.FS
	opts   Options
	engine *Engine
	log    *wal.Log
	db     *state.DB

	mu     sync.Mutex
	sealed []state.Sealed // guarded by mu
}

// fileSize of the log: small, unless a test wants it to keep everything.
func (r *rig) fileSize() int64 {
	if r.opts.SegmentBytes == keepLog {
		return 8 << 20
	}
	return 256 << 10
}

// keepLog as SegmentBytes asks for a log that recycles nothing in a test.
const keepLog = 1<<10 + 1

func pid(n uint32) broker.PartitionID { return broker.PartitionID{Topic: 0xabc, Partition: n} }

// rigConfig says what a rig does differently.
type rigConfig struct {
	change  func(*Options)
	log     func(Log) Log                         // stands between engine and log
	onGroup func(g frame.Group, lsn uint64) error // replayed group entries
	loaded  func(entries []state.Entry)           // the local state at the start
	wal     func(*wal.Options)
	idle    bool // do not start the engine
}

// open starts an engine on what the file system holds.
func open(t tb, fs vfs.FS, change func(*Options)) *rig {
	t.Helper()
	return openWith(t, fs, rigConfig{change: change})
}

func openWith(t tb, fs vfs.FS, c rigConfig) *rig {
	t.Helper()
	r, err := tryOpenWith(t, fs, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryOpen(t tb, fs vfs.FS, change func(*Options)) (*rig, error) {
	t.Helper()
	return tryOpenWith(t, fs, rigConfig{change: change})
}

func tryOpenWith(t tb, fs vfs.FS, c rigConfig) (_ *rig, err error) {
	t.Helper()
	r := &rig{t: t, fs: fs}
	for _, dir := range []string{"data/wal", "data/state"} {
		if err := segment.MakeDir(fs, ".", dir); err != nil {
			return nil, err
		}
	}
	if r.db, err = state.Open(fs, "data/state", nil); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = r.db.Close()
		}
	}()
	r.opts = Options{
		FS: fs, Dir: "data/topics", State: r.db, Incarnation: testIncarnation,
		FlushBytes: 4 << 10, SegmentBytes: 8 << 10, CheckpointInterval: time.Hour,
		OnSealed: func(_ broker.PartitionID, _ string, s state.Sealed) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sealed = append(r.sealed, s)
		},
	}
	if c.change != nil {
		c.change(&r.opts)
	}
	if r.engine, err = New(r.opts); err != nil {
		return nil, err
	}
	entries, err := r.db.Load()
	if err != nil {
		return nil, err
	}
	if c.loaded != nil {
		c.loaded(entries)
	}
	marks, err := r.db.Marks()
	if err != nil {
		return nil, err
	}
	if err := r.engine.Load(entries); err != nil {
		return nil, err
	}
	onGroup := c.onGroup
	if onGroup == nil {
		onGroup = func(frame.Group, uint64) error { return nil }
	}
	o := wal.Options{
		FS: fs, Dir: "data/wal", Incarnation: testIncarnation, FileSize: r.fileSize(),
		KnownDurable: marks.Durable, NextNeeded: marks.Needed, Holds: map[string]uint64{holdName: marks.Needed},
	}
	if c.wal != nil {
		c.wal(&o)
	}
	r.log, _, err = wal.Open(o, func(f wal.Frame) error { return r.engine.Replay(f, onGroup) })
	if err != nil {
		return nil, err
	}
	var log Log = r.log
	if c.log != nil {
		log = c.log(log)
	}
	r.engine.Connect(log)
	if !c.idle {
		r.engine.Start()
	}
	return r, nil
}

func (r *rig) create(n ...uint32) {
	r.t.Helper()
	var bases []frame.Base
	for _, p := range n {
		bases = append(bases, frame.Base{Partition: pid(p), Generation: 1})
	}
	if err := r.engine.Create(context.Background(), bases); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.engine.Close(); err != nil {
		r.t.Error(err)
	}
	if err := r.log.Close(); err != nil {
		r.t.Error(err)
	}
	if err := r.db.Close(); err != nil {
		r.t.Error(err)
	}
}

func encode(t tb, values ...string) Batch {
	t.Helper()
	recs := make([]broker.Record, len(values))
	for i, v := range values {
		recs[i] = broker.Record{Offset: int64(i), Timestamp: 1000 + int64(i), Value: []byte(v)}
	}
	data, err := segment.AppendBatch(nil, recs, segment.BatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return Batch{Data: data, Span: int64(len(values))}
}

// part is an append's share of partition n.
func (r *rig) part(n uint32, values ...string) Part {
	r.t.Helper()
	return Part{Partition: r.engine.Get(pid(n)), Batches: []Batch{encode(r.t, values...)}}
}

// needed is the mark of the last checkpoint: the log may forget what is below.
func (r *rig) needed() uint64 {
	r.t.Helper()
	m, err := r.db.Marks()
	if err != nil {
		r.t.Fatal(err)
	}
	return m.Needed
}

func (r *rig) checkpoint() {
	r.t.Helper()
	if err := r.engine.Checkpoint(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) flush(n uint32) {
	r.t.Helper()
	if err := r.engine.flushAll(r.engine.Get(pid(n))); err != nil {
		r.t.Fatal(err)
	}
}

// entry is what the local state says of partition n now.
func (r *rig) entry(n uint32) state.Entry {
	r.t.Helper()
	entries, err := r.db.Load()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if e.ID == pid(n) {
			return e
		}
	}
	return state.Entry{}
}

// contiguous fails unless the local files of partition n hold every offset
// from the first on once, in order.
func (r *rig) contiguous(n uint32) {
	r.t.Helper()
	p := r.engine.Get(pid(n))
	p.files.RLock()
	defer p.files.RUnlock()
	next := int64(-1)
	for _, s := range p.files.sealed {
		if next >= 0 && s.Base != next {
			r.t.Fatalf("segment %d behind one that ends at %d", s.Base, next)
		}
		next = s.Next
	}
	if p.files.active != nil && next >= 0 && p.files.meta.Base != next {
		r.t.Fatalf("active file %d behind a segment that ends at %d", p.files.meta.Base, next)
	}
}

// append admits and appends parts, for which it waits as long as a client does.
func (r *rig) append(parts []Part, ms int64) (lsn uint64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	free, err := r.engine.Admit(ctx, parts)
	if err != nil {
		return 0, err
	}
	defer free()
	return r.engine.Append(parts, ms)
}

// produce appends values to partition n in one batch and waits.
func (r *rig) produce(n uint32, values ...string) (base int64, err error) {
	parts := []Part{r.part(n, values...)}
	lsn, err := r.append(parts, time.Now().UnixMilli())
	if err != nil {
		return 0, err
	}
	if err := r.log.WaitDurable(context.Background(), lsn); err != nil {
		r.engine.Late(parts)
		return 0, err
	}
	r.engine.Advance(parts)
	return parts[0].Base, nil
}

// all reads every visible record of partition n through Read.
func (r *rig) all(n uint32) []string {
	r.t.Helper()
	p := r.engine.Get(pid(n))
	var out []string
	from := p.Oldest()
	for {
		run, err := p.Read(context.Background(), from, 8<<10, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(run) == 0 {
			return out
		}
		for _, b := range run {
			recs, err := segment.DecodeBatch(nil, b, nil)
			if err != nil {
				r.t.Fatal(err)
			}
			for _, rec := range recs {
				if rec.Offset < from {
					continue
				}
				out = append(out, fmt.Sprintf("%d=%s", rec.Offset, rec.Value))
				from = rec.Offset + 1
			}
		}
	}
}

func wants(n int) (values []string, want []string) {
	for i := range n {
		v := fmt.Sprintf("value-%06d-%s", i, bytes.Repeat([]byte{'a' + byte(i%7)}, 50))
		values = append(values, v)
		want = append(want, fmt.Sprintf("%d=%s", i, v))
	}
	return values, want
}

// within polls until ok, for at most 20 seconds.
func within(t tb, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen", what)
		}
	}
}

func equal(t tb, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("record %d is %q, want %q", i, got[i], want[i])
		}
	}
}

func noCompression(broker.TopicID) bool { return false }
