package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/wal"
)

// neverSeal is a size that no segment file reaches: what the log adds goes into
// the active file, and sealing is the node's.
const neverSeal = 1 << 40

// build is a rebuild in the folder repair.
type build struct {
	*inventory
	work string
	id   datadir.Identity // the new one

	meta   *raftmeta.Meta
	db     *state.DB
	engine *partition.Engine
	queue  *queue.Engine
	log    *wal.Log
	parts  map[broker.PartitionID]*partition.Partition
}

// rebuild builds everything and says so. Nothing outside the folder repair is
// changed.
func (v *inventory) rebuild(ctx context.Context, kept string) (_ *journal, err error) {
	fs := v.o.FS
	if err := v.loadTracks(); err != nil { // the plan has walked those there were
		return nil, err
	}
	b := &build{inventory: v, work: v.path(datadir.RepairDir), parts: map[broker.PartitionID]*partition.Partition{}}
	if err := fs.RemoveAll(b.work); err != nil { // what an interrupted one left
		return nil, errcode.Wrap(errcode.Storage, err, "empty %s", b.work)
	}
	for _, dir := range []string{b.work, b.in("state"), b.in(walDir), b.in(topicsDir)} {
		if err := segment.MakeDir(fs, v.o.Dir, dir); err != nil {
			return nil, err
		}
	}
	if b.id, err = datadir.New(v.id.NodeID, v.o.Rand); err != nil {
		return nil, err
	}
	b.id.Begun = true // it is used as a whole or not at all
	if err := datadir.Write(fs, b.work, b.id); err != nil {
		return nil, err
	}
	if err := errors.Join(b.fill(ctx), b.close()); err != nil {
		return nil, err
	}
	if err := b.finishState(); err != nil {
		return nil, err
	}
	j := &journal{Incarnation: b.id.Incarnation.String(), Kept: kept}
	for i := range v.src.survey.Files {
		j.OldLog = append(j.OldLog, v.src.survey.Files[i].Name)
	}
	return j, j.commit(v.o)
}

// in is a path in the folder repair.
func (b *build) in(name ...string) string {
	return b.o.FS.PathJoin(append([]string{b.work}, name...)...)
}

// fill writes what the directory will hold.
func (b *build) fill(ctx context.Context) (err error) {
	if b.meta, err = openMeta(ctx, b.o, b.inventory.id, b.work); err != nil {
		return err
	}
	if err := b.openEngine(); err != nil {
		return err
	}
	if err := b.importLog(ctx); err != nil {
		return err
	}
	if err := b.newGenerations(ctx); err != nil {
		return err
	}
	if err := b.serveGroups(); err != nil {
		return err
	}
	b.log, _, err = wal.Open(wal.Options{
		FS: b.o.FS, Dir: b.in(walDir), Incarnation: uint64(b.id.Incarnation), Now: b.o.Now, Logger: b.o.Logger, PoolFiles: -1,
	}, func(wal.Frame) error { return nil })
	if err != nil {
		return err
	}
	b.engine.Connect(b.log)
	if err := b.engine.StageBases(ctx, b.groupStates); err != nil {
		return err
	}
	return b.carry(ctx)
}

// openEngine opens partitions on copies of the files that will grow.
func (b *build) openEngine() (err error) {
	if b.db, err = state.Open(b.o.FS, b.in("state"), b.o.Logger); err != nil {
		return err
	}
	b.queue = queue.New(queue.Options{Now: b.o.Now, Logger: b.o.Logger})
	b.engine, err = partition.New(partition.Options{
		FS: b.o.FS, Dir: b.in(topicsDir), State: b.db, Incarnation: uint64(b.id.Incarnation), Groups: snapshots{b.queue},
		SegmentBytes: neverSeal, Now: b.o.Now, Logger: b.o.Logger,
	})
	if err != nil {
		return err
	}
	groups := map[broker.PartitionID][]queue.State{}
	var entries []state.Entry
	for i := range b.entries {
		e := b.entries[i]
		if b.tracks[e.ID] == nil {
			continue // its topic was deleted
		}
		for _, g := range e.Groups {
			s, err := queue.DecodeState(g)
			if err != nil {
				return errcode.Wrap(errcode.Corrupt, err, "group state of partition %s", e.ID)
			}
			groups[e.ID] = append(groups[e.ID], s)
		}
		// LSNs begin anew: those of the old log would be above them.
		e.Sealed, e.Groups, e.GroupLSN, e.Carried = nil, nil, 0, state.Carried{}
		if e.SkippedLSN > 0 {
			e.SkippedLSN = 1
		}
		if e.Active != nil {
			active := *e.Active
			active.FirstLSN = 1
			e.Active = &active
		}
		if err := b.copyFiles(b.tracks[e.ID]); err != nil {
			return err
		}
		entries = append(entries, e)
	}
	if err := b.engine.Load(entries); err != nil {
		return err
	}
	for id, t := range b.tracks {
		p := b.engine.Get(id)
		if p == nil {
			if p, err = b.engine.Import(id, t.state); err != nil {
				return err
			}
		}
		if err := p.Refused(); err != nil {
			return fmt.Errorf("%w: put the file back, or: %s", err, restoreHint)
		}
		if end := p.Base().End; end != t.next {
			return errcode.New(errcode.Internal, "partition %s ends at %d in its files and at %d by the look at them", id, end, t.next)
		}
		b.parts[id] = p
		if err := b.queue.Attach(id, queue.PartitionConfig{Generation: p.Generation(), Replay: true}, groups[id]); err != nil {
			return err
		}
	}
	return nil
}

// copyFiles copies the segment files of a partition that are not listed as
// sealed: what survives of the log is appended to the last one.
func (b *build) copyFiles(t *track) error {
	dir := b.in(topicsDir, t.id.Topic.String(), b.o.FS.PathBase(b.partitionDir(t.id)))
	if err := segment.MakeDir(b.o.FS, b.work, dir); err != nil {
		return err
	}
	for _, f := range t.files {
		if f.listed {
			continue
		}
		from := b.o.FS.PathJoin(b.partitionDir(t.id), f.name)
		if err := vfs.Copy(b.o.FS, from, b.o.FS.PathJoin(dir, f.name)); err != nil {
			return errcode.Wrap(errcode.Storage, err, "copy %s", from)
		}
	}
	return nil
}

// importLog takes what survives of the log into files and groups.
func (b *build) importLog(ctx context.Context) error {
	im := partition.NewImporter(partition.DefaultMemoryBudget)
	to := sink{batch: func(t *track, appendMS int64, data []byte) error { return im.Batch(b.parts[t.id], appendMS, data) }}
	if err := b.walk(ctx, to); err != nil {
		return err
	}
	for id, p := range b.parts {
		if err := p.EndImport(); err != nil {
			return errcode.Wrap(errcode.Storage, err, "write records of partition %s", id)
		}
	}
	for _, g := range b.groups {
		if err := b.queue.Apply(g.Partition, g.Name, g.Ops); err != nil {
			return errcode.Wrap(errcode.Corrupt, err, "group %s of partition %s at LSN %d", g.Name, g.Partition, g.lsn)
		}
	}
	return nil
}

// newGenerations begins a generation in every partition, above all that the old
// one may have given out, in the metadata and here. The node tells the chains
// when it first appends to them.
func (b *build) newGenerations(ctx context.Context) error {
	old := b.inventory.id
	if _, err := b.meta.FenceIncarnation(ctx, old.NodeID, old.Incarnation); err != nil {
		return err
	}
	if _, err := b.meta.RegisterIncarnation(ctx, b.id.Incarnation, nil); err != nil {
		return err
	}
	for id, p := range b.parts {
		a, ok := b.meta.Assignment(id)
		if !ok {
			return errcode.New(errcode.Corrupt, "partition %s is in the local state, and its topic is neither in the metadata nor deleted: %s", id, restoreHint)
		}
		t := b.tracks[id]
		end := max(t.end(), a.Start)
		if b.o.Store != nil {
			chain, err := manifest.Load(ctx, b.o.Store, id, t.state.ChainSeq)
			if err != nil {
				return errcode.Wrap(errcode.ArchiveUnavailable, err, "chain of partition %s", id)
			}
			end = max(end, chain.End())
		}
		next := raftmeta.Assignment{
			Owner: old.NodeID, OwnerIncarnation: b.id.Incarnation,
			Generation: max(a.Generation, p.Generation()) + 1, PreviousEnd: end, Start: end + manifest.UncleanSkip,
		}
		if _, err := b.meta.SetAssignment(ctx, id, raftmeta.Expect{Owner: a.Owner, Generation: a.Generation}, next); err != nil {
			return err
		}
		p.Rebase(next.Generation, next.PreviousEnd, next.Start, withGaps(p.Gaps(), append(t.lost, [2]int64{end, next.Start})))
	}
	return nil
}

// withGaps returns the gaps with more of them, ascending and merged.
func withGaps(gaps, more [][2]int64) (out [][2]int64) {
	all := slices.Concat(gaps, more)
	slices.SortFunc(all, func(a, b [2]int64) int { return int(min(max(a[0]-b[0], -1), 1)) })
	for _, g := range all {
		if n := len(out); n > 0 && g[0] <= out[n-1][1] {
			out[n-1][1] = max(out[n-1][1], g[1])
			continue
		}
		out = append(out, g)
	}
	return out
}

// serveGroups cuts positions off at the records that are there and settles the
// gaps.
func (b *build) serveGroups() error {
	for id, p := range b.parts {
		b.queue.Advance(id, b.tracks[id].next)
		b.queue.Trim(id, p.Oldest())
		for _, g := range p.Gaps() {
			b.queue.Gap(id, g[0], g[1])
		}
		if err := b.queue.Serve(id); err != nil {
			return err
		}
		b.queue.Advance(id, p.HighWatermark())
	}
	return nil
}

func (b *build) groupStates(id broker.PartitionID) [][]byte {
	states, _ := b.queue.Snapshot(id)
	out := make([][]byte, 0, len(states))
	for i := range states {
		out = append(out, states[i].Append(nil))
	}
	return out
}

// snapshots gives the engine's checkpoint the groups.
type snapshots struct{ q *queue.Engine }

// Snapshot implements partition.Groups.
func (s snapshots) Snapshot(p broker.PartitionID) (map[string][]byte, uint64) {
	states, _ := s.q.Snapshot(p)
	out := make(map[string][]byte, len(states))
	for i := range states {
		out[states[i].Group] = states[i].Append(nil)
	}
	return out, 0 // the new log has no group entries yet
}

// close makes durable what was filled in: the engine's Close flushes every tail
// and writes the checkpoint.
func (b *build) close() error {
	var errs []error
	if b.engine != nil {
		errs = append(errs, b.engine.Close())
		for _, p := range b.parts { // what is out of service is not in the checkpoint
			errs = append(errs, p.Refused())
		}
	}
	if b.log != nil {
		errs = append(errs, b.log.Close())
	}
	if b.queue != nil {
		b.queue.Close()
	}
	if b.db != nil {
		errs = append(errs, b.db.Close())
	}
	if b.meta != nil {
		errs = append(errs, b.meta.Close())
	}
	return errors.Join(errs...)
}

// finishState lists the sealed segments, which stay where they are. The new log
// has, in its carries, what is in them and not in the archive: from its first
// frame on, as far as anybody is concerned.
func (b *build) finishState() error {
	db, err := state.Open(b.o.FS, b.in("state"), b.o.Logger)
	if err != nil {
		return err
	}
	batch := db.NewBatch()
	for i := range b.entries {
		e := &b.entries[i]
		if b.tracks[e.ID] == nil {
			continue
		}
		for _, s := range e.Sealed {
			s.FirstLSN = 1
			batch.PutSegment(e.ID, s)
		}
	}
	entries, err := db.Load()
	for i := range entries {
		if p := entries[i].Partition; p.Active != nil {
			p.Active.FirstLSN = 1
			batch.PutPartition(entries[i].ID, p)
		}
	}
	if err == nil {
		err = batch.Commit()
	}
	return errors.Join(err, db.Close())
}
