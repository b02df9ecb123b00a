package bucket

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxEntry bounds a stored entry or page.
const maxEntry = 8 << 20

// partition is what was listed below one partition's prefix.
type partition struct {
	id      broker.PartitionID
	entries []uint64 // ascending
	pages   map[string]int64
	objects map[objectID]int64 // size of each segment object
}

// objectID is what tells the segment objects of one partition apart.
type objectID struct {
	base, next        int64
	generation, nonce uint32
}

func idOf(s *manifest.Segment) objectID {
	return objectID{s.Base, s.Next, s.Generation, s.Nonce}
}

func (id objectID) key(p broker.PartitionID) string {
	return manifest.SegmentKey(p, id.base, id.next, id.generation, id.nonce)
}

func (p *partition) note(k manifest.Key, o objstore.Info) {
	switch k.Kind {
	case manifest.KindEntry:
		p.entries = append(p.entries, k.Seq)
	case manifest.KindPage:
		p.pages[o.Key] = o.Size
	case manifest.KindSegmentObject:
		p.objects[objectID{k.Base, k.Next, k.Generation, k.Nonce}] = o.Size
	}
}

// partition verifies one partition. Its error is ctx's.
func (v *verifier) partition(ctx context.Context, p *partition) error {
	c, ok := v.replay(ctx, p)
	if err := ctx.Err(); err != nil {
		return err
	}
	if !ok {
		return nil // without a chain nothing can be said about objects
	}
	if n := c.Void(); n > 0 {
		v.find(Finding{What: VoidEntry, Partition: p.id, Detail: fmt.Sprintf("%d entries of former owners", n)})
	}
	segs, err := c.Segments(ctx, c.Start(), c.End())
	if err != nil {
		v.failed(PageBroken, manifest.PartitionPrefix(p.id), p.id, err)
		return ctx.Err()
	}
	c.Coverage(segs, func(from, next int64) {
		v.find(Finding{What: Hole, Partition: p.id, From: from, Next: next})
	}, func(from, next int64) {
		v.find(Finding{What: Overlap, Partition: p.id, From: from, Next: next})
	})
	v.counts(c, segs)
	if err := v.objects(ctx, p, c, segs); err != nil {
		return err
	}
	v.orphans(p, c)
	return nil
}

// replay reads every entry and builds the chain from the first one on.
func (v *verifier) replay(ctx context.Context, p *partition) (*manifest.Chain, bool) {
	r := manifest.NewReplay(p.id)
	const block = 64
	var pending []Finding // objects that do not read, until an entry skips them
	for at := 0; at < len(p.entries); at += block {
		seqs := p.entries[at:min(at+block, len(p.entries))]
		stored := make([][]byte, len(seqs))
		errs := make([]error, len(seqs))
		var g errgroup.Group
		g.SetLimit(v.opts.Parallel)
		for i, seq := range seqs {
			g.Go(func() error {
				stored[i], _, errs[i] = objstore.ReadAll(ctx, v.store, manifest.EntryKey(p.id, seq), maxEntry)
				return nil
			})
		}
		_ = g.Wait() // the errors are in errs
		for i, seq := range seqs {
			key := manifest.EntryKey(p.id, seq)
			if want := uint64(at + i + 1); seq != want {
				v.find(Finding{What: ChainBroken, Key: manifest.EntryKey(p.id, want), Partition: p.id, Detail: fmt.Sprintf("entry %d is missing, entry %d exists", want, seq)})
				return nil, false
			}
			if errs[i] != nil {
				v.failed(ChainBroken, key, p.id, errs[i])
				return nil, false
			}
			if manifest.Torn(stored[i]) {
				pending = append(pending, Finding{What: TornEntry, Key: key, Partition: p.id, Detail: "it does not read, and the entry after it skips it"})
				continue
			}
			if _, err := r.Apply(seq, stored[i]); err != nil {
				if len(pending) > 0 { // it rests on what does not read
					key = pending[0].Key
				}
				v.failed(ChainBroken, key, p.id, err)
				return nil, false
			}
			for _, f := range pending {
				v.find(f)
			}
			pending = nil
			v.count(func(s *Summary) { s.Entries++ })
		}
	}
	if len(pending) > 0 {
		f := pending[0]
		f.What, f.Detail = ChainBroken, "the newest entry does not read: a put that the store tore, which the owner's next entry skips, or damage"
		v.find(f)
		return nil, false
	}
	return r.Chain(v.store), true
}

// counts compares the totals that the chain carries along with its list.
func (v *verifier) counts(c *manifest.Chain, segs []manifest.Segment) {
	var t manifest.Totals
	for _, s := range segs {
		t.Segments++
		t.Records += s.Records
		t.Bytes += s.Bytes
	}
	if t != c.Totals() {
		v.find(Finding{What: ChainBroken, Key: manifest.EntryKey(c.Partition(), c.Seq()), Partition: c.Partition(),
			Detail: fmt.Sprintf("it counts %+v and lists %+v", c.Totals(), t)})
	}
	v.count(func(s *Summary) {
		s.Segments.Segments += t.Segments
		s.Segments.Records += t.Records
		s.Segments.Bytes += t.Bytes
	})
}

// absent is a segment whose object is not there.
type absent struct {
	seg manifest.Segment
	f   Finding
}

// objects looks for each segment that the chain names. One that is not there may
// have been trimmed or merged since the chain was read: then what the chain names
// now in its place is looked at.
func (v *verifier) objects(ctx context.Context, p *partition, c *manifest.Chain, segs []manifest.Segment) error {
	seen := make(map[objectID]bool, len(segs))
	for look := 1; ; look++ {
		for i := range segs {
			seen[idOf(&segs[i])] = true
		}
		missing, err := v.present(ctx, p, segs)
		if err != nil || len(missing) == 0 {
			return err
		}
		now, known := v.namedNow(ctx, c)
		if err := ctx.Err(); err != nil {
			return err
		}
		named := make(map[objectID]bool, len(now))
		segs = nil
		for i := range now {
			id := idOf(&now[i])
			named[id] = true
			if !seen[id] && slices.ContainsFunc(missing, func(m absent) bool { return m.seg.Base < now[i].Next && now[i].Base < m.seg.Next }) {
				segs = append(segs, now[i])
				if err := v.size(ctx, p, id); err != nil {
					return err
				}
			}
		}
		for i := range missing {
			if !known || named[idOf(&missing[i].seg)] {
				v.find(missing[i].f)
			}
		}
		if look == maxLooks {
			return nil // it changes faster than it can be looked at
		}
	}
}

// namedNow returns what the chain names by now; known is false when that cannot be
// read, which is reported.
func (v *verifier) namedNow(ctx context.Context, c *manifest.Chain) (now []manifest.Segment, known bool) {
	_, err := c.Refresh(ctx)
	if err == nil {
		now, err = c.Segments(ctx, c.Start(), c.End())
	}
	if err != nil && ctx.Err() == nil {
		v.failed(ChainBroken, manifest.EntryKey(c.Partition(), c.Seq()+1), c.Partition(), err)
	}
	return now, err == nil
}

// size asks for the object of a segment that the list was too early for.
func (v *verifier) size(ctx context.Context, p *partition, id objectID) error {
	if _, ok := p.objects[id]; ok {
		return nil
	}
	info, err := v.store.Head(ctx, id.key(p.id))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		p.objects[id] = info.Size
	case !errcode.Is(err, errcode.NotFound):
		v.failed(Unreadable, id.key(p.id), p.id, err)
	}
	return nil
}

// present looks for the objects of segments and returns those that are not
// there. Each is taken off the list; what stays there is named by nothing.
func (v *verifier) present(ctx context.Context, p *partition, segs []manifest.Segment) (missing []absent, err error) {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(v.opts.Parallel)
	for _, s := range segs {
		id := idOf(&s)
		size, ok := p.objects[id]
		delete(p.objects, id)
		switch {
		case !ok:
			mu.Lock()
			missing = append(missing, absent{s, Finding{What: ObjectMissing, Key: s.Key(), Partition: p.id, From: s.Base, Next: s.Next}})
			mu.Unlock()
		case size != s.Bytes:
			v.find(Finding{What: ObjectSize, Key: s.Key(), Partition: p.id, From: s.Base, Next: s.Next, Detail: fmt.Sprintf("%d bytes, the chain says %d", size, s.Bytes)})
		case v.opts.Deep:
			g.Go(func() error {
				f, err := v.deep(ctx, s)
				if f != nil {
					mu.Lock()
					missing = append(missing, absent{s, *f})
					mu.Unlock()
				}
				return err
			})
		}
	}
	err = g.Wait()
	return missing, err
}

// deep reads a whole segment and verifies every batch, the index, the footer,
// and all of it against the chain's entry. One that is gone is returned as a
// finding. Its error is ctx's.
func (v *verifier) deep(ctx context.Context, s manifest.Segment) (gone *Finding, _ error) {
	key := s.Key()
	bad := func(detail string) {
		v.find(Finding{What: ObjectCorrupt, Key: key, Partition: s.Partition, From: s.Base, Next: s.Next, Detail: detail})
	}
	var failed error
	rep, err := segment.Verify(key, &object{ctx: ctx, store: v.store, key: key, fails: &failed}, s.Bytes, true)
	if failed != nil {
		err = failed // whatever was made of it
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errcode.Is(err, errcode.NotFound):
		return &Finding{What: ObjectMissing, Key: key, Partition: s.Partition, From: s.Base, Next: s.Next, Detail: "it was listed"}, nil
	case err != nil:
		v.failed(ObjectCorrupt, key, s.Partition, err)
		return nil, nil
	}
	v.checked(s.Bytes)
	if err := rep.Err(); err != nil {
		bad(err.Error())
		return nil, nil
	}
	in := rep.Info
	if in.Base != s.Base || in.Next != s.Next || in.Records != s.Records || in.DataLength != s.DataLength || manifest.Hash(in.DataSHA256) != s.DataSHA256 {
		bad(fmt.Sprintf("it verifies, but holds offsets %d to %d with %d records and data SHA-256 %x, the chain says %d to %d, %d, %s",
			in.Base, in.Next, in.Records, in.DataSHA256, s.Base, s.Next, s.Records, s.DataSHA256))
	}
	return nil, nil
}

// orphans reports what the chain does not name. Uploads that lost, trimmed
// segments inside their grace and pages of lost entries look like this.
func (v *verifier) orphans(p *partition, c *manifest.Chain) {
	for _, key := range c.Pages() {
		delete(p.pages, key)
	}
	orphan := func(key string, size int64) {
		v.find(Finding{What: Orphan, Key: key, Partition: p.id, Detail: fmt.Sprintf("%d bytes", size)})
		v.count(func(s *Summary) { s.Orphans++; s.OrphanSize += size })
	}
	for id, size := range p.objects {
		orphan(id.key(p.id), size)
	}
	for key, size := range p.pages {
		orphan(key, size)
	}
}
