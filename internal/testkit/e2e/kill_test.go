package e2e

import (
	"context"
	crand "crypto/rand"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/api/client"
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/testkit/history"
	"github.com/tidemark-mq/tidemark/internal/testkit/realnode"
)

// readyMax is how long a restart may take.
const readyMax = 2 * time.Second

// A broker is killed again and again at a random moment under produce, consume,
// acks and archive work, sometimes while it recovers. Nothing that was answered
// is lost, moved, doubled, reordered or changed, nothing that was acked comes
// back, topics are there or not as was answered, the archive verifies, and the
// broker serves again within two seconds (I1, I3, I4, I11).
func TestKillLoop(t *testing.T) {
	_, url, env := s3Archive(t)
	r := newRig(t, url, env, busyArchive)
	topics := &churn{rig: r}
	r.start(0)
	r.create(topic)
	r.create(bulkTopic)
	// On a machine that is busy with other things clients get little done
	// between two kills, and no answer from an archive that is behind: then more
	// of them, with longer lives and less in bulk, until there is something to judge.
	enough := func() bool {
		c := r.history.Counts()
		return c.Archived > 0 && c.Unknown > 0 && topics.done.Load() > 0
	}
	for round := 0; round < rounds(t) || round < 4*rounds(t) && !enough(); round++ {
		l := r.startLoad()
		calm := round / rounds(t)
		b := startBulk(r.node, bulkGap<<(3*calm))
		rng := rand.New(rand.NewPCG(r.rng.Uint64(), 4))
		l.wg.Go(func() { topics.run(l, rng) })
		r.waitRandom(200*time.Millisecond, 1500*time.Millisecond<<calm)
		r.kill()
		l.stop()
		b.stop()
		r.history.Cut(history.Cut{})
		r.fail("clients", r.history.Findings())
		for range r.rng.IntN(3) {
			r.killStart()
		}
		r.start(readyMax)
		r.check("after a kill")
		topics.check()
		t.Logf("round %d: %d requests stored, %d of them archived, %d records acked, %d MiB beside them; served again after %s",
			round, l.stored.Load(), l.archived.Load(), l.acked.Load(), b.bytes.Load()>>20, r.node.ReadyAfter.Round(time.Millisecond))
		if l.stored.Load() == 0 || l.acked.Load() == 0 {
			t.Errorf("round %d: the load did nothing: %v", round, l.lastError.Load())
		}
	}
	r.drain()
	r.restartClean()
	topics.check()
	r.verifyBucket()
	c := r.history.Counts()
	t.Logf("%+v, and %d changes of topics", c, topics.done.Load())
	if !enough() {
		t.Errorf("the clients saw too little: %+v", c)
	}
}

// waitRandom lets a load run for a random while.
func (r *rig) waitRandom(least, most time.Duration) {
	select {
	case <-time.After(least + time.Duration(r.rng.Int64N(int64(most-least)))):
	case <-r.node.Done():
		r.t.Fatalf("the broker ended by itself with %d\n%s", r.node.ExitCode(), r.node.Stderr())
	}
}

// killStart starts the broker and kills it while it recovers, or just after.
func (r *rig) killStart() {
	r.t.Helper()
	p, err := realnode.Launch(r.options)
	if err != nil {
		r.t.Fatal(err)
	}
	defer p.Kill()
	select {
	case <-time.After(time.Duration(r.rng.Int64N(int64(150 * time.Millisecond)))):
	case <-p.Done():
		r.t.Fatalf("the broker ended by itself with %d\n%s", p.ExitCode(), p.Log())
	}
}

// drain consumes until nothing is open, and holds that against the log: what is
// there is delivered, also what is produced now.
func (r *rig) drain() {
	r.t.Helper()
	l := &load{rig: r, node: r.node}
	ctx := limited(r.t)
	l.ctx, l.cancel = context.WithCancel(ctx)
	defer l.stop()
	r.epoch++
	p := &producer{load: l, name: "drain-" + time.Now().Format("150405.000000"), rng: r.rng, acks: mixedAcks}
	for range 3 * partitions {
		p.one(p.next())
	}
	if l.stored.Load() != 3*partitions {
		r.t.Fatalf("records were refused: %v", *l.lastError.Load())
	}
	logs := r.check("before the drain")
	for open := r.history.Open(logs); len(open) > 0; open = r.history.Open(logs) {
		if err := l.take(100, nil); err != nil {
			r.t.Fatalf("consume with %d records open: %v", len(open), err)
		}
		if ctx.Err() != nil {
			some := []history.Place{}
			for place := range open {
				if some = append(some, place); len(some) == 10 {
					break
				}
			}
			r.t.Fatalf("%d records are in the log and not delivered, for example at %v", len(open), some)
		}
	}
	r.fail("drain", r.history.Findings())
}

// restartClean stops the broker in order and starts it again: the same records,
// and nothing to consume.
func (r *rig) restartClean() {
	r.t.Helper()
	if !r.node.Stop(stepMax) || r.node.ExitCode() != 0 {
		r.t.Fatalf("the broker ended with %d\n%s", r.node.ExitCode(), r.node.Stderr())
	}
	r.start(readyMax)
	logs := r.check("after a clean stop")
	got, err := r.node.Consume(limited(r.t), topic, client.ConsumeOptions{Max: 100, Wait: consumeWait})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range got {
		// Only one whose ack was never answered may still be open.
		r.history.Delivered(placeOf(m), identity(m.Key, m.Value), r.history.Now())
	}
	r.fail("after a clean stop", r.history.Findings())
	if open := r.history.Open(logs); len(open) > 0 {
		r.t.Fatalf("open again: %v", open)
	}
}

// bulk is a producer of large batches that only fill log and segments, so that
// files rotate while the rest is watched.
type bulk struct {
	cancel context.CancelFunc
	done   chan struct{}
	bytes  atomic.Int64
}

const (
	bulkTopic  = "bulk"
	bulkRecord = 512 << 10
	bulkGap    = 50 * time.Millisecond
)

func startBulk(n *realnode.Node, every time.Duration) *bulk {
	b := &bulk{done: make(chan struct{})}
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(b.done)
		gap := time.NewTicker(every)
		defer gap.Stop()
		value := make([]byte, bulkRecord)
		for ctx.Err() == nil {
			_, _ = crand.Read(value) // it never fails
			rec := broker.Record{Value: value}
			if got, err := n.ProduceBatch(ctx, bulkTopic, []broker.Record{rec, rec}, client.ProduceOptions{}); err == nil {
				b.bytes.Add(int64(got.Accepted) * bulkRecord)
			}
			select {
			case <-gap.C:
			case <-ctx.Done():
			}
		}
	}()
	return b
}

func (b *bulk) stop() {
	b.cancel()
	<-b.done
}
