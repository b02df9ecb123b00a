package garbage

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

const (
	maxKnown   = 500_000 // shipped objects that are remembered, about 32 MB
	keptNewest = 2       // of state objects and exports, whatever their age
)

// object is one shipped object of this incarnation, or an export.
type object struct {
	a, b       uint64 // wal: first and next LSN; state: LSN, 0; export: cluster generation, Raft index
	bytes      int64
	at         time.Time // it was there then, or earlier
	replayFrom uint64    // state: 0 = not read yet
}

func compareObjects(x, y object) int {
	return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b))
}

// shipped is what stands in the archive of the log, the states and the exports:
// known from one list and from the shipper since. Each list ascends.
type shipped struct {
	wal, states, exports []object
	forgot               bool   // the bound was reached: a list will tell
	hold                 string // why nothing of the log goes, "" = nothing hinders it
}

func (s *shipped) list(k manifest.KeyKind) *[]object {
	switch k {
	case manifest.KindWAL:
		return &s.wal
	case manifest.KindState:
		return &s.states
	case manifest.KindMeta:
		return &s.exports
	}
	return nil
}

// add takes an object over, once.
func (s *shipped) add(k manifest.KeyKind, o object) {
	l := s.list(k)
	if len(*l) >= maxKnown {
		s.forgot = true
		return
	}
	at, known := slices.BinarySearchFunc(*l, o, compareObjects)
	if known {
		have := &(*l)[at]
		have.replayFrom = max(have.replayFrom, o.replayFrom)
		if o.at.Before(have.at) {
			have.at = o.at
		}
		return
	}
	*l = slices.Insert(*l, at, o)
}

func objectOf(k manifest.Key, bytes int64, at time.Time, replayFrom uint64) object {
	o := object{bytes: bytes, at: at, replayFrom: replayFrom}
	switch k.Kind {
	case manifest.KindWAL:
		o.a, o.b = k.First, k.End
	case manifest.KindState:
		o.a = k.First
	case manifest.KindMeta:
		o.a, o.b = k.Cluster, k.Index
	}
	return o
}

// Note says that an object of this incarnation, or an export, stands in the
// archive. It does not block.
func (c *Collector) Note(o ship.Object) {
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.shipped.list(o.Key.Kind) != nil {
		c.mu.shipped.add(o.Key.Kind, objectOf(o.Key, o.Bytes, now, o.ReplayFrom))
	}
}

// expired returns what goes of states or exports: all that is older than the
// newest one outside the window, but for the newest two.
func expired(l []object, now time.Time, window time.Duration) []object {
	newest := -1 // outside the window
	for i := range l {
		if now.Sub(l[i].at) >= window {
			newest = i
		}
	}
	return l[:max(0, min(newest, len(l)-keptNewest))]
}

// floor is the first frame that a restore from any state object in the archive
// needs; 0 when that is not known.
func (s *shipped) floor() uint64 {
	if len(s.states) == 0 {
		return 0
	}
	floor := s.states[0].replayFrom
	for i := range s.states {
		floor = min(floor, s.states[i].replayFrom)
	}
	return floor
}

// covered returns the shipped log that is below the floor and older than the
// window. Objects ascend by first LSN and are put in that order.
func (s *shipped) covered(now time.Time, window time.Duration, limit int) []object {
	floor := s.floor()
	var out []object
	for i := range s.wal {
		o := &s.wal[i]
		if o.a >= floor || len(out) == limit {
			break
		}
		if o.b <= floor && now.Sub(o.at) >= window {
			out = append(out, *o)
		}
	}
	return out
}

// ShippedFrom returns, for each of some LSNs that ascend, how many bytes of this
// incarnation's shipped log stand in the archive with frames at or behind it and
// are older than the window: what goes as soon as no state object needs it. It
// asks the archive nothing.
func (c *Collector) ShippedFrom(lsns []uint64) []int64 {
	now := c.opts.Now()
	out := make([]int64, len(lsns))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.mu.shipped.wal {
		o := &c.mu.shipped.wal[i]
		if now.Sub(o.at) < c.opts.Window {
			continue
		}
		// Of the last LSN at or below its end; the sum below does the rest.
		if at, _ := slices.BinarySearch(lsns, o.b); at > 0 {
			out[at-1] += o.bytes
		}
	}
	for i := len(out) - 1; i > 0; i-- {
		out[i-1] += out[i]
	}
	return out
}

func (s *shipped) tally(out *[numCauses]tally, now time.Time, window time.Duration) {
	for _, o := range s.covered(now, window, len(s.wal)) {
		out[WAL].wait(1, o.bytes, o.at)
	}
	for _, o := range expired(s.states, now, window) {
		out[State].wait(1, o.bytes, o.at)
	}
	for _, o := range expired(s.exports, now, window) {
		out[Export].wait(1, o.bytes, o.at)
	}
	if len(s.wal) > 0 && s.floor() == 0 {
		out[WAL].hold("no state object is known that covers it")
	}
	if s.hold != "" {
		out[WAL].hold(s.hold)
	}
}

// collectShipped deletes states and exports that are out of the window, and
// then what no state needs of the log.
func (c *Collector) collectShipped(ctx context.Context) (more bool, err error) {
	for _, kind := range []manifest.KeyKind{manifest.KindState, manifest.KindMeta} {
		if err := c.collectOld(ctx, kind); err != nil {
			return false, err
		}
	}
	if err := c.readStates(ctx); err != nil {
		return false, err
	}
	for range maxBatches {
		now := c.opts.Now()
		c.mu.Lock()
		batch := c.mu.shipped.covered(now, c.opts.Window, maxBatch)
		var guards []object
		if s := c.mu.shipped.states; len(s) > 0 {
			guards = []object{s[0], s[len(s)-1]}
		}
		c.mu.Unlock()
		if len(batch) == 0 {
			return false, nil
		}
		gone, err := c.removeShipped(ctx, WAL, manifest.KindWAL, batch, manifest.KindState, guards)
		if err != nil || gone < len(batch) {
			return false, err
		}
	}
	return true, nil
}

// collectOld deletes old states or exports; the newest one has to stand.
func (c *Collector) collectOld(ctx context.Context, kind manifest.KeyKind) error {
	now := c.opts.Now()
	c.mu.Lock()
	l := *c.mu.shipped.list(kind)
	batch := slices.Clone(expired(l, now, c.opts.Window))
	var guards []object
	if len(l) >= keptNewest {
		guards = slices.Clone(l[len(l)-keptNewest:])
	}
	c.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	cause := State
	if kind == manifest.KindMeta {
		cause = Export
		// The newest one has to be of this cluster generation, or a take-over
		// would find less than it finds now.
		if newest := guards[len(guards)-1]; newest.a != c.opts.ClusterGeneration {
			return nil
		}
	}
	_, err := c.removeShipped(ctx, cause, kind, batch[:min(len(batch), maxBatch)], kind, guards)
	return err
}

// removeShipped deletes objects of one kind while the guards, which make them
// unnecessary, stand.
func (c *Collector) removeShipped(ctx context.Context, cause Cause, kind manifest.KeyKind, batch []object, guard manifest.KeyKind, guards []object) (gone int, err error) {
	going := make([]candidate, len(batch))
	for i, o := range batch {
		going[i] = candidate{c.keyOf(kind, o), o.bytes}
	}
	deleted, err := c.remove(ctx, cause, going, func(ctx context.Context, _ *raftmeta.State) ([]candidate, error) {
		if len(guards) == 0 {
			return nil, nil
		}
		for _, g := range guards {
			if err := c.stands(ctx, c.keyOf(guard, g)); err != nil {
				return nil, err
			}
		}
		return going, nil
	})
	if err != nil {
		return 0, err
	}
	c.noteDeleted(kind)
	keys := make(map[string]bool, len(deleted))
	for _, o := range deleted {
		keys[o.key] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.mu.shipped.list(kind)
	for i := range going {
		if keys[going[i].key] {
			if at, ok := slices.BinarySearchFunc(*l, batch[i], compareObjects); ok {
				batch[i].bytes = -1 // marks it, see below
				(*l)[at].bytes = -1
			}
		}
	}
	*l = slices.DeleteFunc(*l, func(o object) bool { return o.bytes < 0 })
	return len(deleted), nil
}

func (c *Collector) keyOf(kind manifest.KeyKind, o object) string {
	switch kind {
	case manifest.KindWAL:
		return manifest.WALKey(c.opts.Node, c.opts.Incarnation, o.a, o.b)
	case manifest.KindState:
		return manifest.StateKey(c.opts.Node, c.opts.Incarnation, o.a)
	default:
		return manifest.MetaKey(o.a, o.b)
	}
}

// maxStateReads bounds the state objects that one turn reads, after a start.
const maxStateReads = 16

// readStates learns what the state objects of before the start need. One that
// does not read needs everything: nothing of the log goes until it is gone.
func (c *Collector) readStates(ctx context.Context) error {
	c.mu.Lock()
	var unread []object
	for _, o := range c.mu.shipped.states {
		if o.replayFrom == 0 && len(unread) < maxStateReads {
			unread = append(unread, o)
		}
	}
	c.mu.Unlock()
	c.holdLog("")
	for _, o := range unread {
		st, err := ship.ReadState(ctx, c.opts.Store, manifest.Key{Kind: manifest.KindState, Node: c.opts.Node, Incarnation: c.opts.Incarnation, First: o.a})
		if local(err) {
			c.holdLog(err.Error())
			return nil
		}
		if err != nil {
			return errcode.Wrap(errcode.ArchiveUnavailable, err, "read a state object")
		}
		o.replayFrom = st.ReplayFrom
		c.mu.Lock()
		c.mu.shipped.add(manifest.KindState, o)
		c.mu.Unlock()
	}
	return nil
}

func (c *Collector) holdLog(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.shipped.hold = why
}
