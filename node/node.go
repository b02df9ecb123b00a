package node

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/node/garbage"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/node/queue"
	"github.com/tidemark-mq/tidemark/node/retention"
	"github.com/tidemark-mq/tidemark/node/scrub"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/merge"
	"github.com/tidemark-mq/tidemark/tier/upload"
	"github.com/tidemark-mq/tidemark/wal"
)

// Node is an open node. All methods are safe for concurrent use.
type Node struct {
	opts   Options
	id     datadir.Identity
	opened time.Time

	lock     io.Closer
	disk     *disk
	meta     *raftmeta.Meta
	db       *state.DB
	engine   *partition.Engine
	log      *wal.Log
	queue    *queue.Engine
	chains   *chains          // nil without archive
	cache    *cold.Cache      // nil without archive
	reader   *coldReader      // nil without archive
	uploader *upload.Uploader // nil without archive
	shipper  *ship.Shipper    // nil without archive
	sweeper  *retention.Sweeper

	collector *garbage.Collector // nil without archive
	scrubber  *scrub.Scrubber
	merger    *merge.Merger // nil without archive, and when it is off

	refused      refused
	totals       totals
	traffic      *traffic
	unregistered func() // takes the node's own metrics back; nil = there are none

	topics   atomic.Pointer[topicTable]
	topicsMu sync.Mutex // held while topics are created, deleted and published
	// A partition may be here that the queue does not have; under topicsMu.
	unattached bool

	base      context.Context // ends with the node
	deadlines deadlines
	serving   context.Context // ends when the node serves no more
	stop      context.CancelFunc

	fenced  atomic.Pointer[errcode.Error] // why this node serves no more
	closing atomic.Bool

	cancel context.CancelFunc
	tasks  *errgroup.Group
}

// closeGrace bounds what Close spends on shipping.
const closeGrace = 20 * time.Second

// Open starts a node on its data directory, which it creates if need be.
// Errors name what is wrong and what to do; nothing keeps running after one.
func Open(ctx context.Context, o Options) (_ *Node, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	n := &Node{opts: o.withDefaults(), opened: time.Now(), traffic: newTraffic()}
	n.base, n.cancel = context.WithCancel(context.Background())
	n.serving, n.stop = context.WithCancel(n.base)
	defer func() {
		if err != nil {
			err = errors.Join(err, n.shut())
		}
	}()
	if n.lock, err = datadir.Lock(n.opts.FS, n.opts.Dir); err != nil {
		return nil, err
	}
	if n.id, err = datadir.Open(n.opts.FS, n.opts.Dir, n.opts.NodeID, n.opts.Rand); err != nil {
		return nil, err
	}
	if err := datadir.MustBeWhole(n.opts.FS, n.opts.Dir, n.id); err != nil {
		return nil, err
	}
	n.disk = newDisk(n.opts.FS, n.opts.Dir, n.opts.DiskReserve)
	n.opts.OnProgress("opening the metadata")
	if err := n.openMeta(ctx); err != nil {
		return nil, err
	}
	n.opts.OnProgress("asking the archive whose it is")
	if err := n.checkArchive(ctx); err != nil {
		return nil, err
	}
	if err := n.openStorage(ctx); err != nil {
		return nil, err
	}
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	if n.unregistered, err = n.registerMetrics(); err != nil {
		return nil, err
	}
	n.start()
	return n, nil
}

func (n *Node) openMeta(ctx context.Context) error {
	var err error
	n.meta, err = raftmeta.Open(ctx, raftmeta.Options{
		Dir: n.path("raft"), NodeID: n.opts.NodeID, BindAddr: n.opts.RaftAddr,
		Logger: n.opts.Logger, Registerer: n.opts.Registerer, Now: n.opts.Now, Rand: n.opts.Rand,
		OnFatal: func(err error) { n.opts.Logger.Error("metadata stopped, restart the node", "error", err) },
	})
	if err != nil {
		return err
	}
	if _, known := n.meta.State().Node(n.opts.NodeID); n.id.Begun && !known {
		return datadir.Lost(n.opts.Dir, "the metadata in "+n.path("raft")+" does not know this node: it is new, or another cluster's")
	}
	_, err = n.meta.RegisterIncarnation(ctx, n.id.Incarnation, map[string]string{"http": n.opts.HTTPAddr, "raft": n.meta.Addr()})
	return err
}

// begin says, before the first request is served, that the directory is whole:
// the checkpoint names this incarnation in the local state, the log has its
// first file, the metadata knows the node.
func (n *Node) begin(ctx context.Context) error {
	if n.id.Begun {
		return nil
	}
	if err := n.engine.Checkpoint(ctx); err != nil {
		return err
	}
	id, err := datadir.Begin(n.opts.FS, n.opts.Dir, n.id)
	if err != nil {
		return err
	}
	n.id = id
	return nil
}

// checkArchive refuses an archive of another cluster, and one where a later
// generation of this cluster serves. One that does not answer is asked again
// by the shipper.
func (n *Node) checkArchive(ctx context.Context) error {
	if n.opts.Archive == nil {
		return nil
	}
	cluster := n.meta.State().Cluster()
	ask, cancel := context.WithTimeout(ctx, n.opts.StartTimeout)
	err := ship.CheckArchive(ask, n.opts.Archive, cluster.ID, cluster.Generation, n.claimed())
	cancel()
	switch {
	case err == nil && !n.claimed():
		return n.setClaimed(ctx)
	case err == nil:
		return nil
	}
	switch errcode.Of(err) {
	case errcode.Conflict, errcode.Fenced, errcode.Corrupt, errcode.UnsupportedVersion:
		return err
	}
	n.opts.Logger.Warn("the archive does not answer, starting without it; it is asked again", "error", err)
	return nil
}

// settingClaimed stands in the metadata once the cluster has claimed an
// archive: from then on an archive without its claim is the wrong one.
const settingClaimed = "archive.claimed"

func (n *Node) claimed() bool {
	_, ok := n.meta.State().Setting(settingClaimed)
	return ok
}

func (n *Node) setClaimed(ctx context.Context) error {
	return n.meta.PutSetting(ctx, settingClaimed, "yes")
}

func (n *Node) path(name string) string { return n.opts.FS.PathJoin(n.opts.Dir, name) }

// start runs what runs until Close.
func (n *Node) start() {
	var ctx context.Context
	n.tasks, ctx = errgroup.WithContext(n.base)
	n.disk.onLook = func(low bool) {
		n.countRefused()
		if low {
			n.log.Reconsider() // it gives spare files back
		}
	}
	n.countRefused()
	n.db.Patient()
	n.tasks.Go(func() error { return n.disk.run(ctx) })
	n.tasks.Go(func() error { return n.follow(ctx) })
	n.tasks.Go(func() error { return n.sweeper.Run(ctx) })
	n.tasks.Go(func() error { return n.scrubber.Run(ctx) })
	if n.shipper != nil {
		n.tasks.Go(func() error { return n.shipper.Run(ctx) })
		n.tasks.Go(func() error { return n.collector.Run(ctx) })
	}
	if n.merger != nil {
		n.tasks.Go(func() error { return n.merger.Run(ctx) })
	}
	n.engine.Start()
}

// Close stops serving, makes everything durable, ships what the archive does
// not have yet (within a grace), and closes. Requests must have ended.
func (n *Node) Close() error {
	if n.closing.Swap(true) {
		return nil
	}
	return n.shut()
}

// shut closes what is open, in the reverse of the order in which it was opened.
func (n *Node) shut() error {
	var errs []error
	young := n.shipper != nil && n.archiveKnown() != nil
	n.cancel()
	if n.engine != nil {
		n.engine.Refuse(n.gone())
	}
	if n.db != nil {
		n.db.Hasten() // on a disk that takes nothing, nobody below waits for it
	}
	if n.tasks != nil {
		errs = append(errs, n.tasks.Wait())
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	if n.shipper != nil && n.tasks != nil && n.Fenced() == nil {
		if err := n.shipper.Finish(ctx); err != nil {
			n.opts.Logger.Warn("not everything was shipped before the stop; it is after the next start", "error", err)
		}
	}
	if n.uploader != nil {
		if young {
			// Segments waited for the archive to say whose it is, and so did the trims
			// that their chains may need first. The log has been shipped by now.
			cancel()
		}
		if err := n.uploader.Close(ctx); err != nil {
			n.opts.Logger.Warn("not every segment was uploaded before the stop; it is after the next start", "error", err)
		}
	}
	if n.unregistered != nil {
		n.unregistered()
	}
	if n.scrubber != nil {
		n.scrubber.Close()
	}
	if n.engine != nil {
		errs = append(errs, n.engine.Close())
	}
	// Behind the last state object and the last checkpoint: a closed queue has
	// no groups, and the log would let go of what they settled.
	if n.queue != nil {
		n.queue.Close()
	}
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	if n.reader != nil {
		n.reader.close()
	}
	if n.cache != nil {
		errs = append(errs, n.cache.Close())
	}
	if n.db != nil {
		errs = append(errs, n.db.Close())
	}
	if n.meta != nil {
		errs = append(errs, n.meta.Close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// Fenced returns why this node serves no more, or nil.
func (n *Node) Fenced() error {
	if err := n.fenced.Load(); err != nil {
		return err
	}
	return nil
}

// fence takes the node out of service for good.
func (n *Node) fence(err error) {
	var e *errcode.Error
	if !errors.As(err, &e) {
		e = errcode.New(errcode.Fenced, "%w", err)
	}
	if n.fenced.CompareAndSwap(nil, e) {
		n.opts.Logger.Error("this node serves no more", "error", err)
		n.stop() // who waits hears it now
		n.engine.Refuse(e)
	}
}

// refusal returns why no request is served now, or nil.
func (n *Node) refusal() error {
	if err := n.fenced.Load(); err != nil {
		return err
	}
	if n.closing.Load() {
		return errcode.New(errcode.Closed, "the node is shutting down: try again")
	}
	return nil
}

// gone returns why a call that waited ends.
func (n *Node) gone() error {
	if err := n.refusal(); err != nil {
		return err
	}
	return errcode.New(errcode.Closed, "the node is shutting down: try again")
}

// Identity returns whose the data directory is.
func (n *Node) Identity() datadir.Identity { return n.id }

// RaftAddr is where the metadata plane listens.
func (n *Node) RaftAddr() string { return n.meta.Addr() }
