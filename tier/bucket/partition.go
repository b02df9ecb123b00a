package bucket

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/broker"
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
	if err := v.objects(ctx, p, segs); err != nil {
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

// objects looks for each segment that the chain names. The object is taken off
// the list; what stays is named by nothing.
func (v *verifier) objects(ctx context.Context, p *partition, segs []manifest.Segment) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(v.opts.Parallel)
	for _, s := range segs {
		id := objectID{s.Base, s.Next, s.Generation, s.Nonce}
		size, ok := p.objects[id]
		delete(p.objects, id)
		switch {
		case !ok:
			v.find(Finding{What: ObjectMissing, Key: s.Key(), Partition: p.id, From: s.Base, Next: s.Next})
		case size != s.Bytes:
			v.find(Finding{What: ObjectSize, Key: s.Key(), Partition: p.id, From: s.Base, Next: s.Next, Detail: fmt.Sprintf("%d bytes, the chain says %d", size, s.Bytes)})
		case v.opts.Deep:
			g.Go(func() error { return v.deep(ctx, s) })
		}
	}
	return g.Wait()
}

// deep reads a whole segment and verifies every batch, the index, the footer,
// and all of it against the chain's entry. Its error is ctx's.
func (v *verifier) deep(ctx context.Context, s manifest.Segment) error {
	key := s.Key()
	bad := func(detail string) {
		v.find(Finding{What: ObjectCorrupt, Key: key, Partition: s.Partition, From: s.Base, Next: s.Next, Detail: detail})
	}
	rep, err := segment.Verify(key, &object{ctx, v.store, key}, s.Bytes, true)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		v.failed(ObjectCorrupt, key, s.Partition, err)
		return nil
	}
	v.checked(s.Bytes)
	if err := rep.Err(); err != nil {
		bad(err.Error())
		return nil
	}
	in := rep.Info
	if in.Base != s.Base || in.Next != s.Next || in.Records != s.Records || in.DataLength != s.DataLength || manifest.Hash(in.DataSHA256) != s.DataSHA256 {
		bad(fmt.Sprintf("it verifies, but holds offsets %d to %d with %d records and data SHA-256 %x, the chain says %d to %d, %d, %s",
			in.Base, in.Next, in.Records, in.DataSHA256, s.Base, s.Next, s.Records, s.DataSHA256))
	}
	return nil
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
