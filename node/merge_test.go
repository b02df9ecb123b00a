package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// Readers that stand anywhere in the archive while the segments around them are
// merged go on behind the offset where they were, whatever they had open, and so do
// lookups by time: nothing is passed over and nothing comes twice. Inputs go from
// the bucket at once here, long before a reader would be through with them.
func TestReadersStandWhileSegmentsMerge(t *testing.T) {
	store := mem.New("test", nil)
	o := testOptions(t.TempDir(), store)
	o.MergeMinSegments = 4
	n := openNode(t, o)
	defer closeNode(t, n)
	ctx := context.Background()
	id := broker.PartitionID{Topic: createTopic(t, n, "t", 1).ID}
	p := n.engine.Get(id)
	end := int64(0)
	archive := func(segments int) {
		for range segments {
			for range 6 {
				produce(t, n, "t", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: fmt.Appendf(nil, "%d %s", end, strings.Repeat("0123456789", 300))})
				end++
			}
			if err := n.engine.Seal(p); err != nil {
				t.Fatal(err)
			}
		}
		within(t, "everything is archived and confirmed", func() bool {
			at, _ := p.ArchivedEnd()
			return at == end && p.Copy(0, end).Settled
		})
	}
	r := rand.New(rand.NewPCG(1, 1))
	// read takes one run at from, as a reader that comes again and again.
	read := func(from int64, maxBytes int) int64 {
		t.Helper()
		run, release, err := n.reader.Read(ctx, id, from, maxBytes, end)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		for i, b := range run {
			h, err := segment.ParseHeader(b)
			if err != nil || i == 0 && h.NextOffset() <= from {
				t.Fatalf("a reader at %d is given offsets %d to %d again: %v", from, h.BaseOffset, h.NextOffset(), err)
			}
			recs, err := segment.DecodeBatch(nil, b, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range recs {
				if rec.Offset < from {
					continue
				}
				if rec.Offset != from || !strings.HasPrefix(string(rec.Value), fmt.Sprintf("%d ", from)) {
					t.Fatalf("offset %d, %.10q; want %d", rec.Offset, rec.Value, from)
				}
				from++
			}
		}
		return from
	}
	rounds := 6
	if testing.Short() {
		rounds = 3
	}
	readers := make([]int64, 9)
	chain := func(id broker.PartitionID) *manifest.Chain {
		c, err := n.chains.load(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for round := range rounds {
		archive(5)
		for i := range readers {
			for range r.IntN(12) {
				if readers[i] < end {
					readers[i] = read(readers[i], []int{1, 7 << 10, 1 << 20}[i%3])
				}
			}
		}
		var gone []manifest.Segment
		before, err := chain(id).Segments(ctx, 0, end)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.merger.Turn(ctx); err != nil {
			t.Fatal(err)
		}
		after, err := chain(id).Segments(ctx, 0, end)
		if err != nil || len(after) >= len(before) {
			t.Fatalf("round %d: %d segments were merged to %d: %v", round, len(before), len(after), err)
		}
		named := map[string]bool{}
		for i := range after {
			named[after[i].Key()] = true
		}
		for i := range before {
			if !named[before[i].Key()] {
				gone = append(gone, before[i])
			}
		}
		if round%2 == 0 {
			for i := range gone {
				if err := store.Delete(ctx, []string{gone[i].Key()}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range readers {
			if i%3 != 2 || round == rounds-1 {
				for readers[i] < end {
					readers[i] = read(readers[i], []int{1, 7 << 10, 1 << 20}[i%3])
				}
				if i%2 == 0 {
					readers[i] = r.Int64N(end)
				}
			}
		}
	}
	// Local copies go on the strength of what was compared before the merges, and
	// all is read from the merged objects.
	if freed, err := n.engine.Evict(p, end); err != nil || freed.Segments != 5*rounds {
		t.Fatalf("%d of %d local segments were evicted: %v", freed.Segments, 5*rounds, err)
	}
	for from := int64(0); from < end; {
		from = read(from, 1<<20)
	}
}

// A local copy that the archive has not confirmed keeps the objects around it from
// being merged, because after a restart it is compared with the one that the chain
// names; one whose range a merged object covers all the same is never evicted (I6).
func TestUnconfirmedCopiesAreNotMergedOver(t *testing.T) {
	store := mem.New("test", nil)
	o := testOptions(t.TempDir(), store)
	o.MergeMinSegments = 4
	n := openNode(t, o)
	ctx := context.Background()
	id := broker.PartitionID{Topic: createTopic(t, n, "t", 1).ID}
	p := n.engine.Get(id)
	for i := range 30 {
		produce(t, n, "t", broker.AckAccepted, broker.NewRecord{Partition: 0, Value: fmt.Appendf(nil, "%d", i)})
		if i%5 == 4 {
			if err := n.engine.Seal(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	within(t, "everything is archived and confirmed", func() bool { return p.Copy(0, 30).Settled })
	if c := p.Copy(5, 10); c.Path == "" || !c.Settled {
		t.Fatalf("%+v", c)
	}
	if c := p.Copy(5, 15); c.Path != "" {
		t.Fatalf("one file of two segments: %+v", c)
	}
	unconfirm := func() {
		t.Helper()
		closeNode(t, n)
		db, err := state.Open(vfs.Default, filepath.Join(o.Dir, "state"), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		entries, err := db.Load()
		if err != nil {
			t.Fatal(err)
		}
		b := db.NewBatch()
		for _, e := range entries {
			for _, s := range e.Sealed {
				if s.Base == 15 {
					s.Confirmed = false
					b.PutSegment(e.ID, s)
				}
			}
		}
		if err := errors.Join(b.Commit(), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	segments := func() int {
		t.Helper()
		chain, err := n.chains.load(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		segs, err := chain.Segments(ctx, 0, 30)
		if err != nil {
			t.Fatal(err)
		}
		return len(segs)
	}
	// The news is lost in a crash before the merge: the file is compared with its
	// own object, which is there, and then the merge comes.
	unconfirm()
	n = openNode(t, o)
	p = n.engine.Get(id)
	within(t, "the copy is compared again and its news is durable", func() bool { return p.Copy(0, 30).Settled })
	within(t, "the segments are merged", func() bool {
		if err := n.merger.Turn(ctx); err != nil {
			t.Fatal(err)
		}
		return segments() == 1
	})
	// Lost in spite of it: the merged object says nothing about the file.
	unconfirm()
	n = openNode(t, o)
	defer closeNode(t, n)
	p = n.engine.Get(id)
	within(t, "the file is looked at", func() bool { _, waits := n.uploader.Status(id); return !waits })
	if c := p.Copy(15, 20); c.Settled {
		t.Fatal("a file was confirmed by a merged object")
	}
	if freed, err := n.engine.Evict(p, 30); err != nil || freed.Segments != 5 {
		t.Fatalf("%d segments evicted, want all but the unconfirmed one: %v", freed.Segments, err)
	}
	if err := n.merger.Turn(ctx); err != nil || segments() != 1 {
		t.Fatalf("%d segments: %v", segments(), err)
	}
}
