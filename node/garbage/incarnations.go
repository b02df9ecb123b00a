package garbage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/ship"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// writer names an incarnation of a node.
type writer struct {
	node string
	inc  uint64
}

// incarnation is one that shipped before this one, or beside it. Once fenced,
// what it left is its heir's: the node that serves. It goes in two steps. First
// everything that a restore would read of it has to be covered, and the metadata
// says so for ever (retired). Then, when an export has said it to whoever takes
// over, the objects go in any order; FENCE stays.
type incarnation struct {
	writer
	open, fenced bool
	objects      int64 // WAL and states, at the list
	bytes        int64
	at           time.Time // the newest of them was there then, or earlier
	state        uint64    // LSN of the newest state object, 0 = none

	hold  string // why it waits
	proof *proof // how far the first step is

	retired time.Time // this process saw that it is; zero: it is not
	export  uint64    // Raft index that a confirmed export has to reach
	empty   time.Time // lists first showed that nothing is left; zero: they did not, or showed more later
}

func (i *incarnation) tally(t *tally) {
	t.wait(i.objects, i.bytes, i.at)
	if i.hold != "" && i.objects > 0 {
		t.hold(i.hold)
	}
}

// noteOldLocked takes over a key of another incarnation. The caller holds c.mu.
func (c *Collector) noteOldLocked(k listed, at time.Time) {
	w := writer{k.Node, k.Incarnation}
	i := c.mu.old[w]
	if i == nil {
		i = &incarnation{writer: w, at: at}
		c.mu.old[w] = i
	}
	switch k.Kind {
	case manifest.KindWALOpen:
		i.open = true
	case manifest.KindWALFence:
		i.fenced = true
	case manifest.KindState, manifest.KindWAL:
		i.objects++
		i.bytes += k.size
		if at.After(i.at) {
			i.at = at
		}
		if k.Kind == manifest.KindState {
			i.state = max(i.state, k.First)
		}
	}
}

// collectIncarnations goes on with the old incarnations, one step each.
func (c *Collector) collectIncarnations(ctx context.Context) (more bool, err error) {
	c.mu.Lock()
	all := make([]*incarnation, 0, len(c.mu.old))
	for _, i := range c.mu.old {
		all = append(all, i)
	}
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b *incarnation) int {
		return strings.Compare(manifest.WALPrefix(a.node, a.inc), manifest.WALPrefix(b.node, b.inc))
	})
	budget := maxPages
	for _, i := range all {
		if budget <= 0 {
			return true, nil
		}
		again, hold, err := c.step(ctx, i, &budget)
		if local(err) {
			again, hold, err = false, err.Error(), nil
		}
		c.mu.Lock()
		i.hold = hold
		c.mu.Unlock()
		if err != nil {
			return false, err
		}
		more = more || again
	}
	return more, nil
}

// step does what can be done about one incarnation now; hold says what it
// waits for.
func (c *Collector) step(ctx context.Context, i *incarnation, budget *int) (more bool, hold string, err error) {
	if !i.open && i.objects == 0 {
		c.mu.Lock()
		delete(c.mu.old, i.writer) // nothing is left but its fence
		c.mu.Unlock()
		return false, "", nil
	}
	now, name := c.opts.Now(), fmt.Sprintf("incarnation %016x of node %s ", i.inc, i.node)
	if i.retired.IsZero() {
		if f, ok := c.opts.Metadata.State().Fenced(raftmeta.Incarnation(i.inc)); ok && f.RetiredMs > 0 && f.Node == i.node {
			i.retired, i.export = now, c.opts.Metadata.State().Index()
		}
	}
	if i.retired.IsZero() {
		switch {
		case !i.open:
			return false, name + "has no OPEN object, so nobody can tell whose it was", nil
		case !i.fenced && !c.forbidden(c.opts.Metadata.State(), i):
			return false, name + "is not fenced: it may be alive", nil
		case !i.fenced:
			if err := c.fenceOff(ctx, i); err != nil {
				return false, "", err
			}
			return false, name + "was fenced, its window lasts", nil
		case now.Sub(i.at) < c.opts.Window:
			return false, name + "is inside the window", nil
		}
		if more, hold, err := c.prove(ctx, i, budget); err != nil || hold != "" || more {
			return more, name + hold, err
		}
		if err := c.retire(ctx, i); err != nil {
			return false, "", err
		}
	}
	switch {
	case now.Sub(i.retired) < c.opts.Grace:
		return false, name + "is covered, its grace lasts", nil
	case c.opts.Fence.Confirmed() < i.export:
		return false, name + "is covered, the archive holds no export yet that says so", nil
	}
	if !i.empty.IsZero() && now.Sub(i.empty) < c.opts.Grace {
		return false, name + "is deleted, the archive is asked after a grace whether anything is left", nil
	}
	more, err = c.removeIncarnation(ctx, i, budget)
	return more, name + "is being deleted", err
}

// forbidden says whether the metadata forbids the incarnation for ever: a repair
// of the log gave its directory another one, in the same cluster generation.
func (c *Collector) forbidden(st *raftmeta.State, i *incarnation) bool {
	f, ok := st.Fenced(raftmeta.Incarnation(i.inc))
	return ok && f.Node == i.node && i.inc != c.opts.Incarnation
}

// fenceOff gives an incarnation that the confirmed metadata forbids its FENCE: a
// copy of its directory that runs somewhere ships nothing more that counts. What
// it had shipped by then is listed behind the fence, and the window begins anew.
func (c *Collector) fenceOff(ctx context.Context, i *incarnation) error {
	st, err := c.confirm(ctx)
	if err != nil {
		return err
	}
	if !c.forbidden(st, i) {
		return errcode.New(errcode.Conflict, "incarnation %016x of node %s was to be fenced and the metadata does not forbid it: it stays", i.inc, i.node)
	}
	key := manifest.WALFenceKey(i.node, i.inc)
	fence := archive.Fence{ClusterGeneration: c.opts.ClusterGeneration, TimeMS: c.opts.Now().UnixMilli()}
	if err := ship.Create(ctx, c.opts.Store, key, fence.Encode()); err != nil && !errcode.Is(err, errcode.Exists) {
		return errcode.Wrap(errcode.ArchiveUnavailable, err, "create %s", key)
	}
	found := &listing{}
	for _, prefix := range []string{manifest.StatePrefix(i.node, i.inc), manifest.WALPrefix(i.node, i.inc)} {
		if err := c.listAll(ctx, prefix, found.add); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i.objects, i.bytes, i.state, i.proof = 0, 0, 0, nil
	for _, k := range found.keys {
		c.noteOldLocked(k, c.opts.Now())
	}
	i.fenced, i.at = true, c.opts.Now()
	return nil
}

// retire says in the metadata that no restore needs the incarnation any more.
func (c *Collector) retire(ctx context.Context, i *incarnation) error {
	if _, err := c.confirm(ctx); err != nil {
		return err
	}
	if _, err := c.opts.Metadata.RetireIncarnation(ctx, i.node, raftmeta.Incarnation(i.inc)); err != nil {
		return err
	}
	i.retired, i.export, i.proof = c.opts.Now(), c.opts.Metadata.State().Index(), nil
	c.opts.Logger.Info("everything that an old incarnation shipped is covered, it is deleted after the grace", "node", i.node, "incarnation", fmt.Sprintf("%016x", i.inc))
	return nil
}

// removeIncarnation deletes the states and the log of a retired incarnation,
// and its OPEN when two looks, a grace apart, have found nothing else: a store
// may do a part of a delete and call it done, and a list may hide something.
// FENCE outlives every zombie.
func (c *Collector) removeIncarnation(ctx context.Context, i *incarnation, budget *int) (more bool, err error) {
	found := false
	for _, prefix := range []string{manifest.StatePrefix(i.node, i.inc), manifest.WALPrefix(i.node, i.inc)} {
		for after := ""; ; {
			if *budget--; *budget < 0 {
				return true, nil
			}
			page, err := c.opts.Store.List(ctx, prefix, after, 0)
			if err != nil {
				return false, errcode.Wrap(errcode.ArchiveUnavailable, err, "list %s", prefix)
			}
			var batch []candidate
			for _, o := range page.Objects {
				after = o.Key
				k, err := manifest.ParseKey(o.Key)
				if err == nil && (k.Kind == manifest.KindWAL || k.Kind == manifest.KindState) && k.Node == i.node && k.Incarnation == i.inc {
					batch = append(batch, candidate{o.Key, o.Size})
				}
			}
			found = found || len(batch) > 0
			gone, err := c.remove(ctx, Incarnation, batch, c.mustBeRetired(i, batch))
			if err != nil || len(gone) < len(batch) {
				return false, err
			}
			c.mu.Lock()
			for _, o := range gone {
				i.objects, i.bytes = max(0, i.objects-1), max(0, i.bytes-o.bytes)
			}
			c.mu.Unlock()
			if !page.More || len(page.Objects) == 0 {
				break
			}
		}
	}
	switch {
	case found: // is there anything left now?
		i.empty = time.Time{}
		return true, nil
	case i.empty.IsZero():
		i.empty = c.opts.Now()
		return false, nil
	}
	last := []candidate{{manifest.WALOpenKey(i.node, i.inc), 0}}
	if _, err := c.remove(ctx, Incarnation, last, c.mustBeRetired(i, last)); err != nil {
		return false, err
	}
	c.mu.Lock()
	delete(c.mu.old, i.writer)
	c.mu.Unlock()
	return false, nil
}

// mustBeRetired fails unless the confirmed metadata calls the incarnation
// retired, no node runs under it, and its fence stands.
func (c *Collector) mustBeRetired(i *incarnation, batch []candidate) func(context.Context, *raftmeta.State) ([]candidate, error) {
	return func(ctx context.Context, st *raftmeta.State) ([]candidate, error) {
		f, ok := st.Fenced(raftmeta.Incarnation(i.inc))
		if !ok || f.RetiredMs == 0 || f.Node != i.node || i.inc == c.opts.Incarnation {
			return nil, errcode.New(errcode.Conflict, "incarnation %016x of node %s was to be deleted and the metadata does not call it retired: it stays", i.inc, i.node)
		}
		return batch, c.stands(ctx, manifest.WALFenceKey(i.node, i.inc))
	}
}
