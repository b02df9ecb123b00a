package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
)

const scaleClients = 32 // that create and produce at a time

// scale is a share of the full size of a test: all of it with
// TIDEMARK_SCALE=full, else a tenth.
func scale(t *testing.T, full int) int {
	t.Helper()
	switch v := os.Getenv("TIDEMARK_SCALE"); v {
	case "":
		return full / 10
	case "full":
		return full
	default:
		t.Fatalf("TIDEMARK_SCALE=%q is not full", v)
		return 0
	}
}

// each calls do for 0 to n-1, from several goroutines.
func each(t *testing.T, n int, do func(ctx context.Context, i int) error) {
	t.Helper()
	g, ctx := errgroup.WithContext(limited(t))
	g.SetLimit(scaleClients)
	for i := range n {
		g.Go(func() error { return do(ctx, i) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// createMany creates n topics of a number of partitions.
func (r *rig) createMany(n int, partitions uint32) {
	r.t.Helper()
	keep := int64(0)
	each(r.t, n, func(ctx context.Context, i int) error {
		_, err := r.node.CreateTopic(ctx, broker.TopicSpec{Name: scaleTopic(i), Partitions: &partitions, RetentionMS: &keep})
		return err
	})
}

func scaleTopic(i int) string { return fmt.Sprintf("topic-%05d", i) }

// produceEach produces one record to every partition of n topics.
func (r *rig) produceEach(n int, partitions uint32, value string) {
	r.t.Helper()
	each(r.t, n*int(partitions), func(ctx context.Context, i int) error {
		p := uint32(i) % partitions
		_, err := r.node.Produce(ctx, scaleTopic(i/int(partitions)), broker.Record{Value: []byte(value)}, client.ProduceOptions{Partition: &p})
		return err
	})
}

// sealedFiles counts the segments under a directory that are not written to any more.
func sealedFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".seg") {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A node of 1,000 topics with three partitions each, every one of which has had
// a record, takes less than 300 MiB when it has nothing to do, before and after
// a restart (TIDEMARK_SCALE=full; else 100 topics in 100 MiB).
func TestIdleTopicsAreSmall(t *testing.T) {
	topics, most := scale(t, 1000), int64(300<<20)
	if topics < 1000 {
		most = 100 << 20
	}
	r := newRig(t, fileArchive(t), nil, nil)
	r.start(0)
	r.createMany(topics, partitions)
	r.produceEach(topics, partitions, "one record")
	small := func(when string) {
		t.Helper()
		// What the creating took is given back by and by.
		eventually(t, time.Minute, fmt.Sprintf("%s: below %d MiB resident", when, most>>20), func() (bool, string) {
			rss := residentBytes(t, r.node.PID())
			return rss < most, fmt.Sprintf("%d MiB", rss>>20)
		})
		t.Logf("%s: %d topics of %d partitions, %d MiB resident", when, topics, partitions, residentBytes(t, r.node.PID())>>20)
	}
	small("first run")
	if !r.node.Stop(time.Minute) {
		t.Fatal("the broker did not end")
	}
	r.start(0)
	small("after a restart")
}

// A node of 3,000 partitions that hold 10,000 sealed segments serves within
// five seconds of a kill -9 (TIDEMARK_SCALE=full; else a tenth within two).
func TestStartOfManySegments(t *testing.T) {
	const perTopic = 100
	topics, segments, most := scale(t, 30), scale(t, 10_000), 5*time.Second
	if segments < 10_000 {
		most = 2 * time.Second
	}
	r := newRig(t, fileArchive(t), nil, []string{"--seal-age", "100ms", "--seal-min-bytes", "1"})
	r.start(0)
	r.createMany(topics, perTopic)
	dir := r.options.DataDir
	for sealed, round := 0, 0; sealed < segments; round++ {
		r.produceEach(topics, perTopic, fmt.Sprintf("record of round %d", round))
		want := sealed + topics*perTopic
		eventually(t, 5*time.Minute, fmt.Sprintf("%d segments", want), func() (bool, string) {
			sealed = sealedFiles(t, dir)
			return sealed >= want, fmt.Sprint(sealed)
		})
	}
	for range 3 {
		r.kill()
		r.start(most)
		t.Logf("%d partitions, %d segments: served after %s", topics*perTopic, sealedFiles(t, dir), r.node.ReadyAfter)
		var first uint32
		log, err := r.node.ReadLog(limited(t), scaleTopic(topics-1), first, client.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if rec, err := log.Next(); err != nil || string(rec.Value) != "record of round 0" {
			t.Fatalf("first record %q: %v", rec.Value, err)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
