package garbage

import (
	"context"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

const (
	maxOrphans = 100_000 // that are watched until their second look
	maxLooks   = 8       // partitions that one turn looks at, when that is enough for all
)

// orphanLook is one partition's turn in the sweep. Objects that its chain does
// not name are noted at one look and deleted at another, a grace later.
type orphanLook struct {
	id      broker.PartitionID
	next    time.Time
	unnamed map[string]orphan
	hold    string // why the last look ended early, "" = it did not
}

type orphan struct {
	segment
	since time.Time
}

func (l *orphanLook) tally(t *tally) {
	for _, o := range l.unnamed {
		t.wait(1, o.bytes, o.since)
	}
	if l.hold != "" {
		t.hold(l.hold)
	}
}

// collectOrphans looks at the partitions whose time has come.
func (c *Collector) collectOrphans(ctx context.Context) (more bool, err error) {
	due, total := c.dueLooks()
	// Enough a turn that everybody's time comes once an interval.
	limit := max(maxLooks, 2*int(int64(total)*int64(c.opts.Interval)/int64(c.opts.OrphanInterval)))
	budget := max(maxPages, limit)
	for i, l := range due {
		if i >= limit || budget <= 0 {
			return true, nil
		}
		err := c.lookAt(ctx, l, &budget)
		if local(err) {
			c.mu.Lock()
			l.hold, l.next = err.Error(), c.opts.Now().Add(c.opts.OrphanInterval)
			c.mu.Unlock()
			c.opts.Logger.Warn("no orphans are looked for in a partition, its chain cannot be read", "partition", l.id.String(), "error", err)
			continue
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// dueLooks follows the assignments and returns the looks that are due, those
// that have waited longest first.
func (c *Collector) dueLooks() (due []*orphanLook, total int) {
	st, now := c.opts.Metadata.State(), c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := make(map[broker.PartitionID]bool, len(c.mu.looks))
	for _, t := range st.Topics() {
		for n := range t.Partitions {
			id := broker.PartitionID{Topic: t.ID, Partition: n}
			if _, ok := c.owned(st, id); !ok {
				continue
			}
			seen[id] = true
			if c.mu.looks[id] == nil {
				c.mu.looks[id] = &orphanLook{id: id, next: now.Add(c.spread(id))}
			}
		}
	}
	for id, l := range c.mu.looks {
		if !seen[id] {
			c.mu.orphans -= len(l.unnamed)
			delete(c.mu.looks, id)
		} else if !l.next.After(now) {
			due = append(due, l)
		}
	}
	slices.SortFunc(due, func(a, b *orphanLook) int { return a.next.Compare(b.next) })
	return due, len(c.mu.looks)
}

// spread gives each partition a place in the interval, the same at every start.
func (c *Collector) spread(id broker.PartitionID) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id.String()))
	return time.Duration(int64(c.opts.OrphanInterval) / 4096 * int64(1+h.Sum32()>>20))
}

// lookAt lists one partition's segments.
func (c *Collector) lookAt(ctx context.Context, l *orphanLook, budget *int) error {
	prefix := manifest.PartitionPrefix(l.id) + "s/"
	now := c.opts.Now()
	found := make(map[string]orphan)
	for after := ""; ; {
		*budget--
		page, err := c.opts.Store.List(ctx, prefix, after, 0)
		if err != nil {
			return errcode.Wrap(errcode.ArchiveUnavailable, err, "list %s", prefix)
		}
		if err := c.lookAtPage(ctx, l, prefix, page, now, found); err != nil {
			return err
		}
		if !page.More || len(page.Objects) == 0 {
			break
		}
		after = page.Objects[len(page.Objects)-1].Key
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.orphans += len(found) - len(l.unnamed)
	l.unnamed, l.hold, l.next = found, "", now.Add(c.opts.OrphanInterval)
	if len(found) > 0 {
		l.next = now.Add(min(c.opts.OrphanInterval, c.opts.Grace+c.opts.Interval))
	}
	return nil
}

// lookAtPage notes what is new among the unnamed objects of a page, and deletes
// what was unnamed a grace ago already.
func (c *Collector) lookAtPage(ctx context.Context, l *orphanLook, prefix string, page objstore.Page, now time.Time, found map[string]orphan) error {
	var segs []segment
	for _, o := range page.Objects {
		if s, ok := parseSegment(o.Key, o.Size); ok && s.id == l.id && strings.HasPrefix(o.Key, prefix) {
			segs = append(segs, s) // anything else is not ours to judge
		}
	}
	if len(segs) == 0 {
		return nil
	}
	v, err := c.judge(ctx, c.opts.Metadata.State(), l.id, segs)
	if err != nil {
		return err
	}
	var ripe []segment
	for _, s := range v.garbage {
		key := s.key()
		o, known := l.unnamed[key]
		if !known {
			c.mu.Lock()
			full := c.mu.orphans+len(found) >= maxOrphans
			c.mu.Unlock()
			if !full {
				found[key] = orphan{s, now}
			}
			continue
		}
		if found[key] = o; now.Sub(o.since) >= c.opts.Grace {
			ripe = append(ripe, s)
		}
	}
	gone, err := c.remove(ctx, Orphan, candidates(ripe), func(ctx context.Context, st *raftmeta.State) ([]candidate, error) {
		again, err := c.judge(ctx, st, l.id, ripe)
		return candidates(again.garbage), err
	})
	for _, o := range gone {
		delete(found, o.key)
	}
	return err
}

// sweeper is a store that can end uploads in parts that nobody goes on with.
type sweeper interface {
	SweepUploads(ctx context.Context, before time.Time) (int, error)
}

// uploadAge is longer than any upload that lives.
const uploadAge = 24 * time.Hour

// sweepUploads ends uploads in parts that began long ago, once an orphan
// interval. They are invisible, billed, and no part of any object.
func (c *Collector) sweepUploads(ctx context.Context) (bool, error) {
	now := c.opts.Now()
	if c.swept.IsZero() {
		c.swept = now
	}
	if now.Sub(c.swept) < c.opts.OrphanInterval {
		return false, nil
	}
	store := c.opts.Store
	for {
		if s, ok := store.(sweeper); ok {
			if _, err := c.confirm(ctx); err != nil {
				return false, err
			}
			n, err := s.SweepUploads(ctx, now.Add(-uploadAge))
			c.metrics.objects.WithLabelValues(Upload.String()).Add(float64(n))
			c.mu.Lock()
			c.mu.deleted[Upload] += int64(n)
			c.mu.Unlock()
			if err != nil {
				return false, errcode.Wrap(errcode.ArchiveUnavailable, err, "sweep uploads in parts")
			}
			break
		}
		u, ok := store.(interface{ Unwrap() objstore.Store })
		if !ok {
			break
		}
		store = u.Unwrap()
	}
	c.swept = now
	return false, nil
}
