package partition

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
)

// tally is a queue reduced to what the engine must keep: per partition the
// numbers that were settled, each journaled before it counts.
type tally struct {
	mu      sync.Mutex
	settled map[broker.PartitionID]map[uint64]bool
	lsn     map[broker.PartitionID]uint64
	after   func() // called once, behind the next Snapshot
}

func newTally() *tally {
	return &tally{settled: map[broker.PartitionID]map[uint64]bool{}, lsn: map[broker.PartitionID]uint64{}}
}

func (g *tally) of(p broker.PartitionID) map[uint64]bool {
	if g.settled[p] == nil {
		g.settled[p] = map[uint64]bool{}
	}
	return g.settled[p]
}

// settle journals n for p. As in package queue, entry and state change under
// one lock, which Snapshot takes too.
func (g *tally) settle(e *Engine, p broker.PartitionID, n uint64) (lsn uint64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	lsn, err = e.StageGroup(p, 1, "g", binary.BigEndian.AppendUint64(nil, n))
	if err == nil {
		g.of(p)[n] = true
		g.lsn[p] = max(g.lsn[p], lsn)
	}
	return lsn, err
}

// Snapshot implements Groups.
func (g *tally) Snapshot(p broker.PartitionID) (map[string][]byte, uint64) {
	if after := g.after; after != nil {
		g.after = nil
		defer after()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var b []byte
	for n := range g.of(p) {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return map[string][]byte{"g": b}, g.lsn[p]
}

func (g *tally) add(p broker.PartitionID, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		g.of(p)[binary.BigEndian.Uint64(b)] = true
	}
}

// config has a rig use g, which takes what the local state and the log have.
func (g *tally) config(change func(*Options)) rigConfig {
	return rigConfig{
		change: func(o *Options) {
			o.Groups = g
			if change != nil {
				change(o)
			}
		},
		loaded: func(entries []state.Entry) {
			for _, e := range entries {
				for _, b := range e.Groups {
					g.add(e.ID, b)
				}
			}
		},
		onGroup: func(f frame.Group, lsn uint64) error {
			g.add(f.Partition, f.Ops)
			g.lsn[f.Partition] = max(g.lsn[f.Partition], lsn)
			return nil
		},
	}
}

// has fails unless 0 to n-1 are settled in p.
func (g *tally) has(t tb, p broker.PartitionID, n uint64) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range n {
		if !g.of(p)[i] {
			t.Fatalf("partition %s: %d was settled and is not any more", p, i)
		}
	}
}

// What is staged behind the snapshot of its group, while the checkpoint still
// runs, is in no state: the log keeps it, and a restart has it.
func TestEntryBehindTheSnapshot(t *testing.T) {
	mem := vfs.NewCrashableMem()
	groups := newTally()
	r := openWith(t, mem, groups.config(nil))
	r.create(0, 1)
	if _, err := groups.settle(r.engine, pid(0), 0); err != nil {
		t.Fatal(err)
	}
	var lsn uint64
	groups.after = func() {
		var err error
		if lsn, err = groups.settle(r.engine, pid(0), 1); err != nil {
			t.Error(err)
		}
		if _, err := r.produce(1, "a"); err != nil {
			t.Error(err)
		}
	}
	r.checkpoint()
	if got := r.needed(); got > lsn {
		t.Fatalf("the log may forget LSN %d, an entry behind the snapshot has %d", got-1, lsn)
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	r.close()
	again := newTally()
	r = openWith(t, crashed, again.config(nil))
	again.has(t, pid(0), 2)
	equal(t, r.all(1), []string{"0=a"})
	r.close()
}
