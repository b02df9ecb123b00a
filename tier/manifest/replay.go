package manifest

import (
	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Replay builds a chain from its first entry on, as tools that verify a bucket
// do: every link, every operation and every checkpoint is held against what
// came before it.
type Replay struct{ s *state }

// Torn reports whether stored reads as no entry at all. The entry after it may
// skip it, and is applied on what came before.
func Torn(stored []byte) bool {
	_, _, err := DecodeEntry(stored)
	return torn(err)
}

// NewReplay returns the replay of an empty chain.
func NewReplay(pid broker.PartitionID) *Replay { return &Replay{newState(pid)} }

// Apply takes the next entry, as it is stored under seq. Corrupt or
// UnsupportedVersion leave the replay where it was.
func (r *Replay) Apply(seq uint64, stored []byte) (*Entry, error) {
	key := EntryKey(r.s.pid, seq)
	e, o, err := decodeEntry(stored, "manifest entry "+key)
	if err != nil {
		return nil, err
	}
	if e.Seq != seq {
		return nil, errcode.New(errcode.Corrupt, "manifest entry %s says it is entry %d", key, e.Seq)
	}
	n, err := r.s.apply(e, o.sum, o.size)
	if err != nil {
		return nil, err
	}
	r.s = n
	return e, nil
}

// Chain returns the chain as of the last entry; it reads pages from store.
func (r *Replay) Chain(store objstore.Store, opts ...Option) *Chain {
	o := defaults()
	for _, opt := range opts {
		opt(&o)
	}
	return newChain(store, r.s, o)
}

// Pages returns the keys of the pages that the chain names.
func (c *Chain) Pages() []string {
	s := c.state.Load()
	out := make([]string, len(s.pages))
	for i, p := range s.pages {
		out[i] = PageKey(c.pid, p.Base, p.SHA256)
	}
	return out
}

// Coverage walks segs, which ascend, and the chain's gaps from its start to its
// end. It calls hole for each range that neither covers and overlap for each
// that two cover.
func (c *Chain) Coverage(segs []Segment, hole, overlap func(from, next int64)) {
	s := c.state.Load()
	at, gaps := s.start, s.gaps
	step := func(from, next int64, clip bool) {
		if from > at {
			hole(at, from)
		}
		if from < at && !clip {
			overlap(from, min(at, next))
		}
		at = max(at, next)
	}
	for i := range segs {
		for len(gaps) > 0 && gaps[0].From < segs[i].Base {
			step(gaps[0].From, gaps[0].Next, gaps[0].From < s.start)
			gaps = gaps[1:]
		}
		step(segs[i].Base, segs[i].Next, segs[i].Base < s.start && at == s.start)
	}
	for _, g := range gaps {
		if g.From < s.end {
			step(g.From, g.Next, g.From < s.start)
		}
	}
	if at < s.end {
		hole(at, s.end)
	}
}
