package retention

import (
	"context"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/partition"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

const (
	// ReasonRetention is the reason of a gap in a chain for records that
	// retention passed before they were uploaded.
	ReasonRetention = "retention ahead of upload"
	// mostLoads bounds the chains that one turn loads.
	mostLoads = 64
	// mostFound bounds the archived segments that one turn looks at for one
	// partition, and mostTrims the steps in which its chain follows.
	mostFound = 512
	mostTrims = 8
)

// oldest is the first segment of a chain as it was found last, so that a turn
// that finds it within the limits reads nothing.
type oldest struct {
	start int64 // of the chain then
	known bool
	piece partition.Piece
}

// archive applies the limits to what the archive has, and lets chains follow the
// starts of their logs, for at most archiveTimeout. It ends at the first answer
// that the archive does not give.
func (s *Sweeper) archive(ctx context.Context, logs []Log, now int64, trusted bool) {
	if s.opts.Archive == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, archiveTimeout)
	defer cancel()
	logs = s.inTurn(logs)
	loads := 0
	for _, l := range logs {
		if ctx.Err() != nil || loads == mostLoads {
			s.next = l.ID()
			return
		}
		chain, known := s.opts.Archive.Known(l.ID())
		if !known {
			if local := l.Local(); local.ChainSeq == 0 && local.ArchivedEnd == 0 && !ahead(0, &local) {
				continue // nothing was archived, nothing waits for a gap
			}
			loads++
			var err error
			if chain, err = s.opts.Archive.Load(ctx, l.ID()); err != nil {
				s.note(l, "load the chain", err)
				if unanswered(ctx, err) {
					s.next = l.ID()
					return
				}
				continue
			}
		}
		err := s.follow(ctx, l, chain, now, trusted)
		s.note(l, "trim the archive", err)
		if unanswered(ctx, err) {
			s.next = l.ID()
			return
		}
	}
	s.next = broker.PartitionID{}
}

// unanswered says that it is no use to ask the archive about other partitions.
func unanswered(ctx context.Context, err error) bool {
	if err == nil {
		return false
	}
	switch errcode.Of(err) {
	case errcode.ArchiveUnavailable, errcode.Transient, errcode.Throttled, errcode.Denied, errcode.Canceled:
		return true
	}
	return ctx.Err() != nil
}

// inTurn orders logs so that they begin where the last turn stopped.
func (s *Sweeper) inTurn(logs []Log) []Log {
	out := slices.Clone(logs)
	slices.SortFunc(out, func(a, b Log) int { return compare(a.ID(), b.ID()) })
	i, _ := slices.BinarySearchFunc(out, s.next, func(l Log, id broker.PartitionID) int { return compare(l.ID(), id) })
	return slices.Concat(out[i:], out[:i])
}

func compare(a, b broker.PartitionID) int {
	switch {
	case a.Topic != b.Topic:
		if a.Topic < b.Topic {
			return -1
		}
		return 1
	case a.Partition < b.Partition:
		return -1
	case a.Partition > b.Partition:
		return 1
	}
	return 0
}

// ahead says whether retention passed records behind a chain's end that were
// never uploaded, and never will be.
func ahead(end int64, local *partition.Local) bool {
	return end < local.Cut && local.Cut <= local.Oldest
}

// follow raises the start of l to what the limits leave of its chain, and then
// the chain's to that.
func (s *Sweeper) follow(ctx context.Context, l Log, chain Chain, now int64, trusted bool) error {
	local := l.Local()
	if limits, ok := l.Limits(); ok && trusted && chain.End() > local.Oldest {
		start, err := s.startOf(ctx, l.ID(), chain, &local, limits, now)
		if err != nil {
			return err
		}
		s.parts[l.ID()].keep(l, false)
		if start = min(start, local.HighWatermark); start > local.Oldest {
			if !s.trim(l, start) {
				return nil
			}
			local = l.Local()
		}
	}
	if !ahead(chain.End(), &local) && chain.Start() >= min(local.Oldest, chain.End()) {
		return nil
	}
	own, err := s.opts.Archive.Own(ctx, l.ID())
	if err != nil {
		return err
	}
	gap, err := s.gap(ctx, own, &local)
	if err == nil {
		err = s.trimChain(ctx, l.ID(), own, local.Oldest)
	}
	l.Followed(own.End(), own.Seq(), gap)
	return err
}

// gap names what will never be uploaded, so that the chain's end is where the
// next upload begins (T2).
func (s *Sweeper) gap(ctx context.Context, own OwnChain, local *partition.Local) (added bool, err error) {
	for ahead(own.End(), local) {
		g := manifest.Gap{From: own.End(), Next: local.Cut, Reason: ReasonRetention}
		for _, known := range own.Gaps() {
			if known.From > g.From {
				g.Next = min(g.Next, known.From)
			}
		}
		if err := own.Gap(ctx, g); err != nil {
			return added, err
		}
		added = true
	}
	return added, nil
}

// trimChain raises a chain's start and hands on what it does not name any more.
func (s *Sweeper) trimChain(ctx context.Context, id broker.PartitionID, own OwnChain, start int64) error {
	for range mostTrims {
		to := min(start, own.End())
		if own.Start() >= to {
			return nil
		}
		gone, err := own.Trim(ctx, to)
		if err != nil {
			return err
		}
		bytes := int64(0)
		for i := range gone {
			bytes += gone[i].Bytes
		}
		s.metrics.trimmed("archive", len(gone), bytes)
		if len(gone) > 0 {
			s.opts.Discard(id, gone)
		}
	}
	return nil // the rest in the next turn
}

// startOf returns the start that age and size leave of what is archived.
func (s *Sweeper) startOf(ctx context.Context, id broker.PartitionID, chain Chain, local *partition.Local, limits Limits, now int64) (int64, error) {
	p := s.parts[id]
	start := local.Oldest
	before := over(now, limits.AgeMS)
	// Objects count once, and of what is local only what no object has.
	total := chain.Bytes() + bytesOf(local.Pieces, chain.End())
	at := max(chain.Start(), 0)
	for range mostFound {
		x, ok, err := s.archivedAt(ctx, p, chain, at)
		if err != nil || !ok {
			return start, err
		}
		x.MaxAppend = p.stamps.appended(&x, now)
		one := []partition.Piece{x}
		next := max(startByAge(one, start, before), startByBytes(one, start, total, limits.Bytes))
		if x.Next > local.Oldest && next < x.Next {
			return start, nil
		}
		start, total, at = max(start, next), total-x.Bytes, x.Next
	}
	return start, nil // the rest in the next turn
}

// archivedAt returns the archived segment at or behind an offset; ok is false at
// the chain's end.
func (s *Sweeper) archivedAt(ctx context.Context, p *part, chain Chain, at int64) (x partition.Piece, ok bool, err error) {
	first := at == chain.Start()
	if first && p.first.known && p.first.start == at {
		return p.first.piece, true, nil
	}
	for offset := at; ; {
		loc, err := chain.Find(ctx, offset)
		if err != nil {
			return x, false, err
		}
		switch loc.Kind {
		case manifest.InSegment:
			g := &loc.Segment
			x = partition.Piece{Base: g.Base, Next: g.Next, Bytes: g.Bytes, MaxAppend: g.MaxAppend, Confirmed: true}
			if first {
				p.first = oldest{start: at, known: true, piece: x}
			}
			return x, true, nil
		case manifest.InGap, manifest.Below:
			offset = loc.Next
		default:
			return x, false, nil
		}
	}
}
