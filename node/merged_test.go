package node_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/bucket"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/merge"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// mergedAt is how many segments a node of merging merges at least.
const mergedAt = 4

// merging opens a node that merges and deletes all the time, with tiny segments.
func merging(t testing.TB, dir string, store objstore.Store, reg *prometheus.Registry) *node.Node {
	t.Helper()
	o := options(dir, store)
	o.Registerer = reg
	o.GarbageGrace, o.GarbageInterval, o.PITRWindow, o.OrphanInterval = 30*time.Millisecond, 5*time.Millisecond, 30*time.Millisecond, 100*time.Millisecond
	o.MergeInterval, o.MergeMinSegments = 5*time.Millisecond, mergedAt
	o.SealAge, o.StateInterval, o.CacheBytes, o.RetentionInterval = 20*time.Millisecond, 50*time.Millisecond, 1<<20, 5*time.Millisecond
	n, err := node.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// answer is a record that was answered, at its offset.
type answer struct {
	offset int64
	value  string
}

// whole fails unless the log begins with exactly the records that were answered,
// at their offsets.
func whole(t testing.TB, n *node.Node, answered []answer) {
	t.Helper()
	got, offsets := logOf(t, n, "t", 0)
	if len(got) < len(answered) {
		t.Errorf("%d records were read, %d were answered", len(got), len(answered))
		return
	}
	for i := range answered {
		if a := answered[i]; offsets[i] != a.offset || got[i] != "k="+a.value {
			t.Errorf("place %d: offset %d, %.20q; want %d, %.20q", i, offsets[i], got[i], a.offset, a.value)
			return
		}
	}
}

// A node that merges and deletes all the time is read by replays from the start
// meanwhile, is stopped and started, evicts its files and loses its disk: each
// replay gives each offset once, each restore every record that was answered
// archived, and the bucket verifies, beside the node too: in the end with
// nothing left to merge and without an object that no chain names (I3, I6, I7, I16, T5, T8).
func TestMergedArchiveReplaysAndRestores(t *testing.T) {
	store := mem.New("merged", nil)
	ctx := context.Background()
	root := t.TempDir()
	dir := filepath.Join(root, "d0")
	reg, merges := prometheus.NewRegistry(), 0.0
	n := merging(t, dir, store, reg)
	one, least := uint32(1), int64(1) // byte of archived segments stays on the disk
	spec := broker.TopicSpec{Name: "t", Partitions: &one, LocalRetentionBytes: &least}
	info, err := n.CreateTopic(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	var answered []answer
	produce := func(value string, ack broker.Ack) {
		t.Helper()
		res, err := n.Produce(ctx, broker.ProduceRequest{Topic: "t", Ack: ack, Records: []broker.NewRecord{{Partition: 0, Key: []byte("k"), Value: []byte(value)}}})
		if err != nil {
			t.Fatal(err)
		}
		answered = append(answered, answer{res.Placements[0].FirstOffset, value})
	}
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	r := rand.New(rand.NewPCG(3, 3))
	for round := range rounds {
		stop := make(chan struct{})
		var readers sync.WaitGroup
		known := slices.Clone(answered)
		for range 2 {
			readers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						whole(t, n, known)
					}
				}
			})
		}
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					verified(t, store, "beside the node", func(w bucket.What) bool { return w.Note() })
				}
			}
		})
		// Until this node has merged something, too: segments are sealed by age.
		deadline := time.Now().Add(60 * time.Second)
		for i := 0; i < 150 || merged(t, reg) == 0; i++ {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: nothing was merged of %d records", round, len(answered))
			}
			value := fmt.Sprintf("v%d-%s", len(answered), strings.Repeat("x", r.IntN(900)))
			ack := broker.AckAccepted
			if i%10 == 9 {
				ack = broker.AckArchived // takes its time: the next one is in another segment
			}
			produce(value, ack)
		}
		close(stop)
		readers.Wait()
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if round%2 == 1 { // the disk is gone
			dir = filepath.Join(root, fmt.Sprintf("d%d", round+1))
			take(t, dir, store)
		}
		merges += merged(t, reg)
		reg = prometheus.NewRegistry()
		n = merging(t, dir, store, reg)
		whole(t, n, answered)
	}
	defer func() { _ = n.Close() }()
	// Something has to be sealed for the node to look at the chain again.
	produce("last", broker.AckArchived)
	pid := broker.PartitionID{Topic: info.ID}
	// How many stay depends on their sizes, and on the restores: a merge does not
	// reach over the gap between two generations.
	rules := merge.Rules{MinSegments: mergedAt, TargetBytes: merge.DefaultTargetBytes}
	until(t, "all is archived, what can be merged is merged, and the inputs are gone", func() bool {
		chain, err := manifest.Load(ctx, store, pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		objects := keysBelow(t, store, manifest.PartitionPrefix(pid)+"s/")
		_, _, left := merge.Choose(chain.Unpaged(), chain.Start(), rules, func(*manifest.Segment) bool { return false })
		return chain.End() > answered[len(answered)-1].offset && !left && len(objects) == chain.Len()
	})
	verified(t, store, "in the end", func(w bucket.What) bool { return w.Note() && w != bucket.Orphan })
	whole(t, n, answered)
	if merges += merged(t, reg); merges == 0 {
		t.Error("nothing was merged")
	}
	t.Logf("%v merges of %d records", merges, len(answered))
}

// verified fails when a deep look at an archive has findings that are not fine.
func verified(t testing.TB, store objstore.Store, when string, fine func(bucket.What) bool) {
	t.Helper()
	d := bucket.Decoders{Needs: func(_ manifest.Key, stored []byte) (from, upTo uint64, err error) {
		s, err := archive.DecodeState(stored)
		if err != nil {
			return 0, 0, err
		}
		return s.ReplayFrom, s.LSN, nil
	}}
	_, err := bucket.Verify(context.Background(), store, bucket.Options{Deep: true, Decoders: d}, func(f bucket.Finding) {
		if !fine(f.What) {
			t.Errorf("%s: %s", when, f)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// merged is how many merges a node has made.
func merged(t testing.TB, reg *prometheus.Registry) float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "tidemark_merge_outputs_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("merges are not counted")
	return 0
}
