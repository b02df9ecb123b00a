package node

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/upload"
)

// chainPages bounds the pages of long chains that a node keeps in memory, about
// half a MiB each.
const chainPages = 64

// chains holds the archive's chain of each partition, loaded when it is first
// needed and fenced before it is first appended to. Those that were not used for
// the longest time are unloaded when all of them take too much memory. What a
// chain knows and the bucket does not is in the hands of whoever uses it, and one
// that is used is the same for all; of the others a summary stays.
type chains struct {
	store       objstore.Store
	cluster     uint64
	node        string
	incarnation raftmeta.Incarnation
	assignment  func(broker.PartitionID) (raftmeta.Assignment, bool)
	hint        func(broker.PartitionID) uint64
	whose       func() error                // why nothing may be put into the archive now, or nil
	wait        func(context.Context) error // waits until that is known
	pages       *manifest.Pages             // of all chains; nil: each has a few of its own

	// most bounds the memory of loaded chains, in bytes. Above it those that were
	// not used for the longest time are unloaded: each takes a few GETs to come
	// back. What is used at the moment is not counted once it is unloaded.
	most  int64
	loads atomic.Uint64 // of chains, out of the bucket

	mu    sync.Mutex
	m     map[broker.PartitionID]*chainSlot
	order list.List // of partition ids whose chains are loaded, the last used one in front
	bytes int64     // of those chains, each as of its last use
}

// chainMemory is the least bound of the memory of a node's loaded chains. A
// segment that is in no page takes about 250 bytes, and a chain keeps up to 2,048
// of them.
const chainMemory = 64 << 20

// chainSlot is one partition's chain; its lock is held while it is loaded or
// fenced, so that many readers cost one load.
type chainSlot struct {
	mu     chan struct{} // a lock that a waiter can leave; capacity 1
	chain  *manifest.Chain
	used   weak.Pointer[manifest.Chain] // the unloaded one, while somebody has it
	fenced bool                         // chain, or used, is

	// What the chain comes to; nil before it is first loaded. Whoever has an
	// unloaded one still moves it, so that its seq is the last one that was read
	// whole: an entry up to there that does not read later is damage, never a put
	// that the store tore.
	summary atomic.Pointer[manifest.Summary]

	// Under the lock of chains.
	place *list.Element // nil: not loaded
	bytes int64
}

// lock takes the partition's slot until ctx ends.
func (c *chains) lock(ctx context.Context, id broker.PartitionID) (*chainSlot, error) {
	c.mu.Lock()
	s := c.m[id]
	if s == nil {
		s = &chainSlot{mu: make(chan struct{}, 1)}
		c.m[id] = s
	}
	c.mu.Unlock()
	select {
	case s.mu <- struct{}{}:
		return s, nil
	case <-ctx.Done():
		return nil, errcode.Wrap(errcode.ArchiveUnavailable, ctx.Err(), "wait for the chain of partition %s", id)
	}
}

func (s *chainSlot) unlock() { <-s.mu }

// load returns the partition's chain for reading.
func (c *chains) load(ctx context.Context, id broker.PartitionID) (*manifest.Chain, error) {
	s, err := c.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer s.unlock()
	return c.loadLocked(ctx, s, id)
}

func (c *chains) loadLocked(ctx context.Context, s *chainSlot, id broker.PartitionID) (*manifest.Chain, error) {
	if s.chain != nil {
		c.used(id, s)
		return s.chain, nil
	}
	if s.chain = s.used.Value(); s.chain != nil { // two of one partition would not see each other's entries
		c.used(id, s)
		return s.chain, nil
	}
	hint := c.hint(id)
	if known := s.summary.Load(); known != nil {
		hint = max(hint, known.Seq)
	}
	chain, err := manifest.Load(ctx, objstore.For(c.store, objstore.CauseChain), id, hint,
		manifest.WithPages(c.pages), manifest.WithTornEnd(), manifest.WithSummary(&s.summary))
	if err != nil {
		return nil, unreachable(err, "load the chain of partition %s", id)
	}
	c.loads.Add(1)
	s.chain, s.fenced = chain, false
	c.used(id, s)
	return chain, nil
}

// used notes that a chain is used now, and unloads others until all of them are
// within the bound. Whoever has an unloaded one goes on with it, and the next who
// asks gets the same as long as that lasts. The caller holds the slot.
func (c *chains) used(id broker.PartitionID, s *chainSlot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m[id] != s {
		return // its topic was deleted meanwhile
	}
	size := s.chain.Resident()
	c.bytes += size - s.bytes
	s.bytes = size
	if s.place == nil {
		s.place = c.order.PushFront(id)
	} else {
		c.order.MoveToFront(s.place)
	}
	for e := c.order.Back(); e != nil && c.bytes > c.most; {
		before, v := e.Prev(), c.m[e.Value.(broker.PartitionID)]
		select {
		case v.mu <- struct{}{}: // nobody loads or fences it
			c.drop(v)
			v.used, v.chain = weak.Make(v.chain), nil
			v.unlock()
		default: // s is one of these
		}
		e = before
	}
}

// drop takes a chain out of the count. The caller holds c.mu.
func (c *chains) drop(s *chainSlot) {
	if s.place != nil {
		c.order.Remove(s.place)
	}
	c.bytes -= s.bytes
	s.place, s.bytes = nil, 0
}

// refresh reads what others appended to the partition's chain since.
func (c *chains) refresh(ctx context.Context, id broker.PartitionID) error {
	chain, err := c.load(ctx, id)
	if err != nil {
		return err
	}
	if _, err := chain.Refresh(ctx); err != nil {
		return unreachable(err, "read on in the chain of partition %s", id)
	}
	return nil
}

// Chain implements upload.Chains: the chain, fenced by this node's generation. It
// waits until the archive has said whose it is.
func (c *chains) Chain(ctx context.Context, id broker.PartitionID) (upload.Chain, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	chain, owner, err := c.owned(ctx, id)
	if err != nil {
		return nil, err
	}
	return &upload.Bound{Chain: chain, Owner: owner}, nil
}

// owned returns the chain of a partition that is assigned to this node, loaded
// and fenced in this generation, and who it is fenced for.
func (c *chains) owned(ctx context.Context, id broker.PartitionID) (*manifest.Chain, manifest.Owner, error) {
	a, ok := c.assignment(id)
	if !ok || a.Owner != c.node || a.OwnerIncarnation != c.incarnation {
		return nil, manifest.Owner{}, errcode.New(errcode.Fenced, "partition %s is not assigned to this node", id)
	}
	// What is put into another cluster's archive is lost to this one, and a local
	// copy that is confirmed there would go.
	if err := c.whose(); err != nil {
		return nil, manifest.Owner{}, err
	}
	s, err := c.lock(ctx, id)
	if err != nil {
		return nil, manifest.Owner{}, err
	}
	defer s.unlock()
	chain, err := c.loadLocked(ctx, s, id)
	if err != nil {
		return nil, manifest.Owner{}, err
	}
	owner := c.owner(a.Generation)
	if !s.fenced {
		if err := fenceChain(ctx, chain, owner, a); err != nil {
			return nil, manifest.Owner{}, err
		}
		s.fenced = true
	}
	return chain, owner, nil
}

func (c *chains) owner(generation uint32) manifest.Owner {
	return manifest.Owner{ClusterGeneration: c.cluster, Generation: generation, Incarnation: uint64(c.incarnation), Node: c.node}
}

// fenceChain begins the assignment's generation in the chain and checks that
// both say the same about it.
func fenceChain(ctx context.Context, chain *manifest.Chain, owner manifest.Owner, a raftmeta.Assignment) error {
	params := manifest.FenceParams{Start: manifest.Clean, PreviousEndAtLeast: a.PreviousEnd}
	if a.Start != a.PreviousEnd {
		params.Start = manifest.Unclean
	}
	f, err := chain.Fence(ctx, owner, params)
	if err != nil {
		return err
	}
	if f.Start != a.Start || f.PreviousEnd != a.PreviousEnd {
		return errcode.New(errcode.Corrupt, "partition %s: the chain begins generation %d at %d behind %d, the assignment says %d behind %d: restore the cluster from the archive",
			chain.Partition(), a.Generation, f.Start, f.PreviousEnd, a.Start, a.PreviousEnd)
	}
	return nil
}

// fenced returns the chain of a partition that is assigned to this node, when it
// is loaded and fenced in this generation already; it asks the archive nothing.
func (c *chains) fenced(id broker.PartitionID) (*manifest.Chain, manifest.Owner, bool) {
	a, ok := c.assignment(id)
	if !ok || a.Owner != c.node || a.OwnerIncarnation != c.incarnation {
		return nil, manifest.Owner{}, false
	}
	c.mu.Lock()
	s := c.m[id]
	c.mu.Unlock()
	if s == nil {
		return nil, manifest.Owner{}, false
	}
	select {
	case s.mu <- struct{}{}:
		defer s.unlock()
		return s.chain, c.owner(a.Generation), s.chain != nil && s.fenced
	default: // somebody loads it
		return nil, manifest.Owner{}, false
	}
}

// forget drops the chains of a deleted topic.
func (c *chains) forget(topic broker.TopicID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.m {
		if id.Topic == topic {
			c.drop(c.m[id])
			delete(c.m, id)
		}
	}
}

// unreachable gives errors of a store that does not answer, or refuses, the
// code that callers of a read wait on; others keep theirs.
func unreachable(err error, format string, args ...any) error {
	switch errcode.Of(err) {
	case errcode.Transient, errcode.Throttled, errcode.Denied, errcode.Internal, errcode.Canceled:
		return errcode.New(errcode.ArchiveUnavailable, format+": %w; the archive does not answer, try again", append(args, err)...)
	}
	return errcode.Wrap(errcode.ArchiveUnavailable, err, format, args...)
}

// summary returns what the partition's chain comes to when it was loaded once,
// also when it is unloaded since. It does not block and is no use of the chain.
func (c *chains) summary(id broker.PartitionID) (manifest.Summary, bool) {
	c.mu.Lock()
	s := c.m[id]
	c.mu.Unlock()
	if s == nil {
		return manifest.Summary{}, false
	}
	known := s.summary.Load()
	if known == nil {
		return manifest.Summary{}, false
	}
	return *known, true
}

// resident returns about how many bytes the loaded chains take.
func (c *chains) resident() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
