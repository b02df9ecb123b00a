package node

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// badBucket is a bucket that misbehaves as a test says, behind everything that
// a node puts around its store. What it really holds is in below.
type badBucket struct {
	below *mem.Store
	*fault.Store
	count *count.Store   // attempts
	stack objstore.Store // what the node gets
}

// Times of a bad bucket's stack: short, so that many faults fit into a test.
const (
	badAttempt = 150 * time.Millisecond // deadline of one attempt
	badPause   = 20 * time.Millisecond  // longest between two
	hotMost    = 2 * time.Second        // for anything that must not depend on the bucket
	startMost  = 10 * time.Second       // for a start, far below what a call that hangs would take
)

func newBadBucket(below *mem.Store) *badBucket {
	b := &badBucket{below: below, Store: fault.New(below, fault.Options{Seed: 1})}
	b.count = count.New(b.Store)
	b.stack = objstore.Stack(b.count, objstore.StackOptions{
		Retry:     objstore.RetryPolicy{Attempts: 3, Base: badPause / 10, Most: badPause},
		Deadlines: objstore.Deadlines{Attempt: badAttempt, Idle: badAttempt},
	})
	return b
}

// keys lists what is really there.
func (b *badBucket) keys(t testing.TB, prefix string) (out []string) {
	t.Helper()
	for after, more := "", true; more; {
		page, err := b.below.List(context.Background(), prefix, after, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Objects {
			out, after = append(out, o.Key), o.Key
		}
		more = page.More
	}
	return out
}

// sums returns the hash of everything that is really there.
func (b *badBucket) sums(t testing.TB) map[string][32]byte {
	t.Helper()
	out := map[string][32]byte{}
	for _, key := range b.keys(t, "") {
		if strings.HasPrefix(key, "doctor/") {
			continue // a look at the store's clock, which takes away what it put
		}
		data, _, err := objstore.ReadAll(context.Background(), b.below, key, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		out[key] = sha256.Sum256(data)
	}
	return out
}

// requests returns the attempts so far.
func (b *badBucket) requests() (n int) {
	for _, k := range b.count.Calls() {
		n += k
	}
	return n
}

// faultRig is a node on a bad bucket, with a topic that it works on.
type faultRig struct {
	*memNode
	bucket  *badBucket
	sums    map[string][32]byte
	made    int                // values, which are numbers
	left    int                // produced and not consumed yet
	answers []archivedSnapshot // of ack=archived while a fault was on
	spoils  bool               // a fault kept other bytes than were put
}

// archivedSnapshot is the bucket as it was when a record was answered as archived.
type archivedSnapshot struct {
	when  string
	topic string
	value string
	at    int64
	store *mem.Store

	spoiled bool // a fault kept other bytes than were put
}

// refused says whether a restore refuses the bucket and names an object of the
// shipped log that the store spoiled. An answer vouches for the bytes of the
// newest object, which was read back, and that those before it are there: to
// keep other bytes than it acknowledged, under a sum that it was given, is what
// no store that is tested here does. It is told then, and nothing is skipped (I4).
func (a *archivedSnapshot) refused(t *testing.T) bool {
	t.Helper()
	if !a.spoiled {
		return false
	}
	_, err := restore.Look(context.Background(), restore.Options{
		Store: a.store, NodeID: "node-1", RaftAddr: "127.0.0.1:0", Now: daysLater, Dir: filepath.Join(t.TempDir(), "none"),
	})
	return errcode.Is(err, errcode.Corrupt) && strings.Contains(err.Error(), "shipped WAL wal/")
}

func newFaultRig(t *testing.T, change func(*Options)) *faultRig {
	t.Helper()
	r := &faultRig{bucket: newBadBucket(mem.New("bad", nil)), sums: map[string][32]byte{}}
	r.memNode = newMemNode(t, func(o *Options) {
		o.Archive = r.bucket.stack
		o.WALInterval, o.StateInterval = 20*time.Millisecond, 50*time.Millisecond
		if change != nil {
			change(o)
		}
	})
	createTopic(t, r.Node, "t", 1)
	r.hot()
	return r
}

// hot produces, consumes and acks, none of which may notice what the bucket does.
func (r *faultRig) hot() {
	r.t.Helper()
	const n = 5
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 10*hotMost)
	defer cancel()
	for range n {
		r.made++
		_, err := r.Produce(ctx, broker.ProduceRequest{Topic: "t", Records: numbered(r.made, 1), Ack: broker.AckCommitted, Wait: 10 * hotMost})
		if err != nil {
			r.t.Fatalf("produce: %v", err)
		}
	}
	for r.left += n; r.left > 0; {
		msgs, err := r.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 100, Wait: hotMost})
		if err != nil || len(msgs) == 0 {
			r.t.Fatalf("consume: %d of %d, %v", len(msgs), r.left, err)
		}
		r.settle("t", broker.SettleAck, msgs...)
		r.left -= len(msgs)
	}
	if took := time.Since(began); took > hotMost {
		r.t.Errorf("hot produce and consume took %v", took)
	}
}

// archived asks for an archived answer, and keeps the bucket as it is then.
func (r *faultRig) archived(when, topic string, wait time.Duration) bool {
	r.t.Helper()
	r.made++
	got, err := r.Produce(context.Background(), broker.ProduceRequest{Topic: topic, Records: numbered(r.made, 1), Ack: broker.AckArchived, Wait: wait})
	if topic == "t" {
		r.left++
	}
	switch {
	case err == nil:
		r.answers = append(r.answers, archivedSnapshot{when, topic, fmt.Sprint(r.made), got.Placements[0].FirstOffset, r.bucket.below.Clone(), r.spoils})
	case !errcode.Is(err, errcode.NotConfirmed) && !errcode.Is(err, errcode.ArchiveUnavailable):
		r.t.Fatalf("%s: ack=archived: %v", when, err)
	}
	return err == nil
}

// seal seals what there is, so that it is uploaded.
func (r *faultRig) seal() {
	r.t.Helper()
	for _, p := range r.engine.All() {
		if err := r.engine.Seal(p); err != nil {
			r.t.Fatal(err)
		}
	}
}

// healthy says whether the archive holds everything and nobody complains.
func (r *faultRig) healthy() (bool, string) {
	ready, st := r.Readiness(), r.shipper.Status()
	if !ready.Ready || len(ready.Degraded) > 0 {
		return false, strings.Join(ready.Degraded, "; ")
	}
	if n := len(r.uploader.Statuses()); n > 0 {
		return false, fmt.Sprintf("%d partitions have segments to upload", n)
	}
	return st.Shipped == st.Durable && st.RPO == 0 && st.LastError == "", fmt.Sprintf("%+v", st)
}

// heal waits until the node has made up for a fault, by itself.
func (r *faultRig) heal(what string) {
	r.t.Helper()
	now := ""
	for deadline := time.Now().Add(40 * time.Second); ; <-time.After(2 * time.Millisecond) {
		ok := false
		if ok, now = r.healthy(); ok {
			break
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not healthy again; last: %s", what, now)
		}
	}
	if !r.archived(what+", afterwards", "t", 20*time.Second) {
		r.t.Fatalf("%s: ack=archived does not work again", what)
	}
}

// unchanged fails when an object that was in the bucket is gone or another one,
// but for those that the test took away itself (I7, I8).
func (r *faultRig) unchanged(what string, taken ...string) {
	r.t.Helper()
	now := r.bucket.sums(r.t)
	for _, key := range taken {
		delete(r.sums, key)
	}
	for key, sum := range r.sums {
		if got, ok := now[key]; !ok || got != sum {
			r.t.Fatalf("%s: object %s changed (still there: %v)", what, key, ok)
		}
	}
	r.sums = now
}

// daysLater is the clock of a restore that does not watch an archive for signs of
// life: its newest object is too old.
func daysLater() time.Time { return time.Now().Add(48 * time.Hour) }

// restored opens a node that was restored from a bucket alone.
func restored(t testing.TB, store objstore.Store) *Node {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	_, err := restore.Run(context.Background(), restore.Options{
		Store: store, Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Force: true,
		// The store's clock is not looked at: the other node is known to be there.
		Now: daysLater,
	})
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	return openNode(t, testOptions(dir, store))
}

// truthful restores from the bucket as it was at each archived answer, and looks
// for the record (I16).
func (r *faultRig) truthful() {
	r.t.Helper()
	for _, a := range r.answers {
		if a.refused(r.t) {
			continue
		}
		n := restored(r.t, a.store)
		if _, err := n.TopicFor(a.topic); err != nil {
			r.t.Fatalf("%s: a record of topic %s was answered as archived, and the bucket of that moment has no such topic: %v", a.when, a.topic, err)
		}
		log := readAll(r.t, n, a.topic, 0)
		want, found := fmt.Sprintf("%d =%s", a.at, a.value), false
		for _, line := range log {
			found = found || line == want
		}
		if !found {
			r.t.Errorf("%s: record %q was answered as archived, and the bucket of that moment does not give it back (%d records)", a.when, want, len(log))
		}
		closeNode(r.t, n)
	}
	r.answers = nil
}

// coldAll reads the whole log once more, or returns the first error.
func coldAll(n *Node, topic string) (out []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	reader, err := n.ReadLog(ctx, broker.ReadRequest{Topic: topic, Partition: 0, From: -1, To: -1})
	if err != nil {
		return nil, err
	}
	for {
		recs, err := reader.Next(ctx)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		for _, rec := range recs {
			out = append(out, fmt.Sprintf("%d =%s", rec.Offset, rec.Value))
		}
	}
}
