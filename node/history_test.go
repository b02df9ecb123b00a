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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/segment"
)

const nodeParts = 2

// allAnswered is above the LSN of everything that was answered, and below that
// of what has no answer yet.
const (
	allAnswered = ^uint64(0) - 1
	unanswered  = ^uint64(0)
)

// placed is a record that was answered, or one that was acked, with an LSN at
// or above that of its frame.
type placed struct {
	part   uint32
	offset int64
	value  string
	lsn    uint64
}

// nodePromise is what a node was sent and has answered. Its slices are only
// appended to within a life, so a copy of it stays as it was.
type nodePromise struct {
	sent     []string
	answered []placed
	acked    []placed
	durable  uint64
	shipped  uint64           // what ack=archived goes by
	asked    [nodeParts]int64 // where the logs begin at most: trims that were asked for
	trimmed  [nodeParts]int64 // and at least: those that were answered
	bucket   *crash.Bucket
}

// own returns a promise that shares a past with p, and no future.
func (p nodePromise) own() nodePromise {
	p.sent, p.answered, p.acked, p.bucket = slices.Clip(p.sent), slices.Clip(p.answered), slices.Clone(p.acked), p.bucket.Fork()
	return p
}

// historyFS is a node's file system. Its metadata stands in a real directory,
// preferably in memory: Raft's snapshots know no other. It is not crashed; it
// changes only before the filming begins.
type historyFS struct{ *crash.FS }

func (f historyFS) List(dir string) ([]string, error) {
	if filepath.Base(dir) == "raft" {
		return vfs.Default.List(dir)
	}
	return f.FS.List(dir)
}

func (f historyFS) RemoveAll(dir string) error {
	return errors.Join(f.FS.RemoveAll(dir), os.RemoveAll(dir))
}

func (f historyFS) Rename(from, to string) error {
	err := f.FS.Rename(from, to)
	if _, serr := os.Stat(from); err == nil && serr == nil {
		err = os.Rename(from, to)
	}
	return err
}

// nodeLife is one process.
type nodeLife struct {
	t      *crash.T
	fs     *crash.FS
	dir    string
	depth  int
	killed bool
	camera *crash.Camera[nodePromise]
	leased []broker.Message
	flaky  int // percent of the bucket's answers that get lost

	mu   sync.Mutex
	p    nodePromise
	n    *Node // set once its LSNs are those of the promise
	down bool  // the bucket does not answer
	rest int   // calls until the bucket loses an answer
}

func (f *nodeLife) promise() nodePromise {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.p
	if f.n != nil {
		p.durable = f.n.log.Durable()
		p.shipped = max(p.shipped, f.n.shipper.Status().Shipped)
	}
	p.bucket = f.p.bucket.Fork() // behind the mark
	return p
}

// call is the bucket's hook.
func (f *nodeLife) call(c crash.Call) crash.Answer {
	f.camera.Look(f.fs, crash.Op{Kind: "bucket " + c.Op, Path: c.Key})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return crash.Failed
	}
	if f.flaky == 0 {
		return crash.Answered
	}
	if f.rest--; f.rest > 0 {
		return crash.Answered
	}
	f.rest = f.flaky
	return crash.Failed + crash.Answer(f.flaky%3)
}

func (f *nodeLife) options(dir string, fs *crash.FS) Options {
	o := testOptions(dir, f.p.bucket)
	o.FS = historyFS{fs}
	o.WALInterval, o.WALFileSize, o.FlushBytes = time.Millisecond, 64<<10, 2<<10
	o.MemoryBudget, o.CacheBytes = 4<<20, 4<<20
	o.StateInterval = []time.Duration{time.Millisecond, time.Hour}[f.t.Rand.IntN(2)]
	// Merges and deletes come when an act says so, and wait for nothing then.
	o.MergeInterval, o.MergeMinSegments, o.GarbageInterval = time.Hour, 2, time.Hour
	o.GarbageGrace, o.PITRWindow, o.OrphanInterval = time.Nanosecond, time.Nanosecond, time.Millisecond
	return o
}

func (f *nodeLife) open() *Node {
	n, err := Open(context.Background(), f.options(f.dir, f.fs))
	if err != nil {
		f.t.Fatalf("open: %v", err)
	}
	return n
}

// emptyFS is a file system on which the directory that dir stands in exists.
func emptyFS(t *crash.T, dir string) *crash.FS {
	fs := crash.NewFS()
	fs.Journal = "state" // Pebble relies on that order
	if err := segment.MakeDir(fs, "/", filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	return fs
}

func (f *nodeLife) must(err error) {
	if err != nil {
		f.t.Fatal(err)
	}
}

// logOf reads a partition from its beginning.
func (f *nodeLife) logOf(n *Node, part uint32) (out []broker.Record) {
	r, err := n.ReadLog(context.Background(), broker.ReadRequest{Topic: "t", Partition: part, From: -1, To: -1})
	f.must(err)
	for {
		recs, err := r.Next(context.Background())
		if err == io.EOF {
			return out
		}
		f.must(err)
		for _, rec := range recs {
			rec.Value = append([]byte(nil), rec.Value...)
			out = append(out, rec)
		}
	}
}

// verify compares a node with the promise: records up to the LSN keep, acks up
// to the LSN keepAcks.
func (f *nodeLife) verify(n *Node, p nodePromise, keep, keepAcks uint64, gaps bool) {
	t := f.t
	sent := make(map[string]bool, len(p.sent))
	for _, v := range p.sent {
		sent[v] = true
	}
	found := [nodeParts]map[int64]string{}
	for part := range uint32(nodeParts) {
		found[part] = map[int64]string{}
		next := int64(0)
		for i, rec := range f.logOf(n, part) {
			v := string(rec.Value)
			if i == 0 && !gaps {
				if next = rec.Offset; next < p.trimmed[part] || next > p.asked[part] {
					t.Fatalf("partition %d begins at %d, trimmed to %d and at most to %d", part, next, p.trimmed[part], p.asked[part])
				}
			}
			if !sent[v] { // I4
				t.Fatalf("partition %d: offset %d was invented, or is there twice: %.30q", part, rec.Offset, v)
			}
			delete(sent, v)
			if rec.Offset != next && (!gaps || rec.Offset < next) {
				t.Fatalf("partition %d: offset %d, want %d", part, rec.Offset, next)
			}
			found[part][rec.Offset] = v
			next = rec.Offset + 1
		}
	}
	for _, a := range p.answered { // I1, I3
		if got, ok := found[a.part][a.offset]; a.lsn <= keep && a.offset >= p.asked[a.part] && got != a.value || ok && got != a.value {
			t.Fatalf("partition %d: offset %d is %.30q, answered was %.30q at LSN %d; promised up to %d", a.part, a.offset, got, a.value, a.lsn, keep)
		}
	}
	f.verifyGroups(n, p, found, keepAcks)
}

// verifyGroups takes everything that is deliverable: I11.
func (f *nodeLife) verifyGroups(n *Node, p nodePromise, found [nodeParts]map[int64]string, keep uint64) {
	type place struct {
		part   uint32
		offset int64
	}
	settled := map[place]uint64{}
	for _, a := range p.acked {
		settled[place{a.part, a.offset}] = a.lsn
	}
	delivered := map[place]bool{}
	f.leased = nil
	for {
		msgs, err := n.Consume(context.Background(), broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 500})
		f.must(err)
		if len(msgs) == 0 {
			break
		}
		for _, m := range msgs {
			at := place{m.Partition, m.Offset}
			if lsn, ok := settled[at]; ok && lsn <= keep {
				f.t.Fatalf("partition %d: offset %d was acked at LSN %d, promised up to %d, and is delivered again", m.Partition, m.Offset, lsn, keep)
			}
			if delivered[at] || found[m.Partition][m.Offset] != string(m.Value) {
				f.t.Fatalf("partition %d: offset %d is delivered twice, or as %.30q", m.Partition, m.Offset, m.Value)
			}
			delivered[at] = true
		}
		f.leased = append(f.leased, msgs...)
	}
	for part := range found {
		for offset := range found[part] {
			at := place{uint32(part), offset}
			if _, ok := settled[at]; !ok && !delivered[at] && offset >= p.asked[part] {
				f.t.Fatalf("partition %d: offset %d was not acked and is not delivered", part, offset)
			}
		}
	}
}

// adopt makes what a node holds the truth of the promise. What was answered
// keeps its LSN; the rest was durable by now.
func (f *nodeLife) adopt(n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := n.log.NextLSN() - 1
	lsns := map[string]uint64{}
	for _, a := range f.p.answered {
		lsns[a.value] = a.lsn
	}
	have := map[string]bool{}
	var answered []placed
	for part := range uint32(nodeParts) {
		topic, err := n.topic("t")
		f.must(err)
		start := topic.partitions[part].Oldest()
		f.p.asked[part], f.p.trimmed[part] = start, start
		for _, a := range f.p.answered {
			if a.part == part && a.offset < start { // a restore may bring it back
				answered = append(answered, a)
				have[a.value] = true
			}
		}
		for _, rec := range f.logOf(n, part) {
			v := string(rec.Value)
			have[v] = true
			lsn, ok := lsns[v]
			if !ok {
				lsn = now
			}
			answered = append(answered, placed{part, rec.Offset, v, lsn})
		}
	}
	var sent []string
	for _, v := range f.p.sent {
		if have[v] {
			sent = append(sent, v)
		}
	}
	pending := map[string]bool{}
	for _, m := range f.leased {
		pending[fmt.Sprint(m.Partition, "/", m.Offset)] = true
	}
	var acked []placed
	for _, a := range f.p.acked {
		if !pending[fmt.Sprint(a.part, "/", a.offset)] {
			a.lsn = min(a.lsn, now)
			acked = append(acked, a)
		}
	}
	f.p.sent, f.p.answered, f.p.acked = sent, answered, acked
	f.n = n
}

func (f *nodeLife) produce() { f.produceTo(f.t.Rand.IntN(nodeParts)) }

func (f *nodeLife) produceTo(to int) {
	rng := f.t.Rand
	var records []broker.NewRecord
	part := int32(to)
	f.mu.Lock()
	for range 1 + rng.IntN(5) {
		v := fmt.Sprintf("%x-%s", rng.Uint64(), strings.Repeat("x", rng.IntN(500)))
		f.p.sent = append(f.p.sent, v)
		records = append(records, broker.NewRecord{Partition: part, Value: []byte(v)})
	}
	f.mu.Unlock()
	got, err := f.n.Produce(context.Background(), broker.ProduceRequest{Topic: "t", Records: records})
	if err != nil {
		f.t.Fatalf("produce, bucket down %v: %v", f.down, err) // I15
	}
	lsn := f.n.log.NextLSN() - 1
	f.mu.Lock()
	defer f.mu.Unlock()
	next := int64(0)
	for _, a := range f.p.answered {
		if a.part == uint32(part) {
			next = max(next, a.offset+1)
		}
	}
	if first := got.Placements[0].FirstOffset; first < next { // I3
		f.t.Fatalf("partition %d: offset %d was given, up to %d are taken", part, first, next)
	}
	for i, r := range records {
		f.p.answered = append(f.p.answered, placed{uint32(part), got.Placements[0].FirstOffset + int64(i), string(r.Value), lsn})
	}
}

func (f *nodeLife) consume() {
	msgs, err := f.n.Consume(context.Background(), broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 1 + f.t.Rand.IntN(6)})
	f.must(err)
	f.leased = append(f.leased, msgs...)
}

func (f *nodeLife) ack() {
	n := min(len(f.leased), 1+f.t.Rand.IntN(4))
	msgs := f.leased[:n]
	f.leased = f.leased[n:]
	handles := make([]string, n)
	f.mu.Lock()
	for i, m := range msgs { // from here on it may be settled
		handles[i] = m.Handle
		f.p.acked = append(f.p.acked, placed{m.Partition, m.Offset, "", unanswered})
	}
	at := len(f.p.acked) - n
	f.mu.Unlock()
	errs, err := f.n.Settle(context.Background(), broker.SettleRequest{Topic: "t", Action: broker.SettleAck, Handles: handles})
	f.must(errors.Join(append(errs, err)...))
	lsn := f.n.log.NextLSN() - 1
	f.mu.Lock()
	defer f.mu.Unlock()
	acked := append([]placed(nil), f.p.acked...) // shots have the old ones
	for i := range n {
		acked[at+i].lsn = lsn
	}
	f.p.acked = acked
}

// trim gives up the older part of a partition's log. The archive follows, when
// it can.
func (f *nodeLife) trim(id broker.PartitionID) {
	p := f.n.engine.Get(id)
	before := p.Oldest() + f.t.Rand.Int64N(p.HighWatermark()-p.Oldest()+1)
	f.mu.Lock()
	f.p.asked[id.Partition] = before
	f.mu.Unlock()
	_, err := f.n.Trim(context.Background(), "t", id.Partition, before)
	f.must(err)
	f.leased = slices.DeleteFunc(f.leased, func(m broker.Message) bool { return m.Partition == id.Partition && m.Offset < before })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.p.trimmed[id.Partition] = before
}

// until polls for what happens by itself, at most 20 seconds.
func (f *nodeLife) until(what string, ok func() bool) {
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-time.After(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: did not happen; %+v", what, f.n.shipper.Status())
		}
	}
}

// uploaded waits until the archive has what of p is not trimmed.
func (f *nodeLife) uploaded(p *partition.Partition) {
	f.until("upload", func() bool { end, _ := p.ArchivedEnd(); return max(end, p.Oldest()) >= p.HighWatermark() })
}

// merge makes small segments, has them merged, and their objects deleted or not,
// while a reader stands somewhere in front of them.
func (f *nodeLife) merge() {
	n, rng := f.n, f.t.Rand
	ctx := context.Background()
	topic, _ := n.meta.Topic("t")
	part := rng.IntN(nodeParts)
	p := n.engine.Get(broker.PartitionID{Topic: topic.ID, Partition: uint32(part)})
	for range 5 + rng.IntN(3) {
		f.produceTo(part)
		f.must(n.engine.Seal(p))
	}
	f.mu.Lock()
	well := !f.down && f.flaky == 0
	f.mu.Unlock()
	if well {
		f.uploaded(p)
		// A young life may not have registered yet, and deletes nothing before.
		f.until("registration", func() bool { return n.shipper.Confirm(ctx, n.opts.Archive) == nil })
	}
	f.must(n.engine.Checkpoint(ctx)) // what the archive confirmed is written down
	if rng.IntN(2) == 0 {
		_, err := n.engine.Evict(p, p.HighWatermark())
		f.must(err)
	}
	if !well { // it may fail anywhere, and lose nothing by it
		_ = n.merger.Turn(ctx)
		_, _ = n.collector.Turn(ctx)
		return
	}
	want := f.logOf(n, uint32(part))
	r, err := n.ReadLog(ctx, broker.ReadRequest{Topic: "t", Partition: uint32(part), From: -1, To: -1})
	f.must(err)
	read := func(most int) {
		for most > 0 && len(want) > 0 {
			recs, err := r.Next(ctx)
			if err == io.EOF {
				return
			}
			f.must(err)
			for _, rec := range recs {
				if len(want) == 0 || rec.Offset != want[0].Offset || string(rec.Value) != string(want[0].Value) {
					f.t.Fatalf("partition %d: a reader met offset %d, or other bytes of it, beside a merge; %d records were left", part, rec.Offset, len(want))
				}
				want = want[1:]
			}
			most--
		}
	}
	read(rng.IntN(4))
	before, _ := n.chains.summary(p.ID)
	f.must(n.merger.Turn(ctx))
	merges.made.Add(1)
	if after, _ := n.chains.summary(p.ID); after.Totals.Segments < before.Totals.Segments {
		merges.fewer.Add(1)
	}
	read(rng.IntN(3))
	if rng.IntN(2) == 0 {
		// Twice: what is an orphan has to be one at two looks.
		for range 2 {
			_, err := n.collector.Turn(ctx)
			f.must(err)
		}
	}
	read(1 << 30)
	if len(want) > 0 {
		f.t.Fatalf("partition %d: a reader beside a merge ends before offset %d", part, want[0].Offset)
	}
}

// merges counts, over all histories, turns of merging and how many made a chain
// shorter.
var merges struct{ made, fewer atomic.Int64 }

func (f *nodeLife) act() {
	n, rng := f.n, f.t.Rand
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	id := func() broker.PartitionID {
		t, _ := n.meta.Topic("t")
		return broker.PartitionID{Topic: t.ID, Partition: uint32(rng.IntN(nodeParts))}
	}
	switch rng.IntN(17) {
	case 0, 1, 2, 3:
		f.produce()
	case 4, 5:
		f.consume()
	case 6, 7:
		f.ack()
	case 8: // the acks' interval is over
		f.must(n.log.WaitDurable(context.Background(), n.log.NextLSN()-1))
	case 9:
		f.must(n.engine.Checkpoint(context.Background()))
	case 10:
		f.must(n.engine.Seal(n.engine.Get(id())))
	case 11:
		if !down && f.flaky == 0 {
			f.until("shipping", func() bool { return n.shipper.Status().Shipped >= n.log.Durable() })
		}
	case 12:
		p := n.engine.Get(id())
		f.must(n.engine.Seal(p))
		if !down && f.flaky == 0 {
			f.uploaded(p)
		}
	case 13: // what the archive has need not be here: reads go there
		p := n.engine.Get(id())
		_, err := n.engine.Evict(p, p.HighWatermark())
		f.must(err)
	case 14:
		f.trim(id())
	case 15: // once it is down it stays so until the next life
		f.mu.Lock()
		f.down = f.down || rng.IntN(3) == 0
		f.mu.Unlock()
	case 16:
		if f.depth == 0 || rng.IntN(3) == 0 {
			f.merge()
		}
	}
}

// run is one life; the first has opened its node already.
func (f *nodeLife) run(n *Node) {
	t, rng := f.t, f.t.Rand
	f.camera = crash.Film(f.fs, rng, []int{5, 1, 0}[f.depth], f.promise)
	every := 0
	f.camera.Only = func(op crash.Op) bool { // Pebble changes much more than we do
		if !strings.Contains(op.Path, "/state/") {
			return true
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		every++
		return every%8 == 0
	}
	f.p.bucket.Hook(f.call)
	if n == nil {
		n = f.open()
		f.mu.Lock() // it started with the bucket down, perhaps; what is only there is read now
		down := f.down
		f.down = false
		f.mu.Unlock()
		acks := f.p.durable
		if f.killed {
			acks = allAnswered
		}
		f.verify(n, f.p, allAnswered, acks, false)
		f.adopt(n)
		f.mu.Lock()
		f.down = down
		f.mu.Unlock()
		t.Count()
	} else {
		f.adopt(n)
	}
	for range []int{10 + rng.IntN(20), 1 + rng.IntN(5), 1}[f.depth] {
		f.act()
	}
	f.mu.Lock()
	f.down, f.flaky = false, 0
	f.mu.Unlock()
	end := crash.Shot[nodePromise]{State: f.promise(), FS: f.fs.Kill(), Op: crash.Op{Kind: "end"}}
	f.fs.Hook(nil)
	f.p.bucket.Hook(nil)
	f.must(n.Close())
	shots := f.camera.Take()
	if f.depth == 0 {
		shots = append(shots, end)
	}
	for _, s := range shots {
		f.develop(s)
	}
}

func (f *nodeLife) develop(s crash.Shot[nodePromise]) {
	rng := f.t.Rand
	f.t.Step("%*s crash before change %d, %s %s: durable %d, shipped %d", f.depth, "", s.N, s.Op.Kind, s.Op.Path, s.State.durable, s.State.shipped)
	if rng.IntN(3) == 0 {
		f.lostDisk(s)
	}
	fs := s.FS.Loss(rng)
	killed := rng.IntN(3) == 0
	if killed {
		fs = s.FS.Kill()
	}
	p := s.State.own()
	for i := range p.acked {
		// Only written: a loss of power may have taken it, and nobody promises
		// it any more.
		if !killed && p.acked[i].lsn > p.durable {
			p.acked[i].lsn = unanswered
		}
	}
	next := &nodeLife{t: f.t, fs: fs, dir: f.dir, depth: f.depth + 1, killed: killed, p: p, flaky: f.flaky, down: rng.IntN(6) == 0}
	next.run(nil)
}

// lostDisk restores a node out of the bucket of that moment: what was shipped
// is there, and no offset is given again. I16, I3, I11. Now and then the
// restore loses its disk too, at any of its changes, and is begun anew.
func (f *nodeLife) lostDisk(s crash.Shot[nodePromise]) {
	f.t.Step("%*s the disk is lost", f.depth, "")
	r := f.successor(s.State)
	defer os.RemoveAll(r.dir)
	r.camera = crash.Film(r.fs, f.t.Rand, f.t.Rand.IntN(2), func() nodePromise { return nodePromise{bucket: r.p.bucket.Fork()} })
	r.p.bucket.Hook(r.call)
	r.restored(s.State)
	for _, again := range r.camera.Take() {
		f.t.Step("%*s the restore dies before change %d, %s %s", f.depth, "", again.N, again.Op.Kind, again.Op.Path)
		state := s.State
		state.bucket = again.State.bucket
		second := f.successor(state)
		second.restored(state)
	}
}

// successor is a node on an empty disk.
func (f *nodeLife) successor(p nodePromise) *nodeLife {
	dir := filepath.Join(filepath.Dir(f.dir), "restored")
	return &nodeLife{t: f.t, fs: emptyFS(f.t, dir), dir: dir, depth: 2, p: p.own()}
}

// restored fills the disk from the bucket, and serves.
func (f *nodeLife) restored(s nodePromise) {
	f.must(os.RemoveAll(f.dir))
	_, err := restore.Run(context.Background(), restore.Options{
		Store: f.p.bucket, Dir: f.dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true, FS: historyFS{f.fs},
		// Long after the last object: it need not be watched for signs of life.
		Now: func() time.Time { return time.Now().Add(48 * time.Hour) },
	})
	f.must(err)
	f.fs.Hook(nil)
	f.p.bucket.Hook(nil)
	n := f.open()
	f.verify(n, f.p, s.shipped, s.shipped, true)
	f.t.Count()
	// Whatever the lost node gave out, shipped or not, is taken.
	f.n = n
	for range 2 {
		f.produce()
	}
	f.must(n.Close())
}

// memoryDir is a directory for metadata, in memory where there is such a place.
func memoryDir(t *crash.T) string {
	root := "/dev/shm"
	if _, err := os.Stat(root); err != nil {
		root = ""
	}
	dir, err := os.MkdirTemp(root, "tidemark-histories-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// I1, I2, I3, I4, I6, I7, I8, I11, I15, I16, B50, B72: a whole node produces,
// delivers, acks, flushes, seals, checkpoints, uploads and ships, trims, merges
// segments and deletes what nothing needs, with a bucket that goes down or loses
// answers. The process dies, the power goes or the
// disk is lost between any two changes of a file or requests to the bucket, in
// a recovery too. Then the node starts again, or is restored from the bucket.
func TestHistories(t *testing.T) {
	crash.Run(t, "node", func(t *crash.T) {
		dir := filepath.Join(memoryDir(t), "d")
		f := &nodeLife{t: t, fs: emptyFS(t, dir), dir: dir, p: nodePromise{bucket: crash.NewBucket()}}
		n := f.open()
		two := uint32(nodeParts)
		if _, err := n.CreateTopic(context.Background(), broker.TopicSpec{Name: "t", Partitions: &two}); err != nil {
			t.Fatal(err)
		}
		f.n = n
		// The archive is this cluster's, and knows the topic, before anything is lost.
		topic, _ := n.meta.Topic("t")
		f.until("export", func() bool {
			st := n.shipper.Status()
			return st.Exported >= topic.ChangedIndex && st.Shipped >= n.log.Durable()
		})
		if t.Rand.IntN(4) == 0 {
			f.flaky = 20 + t.Rand.IntN(40)
		}
		f.run(n)
	})
	made, fewer := merges.made.Load(), merges.fewer.Load()
	t.Logf("%d of %d turns merged something", fewer, made)
	if made > 20 && fewer < made/4 {
		t.Errorf("%d of %d turns merged something: the histories have no merges", fewer, made)
	}
}
