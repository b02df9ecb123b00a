package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// enginePromise is what an engine was asked to keep. Its slices are only
// appended to within a life, so a copy of it stays as it was.
type enginePromise struct {
	logs    [machineParts][]string // values by offset
	commits []modelCommit
	entries []groupSettled
	staged  [machineParts]uint64 // next number to settle
	oldest  [machineParts]int64  // starts that were answered
	starts  [machineParts]int64  // and those that were asked for
	written uint64               // LSNs, as the log said
	durable uint64
	created bool
}

// groupSettled is a group entry: number n of partition part stands at lsn.
type groupSettled struct {
	lsn  uint64
	part uint32
	n    uint64
}

// engineLife is one process.
type engineLife struct {
	t      *crash.T
	fs     *crash.FS
	depth  int
	killed bool
	groups *tally
	r      *rig

	mu     sync.Mutex
	p      enginePromise
	log    *wal.Log // set once its LSNs are those of the promise
	armed  int      // changes of segment files until one fails
	broken bool
	dead   bool // nothing more goes to the disk
}

func (f *engineLife) promise() enginePromise {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.log != nil {
		f.p.written, f.p.durable = f.log.Written(), f.log.Durable()
	}
	return f.p
}

func (f *engineLife) fault(op crash.Op) (crash.Fault, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.armed == 0 || !strings.HasPrefix(op.Path, "data/topics") {
		return crash.Pass, nil
	}
	if f.armed--; f.armed > 0 {
		return crash.Pass, nil
	}
	f.broken = true
	switch op.Kind {
	case "sync":
		return crash.Forget, errIO
	case "write":
		return crash.Tear, errFull
	}
	return crash.Refuse, errIO
}

func (f *engineLife) must(err error) {
	f.mu.Lock()
	broken := f.broken
	f.mu.Unlock()
	if err != nil && !broken {
		f.t.Fatal(err)
	}
}

var errDead = errors.New("this process is dead")

func (f *engineLife) open() {
	f.groups = newTally()
	c := f.groups.config(func(o *Options) {
		o.FlushBytes, o.SegmentBytes, o.Compress = 1<<20, 3<<10, noCompression
		o.DiskOK = func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.dead {
				return errDead
			}
			return nil
		}
	})
	c.idle = true // nothing runs by itself: the life decides when
	c.wal = func(o *wal.Options) {
		o.FileSize, o.PoolFiles = 64<<10, f.t.Rand.IntN(3)-1
	}
	f.r = openWith(f.t, f.fs, c)
	var missing []uint32
	for n := range uint32(machineParts) {
		if f.r.engine.Get(pid(n)) == nil {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 && f.p.created {
		f.t.Fatalf("partitions %v are gone", missing)
	}
	f.r.create(missing...)
	f.mu.Lock()
	f.p.created = true
	f.mu.Unlock()
}

// verify compares what is there with the promise.
func (f *engineLife) verify() {
	t, p := f.t, &f.p
	keeps := func(lsn uint64) bool { return lsn <= p.durable || f.killed && lsn <= p.written }
	var ends [machineParts]int
	for n := range ends {
		part := f.r.engine.Get(pid(uint32(n)))
		if err := part.Refused(); err != nil {
			t.Fatalf("partition %d is out of service: %v", n, err)
		}
		ends[n] = int(part.HighWatermark())
		if ends[n] > len(p.logs[n]) {
			t.Fatalf("partition %d has %d records, %d were appended", n, ends[n], len(p.logs[n]))
		}
		if at := part.Oldest(); at < p.oldest[n] || at > p.starts[n] {
			t.Fatalf("partition %d begins at %d, it was trimmed to %d, and to %d without an answer", n, at, p.oldest[n], p.starts[n])
		}
		f.read(part, p.logs[n][:ends[n]])
		f.r.contiguous(uint32(n))
	}
	for _, c := range p.commits {
		in, out := 0, 0
		for n, end := range c.ends {
			if end <= ends[n] {
				in++
			} else {
				out++
			}
		}
		if in > 0 && out > 0 {
			t.Fatalf("commit at LSN %d is in %d partitions and not in %d", c.lsn, in, out)
		}
		if out > 0 && keeps(c.lsn) { // I1, I4
			t.Fatalf("commit at LSN %d is lost: %v, the partitions end at %v; %d was durable and %d written", c.lsn, c.ends, ends, p.durable, p.written)
		}
	}
	for _, e := range p.entries {
		if has := f.groups.of(pid(e.part))[e.n]; !has && keeps(e.lsn) { // I11
			t.Fatalf("partition %d: number %d was settled at LSN %d and is not any more; %d was durable and %d written", e.part, e.n, e.lsn, p.durable, p.written)
		}
	}
	f.settle(ends)
}

// settle makes what is there the truth.
func (f *engineLife) settle(ends [machineParts]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &f.p
	f.log = f.r.log
	for n, end := range ends {
		p.logs[n] = slices.Clip(p.logs[n][:end])
		p.oldest[n] = f.r.engine.Get(pid(uint32(n))).Oldest()
		p.starts[n] = p.oldest[n]
		p.staged[n] = 0
		for k := range f.groups.of(pid(uint32(n))) {
			p.staged[n] = max(p.staged[n], k+1)
		}
	}
	p.commits, p.entries = nil, nil
	for n := range ends {
		if ends[n] > 0 { // all of it is durable now
			p.commits = append(p.commits, modelCommit{ends: map[uint32]int{uint32(n): ends[n]}})
		}
		for k := range f.groups.of(pid(uint32(n))) {
			p.entries = append(p.entries, groupSettled{part: uint32(n), n: k})
		}
	}
}

// read compares everything visible of a partition with values.
func (f *engineLife) read(p *Partition, values []string) {
	var buf Buffer
	for from := p.Oldest(); from < int64(len(values)); {
		run, err := p.Read(context.Background(), from, 4<<10, &buf)
		if err != nil || len(run) == 0 {
			f.t.Fatalf("partition %s at %d of %d: %d batches, %v", p.ID, from, len(values), len(run), err)
		}
		for _, b := range run {
			recs, err := segment.DecodeBatch(nil, b, nil)
			if err != nil {
				f.t.Fatal(err)
			}
			for i := range recs {
				if recs[i].Offset < from {
					continue
				}
				if recs[i].Offset != from || from >= int64(len(values)) || string(recs[i].Value) != values[from] { // I3
					f.t.Fatalf("partition %s: offset %d is %.20q, want offset %d of %d", p.ID, recs[i].Offset, recs[i].Value, from, len(values))
				}
				from++
			}
		}
	}
}

// append makes one commit over some partitions; 0 when a broken engine took none.
func (f *engineLife) append() ([]Part, uint64) {
	rng := f.t.Rand
	var parts []Part
	var values [machineParts][]string
	for n := range uint32(machineParts) {
		if rng.IntN(2) == 0 && (n < machineParts-1 || len(parts) > 0) {
			continue
		}
		recs := make([]broker.Record, 1+rng.IntN(4))
		for i := range recs {
			v := fmt.Sprintf("%x-%s", rng.Uint64(), strings.Repeat("x", rng.IntN(200)))
			values[n] = append(values[n], v)
			recs[i] = broker.Record{Offset: int64(i), Timestamp: 7, Value: []byte(v)}
		}
		data, err := segment.AppendBatch(nil, recs, segment.BatchOptions{})
		if err != nil {
			f.t.Fatal(err)
		}
		parts = append(parts, Part{Partition: f.r.engine.Get(pid(n)), Batches: []Batch{{Data: data, Span: int64(len(recs))}}})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	lsn, err := f.r.engine.Append(parts, 1000)
	if err != nil {
		if !f.broken {
			f.t.Fatal(err)
		}
		return nil, 0
	}
	c := modelCommit{lsn: lsn, ends: map[uint32]int{}}
	for i := range parts {
		n := parts[i].Partition.ID.Partition
		if parts[i].Base != int64(len(f.p.logs[n])) { // I3
			f.t.Fatalf("partition %d: offset %d was given, want %d", n, parts[i].Base, len(f.p.logs[n]))
		}
		f.p.logs[n] = append(f.p.logs[n], values[n]...)
		c.ends[n] = len(f.p.logs[n])
	}
	f.p.commits = append(f.p.commits, c)
	return parts, lsn
}

func (f *engineLife) act() {
	ctx, rng := context.Background(), f.t.Rand
	e := f.r.engine
	p := e.Get(pid(uint32(rng.IntN(machineParts))))
	switch rng.IntN(15) {
	case 0, 1, 2, 3:
		parts, lsn := f.append()
		if lsn == 0 {
			return
		}
		f.must(f.r.log.WaitDurable(ctx, lsn))
		e.Advance(parts)
		for i := range parts {
			n := parts[i].Partition.ID.Partition
			if hw := parts[i].Partition.HighWatermark(); hw != int64(len(f.p.logs[n])) {
				f.t.Fatalf("partition %d: high watermark %d after an answer for %d", n, hw, len(f.p.logs[n]))
			}
		}
	case 4: // what is not durable stays out of sight, whoever advances
		if parts, lsn := f.append(); lsn > 0 {
			e.Advance(parts)
		}
	case 5, 6:
		f.mu.Lock()
		n := p.ID.Partition
		lsn, err := f.groups.settle(e, p.ID, f.p.staged[n])
		if err == nil {
			f.p.entries = append(f.p.entries, groupSettled{lsn, n, f.p.staged[n]})
			f.p.staged[n]++
		}
		f.mu.Unlock()
		f.must(err)
		if err == nil && rng.IntN(2) == 0 {
			f.must(f.r.log.WaitWritten(ctx, lsn))
		}
	case 7:
		f.must(e.flushAll(p))
	case 8:
		f.must(e.Seal(p))
	case 9, 10:
		f.must(e.Checkpoint(ctx))
		f.invariants()
	case 11:
		p.evict(1 << 30)
	case 12:
		n, start := p.ID.Partition, int64(0)
		if hw := p.HighWatermark(); hw > 0 {
			start = rng.Int64N(hw + 1)
		}
		f.mu.Lock()
		f.p.starts[n] = max(f.p.starts[n], start)
		f.mu.Unlock()
		_, err := e.Trim(p, start)
		f.must(err)
		f.mu.Lock()
		if err == nil {
			f.p.oldest[n] = max(f.p.oldest[n], start)
		}
		f.mu.Unlock()
	case 13, 14: // small tails go into the log once more, so that its files can go
		e.running.Store(true)
		f.must(e.Release(ctx, f.r.log.Durable()))
		e.running.Store(false)
		f.invariants()
	}
	f.visible()
}

// visible holds what can be read against the durable LSN: I2.
func (f *engineLife) visible() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.p.commits {
		for n, end := range c.ends {
			hw := f.r.engine.Get(pid(n)).HighWatermark()
			if durable := f.r.log.Durable(); c.lsn > durable && hw >= int64(end) {
				f.t.Fatalf("partition %d: visible to %d, LSN %d is not durable (%d is)", n, hw, c.lsn, durable)
			}
		}
	}
}

// invariants holds what is on its way to the disk against the durable LSN: I2.
func (f *engineLife) invariants() {
	marks, err := f.r.db.Marks()
	if err != nil {
		f.t.Fatal(err)
	}
	if durable := f.r.log.Durable(); marks.Durable > durable || marks.Needed > f.r.log.NextLSN() {
		f.t.Fatalf("a checkpoint says durable %d and needed %d, the log durable %d", marks.Durable, marks.Needed, durable)
	}
	for n := range uint32(machineParts) {
		p := f.r.engine.Get(pid(n))
		if end := f.r.entry(n).Flushed; end > p.HighWatermark() {
			f.t.Fatalf("partition %d: flushed to %d, visible to %d", n, end, p.HighWatermark())
		}
	}
}

func (f *engineLife) run() {
	t, rng := f.t, f.t.Rand
	camera := crash.FilmFaults(f.fs, rng, []int{7, 2, 0}[f.depth], f.promise, f.fault)
	every := 0
	camera.Only = func(op crash.Op) bool { // Pebble changes much more than we do
		if !strings.HasPrefix(op.Path, "data/state") {
			return true
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		every++
		return every%4 == 0
	}
	f.open()
	f.verify()
	if f.depth > 0 {
		t.Count()
	}
	if f.depth < 2 {
		if rng.IntN(6) == 0 {
			f.mu.Lock()
			f.armed = 1 + rng.IntN(8)
			f.mu.Unlock()
		}
		for range []int{8 + rng.IntN(16), 1 + rng.IntN(6)}[f.depth] {
			f.act()
		}
	}
	f.mu.Lock()
	f.armed = 0
	clean := rng.IntN(4) == 0 && !f.broken
	f.mu.Unlock()
	if clean {
		f.r.close()
	}
	f.fs.Hook(nil)
	shots := camera.Take()
	if f.depth < 2 {
		shots = append(shots, crash.Shot[enginePromise]{FS: f.fs.Kill(), State: f.promise(), Op: crash.Op{Kind: "end"}})
	}
	if !clean {
		f.mu.Lock()
		f.dead = true
		f.mu.Unlock()
		_ = f.r.engine.Close() // it hears that it is dead
		_ = f.r.log.Close()
		_ = f.r.db.Close()
	}
	for _, s := range shots {
		f.develop(s)
	}
}

func (f *engineLife) develop(s crash.Shot[enginePromise]) {
	rng := f.t.Rand
	images := s.FS.Losses(rng, []int{3, 1}[f.depth])
	killed := rng.IntN(2) == 0
	if killed {
		images = append(images, s.FS.Kill())
	}
	for i, fs := range images {
		next := &engineLife{t: f.t, fs: fs, depth: f.depth + 1, p: s.State, killed: killed && i == len(images)-1}
		if !next.killed {
			next.p.written = next.p.durable
		}
		for n := range next.p.logs {
			next.p.logs[n] = slices.Clip(next.p.logs[n])
		}
		next.p.commits, next.p.entries = slices.Clip(next.p.commits), slices.Clip(next.p.entries)
		f.t.Step("%*s crash before change %d, %s %s: image %d of %d, killed %v, durable %d, written %d", f.depth, "", s.N, s.Op.Kind, s.Op.Path, i+1, len(images), next.killed, s.State.durable, s.State.written)
		next.run()
	}
}

// I1, I2, I3, I4, I5, I11, B38, B45, B46, B49, B50: appends over several
// partitions, group entries, flushes, seals, checkpoints, evictions and trims, over a
// real log and a real local state; the process dies or the power goes between
// any two changes of any file, in a recovery too, with segment files whose
// writes and syncs fail. Every commit that was durable is there, whole, at its
// offsets; nothing else is; what a group settled stays settled.
func TestHistories(t *testing.T) {
	crash.Run(t, "partition", func(t *crash.T) {
		f := &engineLife{t: t, fs: crash.NewFS()}
		f.fs.Journal = "state" // Pebble relies on that order
		f.run()
	})
}
