package bench

import (
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/file"
)

const (
	sealRounds  = 17
	sealedBytes = 1 << 20 // more than one segment a second at hotWork's rate
	neverSealed = 1 << 30
)

// BenchmarkBesideSeal is what sealing, uploading and publishing segments adds
// to the 99th percentile of a durable produce at a fixed rate: the same work in
// turns on a node whose segments hold 1 MiB and on one that never seals. Both
// ship their log, to stores of the same kind. It reports the difference in milliseconds, and the segments
// that a round archived.
func BenchmarkBesideSeal(b *testing.B) {
	b.Run("file", func(b *testing.B) { besideSeal(b, fileStore(b), fileStore(b)) })
	b.Run("s3", func(b *testing.B) { besideSeal(b, s3Store(b), s3Store(b)) })
}

func fileStore(b *testing.B) objstore.Store {
	st, err := file.Open(filepath.Join(b.TempDir(), "bucket"), file.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return st
}

func besideSeal(b *testing.B, st, other objstore.Store) {
	quiet, _ := sealNode(b, other, neverSealed)
	sealing, reg := sealNode(b, st, sealedBytes)
	var alone, beside, more, sealed series
	for b.Loop() {
		for round := range rounds(sealRounds) {
			pa, _ := hotWork(b, quiet)
			before := counter(b, reg, "tidemark_archive_segments_total")
			pb, _ := hotWork(b, sealing)
			if round == 0 {
				continue // warms
			}
			alone.add(pa.Seconds() * 1e3)
			beside.add(pb.Seconds() * 1e3)
			more.add((pb - pa).Seconds() * 1e3)
			sealed.add(counter(b, reg, "tidemark_archive_segments_total") - before)
		}
	}
	alone.report(b, "quiet-p99-ms", false)
	beside.report(b, "sealing-p99-ms", false)
	more.report(b, "p99-more-ms", true)
	sealed.report(b, "segments", false)
}

// sealNode is a node with a topic "hot" and the given size of segments.
func sealNode(b *testing.B, st objstore.Store, segmentBytes int64) (*node.Node, *prometheus.Registry) {
	b.Helper()
	reg := prometheus.NewRegistry()
	n, err := node.Open(b.Context(), node.Options{
		Dir: filepath.Join(b.TempDir(), "data"), NodeID: "node-1", RaftAddr: "127.0.0.1:0", Archive: st,
		SegmentBytes: segmentBytes, DiskReserve: 1, Registerer: reg,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.Close(); err != nil {
			b.Error(err)
		}
	})
	one := uint32(1)
	if _, err := n.CreateTopic(b.Context(), broker.TopicSpec{Name: "hot", Partitions: &one}); err != nil {
		b.Fatal(err)
	}
	return n, reg
}
