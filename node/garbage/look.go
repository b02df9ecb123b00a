package garbage

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// look lists, once a process, what is not known otherwise: snapshots, exports,
// state objects and shipped logs of all incarnations. Snapshots are looked for
// once an orphan interval again, and everything when the bound of what is
// remembered was met.
func (c *Collector) look(ctx context.Context) error {
	now := c.opts.Now()
	c.mu.Lock()
	forgot := c.mu.shipped.forgot
	c.mu.Unlock()
	if c.snapAt.IsZero() || now.Sub(c.snapAt) >= c.opts.OrphanInterval || c.pinned != "" {
		if err := c.lookForSnapshots(ctx); err != nil {
			return err
		}
		c.snapAt = now
	}
	if !c.looked.IsZero() && (!forgot || now.Sub(c.looked) < c.opts.OrphanInterval) {
		return nil
	}
	// Asked before the list, so that nothing of another cluster is taken over.
	if err := c.opts.Fence.Confirm(ctx, c.opts.Store); err != nil {
		return &hindrance{err}
	}
	found := &listing{}
	for _, prefix := range []string{manifest.PrefixMeta, manifest.PrefixState, manifest.PrefixWAL} {
		if err := c.listAll(ctx, prefix, found.add); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.mu.shipped.forgot = false
	c.mu.Unlock()
	c.take(found, now)
	c.looked = now
	return nil
}

// lookForSnapshots pauses everything while there is a snapshot: this build does
// not know what one holds (I7).
func (c *Collector) lookForSnapshots(ctx context.Context) error {
	page, err := c.opts.Store.List(ctx, manifest.PrefixSnap, "", 1)
	if err != nil {
		return errcode.Wrap(errcode.ArchiveUnavailable, err, "list %s", manifest.PrefixSnap)
	}
	c.pinned = ""
	if len(page.Objects) > 0 {
		c.pinned = "the archive holds snapshots (" + page.Objects[0].Key + "), which this build cannot read: nothing is deleted while one stands; use the build that wrote them"
	}
	return nil
}

func (c *Collector) listAll(ctx context.Context, prefix string, fn func(objstore.Info)) error {
	for after := ""; ; {
		page, err := c.opts.Store.List(ctx, prefix, after, 0)
		if err != nil {
			return errcode.Wrap(errcode.ArchiveUnavailable, err, "list %s", prefix)
		}
		for _, o := range page.Objects {
			after = o.Key
			fn(o)
		}
		if !page.More || len(page.Objects) == 0 {
			return nil
		}
	}
}

// listing is what a list of the archive showed.
type listing struct {
	keys   []listed
	newest time.Time // by the store's clock
}

type listed struct {
	manifest.Key
	size     int64
	modified time.Time
}

func (l *listing) add(o objstore.Info) {
	k, err := manifest.ParseKey(o.Key)
	if err != nil {
		return // foreign: it is nobody's to delete
	}
	if o.Modified.After(l.newest) {
		l.newest = o.Modified
	}
	l.keys = append(l.keys, listed{k, o.Size, o.Modified})
}

// take turns a listing into what is known. The store's clock may differ from
// this machine's, so an object's age is taken to be how much older it is than
// the newest one: at least that.
func (c *Collector) take(found *listing, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range found.keys {
		at := now.Add(-max(0, found.newest.Sub(k.modified)))
		own := k.Node == c.opts.Node && k.Incarnation == c.opts.Incarnation
		switch {
		case k.Kind == manifest.KindMeta:
			if k.Cluster == c.opts.ClusterGeneration {
				c.newest = max(c.newest, k.Index)
			}
			c.mu.shipped.add(k.Kind, objectOf(k.Key, k.size, at, 0))
		case own && c.mu.shipped.list(k.Kind) != nil:
			c.mu.shipped.add(k.Kind, objectOf(k.Key, k.size, at, 0))
		case !own:
			c.noteOldLocked(k, at)
		}
	}
}
