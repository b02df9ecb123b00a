package partition

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/slab"
)

// The arena gives every batch bytes of its own, in whatever sizes batches come
// and leave: what was written into one is still there when it leaves. Memory
// goes round: in a tail that stays as long as it is, no chunk is made anew.
func TestArena(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var a arena
	var live [][]byte
	fill := func(b []byte, with byte) {
		for i := range b {
			b[i] = with
		}
	}
	for i := range 20_000 {
		b, _ := a.add(1 + rng.IntN(SmallBatch))
		fill(b, byte(i))
		live = append(live, b)
		for len(live) > 64 || len(live) > 0 && rng.IntN(40) == 0 {
			if want := bytes.Repeat(live[0][:1], len(live[0])); !bytes.Equal(live[0], want) {
				t.Fatalf("batch %d before the newest was overwritten", len(live))
			}
			live = live[1:]
			a.drop()
		}
		if most := 64*SmallBatch/(slab.ChunkBytes-SmallBatch) + 2; len(a.chunks) > most {
			t.Fatalf("%d batches stand in %d chunks, want at most %d", len(live), len(a.chunks), most)
		}
	}
	for range live {
		a.drop()
	}
	if len(a.chunks) != 0 {
		t.Fatalf("an arena that had grown keeps %d chunks when it is empty", len(a.chunks))
	}
	for range 3 {
		a.add(100)
		a.drop()
	}
	if len(a.chunks) != 1 || a.chunks[0].used != 0 {
		t.Fatalf("an idle arena has %d chunks, want its first one, free", len(a.chunks))
	}
}

// What a reader got from memory stays what it was, however the tail's memory
// goes round afterwards: runs of Read, decoded records, and a look for a time.
func TestReadersKeepWhatTheyRead(t *testing.T) {
	r := open(t, vfs.NewMem(), func(o *Options) { o.HotBytes, o.SegmentBytes, o.FlushBytes = 1, 1<<20, 1<<20 })
	defer r.close()
	r.create(0)
	p := r.engine.Get(pid(0))
	value := func(i int) string { return fmt.Sprintf("%06d%s", i, strings.Repeat("x", 900)) }
	const batches = 200
	produce := func(from int) {
		for i := from; i < from+batches; i++ {
			if _, err := r.produce(0, value(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(0)
	var buf Buffer
	run, err := p.Read(context.Background(), 0, 1<<20, &buf)
	if err != nil || len(run) < 100 {
		t.Fatalf("read %d batches from memory: %v", len(run), err)
	}
	const middle = batches / 2
	rec, err := p.Record(context.Background(), middle)
	if err != nil {
		t.Fatal(err)
	}
	// Everything leaves memory, and its chunks are filled by what comes next.
	for round := 1; round <= 3; round++ {
		r.flush(0)
		r.checkpoint()
		r.engine.evict(p)
		if n := r.engine.memory.Load(); n != 0 {
			t.Fatalf("%d bytes stay in memory", n)
		}
		produce(round * batches)
	}
	for i, b := range run {
		if !bytes.Contains(b, []byte(value(i))) {
			t.Fatalf("batch %d of the run has changed", i)
		}
	}
	if string(rec.Value) != value(middle) {
		t.Fatalf("the record at %d has become %.10q", middle, rec.Value)
	}
}

// A small append copies its bytes into memory that goes round: it allocates
// nothing that grows with the record, and what the caller does with its buffer
// afterwards changes no record.
func TestSmallAppendIsCopied(t *testing.T) {
	r := open(t, vfs.NewMem(), nil)
	defer r.close()
	r.create(0)
	b := encode(t, "what was sent")
	parts := []Part{{Partition: r.engine.Get(pid(0)), Batches: []Batch{b}}}
	lsn, err := r.engine.Append(parts, 1)
	if err != nil {
		t.Fatal(err)
	}
	clear(b.Data)
	if err := r.log.WaitDurable(context.Background(), lsn); err != nil {
		t.Fatal(err)
	}
	r.engine.Advance(parts)
	rec, err := r.engine.Get(pid(0)).Record(context.Background(), 0)
	if err != nil || string(rec.Value) != "what was sent" {
		t.Fatalf("the record is %q, %v", rec.Value, err)
	}
}

// A look for a time among what is in memory starts again when that leaves
// memory under it, and finds what the files have then.
func TestFindTimeWhileTheTailLeaves(t *testing.T) {
	r := open(t, vfs.NewMem(), func(o *Options) { o.HotBytes, o.SegmentBytes, o.FlushBytes = 1, 1<<20, 1<<20 })
	defer r.close()
	r.create(0)
	p := r.engine.Get(pid(0))
	for range 10 {
		if _, err := r.produce(0, "a", "b"); err != nil { // at 1000 and 1001
			t.Fatal(err)
		}
	}
	if at, again, err := p.findTimeTail(2, 1001, 20); at != 3 || again || err != nil {
		t.Fatalf("in memory: %d, %t, %v, want offset 3", at, again, err)
	}
	if at, again, err := p.findTimeTail(2, 5000, 20); at != 20 || again || err != nil {
		t.Fatalf("a time after all: %d, %t, %v, want the high watermark 20", at, again, err)
	}
	r.flush(0)
	r.checkpoint()
	p.evict(1 << 30)
	if _, again, err := p.findTimeTail(2, 1001, 20); !again || err != nil {
		t.Fatalf("after the tail left: again %t, %v", again, err)
	}
	if at, err := p.FindTime(context.Background(), 1001); at != 1 || err != nil {
		t.Fatalf("in the file: %d, %v, want offset 1", at, err)
	}
}

// The memory budget counts what tails hold, not what stands in it: a tail with
// a little more than its first chunk counts its second one whole, and gives it
// back as a whole (I12).
func TestMemoryCountsWholeChunks(t *testing.T) {
	r := open(t, vfs.NewMem(), func(o *Options) { o.HotBytes, o.FlushBytes = 1, 1<<20 })
	defer r.close()
	const parts = 8
	for n := range uint32(parts) {
		r.create(n)
		for range 3 { // 4.5 KB
			if _, err := r.produce(n, strings.Repeat("x", 1500)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := r.engine.memory.Load(); got != parts*slab.ChunkBytes {
		t.Fatalf("%d tails of 4.5 KB count %d bytes, want a chunk of %d each", parts, got, slab.ChunkBytes)
	}
	large := encode(t, strings.Repeat("y", 3*SmallBatch))
	if _, err := r.produce(0, strings.Repeat("y", 3*SmallBatch)); err != nil {
		t.Fatal(err)
	}
	if got, want := r.engine.memory.Load(), int64(parts*slab.ChunkBytes+len(large.Data)); got != want {
		t.Fatalf("with a large batch %d bytes, want %d", got, want)
	}
	for n := range uint32(parts) {
		r.flush(n)
	}
	r.checkpoint()
	r.engine.evict(r.engine.Get(pid(0)))
	if got := r.engine.memory.Load(); got != 0 {
		t.Fatalf("%d bytes are counted when every tail is empty", got)
	}
}
