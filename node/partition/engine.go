package partition

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

// retryAfter is what a caller at a bound of the engine is told to wait.
const retryAfter = time.Second

// Engine holds the partitions of a node.
type Engine struct {
	opts    Options
	log     Log
	metrics *metrics

	parts struct {
		sync.RWMutex
		m map[broker.PartitionID]*Partition
	}

	// memory that all tails hold, but for their first chunks, and that was
	// promised to appends which waited for it.
	memory  atomic.Int64
	room    room
	shipped atomic.Uint64
	// checkpointed is when the last checkpoint was written, in ms.
	checkpointed atomic.Int64
	dirty        set         // changed since their last checkpoint
	left         atomic.Bool // a partition that may have held the log was dropped since the last checkpoint
	tails        set         // with a tail that the local state does not cover
	flushes      *queue
	large        *semaphore.Weighted // turns of large appends
	decoded      *decodedCache
	handles      *handles

	late struct {
		sync.Mutex
		set map[*Partition]struct{}
	}
	lateWake chan struct{} // capacity 1; a full channel already says it
	crowded  chan struct{} // capacity 1: the tails exceed the budget

	// checkpoints is held over a whole checkpoint, and while partitions begin.
	checkpoints sync.Mutex
	closed      bool // guarded by checkpoints
	// entries orders what is written of partitions into the local state: a
	// checkpoint must not put back what a seal or a deletion wrote meanwhile.
	// Order: checkpoints, Partition.flush, entries, Partition.mu.
	entries sync.Mutex
	running atomic.Bool // between Start and Close

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// New returns an engine that runs no goroutines yet. Load, open the WAL with
// Replay, Connect, Start.
func New(opts Options) (*Engine, error) {
	opts = opts.withDefaults()
	if opts.FS == nil || opts.Dir == "" || opts.State == nil {
		return nil, errcode.New(errcode.Internal, "partition engine: FS, Dir and State are required")
	}
	if err := segment.MakeDir(opts.FS, opts.FS.PathDir(opts.Dir), opts.Dir); err != nil {
		return nil, err
	}
	e := &Engine{
		opts:     opts,
		metrics:  newMetrics(opts.Registerer),
		flushes:  newQueue(),
		large:    semaphore.NewWeighted(largeTurns),
		decoded:  newDecodedCache(decodedCacheBytes),
		handles:  newHandles(opts.FS, opts.OpenFiles),
		lateWake: make(chan struct{}, 1),
		crowded:  make(chan struct{}, 1),
	}
	e.room.memory, e.room.limit, e.room.most = &e.memory, 2*opts.MemoryBudget, max(opts.MemoryBudget/2, leastWaiting)
	e.metrics.watch(opts.Registerer, &e.room)
	e.parts.m = make(map[broker.PartitionID]*Partition)
	e.late.set = make(map[*Partition]struct{})
	return e, nil
}

// Connect gives the engine its log and makes visible what was replayed, which
// is durable. Appends may begin; nothing is flushed or checkpointed yet.
func (e *Engine) Connect(log Log) {
	e.log = log
	for _, p := range e.All() {
		p.advance(math.MaxUint64)
	}
}

// Start hands the sealed segments that are not archived to OnSealed and starts
// the workers. Options.Groups must be able to answer: a checkpoint that misses
// a group would let the log forget it.
func (e *Engine) Start() {
	for _, p := range e.All() {
		e.announceSealed(p)
	}
	e.checkpointed.Store(e.opts.Now().UnixMilli())
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.running.Store(true)
	run := func(fn func(context.Context)) {
		e.done.Add(1)
		go func() {
			defer e.done.Done()
			fn(ctx)
		}()
	}
	for range e.opts.Flushers {
		run(e.runFlusher)
	}
	run(e.runLate)
	run(e.runCheckpoints)
}

// Close stops the workers, flushes every tail, writes a last checkpoint and
// closes the files. Appends must have ended; the log is still open.
func (e *Engine) Close() error {
	e.Refuse(errcode.New(errcode.Closed, "the partitions are closed"))
	if e.cancel != nil {
		e.cancel()
		e.flushes.close()
		e.done.Wait()
	}
	e.running.Store(false)
	var errs []error
	if e.log != nil {
		for _, p := range e.All() {
			if err := e.flushAll(p); err != nil && p.Refused() == nil {
				errs = append(errs, err)
			}
		}
		errs = append(errs, e.Checkpoint(context.Background()))
	}
	// From here on a checkpoint would say that there are no active files.
	e.checkpoints.Lock()
	e.closed = true
	e.checkpoints.Unlock()
	for _, p := range e.All() {
		errs = append(errs, p.closeFiles())
		p.evict(math.MaxInt64)
	}
	e.handles.closeAll()
	return errors.Join(errs...)
}

// Get returns the partition, or nil when this node does not have it.
func (e *Engine) Get(id broker.PartitionID) *Partition {
	e.parts.RLock()
	defer e.parts.RUnlock()
	return e.parts.m[id]
}

// All returns every partition.
func (e *Engine) All() []*Partition {
	e.parts.RLock()
	defer e.parts.RUnlock()
	out := make([]*Partition, 0, len(e.parts.m))
	for _, p := range e.parts.m {
		out = append(out, p)
	}
	return out
}

func (e *Engine) notServing() error {
	return errcode.New(errcode.Unavailable, "the partitions are not serving, nothing can be flushed now").After(retryAfter)
}

// SetShipped records the LSN up to which the archive holds the log. It stands
// in the next checkpoint; losing it costs a listing, nothing more.
func (e *Engine) SetShipped(lsn uint64) { e.shipped.Store(lsn) }
