package node

import (
	"cmp"
	"context"
	"io"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/scrub"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

func (n *Node) openScrubber() error {
	o := scrub.Options{
		FS: n.opts.FS, Path: n.path("scrub.json"), Partitions: scrubbedFiles{n}, Interval: n.opts.ScrubInterval,
		Busy:    n.scrubBusy,
		Latency: newLateness(func() uint64 { return n.log.NextLSN() }).read,
		Now:     n.opts.Now, Logger: n.opts.Logger, Registerer: n.opts.Registerer,
	}
	if n.chains != nil {
		o.Archive, o.Store = scrubbedArchive{n}, objstore.For(n.opts.Archive, objstore.CauseScrub)
		o.Mended = n.uploader.Resume // an upload that stopped at the damage goes on
		o.Discard = func(id broker.PartitionID, segs []manifest.Segment) { n.collector.Discard(id, segs) }
	}
	var err error
	n.scrubber, err = scrub.New(o)
	return err
}

// scrubBusy says why local files, and objects, are left alone now.
func (n *Node) scrubBusy() (local, archive string) {
	err := n.refusal()
	for _, why := range []func() error{n.disk.accept, n.log.Err, n.db.Err} {
		if err == nil {
			err = why()
		}
	}
	if err != nil {
		return err.Error(), err.Error()
	}
	if n.shipper != nil {
		if st := n.shipper.Status(); st.LastError != "" {
			return "", st.LastError
		}
	}
	return "", ""
}

// Scrub says what was verified again, and what was found.
func (n *Node) Scrub(context.Context) (broker.ScrubReport, error) {
	if err := n.refusal(); err != nil {
		return broker.ScrubReport{}, err
	}
	r := n.scrubber.Report()
	names := map[broker.TopicID]string{}
	for name, t := range n.topics.Load().byName {
		names[t.ID] = name
	}
	r.Asked = []broker.ScrubTopic{}
	for id, left := range n.scrubber.Asked() {
		r.Asked = append(r.Asked, broker.ScrubTopic{Topic: cmp.Or(names[id], id.String()), Partitions: left})
	}
	slices.SortFunc(r.Asked, func(a, b broker.ScrubTopic) int { return cmp.Compare(a.Topic, b.Topic) })
	return r, nil
}

// StartScrub has everything of a topic, of all topics when it is "", verified
// now, and says how things stand. It does not wait for the end.
func (n *Node) StartScrub(ctx context.Context, name string) (broker.ScrubReport, error) {
	if err := n.refusal(); err != nil {
		return broker.ScrubReport{}, err
	}
	var ids []broker.PartitionID
	if name == "" {
		ids = scrubbedFiles{n}.IDs()
	} else {
		t, err := n.topic(name)
		if err != nil {
			return broker.ScrubReport{}, err
		}
		for _, p := range t.partitions {
			if p != nil {
				ids = append(ids, p.ID)
			}
		}
	}
	if len(ids) > 0 || name != "" { // a node without topics has nothing to verify
		if err := n.scrubber.Start(name, ids); err != nil {
			return broker.ScrubReport{}, err
		}
	}
	return n.Scrub(ctx)
}

// scrubbedFiles implements scrub.Partitions.
type scrubbedFiles struct{ n *Node }

func (s scrubbedFiles) IDs() []broker.PartitionID {
	all := s.n.engine.All()
	out := make([]broker.PartitionID, len(all))
	for i, p := range all {
		out[i] = p.ID
	}
	return out
}

func (s scrubbedFiles) Files(id broker.PartitionID, from int64, limit int) []scrub.File {
	p := s.n.engine.Get(id)
	if p == nil {
		return nil
	}
	list := p.Files(from, limit)
	out := make([]scrub.File, len(list))
	for i := range list {
		out[i] = scrub.File{Info: list[i].Info, Path: list[i].Path, Confirmed: list[i].Confirmed}
	}
	return out
}

func (s scrubbedFiles) Mend(id broker.PartitionID, info *segment.Info, fetch func(w io.Writer) error) (string, error) {
	p := s.n.engine.Get(id)
	if p == nil {
		return "", errcode.New(errcode.Conflict, "partition %s left this node", id)
	}
	return s.n.engine.Mend(p, info, fetch)
}

func (s scrubbedFiles) SetAside(id broker.PartitionID, info *segment.Info) (string, error) {
	p := s.n.engine.Get(id)
	if p == nil {
		return "", errcode.New(errcode.Conflict, "partition %s left this node", id)
	}
	return s.n.engine.SetAside(p, info)
}

func (s scrubbedFiles) Refused(id broker.PartitionID) error {
	if p := s.n.engine.Get(id); p != nil {
		return p.Refused()
	}
	return nil
}

// scrubbedArchive implements scrub.Archive.
type scrubbedArchive struct{ n *Node }

func (a scrubbedArchive) Next(ctx context.Context, id broker.PartitionID, from int64) (seg manifest.Segment, ok bool, err error) {
	chain, err := a.n.chains.load(ctx, id)
	if err != nil {
		return seg, false, err
	}
	for from = max(from, chain.Start()); ; {
		loc, err := chain.Find(ctx, from)
		switch {
		case err != nil:
			return seg, false, unreachable(err, "find offset %d of partition %s", from, id)
		case loc.Kind == manifest.InSegment:
			return loc.Segment, true, nil
		case loc.Kind == manifest.Beyond:
			return seg, false, nil
		}
		from = loc.Next // behind a gap, or what was trimmed meanwhile
	}
}

func (a scrubbedArchive) Refresh(ctx context.Context, id broker.PartitionID) error {
	return a.n.chains.refresh(ctx, id)
}

func (a scrubbedArchive) Bytes(id broker.PartitionID) (int64, bool) {
	c, ok := a.n.chains.summary(id)
	return c.Totals.Bytes, ok
}

func (a scrubbedArchive) Own(ctx context.Context, id broker.PartitionID) (scrub.Chain, error) {
	chain, owner, err := a.n.chains.owned(ctx, id)
	if err != nil {
		return nil, err
	}
	return scrubbedChain{chain, owner}, nil
}

// scrubbedChain implements scrub.Chain.
type scrubbedChain struct {
	*manifest.Chain
	owner manifest.Owner
}

func (c scrubbedChain) Generation() uint32 { return c.owner.Generation }

func (c scrubbedChain) Replace(ctx context.Context, input, output manifest.Segment) error {
	return c.Chain.Replace(ctx, c.owner, []manifest.Segment{input}, output)
}
