package partition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// importRig is an engine that imports into partitions 0 to n-1.
func importRig(t *testing.T, n uint32) (*rig, []*Partition) {
	t.Helper()
	r := openWith(t, vfs.NewMem(), rigConfig{idle: true, change: func(o *Options) { o.SegmentBytes = 1 << 20 }})
	t.Cleanup(r.close)
	parts := make([]*Partition, n)
	for i := range parts {
		var err error
		if parts[i], err = r.engine.Import(pid(uint32(i)), state.Partition{}); err != nil {
			t.Fatal(err)
		}
	}
	return r, parts
}

// batchAt is a batch of one record at an offset, and what all says of it.
func batchAt(t *testing.T, p, offset, size int) (data []byte, says string) {
	t.Helper()
	value := fmt.Sprintf("%d/%d/%s", p, offset, strings.Repeat("x", size))
	b := encode(t, value).Data
	segment.Stamp(b, int64(offset), 1)
	return b, fmt.Sprintf("%d=%s", offset, value)
}

// What waits of an import is bounded over all partitions together, not only in
// each: 400 partitions whose small batches come in turns stay within what the
// Importer was given. Every record is there afterwards, in order.
func TestImportIsBoundedOverAllPartitions(t *testing.T) {
	const partitions, each, most = 400, 40, 1 << 20
	r, parts := importRig(t, partitions)
	im := NewImporter(most)
	want := make([][]string, partitions)
	top := int64(0)
	add := func(p, size int) {
		b, says := batchAt(t, p, len(want[p]), size)
		want[p] = append(want[p], says)
		if err := im.Batch(parts[p], 1, b); err != nil {
			t.Fatal(err)
		}
		top = max(top, r.engine.memory.Load())
	}
	for i := range each { // 16 MB in all
		for p := range parts {
			add(p, 800+7*((i+p)%60))
		}
	}
	// One chunk of a tail beyond the bound: the one that the last batch needed.
	if limit := int64(most + 64<<10); top > limit {
		t.Fatalf("%d partitions held %d bytes, %d at most were asked for", partitions, top, most)
	}
	if top < most/2 {
		t.Fatalf("they held %d bytes at most: nothing waits, each batch is written alone", top)
	}
	for p := range parts {
		if err := parts[p].EndImport(); err != nil {
			t.Fatal(err)
		}
		equal(t, r.all(uint32(p)), want[p])
	}
	if left := r.engine.memory.Load(); left != 0 {
		t.Fatalf("%d bytes are counted behind the end", left)
	}
}

// Above the bound, the partition whose records have waited the longest is written,
// and no more than that is needed: one that is filled right now goes on being filled.
func TestImportWritesFirstWhatWaitsLongest(t *testing.T) {
	_, parts := importRig(t, 3)
	im := NewImporter(160 << 10)
	next := [3]int{}
	add := func(p int) {
		b, _ := batchAt(t, p, next[p], 900)
		next[p]++
		if err := im.Batch(parts[p], 1, b); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []int{0, 1} {
		for range 50 {
			add(p)
		}
	}
	pending := func(p int) int64 { return parts[p].mu.tail.pending }
	for pending(0) > 0 {
		if add(2); next[2] > 1000 {
			t.Fatal("nothing of the first partition is written")
		}
	}
	if pending(1) == 0 || pending(2) == 0 {
		t.Fatalf("the first is written; of the others %d and %d bytes wait", pending(1), pending(2))
	}
	for pending(1) > 0 {
		if add(2); next[2] > 1000 {
			t.Fatal("nothing of the second partition is written")
		}
	}
	if pending(2) == 0 {
		t.Fatal("the one that is being filled was written too")
	}
}

// A partition that refuses service takes no import: what cannot be written is not
// dropped from memory as if it were (I1).
func TestImportIntoAPartitionThatRefuses(t *testing.T) {
	_, parts := importRig(t, 1)
	im := NewImporter(1 << 20)
	b, _ := batchAt(t, 0, 0, 100)
	if err := im.Batch(parts[0], 1, b); err != nil {
		t.Fatal(err)
	}
	parts[0].refuse(fmt.Errorf("a bug"))
	if err := parts[0].EndImport(); err == nil {
		t.Fatal("an import ended well whose partition was out of service")
	}
}
