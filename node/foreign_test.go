package node

import (
	"context"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A node is started with the archive of another cluster, which says whose it is only
// later. Until then nothing is put there, and above all no local segment counts as
// archived: with the right archive again it would be evicted, and nobody had it (I6).
func TestNothingGoesIntoAnUnknownArchive(t *testing.T) {
	store := mem.New("test", nil)
	other := openNode(t, testOptions(t.TempDir(), store))
	closeNode(t, other)
	before, err := store.List(t.Context(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	faulty := fault.New(store, fault.Options{Seed: 1})
	silent := faulty.Add(fault.Rule{Key: manifest.PrefixCluster + "*", Do: fault.Fail})
	o := testOptions(t.TempDir(), faulty)
	o.StartTimeout = time.Second
	n := openNode(t, o)
	createTopic(t, n, "t", 1)
	produce(t, n, "t", broker.AckCommitted, keyed("k", "v"))
	p := n.topics.Load().byName["t"].partitions[0]
	if err := n.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	within(t, "the archive is asked again and again", func() bool { return silent.Hits() > 6 })
	if local := p.Local(); local.Sealed != 1 || local.Pieces[0].Confirmed || local.ChainSeq > 0 {
		t.Errorf("%+v, want one segment that is not archived", local)
	}
	silent.Remove()
	within(t, "the node hears whose archive it is", func() bool { return n.Fenced() != nil })
	if err := n.Fenced(); !errcode.Is(err, errcode.Conflict) {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	after, err := store.List(context.Background(), "", "", 0)
	if err != nil || len(after.Objects) != len(before.Objects) {
		t.Errorf("%d objects, want the %d of the other cluster: %v", len(after.Objects), len(before.Objects), err)
	}
	if local := p.Local(); local.ChainSeq > 0 {
		t.Errorf("%+v, want nothing archived", local)
	}
}

// A node that stops before the archive has said whose it is does not wait for
// uploads: they are for the next start.
func TestStopBeforeTheArchiveAnswers(t *testing.T) {
	faulty := fault.New(mem.New("test", nil), fault.Options{Seed: 1})
	faulty.Down(errcode.Transient)
	n := openNode(t, testOptions(t.TempDir(), faulty))
	createTopic(t, n, "t", 1)
	produce(t, n, "t", broker.AckCommitted, keyed("k", "v"))
	if err := n.engine.Seal(n.topics.Load().byName["t"].partitions[0]); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > closeGrace/2 {
		t.Errorf("the stop took %s", took)
	}
}
