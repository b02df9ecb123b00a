package repair

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/wal"
)

// settingClaimed stands in the metadata of a cluster that uses an archive.
const settingClaimed = "archive.claimed"

// restoreHint ends the errors of what a repair cannot do.
const restoreHint = "a repair of the log cannot help; restore the node from the archive into another directory: tidemark restore"

// inventory is what a data directory and its archive hold.
type inventory struct {
	o    *Options
	id   datadir.Identity
	src  source
	lost []LSNs

	marks   state.Marks
	entries []state.Entry
	meta    *raftmeta.State
	tracks  map[broker.PartitionID]*track
	groups  []groupEntry // changes of groups behind the local state, in order
	frames  uint64
}

// groupEntry is a change of a group that the local state does not have.
type groupEntry struct {
	lsn uint64
	frame.Group
}

// Look returns the plan of a repair. It changes nothing in the directory and
// in the archive. Errors: Conflict (a node runs on it), NotFound (no data
// directory), Corrupt (something else than the log is damaged), Storage,
// ArchiveUnavailable.
func Look(ctx context.Context, o Options) (*Plan, error) {
	o = o.withDefaults()
	lock, id, err := open(&o)
	if err != nil {
		return nil, err
	}
	plan := &Plan{Dir: o.Dir, Node: id.NodeID, Incarnation: id.Incarnation.String(), Action: Resume}
	if !ready(o.FS, o.Dir) {
		inv := &inventory{o: &o, id: id}
		plan, err = inv.look(ctx)
	} else {
		plan.Advice = []string{"an interrupted repair has built everything; running it again puts it in place"}
	}
	return plan, errors.Join(err, lock.Close())
}

// open takes the directory.
func open(o *Options) (interface{ Close() error }, datadir.Identity, error) {
	if _, err := datadir.Read(o.FS, o.Dir); err != nil { // before Lock, which would make it
		return nil, datadir.Identity{}, err
	}
	lock, err := datadir.Lock(o.FS, o.Dir)
	if err != nil {
		return nil, datadir.Identity{}, err
	}
	id, err := datadir.Read(o.FS, o.Dir)
	if err != nil {
		err = errors.Join(err, lock.Close())
	}
	return lock, id, err
}

func (v *inventory) path(name ...string) string {
	return v.o.FS.PathJoin(append([]string{v.o.Dir}, name...)...)
}

// look reads everything and makes the plan.
func (v *inventory) look(ctx context.Context) (*Plan, error) {
	if err := v.readCopies(ctx); err != nil {
		return nil, err
	}
	if err := v.survey(ctx); err != nil {
		return nil, err
	}
	plan := v.plan()
	if plan.Action != Rebuild {
		plan.Frames = plan.NextLSN - plan.FirstLSN
		return plan, nil
	}
	if err := v.loadTracks(); err != nil {
		return nil, err
	}
	if err := v.walk(ctx, sink{}); err != nil {
		return nil, err
	}
	v.planPartitions(plan)
	return plan, nil
}

// readCopies reads the local state and the metadata. Opening either one writes,
// so copies of them are opened, outside the directory.
func (v *inventory) readCopies(ctx context.Context) (err error) {
	scratch, err := os.MkdirTemp("", "tidemark-repair-")
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "make a scratch directory")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err := v.readState(scratch); err != nil {
		return err
	}
	meta, err := openMeta(ctx, v.o, v.id, scratch)
	if err != nil {
		return err
	}
	v.meta = meta.State()
	return meta.Close()
}

func (v *inventory) readState(scratch string) error {
	dir := vfs.Default.PathJoin(scratch, "state")
	if err := copyTree(v.o.FS, v.path("state"), dir); err != nil {
		return fmt.Errorf("%w: %s", err, restoreHint)
	}
	db, err := state.Open(vfs.Default, dir, v.o.Logger)
	if err != nil {
		return fmt.Errorf("%w: %s", err, restoreHint)
	}
	if v.entries, err = db.Load(); err == nil {
		v.marks, err = db.Marks()
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("%w: %s", err, restoreHint)
	}
	if v.marks.Incarnation != 0 && v.marks.Incarnation != uint64(v.id.Incarnation) {
		return errcode.New(errcode.Corrupt, "local state in %s is of incarnation %016x, the directory's identity says %s: %s", v.path("state"), v.marks.Incarnation, v.id.Incarnation, restoreHint)
	}
	return nil
}

// openMeta opens a copy of the metadata in dir.
func openMeta(ctx context.Context, o *Options, id datadir.Identity, dir string) (*raftmeta.Meta, error) {
	copied := vfs.Default.PathJoin(dir, "raft")
	if err := copyTree(o.FS, o.FS.PathJoin(o.Dir, "raft"), copied); err != nil {
		return nil, fmt.Errorf("%w: %s", err, restoreHint)
	}
	meta, err := raftmeta.Open(ctx, raftmeta.Options{Dir: copied, NodeID: id.NodeID, BindAddr: o.RaftAddr, Logger: o.Logger, Now: o.Now, Rand: o.Rand})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, restoreHint)
	}
	return meta, nil
}

// copyTree copies a folder that nobody writes to, durably.
func copyTree(fs vfs.FS, from, to string) error {
	if names, err := fs.List(from); err != nil || len(names) == 0 {
		return errcode.New(errcode.Corrupt, "%s is missing or empty", from)
	}
	_, err := vfs.Clone(fs, vfs.Default, from, to, vfs.CloneSync)
	return errcode.Wrap(errcode.Storage, err, "copy %s", from)
}

// survey looks at the log, and at what the archive can add.
func (v *inventory) survey(ctx context.Context) error {
	s, err := wal.Examine(wal.SurveyOptions{
		FS: v.o.FS, Dir: v.path("wal"), KnownDurable: max(v.marks.Durable, v.marks.Shipped), NextNeeded: v.marks.Needed,
	})
	if err != nil {
		return err
	}
	for i := range s.Files {
		if f := &s.Files[i]; f.HeaderErr == nil && f.Incarnation != uint64(v.id.Incarnation) {
			return errcode.New(errcode.Conflict, "log file %s is of incarnation %016x, this directory is %s: move the file away if it does not belong here, and look again", f.Path, f.Incarnation, v.id.Incarnation)
		}
	}
	v.src = source{survey: s, store: v.o.Store}
	v.lost, err = v.src.fill(ctx, v.id.NodeID, uint64(v.id.Incarnation))
	return err
}

// loadTracks looks at the segment files of each partition.
func (v *inventory) loadTracks() error {
	v.tracks = map[broker.PartitionID]*track{}
	for i := range v.entries {
		e := &v.entries[i]
		if v.deleted(e.ID.Topic) {
			continue
		}
		t, err := newTrack(v.o.FS, v.partitionDir(e.ID), e)
		if err != nil {
			return fmt.Errorf("partition %s: %w: put the file back, or: %s", e.ID, err, restoreHint)
		}
		v.tracks[e.ID] = t
	}
	for _, topic := range v.meta.Topics() {
		assigned, _ := v.meta.Assignments(topic.ID)
		for i, a := range assigned {
			id := broker.PartitionID{Topic: topic.ID, Partition: uint32(i)}
			switch {
			case v.tracks[id] != nil || a.Owner != v.id.NodeID:
			case a.Generation == 1: // it began in a frame that is lost, or had no checkpoint yet
				v.tracks[id] = &track{id: id, state: state.Partition{Generation: 1}}
			default:
				return errcode.New(errcode.Corrupt, "partition %d of topic %s has generation %d, and the local state does not know it: %s", i, topic.Name, a.Generation, restoreHint)
			}
		}
	}
	return nil
}

func (v *inventory) deleted(topic broker.TopicID) bool {
	_, deleted := v.meta.Deleted(topic)
	return deleted
}

// partitionDir is where the segment files of a partition are.
func (v *inventory) partitionDir(id broker.PartitionID) string {
	return v.path("topics", id.Topic.String(), strconv.FormatUint(uint64(id.Partition), 10))
}

// walk replays what survives of the log into the tracks.
func (v *inventory) walk(ctx context.Context, to sink) error {
	v.groups, v.frames = nil, 0
	return v.src.frames(ctx, func(f wal.Frame) error {
		v.frames++
		switch f.Kind {
		case wal.KindCommit, wal.KindCarry:
			h, sections, err := frame.ParseCommit(f.Body)
			if err != nil {
				return err
			}
			for s := range sections {
				t, err := v.track(s.Partition, f.LSN)
				if err == nil && t != nil {
					err = t.section(f.LSN, h.AppendMS, s, to)
				}
				if err != nil {
					return err
				}
			}
		case wal.KindGroup:
			g, err := frame.ParseGroup(f.Body)
			if err != nil {
				return err
			}
			t, err := v.track(g.Partition, f.LSN)
			if err != nil || t == nil || f.LSN <= t.state.GroupLSN || g.Generation < t.state.Generation {
				return err
			}
			g.Ops = slices.Clone(g.Ops)
			v.groups = append(v.groups, groupEntry{f.LSN, g})
		case wal.KindBase, wal.KindMark: // a base is known from the local state or the metadata
		default:
			return errcode.New(errcode.UnsupportedVersion, "log frame %d has kind %d, which this build does not know: use the build that wrote it, or a newer one", f.LSN, f.Kind)
		}
		return nil
	})
}

// track returns the partition of a frame, nil when its topic was deleted.
func (v *inventory) track(id broker.PartitionID, lsn uint64) (*track, error) {
	if t := v.tracks[id]; t != nil || v.deleted(id.Topic) {
		return t, nil
	}
	return nil, errcode.New(errcode.Corrupt, "log frame %d is of partition %s, which neither the local state nor the metadata knows: the raft folder is older than the log; put back the folder of the same moment, or: %s", lsn, id, restoreHint)
}

// plan says what the survey means.
func (v *inventory) plan() *Plan {
	s := v.src.survey
	_, claimed := v.meta.Setting(settingClaimed)
	p := &Plan{
		Dir: v.o.Dir, Node: v.id.NodeID, Incarnation: v.id.Incarnation.String(), FirstLSN: s.First, NextLSN: s.Next, UsesArchive: claimed,
		Damage: []Damage{}, Filled: []LSNs{}, Lost: v.lost, Advice: []string{},
	}
	if p.Lost == nil {
		p.Lost = []LSNs{}
	}
	if v.o.Store != nil {
		p.Archive = v.o.Store.Capabilities().URL
	}
	for i := range s.Files {
		if f := &s.Files[i]; f.SaltGuessed {
			p.Damage = append(p.Damage, Damage{File: f.Path, From: f.First, Next: f.First, Why: f.HeaderErr.Error() + "; its groups verify all the same"})
		}
	}
	for _, h := range s.Holes {
		p.Damage = append(p.Damage, Damage{h.File, h.Position, h.From, h.Next, h.Open, h.Why})
	}
	for _, f := range v.src.fills {
		if n := len(p.Filled); n > 0 && p.Filled[n-1].Next == f.from {
			p.Filled[n-1].Next = f.next
		} else {
			p.Filled = append(p.Filled, LSNs{From: f.from, Next: f.next})
		}
	}
	switch {
	case !s.Damaged():
		p.Action = Nothing
		p.Advice = append(p.Advice, "the log verifies; when the node refuses to start all the same, its message says why")
	case len(v.lost) == 0:
		p.Action = Refill
		p.Advice = append(p.Advice, "nothing is lost: the damaged files are written anew, incarnation and offsets stay")
	default:
		p.Action = Rebuild
		v.advise(p)
	}
	return p
}

// advise says what else there is to do before frames are given up.
func (v *inventory) advise(p *Plan) {
	if v.o.Store == nil && p.UsesArchive {
		p.Advice = append(p.Advice, "look again with --archive URL first: what the archive has of the lost frames is not lost then")
	}
	p.Advice = append(p.Advice, "put the damaged file back from a copy of the same disk if there is one: that loses nothing")
	if p.UsesArchive {
		p.Advice = append(p.Advice, "or restore the node from the archive (tidemark restore --take-over): that has every record that was shipped, and gives up those that were not, at most about a second of them when shipping worked; it is the better way when the lost frames had been shipped and many of the surviving ones too")
	}
}

// planPartitions says what a rebuild means for each partition, once the log was
// walked.
func (v *inventory) planPartitions(p *Plan) {
	for _, t := range v.tracks {
		generation, end := t.state.Generation, t.end()
		if a, ok := v.meta.Assignment(t.id); ok {
			generation = max(generation, a.Generation)
			end = max(end, a.Start)
		}
		out := Partition{
			ID: t.id.Topic.String(), Partition: t.id.Partition, End: end, FromLog: t.records, Lost: t.lost,
			Generation: generation + 1, Start: end + manifest.UncleanSkip, AcksLost: true,
		}
		if topic, ok := v.meta.TopicByID(t.id.Topic); ok {
			out.Topic = topic.Name
		}
		for _, l := range v.lost {
			out.EndUnknown = out.EndUnknown || l.Open || t.lastLSN < l.Next
		}
		p.Partitions = append(p.Partitions, out)
	}
	slices.SortFunc(p.Partitions, func(a, b Partition) int {
		switch {
		case a.Topic != b.Topic:
			return strings.Compare(a.Topic, b.Topic)
		default:
			return int(min(max(int64(a.Partition)-int64(b.Partition), -1), 1))
		}
	})
	p.Frames = v.frames
}

// end is the end of all that was given out and is known: the next generation
// begins above it.
func (t *track) end() int64 {
	return max(t.next, t.state.PreviousEnd, t.state.Start, t.state.ArchivedEnd)
}
