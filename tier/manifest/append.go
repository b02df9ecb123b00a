package manifest

import (
	"bytes"
	"context"
	"hash/crc32"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxCollisions ends an append that loses against ever new entries.
const maxCollisions = 4096

// plan decides on the state s what to append. No operation means that there
// is nothing to do, and the append succeeds.
type plan func(s *state) ([]Op, error)

// append publishes what p decides as owner. It is the one place that writes
// entries: a create that collides is decided by the entry that won (see
// docs/formats/manifest.md, "Publishing").
func (c *Chain) append(ctx context.Context, owner Owner, p plan) error {
	if err := owner.validate(); err != nil {
		return err
	}
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	left := tears
	for range maxCollisions {
		s := c.state.Load()
		ops, err := p(s)
		if err != nil || len(ops) == 0 {
			return err
		}
		e, err := c.prepare(ctx, s, owner, ops)
		if err != nil {
			return err
		}
		obj, err := encode(e.wire())
		if err != nil {
			return err
		}
		// Applied before it is published: what the chain's own rules refuse
		// must never be stored.
		next, err := s.apply(e, obj.sum, obj.size)
		if err != nil || next.void != s.void {
			return errcode.New(errcode.Internal, "chain of %s: entry %d was not published, it breaks the chain's rules: %v", c.pid, e.Seq, err)
		}
		won, ours, err := c.create(ctx, e.Seq, obj)
		if torn(err) { // nobody can rest on what stands there: the next entry skips it
			if s, err = s.tear(err); err != nil {
				return err
			}
			c.set(s)
			if left--; left == 0 {
				return errcode.New(errcode.Transient, "chain of %s: the store kept only parts of %d entries: see tidemark bucket doctor", c.pid, tears)
			}
			continue
		}
		if err != nil {
			return errcode.Wrap(errcode.Internal, err, "publish entry %d of the chain of %s", e.Seq, c.pid)
		}
		if ours {
			c.set(next)
			return nil
		}
		if err := c.lost(s, owner, won); err != nil {
			return err
		}
	}
	return errcode.New(errcode.Transient, "chain of %s: %d entries of others came first", c.pid, maxCollisions)
}

// lost takes the entry that won over and says whether owner may go on.
func (c *Chain) lost(s *state, owner Owner, won loaded) error {
	next, err := s.apply(won.entry, won.sum, won.size)
	if err != nil {
		return err
	}
	c.set(next)
	w := won.entry.Owner
	// An entry of this incarnation is an earlier attempt whose answer was
	// lost, with a process start in between perhaps. One of a lower generation
	// came before this owner's fence. Both are part of the chain now.
	if w.Incarnation == owner.Incarnation || w.compare(owner) < 0 {
		return nil
	}
	return fenced(c, owner, w)
}

func fenced(c *Chain, owner, by Owner) error {
	return errcode.New(errcode.Fenced, "chain of %s belongs to generation %d.%d of incarnation %016x: generation %d.%d of %016x may not publish any more",
		c.pid, by.ClusterGeneration, by.Generation, by.Incarnation, owner.ClusterGeneration, owner.Generation, owner.Incarnation)
}

// prepare builds the entry after s, with a checkpoint in front when one is due.
func (c *Chain) prepare(ctx context.Context, s *state, owner Owner, ops []Op) (*Entry, error) {
	e := &Entry{Partition: c.pid, Seq: s.seq + 1 + s.torn, Skips: s.torn, Owner: owner, Nonce: c.opts.nonce(), TimeMS: c.opts.now().UnixMilli(),
		Previous: s.link, Checkpoint: s.point, Ops: ops}
	if !s.due() {
		return e, nil
	}
	cp, err := c.snapshot(ctx, s)
	if err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "checkpoint the chain of %s", c.pid)
	}
	e.Checkpoint = e.Seq
	e.Ops = append([]Op{{Checkpoint: cp}}, ops...)
	return e, nil
}

// due says whether the next entry carries a checkpoint: when the entries since
// the last one are many or large, and already when they weigh as much as the
// checkpoint would. The last rule at most doubles what is written and keeps
// the load of a short chain short.
func (s *state) due() bool {
	cost := 500 + 500*len(s.segs) + 300*len(s.pages) + 150*len(s.fences) + 100*len(s.gaps)
	return s.seq > 0 && (s.age+1 >= checkpointAge || s.weight >= min(cost, checkpointGap))
}

// snapshot returns the checkpoint of s and stores the pages that are full.
func (c *Chain) snapshot(ctx context.Context, s *state) (*Checkpoint, error) {
	cp := &Checkpoint{Start: s.start, End: s.end, Totals: s.totals, Pages: s.pages[:len(s.pages):len(s.pages)],
		Segments: s.segs, Gaps: s.gaps, Fences: s.fences}
	for size := c.opts.page; len(cp.Segments) >= size; {
		ref, n, err := c.putSome(ctx, cp.Segments[:size:size])
		if err != nil {
			return nil, err
		}
		cp.Pages = append(cp.Pages, ref)
		cp.Segments = cp.Segments[n:]
	}
	return cp, nil
}

// putSome stores a page of the first n of segs, of all of them if it can. A page
// that the store tore stays under the name of its content: one that is a segment
// shorter has another. Names that are spoiled are remembered, else a store that
// tore a few would keep every later append from its page.
func (c *Chain) putSome(ctx context.Context, segs []Segment) (ref PageRef, n int, err error) {
	left := 1 + tears
	for n = len(segs); n > 0; n-- {
		page := &Page{Partition: c.pid, Segments: segs[:n:n]}
		stored, ref, err := EncodePage(page)
		if err != nil {
			return PageRef{}, 0, err
		}
		if c.spoiled[ref.SHA256] {
			continue
		}
		if err = c.putPage(ctx, ref, stored); !torn(err) {
			return ref, n, err
		}
		c.spoiled[ref.SHA256] = true
		if left--; left == 0 {
			return PageRef{}, 0, errcode.New(errcode.Transient, "chain of %s: the store kept only parts of %d pages: see tidemark bucket doctor; the last: %w", c.pid, 1+tears, err)
		}
	}
	clear(c.spoiled) // the next append begins anew
	return PageRef{}, 0, errcode.New(errcode.Transient, "chain of %s: the store has only parts of every page that begins with offset %d: see tidemark bucket doctor", c.pid, segs[0].Base)
}

// putPage stores a page. A page of that name which is there already is the
// same one, written before a lost answer or a collision, or the append fails.
func (c *Chain) putPage(ctx context.Context, ref PageRef, stored []byte) error {
	key := PageKey(c.pid, ref.Base, ref.SHA256)
	for n := 1; ; n++ {
		err := c.put(ctx, key, stored)
		if err == nil || errcode.Is(err, errcode.Exists) {
			// Read back in both cases: the checkpoint that follows is the only
			// thing that names these segments.
			if _, err = c.page(ctx, ref); err == nil || errcode.Is(err, errcode.UnsupportedVersion) {
				return err
			}
		}
		if final(err) || n >= c.opts.attempts || c.opts.wait(ctx, n) != nil {
			return err
		}
	}
}

// create stores an entry under a condition that one writer can meet, and reads
// it back: what a chain names is deleted elsewhere, and everything behind an
// entry that a store acknowledged and does not have could not be read any more.
// ours: it is there, and nobody else's. Otherwise won is the entry that stands
// there. An error leaves open whether ours will be found there later, unless
// it is final. Corrupt: what stands there does not read, and stays so.
func (c *Chain) create(ctx context.Context, seq uint64, obj object) (won loaded, ours bool, err error) {
	key := EntryKey(c.pid, seq)
	damaged := 0
	for n := 1; ; n++ {
		err = c.put(ctx, key, obj.stored)
		if final(err) {
			return loaded{}, false, err
		}
		// Whatever the answer was, what stands there decides.
		w, rerr := getEntry(ctx, c.store, c.pid, seq)
		if rerr == nil {
			return w, w.sum == obj.sum, nil
		}
		if torn(rerr) {
			damaged++
		}
		if damaged == tornReads || errcode.Is(rerr, errcode.UnsupportedVersion) {
			return loaded{}, false, rerr
		}
		// Absent after an ambiguous answer is not proof: the create may still
		// arrive. Trying it again is harmless, both are the same bytes.
		if n >= max(c.opts.attempts, tornReads) || c.opts.wait(ctx, n) != nil {
			return loaded{}, false, undecided(key, err, rerr)
		}
	}
}

// undecided is the error of a put and a read that together say nothing.
func undecided(key string, put, read error) error {
	switch {
	case torn(read): // at the last attempt alone; not said often enough to believe it
		return errcode.New(errcode.Transient, "%s does not read: %w", key, read)
	case !errcode.Is(read, errcode.NotFound):
		return read
	case put == nil:
		return errcode.New(errcode.Transient, "the store took %s and does not have it", key)
	case errcode.Is(put, errcode.Exists):
		return errcode.New(errcode.Transient, "the store says that %s exists and does not return it", key)
	}
	return put
}

func (c *Chain) put(ctx context.Context, key string, stored []byte) error {
	crc := crc32.Checksum(stored, castagnoli)
	return c.store.Put(ctx, key, bytes.NewReader(stored), int64(len(stored)), objstore.PutOptions{CreateOnly: true, CRC32C: &crc})
}

// final says whether a Put that failed with err certainly stored nothing and
// will not succeed when tried again.
func final(err error) bool {
	return errcode.Is(err, errcode.Denied) || errcode.Is(err, errcode.InvalidArgument) || errcode.Is(err, errcode.TooLarge)
}

// lock waits for the turn to append, no longer than ctx.
func (c *Chain) lock(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Chain) unlock() { <-c.turn }
