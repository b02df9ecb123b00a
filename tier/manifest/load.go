package manifest

import (
	"context"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// loadParallel is how many entries Load reads at once unless told otherwise.
const loadParallel = 8

// maxSeq keeps the gallop from running over the end of the number space.
const maxSeq = 1 << 62

// loaded is an entry with the hash and size of its JSON.
type loaded struct {
	entry *Entry
	object
}

// Load reads the chain of pid from store. hint is a seq that is known to
// exist, 0 for none: with the last one, two GETs find the end. Only what
// follows the last checkpoint is read. A chain without entries is an empty
// Chain; when the entry that hint names is missing, or any other, the error is
// Corrupt, and when the store does not answer it is the store's (B214).
func Load(ctx context.Context, store objstore.Store, pid broker.PartitionID, hint uint64, opts ...Option) (*Chain, error) {
	o := defaults()
	for _, opt := range opts {
		opt(&o)
	}
	l := loader{store: store, pid: pid, parallel: o.parallel, have: make(map[uint64]loaded), torn: make(map[uint64]error)}
	end, err := l.findEnd(ctx, hint)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "find the end of the chain of %s", pid)
	}
	end, behind, err := l.tornEnd(ctx, end, hint, o.tornEnd)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "read the chain of %s", pid)
	}
	s := newState(pid)
	if end > 0 {
		if s, err = l.replay(ctx, end); err != nil {
			return nil, errcode.Wrap(errcode.Internal, err, "read the chain of %s", pid)
		}
	}
	s.torn = behind
	return newChain(store, s, o), nil
}

// Refresh reads what was appended since and reports whether there was
// anything. Owners need it not: they learn from collisions.
func (c *Chain) Refresh(ctx context.Context) (bool, error) {
	if err := c.lock(ctx); err != nil {
		return false, err
	}
	defer c.unlock()
	moved := false
	for {
		s := c.state.Load()
		e, behind, err := c.getNext(ctx, s)
		if errcode.Is(err, errcode.NotFound) {
			if behind > s.torn {
				n := *s
				n.torn = behind
				c.set(&n)
			}
			return moved, nil
		}
		if err != nil {
			return moved, err
		}
		n, err := s.apply(e.entry, e.sum, e.size)
		if err != nil {
			return moved, err
		}
		c.set(n)
		moved = true
	}
}

type loader struct {
	store    objstore.Store
	pid      broker.PartitionID
	parallel int
	have     map[uint64]loaded
	torn     map[uint64]error // there, and does not read: why
}

// exists reads entry seq and remembers it, or that it does not read.
func (l *loader) exists(ctx context.Context, seq uint64) (bool, error) {
	if _, ok := l.have[seq]; ok || l.torn[seq] != nil {
		return true, nil
	}
	e, err := getEntry(ctx, l.store, l.pid, seq)
	if errcode.Is(err, errcode.NotFound) {
		return false, nil
	}
	if torn(err) {
		l.torn[seq] = err
		return true, nil
	}
	if err != nil {
		return false, err
	}
	l.have[seq] = e
	return true, nil
}

// findEnd returns the seq of the last entry, 0 for none. Entries are dense and
// never deleted, so existence is monotonic: gallop up from hint in steps that
// double, then halve the interval.
func (l *loader) findEnd(ctx context.Context, hint uint64) (uint64, error) {
	lo := hint
	if hint > 0 {
		ok, err := l.exists(ctx, hint)
		if err != nil {
			return 0, err
		}
		if !ok {
			return 0, errcode.New(errcode.Corrupt, "entry %s was there before and is missing: the bucket lost it, or this is not the bucket it was in", EntryKey(l.pid, hint))
		}
	}
	hi := uint64(0) // lowest seq known to be absent
	for step := uint64(1); hi == 0; step *= 2 {
		if lo+step > maxSeq {
			return 0, errcode.New(errcode.Corrupt, "entry %d exists: no chain is that long", lo)
		}
		ok, err := l.exists(ctx, lo+step)
		if err != nil {
			return 0, err
		}
		if ok {
			lo += step
		} else {
			hi = lo + step
		}
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		ok, err := l.exists(ctx, mid)
		if err != nil {
			return 0, err
		}
		if ok {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, nil
}

// replay builds the state at entry end from the checkpoint that end names.
func (l *loader) replay(ctx context.Context, end uint64) (*state, error) {
	from := max(1, l.have[end].entry.Checkpoint)
	if end-from > 4*checkpointAge {
		return nil, errcode.New(errcode.Corrupt, "entry %d names entry %d as the last checkpoint, more than %d entries back", end, from, 4*checkpointAge)
	}
	if err := l.fetch(ctx, from, end); err != nil {
		return nil, err
	}
	s := newState(l.pid)
	skipped := l.skips(from, end)
	for seq := from; seq <= end; seq++ {
		if skipped[seq] {
			continue
		}
		if err := l.torn[seq]; err != nil {
			return nil, err
		}
		e := l.have[seq]
		var err error
		if seq == from && from == l.have[end].entry.Checkpoint {
			if e.entry.Ops[0].Checkpoint == nil {
				return nil, errcode.New(errcode.Corrupt, "entry %d is no checkpoint, as entry %d says", from, end)
			}
			s, err = restore(l.pid, e.entry, e.sum, e.size)
		} else {
			s, err = s.apply(e.entry, e.sum, e.size)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// fetch reads the entries in [from, end] that probing has not read yet.
func (l *loader) fetch(ctx context.Context, from, end uint64) error {
	out := make([]loaded, end-from+1)
	damaged := make([]error, len(out))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(l.parallel)
	for i := range out {
		seq := from + uint64(i)
		if _, ok := l.have[seq]; ok || l.torn[seq] != nil {
			continue
		}
		g.Go(func() error {
			e, err := getEntry(ctx, l.store, l.pid, seq)
			if errcode.Is(err, errcode.NotFound) {
				return errcode.New(errcode.Corrupt, "entry %s is missing and later ones exist", EntryKey(l.pid, seq))
			}
			if torn(err) {
				damaged[i] = err
				return nil
			}
			out[i] = e
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, e := range out {
		if e.entry != nil {
			l.have[from+uint64(i)] = e
		}
		if damaged[i] != nil {
			l.torn[from+uint64(i)] = damaged[i]
		}
	}
	return nil
}

// getEntry reads entry seq. NotFound means that the store says it is absent.
func getEntry(ctx context.Context, store objstore.Store, pid broker.PartitionID, seq uint64) (loaded, error) {
	key := EntryKey(pid, seq)
	var e *Entry
	var o object
	err := twice(ctx, store, key, func(stored []byte) (err error) {
		e, o, err = decodeEntry(stored, "manifest entry "+key)
		return err
	})
	if err != nil {
		return loaded{}, err
	}
	if e.Seq != seq || e.Partition != pid {
		return loaded{}, errcode.New(errcode.Corrupt, "manifest entry %s says it is entry %d of %s", key, e.Seq, e.Partition)
	}
	return loaded{e, o}, nil
}

// twice reads an object and decodes it, and once more when it does not decode:
// its bytes may have been damaged on their way.
func twice(ctx context.Context, store objstore.Store, key string, decode func(stored []byte) error) error {
	stored, err := get(ctx, store, key)
	if err != nil {
		return err
	}
	if err = decode(stored); !errcode.Is(err, errcode.Corrupt) {
		return err
	}
	if stored, err = get(ctx, store, key); err != nil {
		return err
	}
	return decode(stored)
}

// get reads a whole object of at most maxStored bytes.
func get(ctx context.Context, store objstore.Store, key string) ([]byte, error) {
	body, info, err := store.Get(ctx, key)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "get %s", key)
	}
	defer body.Close()
	if info.Size > maxStored {
		return nil, errcode.New(errcode.Corrupt, "%s has %d bytes, a manifest object has at most %d", key, info.Size, maxStored)
	}
	b, err := io.ReadAll(io.LimitReader(body, maxStored+1))
	if err != nil {
		return nil, errcode.Wrap(errcode.Transient, err, "read %s", key)
	}
	if int64(len(b)) < info.Size {
		return nil, errcode.New(errcode.Transient, "%s has %d bytes and ended after %d", key, info.Size, len(b))
	}
	if len(b) > maxStored {
		return nil, errcode.New(errcode.Corrupt, "%s has more than %d bytes", key, maxStored)
	}
	return b, nil
}
