package garbage

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxPages bounds what one part lists in one turn.
const maxPages = 20

// purge is the deletion of everything that one topic has in the archive. The
// metadata remembers it until the archive holds nothing of the topic; what is
// known here is only how far this process is.
type purge struct {
	deleted   raftmeta.Deleted
	since     time.Time // this process saw the deletion
	tombstone bool      // x/<id> stands
	empty     time.Time // a list first showed that nothing is left; zero: none did, or a later one showed more
	hold      string    // why it waits, "" = it does not
	found     int64     // objects that the last list showed
	bytes     int64
}

func (p *purge) tally(t *tally) {
	t.wait(p.found, p.bytes, p.since)
	if p.hold != "" {
		t.hold(p.hold)
	}
}

// collectTopics goes on with the deletions that the metadata has not closed.
func (c *Collector) collectTopics(ctx context.Context) (more bool, err error) {
	c.findPurges()
	budget := maxPages
	for _, p := range c.openPurges() {
		if budget <= 0 {
			return true, nil
		}
		again, err := c.purge(ctx, p, &budget)
		if err != nil {
			return false, err
		}
		more = more || again
	}
	return more, nil
}

// findPurges takes over deletions that are new in the metadata.
func (c *Collector) findPurges() {
	st := c.opts.Metadata.State()
	if st.Index() == c.index {
		return
	}
	c.index = st.Index()
	now := c.opts.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range st.DeletedTopics() {
		if _, known := c.mu.purges[d.ID]; !known && !d.Purged {
			c.mu.purges[d.ID] = &purge{deleted: d, since: now}
		}
	}
}

// openPurges returns the purges, oldest deletion first.
func (c *Collector) openPurges() (out []*purge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.mu.purges {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *purge) int { return int(int64(a.deleted.Seq) - int64(b.deleted.Seq)) })
	return out
}

func (c *Collector) holdPurge(p *purge, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.hold = why
}

func (c *Collector) dropPurge(p *purge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.purges, p.deleted.ID)
}

// purge deletes page by page, until two lists, a grace apart, show nothing. Any
// order resumes: as long as the metadata does not call the topic purged, its
// prefix is listed again, after a restart too.
func (c *Collector) purge(ctx context.Context, p *purge, budget *int) (more bool, err error) {
	id, now := p.deleted.ID, c.opts.Now()
	switch {
	case now.Sub(p.since) < c.opts.Grace:
		// Uploads that were in flight at the deletion end before.
		c.holdPurge(p, "the grace of "+p.deleted.Name+" lasts")
		return false, nil
	case c.opts.Fence.Confirmed() < p.deleted.ChangedIndex:
		// Until then a take-over could bring the topic back, live.
		c.holdPurge(p, "the archive holds no export yet that knows the deletion of "+p.deleted.Name)
		return false, nil
	case !p.empty.IsZero() && now.Sub(p.empty) < c.opts.Grace:
		return false, nil
	}
	c.holdPurge(p, "")
	if err := c.bury(ctx, p); err != nil {
		return false, err
	}
	prefix := manifest.TopicPrefix(id)
	for after := ""; ; {
		if *budget--; *budget < 0 {
			return true, nil
		}
		page, err := c.opts.Store.List(ctx, prefix, after, 0)
		if err != nil {
			return false, errcode.Wrap(errcode.ArchiveUnavailable, err, "list %s", prefix)
		}
		if after == "" && len(page.Objects) == 0 {
			if p.empty.IsZero() {
				// One list is no proof: what it did not show would stay for ever,
				// since nobody lists the prefix of a topic that counts as purged.
				p.empty = now
				c.holdPurge(p, "the archive shows nothing more of "+p.deleted.Name+", and is asked again after a grace")
				return false, nil
			}
			return false, c.closePurge(ctx, p)
		}
		p.empty = time.Time{}
		if len(page.Objects) == 0 {
			after = "" // behind the last page: is there anything left?
			continue
		}
		batch, err := c.purgePage(p, prefix, page)
		if err != nil {
			return false, err
		}
		gone, err := c.remove(ctx, Topic, batch, func(_ context.Context, st *raftmeta.State) ([]candidate, error) {
			return batch, c.mustBeDeleted(st, p)
		})
		if err != nil {
			return false, err
		}
		if len(gone) < len(batch) {
			c.holdPurge(p, "a snapshot holds objects of "+p.deleted.Name)
			return false, nil
		}
		c.mu.Lock()
		p.found, p.bytes = 0, 0
		c.mu.Unlock()
		after = ""
		if page.More {
			after = page.Objects[len(page.Objects)-1].Key
		}
	}
}

// purgePage takes the objects of a page, all of which have to be the topic's.
func (c *Collector) purgePage(p *purge, prefix string, page objstore.Page) ([]candidate, error) {
	batch := make([]candidate, 0, len(page.Objects))
	size := int64(0)
	for _, o := range page.Objects {
		if !strings.HasPrefix(o.Key, prefix) {
			return nil, &hindrance{errcode.New(errcode.Corrupt, "the archive lists %s below %s: nothing is deleted on such an answer", o.Key, prefix)}
		}
		batch = append(batch, candidate{o.Key, o.Size})
		size += o.Size
	}
	c.mu.Lock()
	p.found, p.bytes = int64(len(batch)), size
	c.mu.Unlock()
	return batch, nil
}

// mustBeDeleted fails unless the confirmed metadata says that the topic was
// deleted and does not say that it lives.
func (c *Collector) mustBeDeleted(st *raftmeta.State, p *purge) error {
	_, gone := st.Deleted(p.deleted.ID)
	_, lives := st.TopicByID(p.deleted.ID)
	if !gone || lives {
		c.dropPurge(p)
		return errcode.New(errcode.Conflict, "topic %s (%s) was to be purged and the metadata does not confirm its deletion: it stays", p.deleted.Name, p.deleted.ID)
	}
	return nil
}

// bury creates the topic's tombstone, once confirmed, before anything goes.
func (c *Collector) bury(ctx context.Context, p *purge) error {
	if p.tombstone {
		return nil
	}
	st, err := c.confirm(ctx)
	if err != nil {
		return err
	}
	if err := c.mustBeDeleted(st, p); err != nil {
		return err
	}
	key := manifest.TombstoneKey(p.deleted.ID)
	data := archive.Tombstone{Topic: p.deleted.ID, Name: p.deleted.Name, ClusterGeneration: c.opts.ClusterGeneration, DeletedMS: p.deleted.DeletedMs}.Encode()
	err = c.opts.Store.Put(ctx, key, bytes.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: true})
	if err != nil && !errcode.Is(err, errcode.Exists) {
		return &hindrance{errcode.Wrap(errcode.ArchiveUnavailable, err, "create %s", key)}
	}
	p.tombstone = true
	return nil
}

// closePurge makes the metadata remember that the archive holds nothing of the topic.
func (c *Collector) closePurge(ctx context.Context, p *purge) error {
	_, err := c.opts.Metadata.PurgeTopic(ctx, p.deleted.ID)
	if err != nil && !errcode.Is(err, errcode.NotFound) {
		return err
	}
	c.dropPurge(p)
	c.opts.Logger.Info("the archive holds nothing of a deleted topic any more", "topic", p.deleted.Name, "topic_id", p.deleted.ID.String())
	return nil
}

// deletedTopic says whether the metadata confirms that a topic was deleted.
func deletedTopic(st *raftmeta.State, id broker.TopicID) bool {
	_, gone := st.Deleted(id)
	_, lives := st.TopicByID(id)
	return gone && !lives
}
