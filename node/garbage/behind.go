package garbage

import (
	"context"
	"slices"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// A store may do a part of a delete and call all of it done. One key of each
// batch is asked for afterwards, which tells of a store that deletes nothing and
// not always of one that forgets a few. Segments that stay are found by the
// sweep of orphans, a topic and an old incarnation are listed until nothing is
// there. What stays of log, states and exports nobody would look for, because it
// is known from one list at the start only: so the beginning of each of them is
// listed again, some time after something of it was deleted.

// behind is when that is due for one kind.
type behind struct {
	next  time.Time
	after string // where a look goes on that one turn did not end
}

// noteDeleted says that objects of a kind were deleted. The first deletion since
// the last look makes one due an orphan interval later, so that the looks of a
// node that deletes all the time cost a few LISTs a day.
func (c *Collector) noteDeleted(kind manifest.KeyKind) {
	if c.behind[kind] == nil {
		c.behind[kind] = &behind{next: c.opts.Now().Add(c.opts.OrphanInterval)}
	}
}

// lookBehind takes the looks that are due. What it finds is known from then on,
// and goes like everything else of its kind.
func (c *Collector) lookBehind(ctx context.Context) (more bool, err error) {
	for _, kind := range []manifest.KeyKind{manifest.KindState, manifest.KindMeta, manifest.KindWAL} {
		b := c.behind[kind]
		if b == nil || c.opts.Now().Before(b.next) {
			continue
		}
		again, err := c.lookBehindKind(ctx, kind, b)
		if err != nil {
			return false, err
		}
		more = more || again
	}
	return more, nil
}

// lookBehindKind lists the kind from its first key on, page by page until one
// shows nothing that is not known.
func (c *Collector) lookBehindKind(ctx context.Context, kind manifest.KeyKind, b *behind) (more bool, err error) {
	prefix := c.prefixOf(kind)
	left, now := 0, c.opts.Now()
	for pages := 1; ; pages++ {
		page, err := c.opts.Store.List(ctx, prefix, b.after, 0)
		if err != nil {
			return false, errcode.Wrap(errcode.ArchiveUnavailable, err, "list %s", prefix)
		}
		found := &listing{}
		for _, o := range page.Objects {
			b.after = o.Key
			found.add(o)
		}
		unknown := c.unknown(kind, found)
		c.take(found, now)
		left += unknown
		if unknown == 0 || !page.More {
			break
		}
		if pages == maxPages {
			more = true // it goes on behind this key
			break
		}
	}
	if left > 0 {
		c.opts.Logger.Warn("the archive still has what it said it deleted; it is deleted again", "below", prefix, "objects", left)
	}
	switch {
	case more:
	case left > 0: // what of it stays again is found sooner
		*b = behind{next: now.Add(min(c.opts.OrphanInterval, c.opts.Grace+c.opts.Interval))}
	default:
		delete(c.behind, kind)
	}
	return more, nil
}

// unknown counts the listed objects of a kind that stand in front of the newest
// known one and are not known themselves: those had been known once. What stands
// behind it may be on its way just now.
func (c *Collector) unknown(kind manifest.KeyKind, found *listing) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := *c.mu.shipped.list(kind)
	for _, k := range found.keys {
		if k.Kind != kind {
			continue
		}
		at, known := slices.BinarySearchFunc(l, objectOf(k.Key, 0, time.Time{}, 0), compareObjects)
		if !known && (at < len(l) || len(l) == 0) {
			n++
		}
	}
	return n
}

func (c *Collector) prefixOf(kind manifest.KeyKind) string {
	switch kind {
	case manifest.KindWAL:
		return manifest.WALPrefix(c.opts.Node, c.opts.Incarnation)
	case manifest.KindState:
		return manifest.StatePrefix(c.opts.Node, c.opts.Incarnation)
	default:
		return manifest.PrefixMeta
	}
}
