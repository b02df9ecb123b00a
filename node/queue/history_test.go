package queue

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/wal"
)

const (
	historyParts = 2
	historyLog   = 40 // records of each partition
)

var historyGroups = []string{broker.DefaultGroup, "other"}

// position names a group on a partition.
type position struct {
	group string
	part  uint32
}

// settling is one thing that a group was told to remember.
type settling struct {
	lsn  uint64
	at   position
	from int64
	to   int64
	seek bool // to from, instead of settling [from, to)
}

// queuePromise is what groups have been told, and what is in the local state.
type queuePromise struct {
	done    []settling // in LSN order; only appended to within a life
	wrote   uint64     // highest LSN that was answered at the written mark
	durable uint64     // and at the durable one
	held    uint64     // the log may forget what is below
	states  [historyParts][]byte
	lsns    [historyParts]uint64
}

// settled folds what was settled.
func (p *queuePromise) settled() map[position]uint64 {
	out := map[position]uint64{}
	for _, s := range p.done {
		switch {
		case s.seek:
			out[s.at] = 1<<s.from - 1
		default:
			out[s.at] |= (1<<(s.to-s.from) - 1) << s.from
		}
	}
	return out
}

// queueLife is one process: log, engine, and the deliveries it has given out.
type queueLife struct {
	t      *crash.T
	fs     *crash.FS
	depth  int
	killed bool
	log    *wal.Log
	e      *Engine
	leased []issued
	found  map[uint64]bool // entries that the replay held

	mu sync.Mutex
	p  queuePromise
}

func (f *queueLife) promise() queuePromise {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.p
}

// Stage implements Journal with the frames of a node.
func (f *queueLife) Stage(id broker.PartitionID, generation uint32, group string, ops []byte) (uint64, error) {
	g := frame.Group{Partition: id, Generation: generation, Name: group, Ops: ops}
	slot, err := f.log.Reserve(wal.KindGroup, frame.GroupSize(g))
	if err != nil {
		return 0, err
	}
	frame.PutGroup(slot.Body, g)
	f.note(slot.LSN, position{group, id.Partition}, ops)
	slot.Done()
	return slot.LSN, nil
}

// note remembers what an entry settles before it can reach the disk. Entries
// of one position come in LSN order, under the group's lock.
func (f *queueLife) note(lsn uint64, at position, ops []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := decodeOps(ops, func(o op) error {
		switch o.kind {
		case opSettle:
			f.p.done = append(f.p.done, settling{lsn: lsn, at: at, from: o.from, to: o.to})
		case opSeek:
			f.p.done = append(f.p.done, settling{lsn: lsn, at: at, from: o.from, seek: true})
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *queueLife) must(err error) {
	if err != nil {
		f.t.Fatal(err)
	}
}

// replayedOps is an entry of the journal as a restart finds it.
type replayedOps struct {
	lsn uint64
	p   broker.PartitionID
	g   string
	ops []byte
}

func (f *queueLife) open() {
	f.found = map[uint64]bool{}
	var journal []replayedOps
	var err error
	f.log, _, err = wal.Open(wal.Options{
		FS: f.fs, Dir: "wal", Incarnation: 7, FileSize: 64 << 10, PoolFiles: -1, AckSyncInterval: time.Hour,
		NextNeeded: f.p.held, Holds: map[string]uint64{"state": f.p.held},
	}, func(fr wal.Frame) error {
		if fr.Kind != wal.KindGroup {
			return nil
		}
		g, err := frame.ParseGroup(fr.Body)
		f.found[fr.LSN] = true
		journal = append(journal, replayedOps{fr.LSN, g.Partition, g.Name, slices.Clone(g.Ops)})
		return err
	})
	f.must(err)
	now := time.Unix(1_800_000_000, 0)
	f.e = New(Options{Now: func() time.Time { return now }, Secret: []byte("secret"), Journal: f})
	for n := range uint32(historyParts) {
		states, err := DecodeStates(f.p.states[n])
		f.must(err)
		f.must(f.e.Attach(part(n), PartitionConfig{Generation: 1, HighWatermark: historyLog, Replay: true}, states))
	}
	for _, j := range journal {
		if j.lsn > f.p.lsns[j.p.Partition] {
			f.must(f.e.Apply(j.p, j.g, j.ops))
		}
	}
	for n := range uint32(historyParts) {
		f.must(f.e.Serve(part(n)))
	}
}

// verify takes everything that is deliverable and compares it with what was
// settled: I11, both ways.
func (f *queueLife) verify() {
	// The LSN of an entry that was lost is another frame's now.
	var kept []settling
	for _, s := range f.p.done {
		if s.lsn < f.p.held || f.found[s.lsn] { // the states hold what the log may forget
			kept = append(kept, s)
		} else if s.lsn <= f.p.durable || f.killed && s.lsn <= f.p.wrote {
			f.t.Fatalf("entry %d is lost, %d was durable and %d written", s.lsn, f.p.durable, f.p.wrote)
		}
	}
	f.mu.Lock()
	f.p.done, f.p.wrote, f.p.durable = kept, f.log.Written(), f.log.Durable()
	settled := f.p.settled()
	f.mu.Unlock()
	for _, g := range historyGroups {
		for n := range uint32(historyParts) {
			at := position{g, n}
			var got uint64
			for _, d := range f.reserve(at, historyLog) {
				if got>>d.Offset&1 == 1 {
					f.t.Fatalf("%v: offset %d was handed out twice", at, d.Offset)
				}
				got |= 1 << d.Offset
			}
			want := ^settled[at] & (1<<historyLog - 1)
			if got != want {
				f.t.Fatalf("%v: %d records are handed out that were settled (%b), %d are not that were not (%b)",
					at, bits.OnesCount64(got&^want), got&^want, bits.OnesCount64(want&^got), want&^got)
			}
		}
	}
}

func (f *queueLife) reserve(at position, most int) []Delivery {
	ds, err := f.e.Reserve(context.Background(), Request{Topic: topicA, Group: at.group, Partition: int(at.part), Max: most})
	f.must(err)
	for _, d := range ds {
		f.leased = append(f.leased, issued{cursorKey{at.group, at.part}, d})
	}
	return ds
}

// take removes up to n leased deliveries of one position, which one entry of
// the journal settles.
func (f *queueLife) take(n int) (string, []issued) {
	if len(f.leased) == 0 {
		return "", nil
	}
	at := f.t.Rand.IntN(len(f.leased))
	key := f.leased[at].key
	var out []issued
	for len(out) < n && at < len(f.leased) && f.leased[at].key == key {
		out = append(out, f.leased[at])
		f.leased = slices.Delete(f.leased, at, at+1)
	}
	return key.group, out
}

// answer waits for a mark, as the node does before it answers.
func (f *queueLife) answer(lsn uint64, durable bool) { f.must(f.wait(lsn, durable)) }

func (f *queueLife) wait(lsn uint64, durable bool) error {
	wait := f.log.WaitWritten
	if durable {
		wait = f.log.WaitDurable
	}
	if err := wait(context.Background(), lsn); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.p.wrote = max(f.p.wrote, lsn)
	if durable {
		f.p.durable = max(f.p.durable, lsn)
	}
	return nil
}

func (f *queueLife) act() {
	rng := f.t.Rand
	switch rng.IntN(11) {
	case 0, 1, 2, 3:
		group, ds := f.take(1)
		if ds == nil {
			return
		}
		lsn, err := f.e.Ack(topicA, group, ds[0].d.Handle)
		f.must(err)
		if rng.IntN(4) > 0 {
			f.answer(lsn, false)
		}
	case 4, 5:
		group, ds := f.take(1 + rng.IntN(12))
		receipts := make([]string, len(ds))
		for i, x := range ds {
			receipts[i] = x.d.Handle
		}
		if ds == nil {
			return
		}
		errs, lsn := f.e.AckMany(topicA, group, receipts)
		for _, err := range errs {
			f.must(err)
		}
		f.answer(lsn, false)
	case 6:
		group, ds := f.take(1)
		if ds == nil {
			return
		}
		_, err := f.e.Nack(topicA, group, ds[0].d.Handle, 0)
		f.must(err)
		f.reserve(position{group, ds[0].d.Partition}, 1+rng.IntN(4))
	case 7:
		at := position{historyGroups[rng.IntN(len(historyGroups))], uint32(rng.IntN(historyParts))}
		to := int64(rng.IntN(historyLog + 1))
		lsn, err := f.e.Seek(part(at.part), at.group, to)
		f.must(err)
		f.answer(lsn, true)
		f.leased = slices.DeleteFunc(f.leased, func(x issued) bool { return x.key.group == at.group && x.d.Partition == at.part })
		f.reserve(at, historyLog)
	case 8: // the log's interval is over
		f.answer(f.log.NextLSN()-1, true)
	case 9:
		f.checkpoint()
	case 10: // consumers at once, whose acks reach the log in any order
		var acks sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			group, ds := f.take(1)
			if ds == nil {
				break
			}
			acks.Go(func() {
				var lsn uint64
				if lsn, errs[i] = f.e.Ack(topicA, group, ds[0].d.Handle); errs[i] == nil {
					errs[i] = f.wait(lsn, false)
				}
			})
		}
		acks.Wait()
		f.must(errors.Join(errs...))
	}
}

// checkpoint keeps the groups' states and lets the log forget their entries.
func (f *queueLife) checkpoint() {
	captured := f.log.NextLSN()
	var states [historyParts][]byte
	var lsns [historyParts]uint64
	for n := range uint32(historyParts) {
		s, lsn := f.e.Snapshot(part(n))
		states[n], lsns[n] = AppendStates(nil, s), lsn
	}
	f.answer(captured-1, true)
	f.mu.Lock()
	f.p.states, f.p.lsns, f.p.held = states, lsns, captured
	f.mu.Unlock()
	f.log.Hold("state", captured)
}

func (f *queueLife) run() {
	camera := crash.Film(f.fs, f.t.Rand, []int{5, 1, 0}[f.depth], f.promise)
	f.open()
	f.verify()
	if f.depth > 0 {
		f.t.Count()
	}
	if f.depth < 2 {
		for range []int{8 + f.t.Rand.IntN(16), 1 + f.t.Rand.IntN(6)}[f.depth] {
			f.act()
		}
	}
	f.fs.Hook(nil)
	shots := camera.Take()
	if f.depth < 2 {
		shots = append(shots, crash.Shot[queuePromise]{FS: f.fs.Kill(), State: f.promise(), Op: crash.Op{Kind: "end"}})
	}
	f.e.Close()
	f.must(f.log.Close())
	for _, s := range shots {
		f.develop(s)
	}
}

func (f *queueLife) develop(s crash.Shot[queuePromise]) {
	rng := f.t.Rand
	images := s.FS.Losses(rng, []int{3, 1}[f.depth])
	images = append(images, s.FS.Kill())
	for i, fs := range images {
		next := &queueLife{t: f.t, fs: fs, depth: f.depth + 1, p: s.State, killed: i == len(images)-1}
		next.p.done = slices.Clip(next.p.done) // lives share a past, not a future
		if !next.killed {
			next.p.wrote = 0
		}
		f.t.Step("%*s crash before change %d, %s %s: image %d of %d, killed %v, wrote %d, durable %d", f.depth, "", s.N, s.Op.Kind, s.Op.Path, i+1, len(images), next.killed, s.State.wrote, s.State.durable)
		next.run()
	}
}

// I11, B72, B73, B75: groups ack in any order, one by one, many in one call and
// several at once, nack, seek, and are checkpointed. Whenever the process dies, exactly
// what was settled in the journal stays settled: all that was answered when
// only the process is gone, all up to the last sync when the power is.
func TestHistories(t *testing.T) {
	crash.Run(t, "queue", func(t *crash.T) {
		f := &queueLife{t: t, fs: crash.NewFS(), p: queuePromise{held: 1}}
		for n := range f.p.states {
			f.p.states[n] = AppendStates(nil, nil)
		}
		f.run()
	})
}
