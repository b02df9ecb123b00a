package archive

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

const testIncarnation = 0x77

func pid(n uint32) broker.PartitionID { return broker.PartitionID{Topic: 0xabc, Partition: n} }

// logged is a real log in memory that frames are put into.
type logged struct {
	*wal.Log
	t testing.TB
}

func newLog(t testing.TB) *logged {
	t.Helper()
	l, _, err := wal.Open(wal.Options{
		FS: vfs.NewMem(), Dir: "wal", Incarnation: testIncarnation, FileSize: 64 << 20, PoolFiles: -1, AckSyncInterval: time.Hour,
		Now: func() time.Time { return time.UnixMilli(1_700_000_000_000) },
	}, func(wal.Frame) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return &logged{l, t}
}

// put appends frames as one group.
func (l *logged) put(frames ...wal.Frame) {
	l.t.Helper()
	want, slots := make([]wal.Want, len(frames)), make([]wal.Slot, len(frames))
	for i, f := range frames {
		want[i] = wal.Want{Kind: f.Kind, Size: len(f.Body)}
	}
	if err := l.ReserveAll(slots, want); err != nil {
		l.t.Fatal(err)
	}
	for i := range slots {
		copy(slots[i].Body, frames[i].Body)
		slots[i].Done()
	}
	if err := l.WaitDurable(context.Background(), slots[len(slots)-1].LSN); err != nil {
		l.t.Fatal(err)
	}
}

// run returns everything that is in the log.
func (l *logged) run() wal.GroupRun {
	l.t.Helper()
	run, err := l.ReadGroups(1, 1<<30)
	if err != nil {
		l.t.Fatal(err)
	}
	if run.Next != l.Durable()+1 {
		l.t.Fatalf("the run ends at %d, the log at %d", run.Next, l.Durable())
	}
	return run
}

// batch is a batch of n records of size bytes each at base: random letters, or
// ever the same ones.
func batch(t testing.TB, codec segment.Codec, base int64, n, size int, random bool) []byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(base), uint64(n)))
	recs := make([]broker.Record, n)
	for i := range recs {
		v := bytes.Repeat([]byte("tide "), size/5+1)[:size]
		if random {
			for k := range v[:size/2] { // a batch of them shrinks, by less than half
				v[k] = byte(rng.Uint32())
			}
		} else if size > 8 {
			copy(v, fmt.Sprint(base+int64(i)))
		}
		recs[i] = broker.Record{Offset: int64(i), Timestamp: 1_700_000_000_000, Value: v}
	}
	b, err := segment.AppendBatch(nil, recs, segment.BatchOptions{Codec: codec})
	if err != nil {
		t.Fatal(err)
	}
	segment.Stamp(b, base, 3)
	return b
}

// part is one partition's part of a commit.
type part struct {
	id      broker.PartitionID
	batches []byte
}

func commit(kind wal.Kind, parts ...part) wal.Frame {
	body := make([]byte, frame.CommitHeaderSize)
	frame.PutCommitHeader(body, frame.CommitHeader{AppendMS: 1_700_000_000_001, OriginIncarnation: testIncarnation})
	for _, p := range parts {
		at := len(body)
		body = append(body, make([]byte, frame.SectionHeaderSize)...)
		frame.PutSectionHeader(body[at:], p.id, 3, len(p.batches))
		body = append(body, p.batches...)
	}
	return wal.Frame{Kind: kind, Body: body}
}

func group(name, ops string) wal.Frame {
	g := frame.Group{Partition: pid(1), Generation: 3, Name: name, Ops: []byte(ops)}
	b := make([]byte, frame.GroupSize(g))
	frame.PutGroup(b, g)
	return wal.Frame{Kind: wal.KindGroup, Body: b}
}

func base(b frame.Base) wal.Frame {
	body := make([]byte, frame.BaseSize(b))
	frame.PutBase(body, b)
	return wal.Frame{Kind: wal.KindBase, Body: body}
}

// lines prints frames, one a line.
func lines(t testing.TB, groups []byte, salt uint64) (out []string) {
	t.Helper()
	err := wal.ForEachFrame(groups, salt, func(f wal.Frame) error {
		out = append(out, fmt.Sprintf("%d %s %x", f.LSN, f.Kind, f.Body))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// allocated returns how many bytes fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
