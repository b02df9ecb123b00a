package garbage

import (
	"context"
	"errors"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// verdict is what the chain and the metadata say about segments.
type verdict struct {
	garbage []segment // named by nothing
	later   []segment // somebody uses them now, or nobody can tell yet
	keep    []segment // needed, or not this node's to judge
	why     string    // of keep
}

// owned returns this incarnation's assignment of a partition.
func (c *Collector) owned(st *raftmeta.State, id broker.PartitionID) (raftmeta.Assignment, bool) {
	a, ok := st.Assignment(id)
	return a, ok && a.Owner == c.opts.Node && uint64(a.OwnerIncarnation) == c.opts.Incarnation
}

// judge holds segments of one partition against the confirmed metadata and the
// partition's chain, fenced by this node and read to its end at this moment: an
// entry whose answer was lost is part of it now (T20, T26). A partition that is
// somebody else's, or whose topic is gone, is not judged here.
func (c *Collector) judge(ctx context.Context, st *raftmeta.State, id broker.PartitionID, segs []segment) (v verdict, err error) {
	a, ok := c.owned(st, id)
	if !ok {
		return verdict{keep: segs, why: "the partition is not assigned to this incarnation"}, nil
	}
	// Asked before the chain is read: what is in use no more by then is named by
	// the chain, or by nothing ever.
	used := make(map[string]bool, len(segs))
	for _, s := range segs {
		used[s.key()] = c.opts.InUse(id, s.key())
	}
	chain, err := c.chain(ctx, id)
	if err != nil {
		return v, err
	}
	if g := chain.Generation(); g != a.Generation {
		return verdict{keep: segs, why: "another generation has fenced the chain"}, nil
	}
	named, err := namedKeys(ctx, chain, segs)
	if err != nil {
		return v, err
	}
	for _, s := range segs {
		key := s.key()
		switch {
		case named[key]:
			v.keep, v.why = append(v.keep, s), "the chain names it"
		case s.next > chain.End():
			// An upload in flight looks like this, and so does one that this node
			// does not know to have won.
			v.later = append(v.later, s)
		case s.generation > a.Generation:
			v.keep, v.why = append(v.keep, s), "it is of a later generation"
		case used[key]:
			v.later = append(v.later, s)
		default:
			v.garbage = append(v.garbage, s)
		}
	}
	return v, nil
}

// chain returns a partition's fenced chain as it is in the archive now.
func (c *Collector) chain(ctx context.Context, id broker.PartitionID) (Chain, error) {
	chain, err := c.opts.Chain(ctx, id)
	if err == nil {
		_, err = chain.Refresh(ctx)
	}
	if err != nil {
		return nil, errcode.Wrap(errcode.ArchiveUnavailable, err, "read the chain of partition %s", id)
	}
	return chain, nil
}

// namedKeys returns the keys that the chain names in the range of the segments.
func namedKeys(ctx context.Context, chain Chain, segs []segment) (map[string]bool, error) {
	if len(segs) == 0 {
		return nil, nil
	}
	from, to := segs[0].base, segs[0].next
	for _, s := range segs {
		from, to = min(from, s.base), max(to, s.next)
	}
	listed, err := chain.Segments(ctx, from, to)
	if err != nil {
		return nil, errcode.Wrap(errcode.ArchiveUnavailable, err, "read what the chain names from offset %d to %d", from, to)
	}
	named := make(map[string]bool, len(listed))
	for i := range listed {
		named[listed[i].Key()] = true
	}
	return named, nil
}

// parseSegment reads the key of a segment object.
func parseSegment(key string, bytes int64) (segment, bool) {
	k, err := manifest.ParseKey(key)
	if err != nil || k.Kind != manifest.KindSegmentObject {
		return segment{}, false
	}
	return segment{id: k.Partition, base: k.Base, next: k.Next, generation: k.Generation, nonce: k.Nonce, bytes: bytes}, true
}

// local says that an error is one partition's own: the archive answers, and
// what it says about this partition cannot be worked with. The others go on
// without it (T9).
func local(err error) bool {
	switch errcode.Of(err) {
	case errcode.Corrupt, errcode.Fenced, errcode.UnsupportedVersion, errcode.NotFound, errcode.Conflict, errcode.PreconditionFailed, errcode.InvalidArgument:
		var h *hindrance
		return !errors.As(err, &h)
	}
	return false
}
