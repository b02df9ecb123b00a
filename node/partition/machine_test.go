package partition

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

const machineParts = 3

// modelRecord is one record as the model knows it.
type modelRecord struct {
	value string
	time  int64
	lsn   uint64 // 0: replayed, so durable
}

// modelCommit is one append: its records are all there or none.
type modelCommit struct {
	lsn  uint64
	ends map[uint32]int // per partition: how many records there are with it
}

// machine runs an engine beside a model that is a list of records per
// partition. Everything below sure was acknowledged.
type machine struct {
	tb      tb
	mem     *vfs.MemFS
	r       *rig
	archive *memArchive
	groups  *tally
	logs    [machineParts][]modelRecord
	sure    [machineParts]int
	starts  [machineParts]int64  // where the logs begin: answered trims
	settled [machineParts]uint64 // group entries that were acknowledged
	staged  [machineParts]uint64
	commits []modelCommit
	serial  int
}

func (m *machine) open() {
	m.groups = newTally()
	m.r = openWith(m.tb, m.mem, m.groups.config(func(o *Options) {
		// Nothing runs by itself: the machine decides when.
		o.FlushBytes, o.SegmentBytes, o.Compress = 1<<20, 3<<10, noCompression
		o.Archive = m.archive
	}))
	for n := range uint32(machineParts) {
		if m.r.engine.Get(pid(n)) == nil {
			m.r.create(n)
		}
	}
}

// append makes one commit over some partitions. Its parts say where it stands.
func (m *machine) append(t *rapid.T) (parts []Part, lsn uint64) {
	c := modelCommit{ends: map[uint32]int{}}
	for n := range uint32(machineParts) {
		if !rapid.Bool().Draw(t, "takes part") && (n < machineParts-1 || len(parts) > 0) {
			continue
		}
		part := Part{Partition: m.r.engine.Get(pid(n))}
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			recs := make([]broker.Record, rapid.IntRange(1, 4).Draw(t, "records"))
			for i := range recs {
				m.serial++
				v := modelRecord{value: fmt.Sprintf("%d-%0*d", m.serial, rapid.IntRange(0, 200).Draw(t, "size"), 0), time: rapid.Int64Range(0, 50).Draw(t, "time")}
				m.logs[n] = append(m.logs[n], v)
				recs[i] = broker.Record{Offset: int64(i), Timestamp: v.time, Value: []byte(v.value)}
			}
			data, err := segment.AppendBatch(nil, recs, segment.BatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			part.Batches = append(part.Batches, Batch{Data: data, Span: int64(len(recs))})
		}
		parts = append(parts, part)
		c.ends[n] = len(m.logs[n])
	}
	lsn, err := m.r.engine.Append(parts, int64(m.serial))
	if err != nil {
		t.Fatal(err)
	}
	c.lsn = lsn
	for i := range parts {
		n := parts[i].Partition.ID.Partition
		count := int64(0)
		for _, b := range parts[i].Batches {
			count += b.Span
		}
		if end := parts[i].Base + count; end != int64(c.ends[n]) { // I3
			t.Fatalf("partition %d: the append ends at %d, %d records were appended", n, end, c.ends[n])
		}
		for at := parts[i].Base; at < parts[i].Base+count; at++ {
			m.logs[n][at].lsn = lsn
		}
	}
	m.commits = append(m.commits, c)
	return parts, lsn
}

func (m *machine) part(t *rapid.T) *Partition {
	return m.r.engine.Get(pid(uint32(rapid.IntRange(0, machineParts-1).Draw(t, "partition"))))
}

// recovered compares what a restart found with what may be there.
func (m *machine) recovered(t *rapid.T) {
	for n := range m.logs {
		hw := int(m.r.engine.Get(pid(uint32(n))).HighWatermark())
		if hw < m.sure[n] || hw > len(m.logs[n]) { // I1, I4
			t.Fatalf("partition %d: %d records after the restart, %d were acknowledged of %d", n, hw, m.sure[n], len(m.logs[n]))
		}
		m.logs[n], m.sure[n] = m.logs[n][:hw], hw
		if at := m.r.engine.Get(pid(uint32(n))).Oldest(); at != m.starts[n] {
			t.Fatalf("partition %d: the log begins at %d after the restart, it was trimmed to %d", n, at, m.starts[n])
		}
		m.groups.has(t, pid(uint32(n)), m.settled[n])
		m.staged[n] = m.settled[n]
	}
	for _, c := range m.commits {
		in, out := 0, 0
		for n, end := range c.ends {
			if end <= len(m.logs[n]) {
				in++
			} else {
				out++
			}
		}
		if in > 0 && out > 0 {
			t.Fatalf("commit at LSN %d is in %d partitions and not in %d", c.lsn, in, out)
		}
	}
	m.commits = nil
	for n := range m.logs {
		for i := range m.logs[n] {
			m.logs[n][i].lsn = 0
		}
	}
}

func (m *machine) actions() map[string]func(*rapid.T) {
	ctx := context.Background()
	must := func(t *rapid.T, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return map[string]func(*rapid.T){
		"append": func(t *rapid.T) {
			parts, lsn := m.append(t)
			must(t, m.r.log.WaitDurable(ctx, lsn))
			m.r.engine.Advance(parts)
			for i := range parts {
				n := parts[i].Partition.ID.Partition
				m.sure[n] = int(parts[i].Partition.HighWatermark())
			}
		},
		"append and leave": func(t *rapid.T) {
			parts, _ := m.append(t)
			if rapid.Bool().Draw(t, "late") {
				m.r.engine.Late(parts)
			}
		},
		"settle": func(t *rapid.T) {
			p := m.part(t)
			n := p.ID.Partition
			lsn, err := m.groups.settle(m.r.engine, p.ID, m.staged[n])
			must(t, err)
			m.staged[n]++
			if rapid.Bool().Draw(t, "wait") {
				must(t, m.r.log.WaitDurable(ctx, lsn))
				m.settled[n] = m.staged[n]
			}
		},
		"flush":      func(t *rapid.T) { must(t, m.r.engine.flushAll(m.part(t))) },
		"seal":       func(t *rapid.T) { must(t, m.r.engine.Seal(m.part(t))) },
		"checkpoint": func(t *rapid.T) { must(t, m.r.engine.Checkpoint(ctx)) },
		"evict":      func(t *rapid.T) { m.part(t).evict(1 << 30) },
		"release": func(t *rapid.T) {
			must(t, m.r.engine.Release(ctx, rapid.Uint64Range(0, m.r.log.NextLSN()).Draw(t, "up to")))
		},
		"archive": func(t *rapid.T) { m.r.archiveAll(m.archive, m.part(t).ID.Partition) },
		"lose local copies": func(t *rapid.T) {
			must(t, m.r.engine.Checkpoint(ctx)) // the local state knows what is archived
			p := m.part(t)
			end, _ := p.ArchivedEnd()
			m.r.engine.handles.closeAll()
			for _, path := range m.r.segments(p.ID.Partition) {
				base, _, _ := segment.ParseName(m.mem.PathBase(path))
				if base < end && rapid.Bool().Draw(t, "remove") {
					must(t, m.mem.Remove(path))
				}
			}
		},
		"crash": func(t *rapid.T) {
			seed := rapid.Uint64().Draw(t, "seed")
			rng := rand.New(rand.NewPCG(seed, 1))
			crashed := m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rapid.IntRange(0, 100).Draw(t, "kept"), RNG: rng})
			m.r.close()
			m.mem = crashed
			m.open()
			m.recovered(t)
		},
		"restart": func(t *rapid.T) {
			m.r.close()
			for n := range m.logs { // closing the log made everything durable
				m.sure[n], m.settled[n] = len(m.logs[n]), m.staged[n]
			}
			m.open()
			m.recovered(t)
		},
		"read": func(t *rapid.T) {
			p := m.part(t)
			m.read(t, p, rapid.Int64Range(p.Oldest(), p.HighWatermark()).Draw(t, "from"), rapid.IntRange(1, 4<<10).Draw(t, "bytes"))
		},
		"read one": func(t *rapid.T) {
			p := m.part(t)
			hw := p.HighWatermark()
			if hw == 0 {
				return
			}
			at := rapid.Int64Range(0, hw-1).Draw(t, "offset")
			rec, err := p.Record(ctx, at)
			if at < p.Oldest() {
				if _, rerr := p.Read(ctx, at, 1, nil); !errcode.Is(err, errcode.Gone) || !errcode.Is(rerr, errcode.Gone) {
					t.Fatalf("partition %s at %d, below its start %d: %v, %v", p.ID, at, p.Oldest(), err, rerr)
				}
				return
			}
			must(t, err)
			m.same(t, p, &rec, at)
		},
		"trim": func(t *rapid.T) {
			p := m.part(t)
			to := rapid.Int64Range(0, p.HighWatermark()).Draw(t, "start")
			_, err := m.r.engine.Trim(p, to)
			must(t, err)
			n := p.ID.Partition
			if m.starts[n] = max(m.starts[n], to); p.Oldest() != m.starts[n] {
				t.Fatalf("partition %s begins at %d, it was trimmed to %d", p.ID, p.Oldest(), m.starts[n])
			}
			for _, x := range p.Local().Pieces {
				if x.Next <= to {
					t.Fatalf("partition %s keeps %d to %d below its start %d", p.ID, x.Base, x.Next, to)
				}
			}
		},
		"evict files": func(t *rapid.T) {
			p := m.part(t)
			before := p.Local()
			below := rapid.Int64Range(0, p.HighWatermark()).Draw(t, "below")
			freed, err := m.r.engine.Evict(p, below)
			must(t, err)
			after := p.Local()
			if len(before.Pieces)-len(after.Pieces) != freed.Segments {
				t.Fatalf("partition %s: %d segments went, the answer was %+v", p.ID, len(before.Pieces)-len(after.Pieces), freed)
			}
			for _, x := range before.Pieces {
				here := slices.ContainsFunc(after.Pieces, func(y Piece) bool { return y.Base == x.Base })
				if may := x.Confirmed && x.Next <= below; here == may { // I6
					t.Fatalf("partition %s: %+v is here: %v, evicted below %d", p.ID, x, here, below)
				}
			}
		},
		"find time": func(t *rapid.T) { m.findTime(t, m.part(t), rapid.Int64Range(0, 52).Draw(t, "ms")) },
		"":          m.invariants,
	}
}

func (m *machine) same(t *rapid.T, p *Partition, rec *broker.Record, at int64) {
	want := m.logs[p.ID.Partition][at]
	if rec.Offset != at || string(rec.Value) != want.value || rec.Timestamp != want.time {
		t.Fatalf("partition %s at %d: offset %d, %q at %d; want %q at %d", p.ID, at, rec.Offset, rec.Value, rec.Timestamp, want.value, want.time)
	}
}

// read walks from an offset to the high watermark.
func (m *machine) read(t *rapid.T, p *Partition, from int64, maxBytes int) {
	var buf Buffer
	for end := p.HighWatermark(); from < end; {
		run, err := p.Read(context.Background(), from, maxBytes, &buf)
		if err != nil {
			t.Fatal(err)
		}
		if len(run) == 0 {
			t.Fatalf("partition %s: nothing at %d below the high watermark %d", p.ID, from, end)
		}
		for _, b := range run {
			recs, err := segment.DecodeBatch(nil, b, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range recs {
				if recs[i].Offset >= from {
					m.same(t, p, &recs[i], from)
					from++
				}
			}
		}
	}
}

func (m *machine) findTime(t *rapid.T, p *Partition, ms int64) {
	before := p.HighWatermark()
	got, err := p.FindTime(context.Background(), ms)
	if err != nil {
		t.Fatal(err)
	}
	after, log := p.HighWatermark(), m.logs[p.ID.Partition]
	want := p.Oldest()
	for want < after && log[want].time < ms {
		want++
	}
	if got != want && (want < before || got < before || got > after) {
		t.Fatalf("partition %s: time %d is at %d, the answer was %d", p.ID, ms, want, got)
	}
}

// invariants holds after every action.
func (m *machine) invariants(t *rapid.T) {
	durable := m.r.log.Durable()
	marks, err := m.r.db.Marks()
	if err != nil {
		t.Fatal(err)
	}
	if marks.Durable > m.r.log.Durable() { // I2
		t.Fatalf("a checkpoint names LSN %d as durable, the log %d", marks.Durable, durable)
	}
	for n := range m.logs {
		p := m.r.engine.Get(pid(uint32(n)))
		hw := p.HighWatermark()
		durable := m.r.log.Durable()
		if hw < int64(m.sure[n]) || hw > int64(len(m.logs[n])) {
			t.Fatalf("partition %d: high watermark %d, %d acknowledged of %d", n, hw, m.sure[n], len(m.logs[n]))
		}
		if hw > 0 && m.logs[n][hw-1].lsn > durable { // I2
			t.Fatalf("partition %d: LSN %d is visible, %d is durable", n, m.logs[n][hw-1].lsn, durable)
		}
		p.flush.Lock()
		p.mu.Lock()
		end := p.filesEnd()
		p.mu.Unlock()
		p.flush.Unlock()
		if end > hw { // I2
			t.Fatalf("partition %d: flushed to %d, visible to %d", n, end, hw)
		}
		if e := m.r.entry(uint32(n)); e.GroupLSN > durable {
			t.Fatalf("partition %d: group entries up to LSN %d are captured, %d is durable", n, e.GroupLSN, durable)
		}
	}
}

// A model of three logs: appends over several partitions, waited for or not,
// group entries, flush, seal, checkpoint, eviction from memory, release of the
// log, archive, trim, eviction and loss of local copies, crashes that keep any
// part of what was not synced,
// and reads from any tier by offset and time. What was acknowledged is there at
// its offset, nothing else is, commits are whole, nothing above the durable LSN
// is visible, flushed or in a checkpoint (I1, I2, I3, I4); no start falls, nothing
// above it is lost, and only confirmed copies are evicted (I6).
func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{tb: t, mem: vfs.NewCrashableMem(), archive: newMemArchive()}
		m.open()
		t.Repeat(m.actions())
		for n := range m.logs {
			m.read(t, m.r.engine.Get(pid(uint32(n))), m.starts[n], 8<<10)
		}
		m.r.close()
	})
}
