package restore

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// stage is what a survey's chains and shipped log come to: the segment files of
// the tails, the local state and the groups. It is made before the claim, so that
// whatever does not read, does not fit together or does not get onto the disk is
// found before the old cluster is ended. Nothing in it depends on the claim: it is
// a function of the survey alone, whose objects never change, and it is what the
// claimed archive comes to as long as a second look sees the same (see same).
//
// A stage of a dry run has groups and counts, and writes nothing.
type stage struct {
	db       *state.DB         // nil in a dry run
	engine   *partition.Engine // nil in a dry run
	queue    *queue.Engine
	parts    map[broker.PartitionID]*restored
	replayed Replayed
}

// newStage begins a stage of s in dir, which has nothing of that kind; dir "": of
// a dry run. The caller closes it, also after an error.
func newStage(o *Options, dir string, inc raftmeta.Incarnation, s *survey) (*stage, error) {
	st := &stage{queue: queue.New(queue.Options{Now: o.Now, Logger: o.Logger}), parts: make(map[broker.PartitionID]*restored, len(s.chains))}
	if dir != "" {
		var err error
		if st.db, err = state.Open(o.FS, o.FS.PathJoin(dir, "state"), o.Logger); err != nil {
			return st, err
		}
		st.engine, err = partition.New(partition.Options{
			FS: o.FS, Dir: o.FS.PathJoin(dir, "topics"), State: st.db, Incarnation: uint64(inc),
			Groups: groupStates{st.queue}, Now: o.Now, Logger: o.Logger,
		})
		if err != nil {
			return st, err
		}
	}
	doubts := s.doubts()
	var g errgroup.Group // a directory is two syncs
	g.SetLimit(parallel)
	for id, c := range s.chains {
		p := s.restored(id)
		st.parts[id] = p
		a, _ := s.meta.Assignment(id)
		if err := st.queue.Attach(id, queue.PartitionConfig{Generation: a.Generation, Replay: true}, nil); err != nil {
			return st, errors.Join(err, g.Wait())
		}
		if st.engine == nil {
			continue
		}
		g.Go(func() (err error) {
			p.Partition, err = st.engine.Import(id, state.Partition{
				Oldest: c.Start(), Flushed: c.End(), ArchivedEnd: c.End(), ChainSeq: c.Seq(), Gaps: gapsOf(c), Doubts: doubts[id],
			})
			return err
		})
	}
	return st, g.Wait()
}

// replay puts the shipped WAL on top of the chains: every object that a restore
// needs is read, every checksum, link and offset held against the others.
func (st *stage) replay(ctx context.Context, o *Options, s *survey) error {
	rp := &replay{store: o.Store, queue: st.queue, parts: st.parts, report: &st.replayed}
	what := "shipped WAL, checked"
	if st.engine != nil {
		what = "shipped WAL"
		rp.to = newImporters(st.parts)
		defer rp.to.stop()
	}
	total := s.walBytes()
	return rp.all(ctx, s, func(done int64) { o.Progress(what, done, total) })
}

// close gives back what the stage holds. The files of one whose engine has no log
// are of no use behind it.
func (st *stage) close() error {
	var errs []error
	if st.engine != nil {
		errs = append(errs, st.engine.Close())
	}
	st.queue.Close()
	if st.db != nil {
		errs = append(errs, st.db.Close())
	}
	return errors.Join(errs...)
}

// restored is a partition as its chain and the metadata describe it, before
// anything is replayed.
func (s *survey) restored(id broker.PartitionID) *restored {
	c := s.chains[id]
	a, _ := s.meta.Assignment(id)
	p := &restored{
		id: id, next: c.End(),
		generation: max(a.Generation, c.Generation()), fences: slices.Clone(c.Fences()), torn: c.Torn(),
	}
	p.learn(manifest.Fence{Generation: a.Generation, PreviousEnd: a.PreviousEnd, Start: a.Start})
	return p
}

// doubts is what the newest state object that has a partition says of append
// times that cannot be right.
func (s *survey) doubts() map[broker.PartitionID][][3]int64 {
	out := make(map[broker.PartitionID][][3]int64, len(s.chains))
	for _, i := range s.incarnations {
		if i.state == nil {
			continue
		}
		for k := range i.state.Partitions {
			p := &i.state.Partitions[k]
			out[p.ID()] = p.Doubts
		}
	}
	return out
}

// walBytes is the size of the shipped WAL that a restore reads.
func (s *survey) walBytes() (n int64) {
	for _, i := range s.incarnations {
		for k := i.toReplay(); k < len(i.wal); k++ {
			n += i.bytes[k]
		}
	}
	return n
}

// same says whether a replay of s comes to what one of before came to: it rests on
// the export, the tombstones, the chains, and each writer's state and log, in
// their order. The objects behind equal keys are the same: none is ever changed.
func (s *survey) same(before *survey) bool {
	if s.exportKey != before.exportKey || len(s.deleted) != len(before.deleted) || len(s.chains) != len(before.chains) {
		return false
	}
	for id := range s.deleted {
		if !before.deleted[id] {
			return false
		}
	}
	for id, c := range s.chains {
		if b := before.chains[id]; b == nil || !sameChain(c, b) {
			return false
		}
	}
	return slices.EqualFunc(s.withLog(), before.withLog(), func(a, b *incarnation) bool {
		return a.node == b.node && a.id == b.id && a.open == b.open && a.stateKey == b.stateKey &&
			slices.Equal(a.damaged, b.damaged) && slices.Equal(a.wal, b.wal) && slices.Equal(a.bytes, b.bytes)
	})
}

// withLog are the incarnations that have anything to replay. One that was fenced
// since, or opened and shipped nothing, changes nothing.
func (s *survey) withLog() (out []*incarnation) {
	for _, i := range s.incarnations {
		if len(i.wal) > 0 || len(i.states) > 0 {
			out = append(out, i)
		}
	}
	return out
}

func sameChain(a, b *manifest.Chain) bool {
	return a.Seq() == b.Seq() && a.Start() == b.Start() && a.End() == b.End() && a.Writer() == b.Writer() && a.Totals() == b.Totals() &&
		slices.Equal(a.Gaps(), b.Gaps()) && slices.Equal(a.Fences(), b.Fences()) && slices.Equal(a.Torn(), b.Torn())
}

func gapsOf(c *manifest.Chain) (out [][2]int64) {
	for _, g := range c.Gaps() {
		out = append(out, [2]int64{g.From, g.Next})
	}
	return out
}

func (st *stage) groups(id broker.PartitionID) [][]byte {
	states, _ := st.queue.Snapshot(id)
	out := make([][]byte, 0, len(states))
	for i := range states {
		out = append(out, states[i].Append(nil))
	}
	return out
}

// groupStates gives the engine's checkpoint the groups.
type groupStates struct{ q *queue.Engine }

// Snapshot implements partition.Groups.
func (g groupStates) Snapshot(p broker.PartitionID) (map[string][]byte, uint64) {
	states, _ := g.q.Snapshot(p)
	out := make(map[string][]byte, len(states))
	for i := range states {
		out[states[i].Group] = states[i].Append(nil)
	}
	return out, 0 // the new log has no group entries yet
}
