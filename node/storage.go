package node

import (
	"context"
	"math"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/upload"
	"github.com/tidemark-mq/tidemark/wal"
)

// holdUnknown keeps frames of topics that the metadata does not know (yet).
const holdUnknown = "unknown topics"

// shippedTail is how much of the log stays in memory for the shipper: a node that takes
// 100 MB/s of records as text writes some 2 MB of log between two looks of it.
const shippedTail = 8 << 20

// groupEntry is a replayed change of a group that waits for the queue.
type groupEntry struct {
	id   broker.PartitionID
	name string
	ops  []byte
}

// openStorage opens everything between the metadata and the API, in order.
func (n *Node) openStorage(ctx context.Context) error {
	for _, dir := range []string{"state", "wal"} {
		if err := segment.MakeDir(n.opts.FS, n.opts.Dir, n.path(dir)); err != nil {
			return err
		}
	}
	n.opts.OnProgress("reading the local state and the segment files")
	var err error
	if n.db, err = state.Open(n.opts.FS, n.path("state"), n.opts.Logger); err != nil {
		return err
	}
	entries, err := n.db.Load()
	if err != nil {
		return err
	}
	marks, err := n.db.Marks()
	if err != nil {
		return err
	}
	if marks.Incarnation == 0 && n.id.Begun {
		return datadir.Lost(n.opts.Dir, "the local state in "+n.path("state")+" is new")
	}
	if marks.Incarnation != 0 && marks.Incarnation != uint64(n.id.Incarnation) {
		return errcode.New(errcode.Corrupt, "local state in %s is of incarnation %016x, the directory's identity says %s: do not mix data directories; restore the node from the archive", n.path("state"), marks.Incarnation, n.id.Incarnation)
	}
	if err := n.openArchive(); err != nil {
		return err
	}
	if err := n.openScrubber(); err != nil {
		return err
	}
	if err := n.openEngine(entries, marks); err != nil {
		return err
	}
	groups, unknown, err := n.openLog(ctx, marks)
	if err != nil {
		return err
	}
	n.opts.OnProgress("bringing topics and groups to what the log says")
	n.engine.Connect(n.log)
	if unknown == 0 {
		unknown = math.MaxUint64 // there are none
	}
	n.log.Hold(holdUnknown, unknown)
	if err := n.reconcile(ctx); err != nil {
		return err
	}
	if err := n.sweepDirectories(); err != nil {
		return err
	}
	if err := n.openQueue(entries, groups); err != nil {
		return err
	}
	if err := n.openCollector(); err != nil {
		return err
	}
	n.openShipper(marks)
	if err := n.openRetention(); err != nil {
		return err
	}
	if err := n.openMerger(); err != nil {
		return err
	}
	n.publishTopics()
	return nil
}

// openArchive opens what reads and uploads; nothing is asked of the store yet.
func (n *Node) openArchive() error {
	if n.opts.Archive == nil {
		return nil
	}
	n.chains = &chains{
		store: n.opts.Archive, cluster: n.meta.State().Cluster().Generation,
		node: n.opts.NodeID, incarnation: n.id.Incarnation,
		assignment: n.meta.Assignment,
		hint: func(id broker.PartitionID) uint64 {
			if p := n.engine.Get(id); p != nil {
				_, seq := p.ArchivedEnd()
				return seq
			}
			return 0
		},
		whose: n.archiveKnown, wait: n.waitArchive,
		pages: manifest.NewPages(chainPages), most: max(chainMemory, n.opts.MemoryBudget/4),
		m: make(map[broker.PartitionID]*chainSlot),
	}
	var err error
	n.cache, err = cold.New(cold.Config{
		FS: n.opts.FS, Dir: n.path("cache"), Store: objstore.For(n.opts.Archive, objstore.CauseRead),
		MaxBytes: n.opts.CacheBytes, Logger: n.opts.Logger, Registry: n.opts.Registerer,
		// The log's numbers say whether anybody produces or settles.
		Latency: newLateness(func() uint64 { return n.log.NextLSN() }).read,
	})
	if err != nil {
		return err
	}
	n.reader = newColdReader(n.chains, n.cache, n.opts.Now)
	n.uploader, err = upload.New(upload.Config{
		FS: n.opts.FS, Store: objstore.For(n.opts.Archive, objstore.CauseSegment), Chains: n.chains,
		Hooks: n.uploadHooks(), MaxQueued: n.opts.UploadQueue, Logger: n.opts.Logger, Registry: n.opts.Registerer, Now: n.opts.Now,
	})
	return err
}

func (n *Node) uploadHooks() upload.Hooks {
	return upload.Hooks{
		Archived: func(id broker.PartitionID, s upload.Sealed, _ manifest.Segment, seq uint64) {
			if p := n.engine.Get(id); p != nil {
				p.Confirm(&s.Info, seq)
			}
		},
		Covered: func(id broker.PartitionID, s upload.Sealed, end int64) {
			if p := n.engine.Get(id); p != nil {
				p.SetArchived(end, 0) // readable there, and nothing is confirmed
			}
			n.opts.Logger.Warn("the archive covers a segment with other objects; the local copy stays", "partition", id.String(), "base", s.Info.Base, "archived", end)
		},
		Fenced: func(id broker.PartitionID, err error) {
			n.opts.Logger.Error("uploads of a partition ended, somebody else owns it", "partition", id.String(), "error", err)
		},
		Stopped: func(id broker.PartitionID, s upload.Sealed, err error) {
			n.opts.Logger.Error("a segment cannot be uploaded", "partition", id.String(), "file", s.Path, "error", err)
		},
		Missed: func(id broker.PartitionID) {
			if !n.engine.Announce(id, func() { n.uploader.Readmit(id) }) {
				n.uploader.Drop(id)
			}
		},
	}
}

func (n *Node) openEngine(entries []state.Entry, marks state.Marks) error {
	o := partition.Options{
		FS: n.opts.FS, Dir: n.path("topics"), State: n.db, Incarnation: uint64(n.id.Incarnation),
		Groups: groupStates{n}, Compress: n.compress,
		FlushBytes: n.opts.FlushBytes, SegmentBytes: n.opts.SegmentBytes,
		SealAge: n.opts.SealAge, SealMinBytes: n.opts.SealMinBytes, SealLogBytes: n.opts.SealLogBytes, MemoryBudget: n.opts.MemoryBudget,
		DiskOK:    n.disk.write,
		OnVisible: func(id broker.PartitionID, hw int64) { n.queue.Advance(id, hw) },
		OnTrimmed: func(id broker.PartitionID, start int64) { n.queue.Trim(id, start) },
		Now:       n.opts.Now, Logger: n.opts.Logger, Registerer: n.opts.Registerer,
	}
	if n.reader != nil {
		o.Archive = n.reader
		// The collector is opened after the engine, and before its workers start.
		o.ShippedFrom = func(lsns []uint64) []int64 { return n.collector.ShippedFrom(lsns) }
		o.Dropping = n.uploader.Skip
		o.OnDamaged = func(id broker.PartitionID, base int64, _ error) {
			n.scrubber.Suspect(id, base)
		}
		o.OnSealed = func(id broker.PartitionID, path string, s state.Sealed) {
			err := n.uploader.Enqueue(id, upload.Sealed{Path: path, Info: s.Info})
			// Conflict: it is announced once more and stands there already.
			// Overloaded: the uploader asks for it when there is room.
			if err != nil && !errcode.Is(err, errcode.Conflict) && !errcode.Is(err, errcode.Overloaded) {
				n.opts.Logger.Error("a sealed segment is not queued for upload; a restart queues it again", "file", path, "error", err)
			}
		}
	}
	n.queue = queue.New(queue.Options{
		Now: n.opts.Now, Secret: n.handleKey(), Journal: journal{n}, Logger: n.opts.Logger, Registerer: n.opts.Registerer,
	})
	var err error
	if n.engine, err = partition.New(o); err != nil {
		return err
	}
	n.engine.SetShipped(marks.Shipped)
	return n.engine.Load(entries)
}

func (n *Node) handleKey() []byte {
	salt := n.meta.State().Cluster().Salt
	return salt[:]
}

func (n *Node) compress(id broker.TopicID) bool {
	t, ok := n.meta.TopicByID(id)
	return !ok || t.Compression != "none"
}

// openLog replays the log into the engine. It returns the group entries in
// order, and the LSN of the first frame of a topic that nobody knows.
func (n *Node) openLog(ctx context.Context, marks state.Marks) (groups []groupEntry, unknown uint64, err error) {
	o := wal.Options{
		FS: n.opts.FS, Dir: n.path("wal"), Incarnation: uint64(n.id.Incarnation),
		FileSize: n.opts.WALFileSize, MaxBytes: n.opts.WALMaxBytes,
		KnownDurable: max(marks.Durable, marks.Shipped), NextNeeded: marks.Needed,
		// Nothing goes before the replay has said which frames are of topics
		// that nobody knows.
		Holds: map[string]uint64{"checkpoint": marks.Needed, holdUnknown: 1},
		Now:   n.opts.Now, Logger: n.opts.Logger, Registerer: n.opts.Registerer,
		DiskOK: n.disk.room,
		OnPressure: func(upTo uint64) {
			err := n.engine.Release(context.Background(), upTo)
			if err != nil && !errcode.Is(err, errcode.Unavailable) { // before Start: the log asks again
				n.opts.Logger.Warn("the log is over its size and cannot be freed", "error", err)
			}
		},
	}
	if n.opts.Archive != nil {
		o.Holds["ship"] = marks.Shipped + 1
		o.TailBytes = int(min(shippedTail, n.opts.MemoryBudget/16))
	}
	progress := n.newReplay(ctx, o.Dir)
	n.log, _, err = wal.Open(o, func(f wal.Frame) error {
		if err := progress.frame(f); err != nil {
			return err
		}
		err := n.engine.Replay(f, func(g frame.Group, _ uint64) error {
			groups = append(groups, groupEntry{g.Partition, g.Name, append([]byte(nil), g.Ops...)})
			return nil
		})
		if errcode.Is(err, errcode.NotFound) {
			return n.unknownFrame(f, &unknown)
		}
		return err
	})
	return groups, unknown, err
}

// unknownFrame decides about a frame with a partition that is not here. Frames
// of deleted topics are garbage; of a topic that exists they mean damage; any
// other is kept until the metadata says what it is (I10).
func (n *Node) unknownFrame(f wal.Frame, unknown *uint64) error {
	for _, id := range framePartitions(f) {
		if n.engine.Get(id) != nil {
			continue
		}
		if _, deleted := n.meta.State().Deleted(id.Topic); deleted {
			continue
		}
		if t, ok := n.meta.TopicByID(id.Topic); ok {
			return errcode.New(errcode.Corrupt, "log frame %d has records of partition %d of topic %s, but neither log nor local state says where that partition begins: restore the node from the archive", f.LSN, id.Partition, t.Name)
		}
		if *unknown == 0 {
			*unknown = f.LSN
			n.opts.Logger.Warn("the log has frames of a topic that the metadata does not know; they are kept", "topic", id.Topic.String(), "lsn", f.LSN)
		}
	}
	return nil
}

func framePartitions(f wal.Frame) (ids []broker.PartitionID) {
	switch f.Kind {
	case wal.KindGroup:
		if g, err := frame.ParseGroup(f.Body); err == nil {
			ids = append(ids, g.Partition)
		}
	case wal.KindCommit, wal.KindCarry:
		if _, sections, err := frame.ParseCommit(f.Body); err == nil {
			for s := range sections {
				ids = append(ids, s.Partition)
			}
		}
	}
	return ids
}

// openQueue attaches every partition with its groups.
func (n *Node) openQueue(entries []state.Entry, replayed []groupEntry) error {
	states := map[broker.PartitionID][]queue.State{}
	for i := range entries {
		for _, b := range entries[i].Groups {
			s, err := queue.DecodeState(b)
			if err != nil {
				return errcode.Wrap(errcode.Corrupt, err, "group state of partition %s", entries[i].ID)
			}
			states[entries[i].ID] = append(states[entries[i].ID], s)
		}
	}
	serving := func(p *partition.Partition) bool { return p != nil && p.Refused() == nil }
	for _, p := range n.engine.All() {
		if !serving(p) {
			continue // its records cannot be read: nothing of it is handed out
		}
		if err := n.attach(p, states[p.ID], true); err != nil {
			return err
		}
	}
	for _, g := range replayed {
		if !serving(n.engine.Get(g.id)) {
			continue // out of service, or its topic was deleted
		}
		if err := n.queue.Apply(g.id, g.name, g.ops); err != nil {
			return errcode.Wrap(errcode.Corrupt, err, "replay group %s of partition %s", g.name, g.id)
		}
	}
	for _, p := range n.engine.All() {
		if !serving(p) {
			continue
		}
		if err := n.queue.Serve(p.ID); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) attach(p *partition.Partition, states []queue.State, replay bool) error {
	cfg := queue.PartitionConfig{
		Generation: p.Generation(), Start: p.Oldest(), HighWatermark: p.HighWatermark(),
		Gaps: p.Gaps(), Replay: replay,
	}
	if t, ok := n.meta.TopicByID(p.ID.Topic); ok {
		cfg.VisibilityTimeout = msDuration(t.VisibilityTimeoutMs)
		cfg.MaxInFlight = int(t.MaxInFlightPerPartition)
	}
	return n.queue.Attach(p.ID, cfg, states)
}

func (n *Node) openShipper(marks state.Marks) {
	if n.opts.Archive == nil {
		return
	}
	cluster := n.meta.State().Cluster()
	n.shipper = ship.New(ship.Options{
		Store: objstore.For(n.opts.Archive, objstore.CauseWAL), Log: n.log, Metadata: n.meta, States: capture{n},
		Node: n.opts.NodeID, Incarnation: uint64(n.id.Incarnation),
		ClusterGeneration: cluster.Generation, ClusterID: cluster.ID,
		FirstLSN: 1, Shipped: marks.Shipped,
		Interval: n.opts.WALInterval, StateInterval: n.opts.StateInterval,
		Claimed: n.claimed, OnClaimed: n.setClaimed,
		OnShipped: n.engine.SetShipped, OnFenced: n.fence, OnObject: n.collector.Note,
		Now: n.opts.Now, Logger: n.opts.Logger, Registerer: n.opts.Registerer,
	})
}

// journal writes the queue's operations into the log.
type journal struct{ n *Node }

// Stage implements queue.Journal.
func (j journal) Stage(p broker.PartitionID, generation uint32, group string, ops []byte) (uint64, error) {
	return j.n.engine.StageGroup(p, generation, group, ops)
}

// groupStates gives checkpoints the queue's states.
type groupStates struct{ n *Node }

// Snapshot implements partition.Groups.
func (g groupStates) Snapshot(p broker.PartitionID) (map[string][]byte, uint64) {
	states, lsn := g.n.queue.Snapshot(p)
	out := make(map[string][]byte, len(states))
	for i := range states {
		out[states[i].Group] = states[i].Append(nil)
	}
	return out, lsn
}

// capture gives the shipper state objects.
type capture struct{ n *Node }

// Capture implements ship.States.
func (c capture) Capture() (*archive.State, error) {
	// Every frame below this is in what is captured after it, or is named by
	// UnarchivedFrom.
	next := c.n.log.NextLSN()
	st := &archive.State{LSN: next - 1, ReplayFrom: next}
	for _, p := range c.n.engine.All() {
		if p.Refused() != nil {
			// Its records in the log are all that a restore can get.
			return nil, errcode.New(errcode.Storage, "partition %s is out of service, no state object is written", p.ID)
		}
		states, lsn := c.n.queue.Snapshot(p.ID)
		b := p.Base()
		ps := archive.PartitionState{
			Topic: p.ID.Topic, Partition: p.ID.Partition, Generation: b.Generation, PreviousEnd: b.PreviousEnd,
			Start: b.Start, Next: p.HighWatermark(), Gaps: b.Gaps, GroupLSN: max(lsn, next-1), Doubts: p.Doubts(),
		}
		for i := range states {
			ps.Groups = append(ps.Groups, states[i].Append(nil))
		}
		st.LSN = max(st.LSN, lsn)
		if from, ok := p.UnarchivedFrom(); ok {
			st.ReplayFrom = min(st.ReplayFrom, from)
		}
		st.Partitions = append(st.Partitions, ps)
	}
	return st, nil
}
