package restore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	iofs "io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/wal"
)

// Look returns the plan of a restore. It only reads.
func Look(ctx context.Context, o Options) (Plan, error) {
	o = o.withDefaults()
	s, err := lookAll(ctx, &o, func(s *survey) (*stage, error) {
		st, err := newStage(&o, "", 0, s)
		if err == nil {
			err = st.replay(ctx, &o, s)
		}
		return st, errors.Join(err, st.close())
	})
	if err != nil {
		return Plan{}, err
	}
	p := s.plan(&o)
	p.Alive, err = s.alive(ctx, &o)
	return p, err
}

// lookAll looks at an archive that others may write to and delete from, and
// replays what it sees: whatever is damaged is found before anything is changed.
func lookAll(ctx context.Context, o *Options, replayed func(*survey) (*stage, error)) (s *survey, err error) {
	err = steady(func() error {
		if s, err = look(ctx, o); err != nil {
			return err
		}
		if err := s.loadChains(ctx, o); err != nil {
			return err
		}
		st, err := replayed(s)
		if err != nil {
			return err
		}
		s.countNewest(ctx, o.Store)
		return s.judgeTorn(ctx, o.Store, st.parts)
	})
	return s, err
}

// Run restores. Errors before the claim change nothing; later ones leave the
// old cluster fenced and no data directory, and Run can be called again.
// Errors: Conflict (the directory is not empty, the cluster is alive, somebody
// else takes it over at this moment), NotFound (no cluster there), Corrupt,
// UnsupportedVersion, ArchiveUnavailable, Storage.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	if !o.TakeOver {
		return nil, errcode.New(errcode.InvalidArgument, "a restore continues in the archive it reads: say so with --take-over, which fences the cluster that wrote it (or look first with --dry-run)")
	}
	started := o.Now()
	if err := free(o.FS, o.Dir); err != nil {
		return nil, err
	}
	r := &run{o: &o, report: &Report{Dir: o.Dir}, work: o.Dir + ".restoring"}
	// Two restores of one directory would build it together, and the second
	// would take the cluster from the first.
	lock, err := datadir.Lock(o.FS, r.work)
	if err != nil {
		return nil, err
	}
	if err = r.all(ctx); err != nil {
		err = errors.Join(err, r.close())
		if !r.claimed {
			err = errors.Join(err, o.FS.RemoveAll(r.work))
		}
	}
	if err = errors.Join(err, lock.Close()); err != nil {
		return nil, err
	}
	r.report.Took = o.Now().Sub(started)
	return r.report, nil
}

// all does everything from the first look to the rename.
func (r *run) all(ctx context.Context) (err error) {
	if r.id, err = datadir.New(r.o.NodeID, r.o.Rand); err != nil {
		return err
	}
	r.id.Begun = true // it is used as a whole or not at all
	// What cannot be read, or written, is found before the old cluster is ended.
	before, err := lookAll(ctx, r.o, func(s *survey) (*stage, error) {
		err := r.replay(ctx, s)
		return r.stage, err
	})
	if err != nil {
		return err
	}
	alive, err := before.alive(ctx, r.o)
	if err != nil {
		return err
	}
	plan := before.plan(r.o)
	plan.Alive = alive
	if err := r.o.Planned(plan); err != nil {
		return err
	}
	if alive && !r.o.Force {
		return errcode.New(errcode.Conflict, "cluster %s is alive: it wrote to %s while we watched; stop it first, or take it over with --force", before.claim.ClusterID, r.o.Store.Capabilities().URL)
	}
	if err := r.claim(ctx, before); err != nil {
		return err
	}
	r.report.Alive = alive
	if !r.survey.same(before) {
		// Somebody wrote, or deleted, between the two looks.
		if err := r.replay(ctx, r.survey); err != nil {
			return err
		}
	}
	return r.build(ctx)
}

// replay makes the stage anew, from s.
func (r *run) replay(ctx context.Context, s *survey) (err error) {
	if err := r.empty(); err != nil {
		return err
	}
	if r.stage, err = newStage(r.o, r.work, r.id.Incarnation, s); err != nil {
		return err
	}
	return r.stage.replay(ctx, r.o, s)
}

// empty removes what an earlier look wrote, and what an interrupted restore left,
// which has no identity that anybody used.
func (r *run) empty() error {
	if err := r.close(); err != nil {
		return err
	}
	fs := r.o.FS
	names, err := fs.List(r.work)
	for _, name := range names {
		if name != datadir.LockFile {
			err = errors.Join(err, fs.RemoveAll(fs.PathJoin(r.work, name)))
		}
	}
	return errcode.Wrap(errcode.Storage, err, "empty %s", r.work)
}

// free refuses a directory with something in it.
func free(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "look at %s", dir)
	}
	if len(names) > 0 {
		return errcode.New(errcode.Conflict, "data directory %s is not empty (it holds %q): a restore overwrites nothing; give another --data-dir, or move this one away", dir, names[0])
	}
	return nil
}

// run is one restore.
type run struct {
	o      *Options
	report *Report
	survey *survey
	work   string // where the directory is built; locked
	id     datadir.Identity

	claimed bool // the archive may have been changed

	stage *stage
	meta  *raftmeta.Meta
	log   *wal.Log
}

// claim takes the next cluster generation, fences every incarnation, and looks
// again: what is listed from here on is all there will ever be, because an
// incarnation that opens later finds the claim, and one that ships later finds
// its fence before it answers.
func (r *run) claim(ctx context.Context, before *survey) error {
	nonce := make([]byte, 8)
	random := r.o.Rand
	if random == nil {
		random = rand.Reader
	}
	if _, err := io.ReadFull(random, nonce); err != nil {
		return errcode.Wrap(errcode.Internal, err, "read random bytes")
	}
	claim := archive.Claim{
		ClusterID: before.claim.ClusterID, Generation: before.claim.Generation + 1,
		Node: r.o.NodeID, Restore: hex.EncodeToString(nonce), TimeMS: r.o.Now().UnixMilli(),
	}
	key := manifest.ClusterKey(claim.Generation)
	r.claimed = true
	err := ship.Create(ctx, r.o.Store, key, claim.Encode())
	if errcode.Is(err, errcode.Exists) {
		return errcode.New(errcode.Conflict, "somebody else takes cluster %s over at this moment (%s exists): run the restore again if that was you", claim.ClusterID, key)
	}
	if err != nil {
		return errcode.Wrap(errcode.ArchiveUnavailable, err, "create %s", key)
	}
	var s *survey
	// A delete of the old cluster may be on its way still.
	err = steady(func() (err error) {
		if s, err = r.fenceAndLook(ctx, before, claim); err != nil {
			return err
		}
		return s.loadChains(ctx, r.o)
	})
	if err != nil {
		return err
	}
	s.perInterval = before.perInterval
	r.survey = s
	r.report.Plan = s.plan(r.o)
	r.report.Generation, r.report.NewGeneration = before.claim.Generation, claim.Generation
	return nil
}

// fenceAndLook fences every incarnation and returns a survey in which each one
// was fenced before its list began. One that opened between the first list and
// the claim shows up in the second, with a fence to come.
func (r *run) fenceAndLook(ctx context.Context, s *survey, claim archive.Claim) (*survey, error) {
	type id struct {
		node string
		inc  uint64
	}
	fenced := map[id]bool{}
	for complete := false; !complete; {
		for _, i := range s.incarnations {
			if !i.fenced && !fenced[id{i.node, i.id}] {
				f := archive.Fence{ClusterGeneration: claim.Generation, TimeMS: r.o.Now().UnixMilli()}
				key := manifest.WALFenceKey(i.node, i.id)
				if err := ship.Create(ctx, r.o.Store, key, f.Encode()); err != nil && !errcode.Is(err, errcode.Exists) {
					return nil, errcode.Wrap(errcode.ArchiveUnavailable, err, "create %s", key)
				}
			}
			fenced[id{i.node, i.id}] = true
		}
		var err error
		if s, err = look(ctx, r.o); err != nil {
			return nil, err
		}
		if s.claim.Generation != claim.Generation || s.claim.Restore != claim.Restore {
			return nil, errcode.New(errcode.Conflict, "cluster %s was taken over by node %q meanwhile (generation %d)", claim.ClusterID, s.claim.Node, s.claim.Generation)
		}
		complete = true
		for _, i := range s.incarnations {
			complete = complete && fenced[id{i.node, i.id}]
		}
	}
	return s, nil
}

// build completes the data directory beside its place and renames it there.
func (r *run) build(ctx context.Context) error {
	if err := datadir.Write(r.o.FS, r.work, r.id); err != nil {
		return err
	}
	if err := r.fill(ctx); err != nil {
		return err
	}
	r.report.Incarnation, r.report.Replayed = r.id.Incarnation.String(), r.stage.replayed
	if err := r.close(); err != nil {
		return err
	}
	return r.publish()
}

// fill writes what the directory will hold beside the stage.
func (r *run) fill(ctx context.Context) error {
	if err := r.openMeta(ctx); err != nil {
		return err
	}
	if err := r.survey.judgeTorn(ctx, r.o.Store, r.stage.parts); err != nil {
		return err
	}
	if err := r.fenceChains(ctx); err != nil {
		return err
	}
	if err := r.serveGroups(); err != nil {
		return err
	}
	var err error
	r.log, _, err = wal.Open(wal.Options{
		FS: r.o.FS, Dir: r.path("wal"), Incarnation: uint64(r.id.Incarnation), Now: r.o.Now, Logger: r.o.Logger, PoolFiles: -1,
	}, func(wal.Frame) error { return nil })
	if err != nil {
		return err
	}
	r.stage.engine.Connect(r.log)
	return r.stage.engine.StageBases(ctx, r.stage.groups)
}

func (r *run) path(name string) string { return r.o.FS.PathJoin(r.work, name) }

func (r *run) openMeta(ctx context.Context) error {
	var err error
	r.meta, err = raftmeta.Open(ctx, raftmeta.Options{
		Dir: r.path("raft"), NodeID: r.o.NodeID, BindAddr: r.o.RaftAddr, Logger: r.o.Logger, Now: r.o.Now, Rand: r.o.Rand,
		Bootstrap: &raftmeta.Bootstrap{Adopt: r.survey.export, Generation: r.report.NewGeneration},
	})
	if err != nil {
		return err
	}
	for _, n := range r.meta.State().Nodes() {
		if _, err := r.meta.FenceIncarnation(ctx, n.ID, n.Incarnation); err != nil {
			return err
		}
	}
	if err := r.deleteTopics(ctx); err != nil {
		return err
	}
	_, err = r.meta.RegisterIncarnation(ctx, r.id.Incarnation, nil)
	return err
}

// fenceChains begins a generation in every chain, and in the metadata with the
// numbers that the chain gave.
func (r *run) fenceChains(ctx context.Context) error {
	var mu sync.Mutex
	done := int64(0)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for id, p := range r.stage.parts {
		g.Go(func() error {
			if err := r.fenceChain(ctx, id, p); err != nil {
				return errcode.Wrap(errcode.ArchiveUnavailable, err, "fence the chain of partition %s", id)
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			r.o.Progress("fences", done, int64(len(r.stage.parts)))
			return nil
		})
	}
	return g.Wait()
}

func (r *run) fenceChain(ctx context.Context, id broker.PartitionID, p *restored) error {
	chain := r.survey.chains[id]
	owner := manifest.Owner{
		ClusterGeneration: r.report.NewGeneration, Generation: p.generation + 1,
		Incarnation: uint64(r.id.Incarnation), Node: r.o.NodeID,
	}
	f, err := chain.Fence(ctx, owner, manifest.FenceParams{Start: manifest.Unclean, PreviousEndAtLeast: p.next})
	if err != nil {
		return err
	}
	a, _ := r.meta.Assignment(id)
	_, err = r.meta.SetAssignment(ctx, id, raftmeta.Expect{Owner: a.Owner, Generation: a.Generation}, raftmeta.Assignment{
		Owner: r.o.NodeID, OwnerIncarnation: r.id.Incarnation,
		Generation: f.Generation, PreviousEnd: f.PreviousEnd, Start: f.Start,
	})
	if err != nil {
		return err
	}
	p.Rebase(f.Generation, f.PreviousEnd, f.Start, gapsOf(chain))
	p.SetArchived(chain.End(), chain.Seq())
	return nil
}

// serveGroups cuts positions off at the records that are there and settles the
// gaps.
func (r *run) serveGroups() error {
	q := r.stage.queue
	for id, p := range r.stage.parts {
		q.Advance(id, p.next)
		q.Trim(id, p.Oldest())
		for _, g := range p.Gaps() {
			q.Gap(id, g[0], g[1])
		}
		if err := q.Serve(id); err != nil {
			return err
		}
		q.Advance(id, p.HighWatermark())
	}
	return nil
}

// close makes durable what was filled in: the engine's Close flushes every
// tail and writes the checkpoint, if the log is there. Closing twice is fine.
func (r *run) close() error {
	var errs []error
	if r.stage != nil {
		errs = append(errs, r.stage.close()) // while the log is open
	}
	if r.log != nil {
		errs = append(errs, r.log.Close())
	}
	if r.meta != nil {
		errs = append(errs, r.meta.Close())
	}
	r.stage, r.log, r.meta = nil, nil, nil
	return errors.Join(errs...)
}

// publish gives the complete directory its name.
func (r *run) publish() error {
	fs := r.o.FS
	if err := free(fs, r.o.Dir); err != nil {
		return err
	}
	if err := fs.Remove(r.o.Dir); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return errcode.Wrap(errcode.Storage, err, "replace the empty directory %s", r.o.Dir)
	}
	// Everything below was synced when it was closed; the rename makes it
	// visible as a whole, and durable with the sync of the parent.
	if err := fs.Rename(r.work, r.o.Dir); err != nil {
		return errcode.Wrap(errcode.Storage, err, "rename %s", r.work)
	}
	return errcode.Wrap(errcode.Storage, datadir.SyncDir(fs, fs.PathDir(r.o.Dir)), "sync the parent of %s", r.o.Dir)
}
