package manifest

import (
	"context"
	"math"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// StartPolicy says where a new generation's offsets begin.
type StartPolicy uint8

const (
	// Clean: at the previous end. Everything that the generation before
	// assigned is known: a planned move, a new topic, a transferred tail.
	Clean StartPolicy = iota
	// Unclean: UncleanSkip above it, behind a gap. The generation before may
	// have assigned offsets that nobody has: an adoption, a restore.
	Unclean
)

// UncleanSkip is how many offsets an unclean start leaves out: more than any
// owner can assign between two shipments of its WAL.
const UncleanSkip = 1 << 32

// ReasonUnclean is the reason of an unclean start's gap.
const ReasonUnclean = "unclean start"

// FenceParams says how a generation begins.
type FenceParams struct {
	Start StartPolicy
	// PreviousEndAtLeast is the end that was transferred or adopted, or the
	// base or assignment, whichever is highest; the chain adds its own end and
	// every earlier start.
	PreviousEndAtLeast int64
}

// Fence makes owner the only one that can append, and returns the numbers of
// its generation. When owner's generation has fenced the chain before, it
// returns those numbers and writes nothing. Fenced: a generation at or above
// owner's has it. InvalidArgument: a later cluster generation begins with a
// generation that was used before; take one above Chain.Generation.
func (c *Chain) Fence(ctx context.Context, owner Owner, p FenceParams) (Fence, error) {
	if p.Start > Unclean || p.PreviousEndAtLeast < 0 {
		return Fence{}, errcode.New(errcode.InvalidArgument, "fence with start policy %d and previous end %d", p.Start, p.PreviousEndAtLeast)
	}
	var out Fence
	err := c.append(ctx, owner, func(s *state) ([]Op, error) {
		if owner.same(s.writer) {
			out = s.fences[len(s.fences)-1]
			if out.PreviousEnd < p.PreviousEndAtLeast {
				return nil, errcode.New(errcode.Conflict, "generation %d of %s began with previous end %d, now it is asked to begin at %d: use a new generation",
					owner.Generation, c.pid, out.PreviousEnd, p.PreviousEndAtLeast)
			}
			return nil, nil
		}
		if err := c.mayFence(s, owner); err != nil {
			return nil, err
		}
		end := max(s.leastPreviousEnd(), p.PreviousEndAtLeast)
		out = Fence{ClusterGeneration: owner.ClusterGeneration, Generation: owner.Generation, Incarnation: owner.Incarnation, PreviousEnd: end, Start: end}
		if p.Start == Clean {
			return []Op{{Fence: &out}}, nil
		}
		if end > math.MaxInt64-UncleanSkip {
			return nil, errcode.New(errcode.OutOfRange, "partition %s has no offsets left above %d", c.pid, end)
		}
		out.Start = end + UncleanSkip
		return []Op{{Fence: &out}, {Gap: &Gap{From: end, Next: out.Start, Reason: ReasonUnclean}}}, nil
	})
	if err != nil {
		return Fence{}, err
	}
	return out, nil
}

func (c *Chain) mayFence(s *state, owner Owner) error {
	if s.outranks(owner) {
		return nil
	}
	if owner.ClusterGeneration > s.writer.ClusterGeneration {
		return errcode.New(errcode.InvalidArgument, "chain of %s is at generation %d: a fence by cluster generation %d needs a higher one than %d",
			c.pid, s.writer.Generation, owner.ClusterGeneration, owner.Generation)
	}
	return fenced(c, owner, s.writer)
}

// mayAppend says whether owner is the one that fenced the chain last.
func (c *Chain) mayAppend(s *state, owner Owner) error {
	switch {
	case owner.same(s.writer):
		return nil
	case s.outranks(owner):
		return errcode.New(errcode.PreconditionFailed, "generation %d has not fenced the chain of %s: call Fence first", owner.Generation, c.pid)
	default:
		return fenced(c, owner, s.writer)
	}
}

// Add lists segments, in offset order; the first begins exactly at the
// chain's end. Segments that are listed already, by an earlier call whose
// answer was lost, are no error. Exists: the chain covers their range with
// other objects, or it is trimmed or a gap (fact "archived_offset"); what was
// uploaded is not needed. Conflict: the first begins above the chain's end.
func (c *Chain) Add(ctx context.Context, owner Owner, segs ...Segment) error {
	if len(segs) > MaxOps/2 {
		return errcode.New(errcode.InvalidArgument, "add of %d segments, the bound is %d", len(segs), MaxOps/2)
	}
	for _, x := range segs {
		if err := x.validate(); err != nil {
			return errcode.New(errcode.InvalidArgument, "add: %s", err.Error())
		}
		if x.Partition != c.pid || x.Generation != owner.Generation || x.LastGeneration > owner.Generation {
			return errcode.New(errcode.InvalidArgument, "segment %s of records up to generation %d is not an upload of generation %d of %s", x.Key(), x.LastGeneration, owner.Generation, c.pid)
		}
	}
	return c.append(ctx, owner, func(s *state) ([]Op, error) {
		if err := c.mayAppend(s, owner); err != nil {
			return nil, err
		}
		rest := slices.Clone(segs)
		for len(rest) > 0 && s.lists(rest[0]) {
			rest = rest[1:]
		}
		ops := make([]Op, len(rest))
		sim := *s
		for i := range rest {
			if err := sim.mayAdd(rest[i]); err != nil {
				return nil, err
			}
			if err := sim.add(rest[i]); err != nil {
				return nil, errcode.New(errcode.Conflict, "add to the chain of %s: %s", c.pid, err.Error())
			}
			ops[i].Add = &rest[i]
		}
		return ops, nil
	})
}

// lists says whether exactly x is among the segments outside the pages.
func (s *state) lists(x Segment) bool {
	i, ok := slices.BinarySearchFunc(s.segs, x.Base, func(y Segment, base int64) int {
		switch {
		case y.Base < base:
			return -1
		case y.Base > base:
			return 1
		}
		return 0
	})
	return ok && s.segs[i] == x
}

func (s *state) mayAdd(x Segment) error {
	switch {
	case x.Base < s.end:
		return errcode.New(errcode.Exists, "chain of %s ends at %d and covers the range of %s otherwise", s.pid, s.end, x.Key()).With("archived_offset", s.end)
	case x.Base > s.end:
		return errcode.New(errcode.Conflict, "chain of %s ends at %d, %s would leave a hole", s.pid, s.end, x.Key()).With("archived_offset", s.end)
	}
	return nil
}

// Gap says that no segment will ever cover [from, next): after an unclean
// start, for retention ahead of upload, or by an operator. It begins at or
// above the chain's end; a gap that is known already is no error.
func (c *Chain) Gap(ctx context.Context, owner Owner, g Gap) error {
	if err := g.validate(); err != nil {
		return errcode.New(errcode.InvalidArgument, "%s", err.Error())
	}
	return c.append(ctx, owner, func(s *state) ([]Op, error) {
		if err := c.mayAppend(s, owner); err != nil {
			return nil, err
		}
		if slices.Contains(s.gaps, g) {
			return nil, nil
		}
		sim := *s
		if err := sim.gap(g); err != nil {
			return nil, errcode.New(errcode.Conflict, "gap in the chain of %s: %s", c.pid, err.Error())
		}
		return []Op{{Gap: &g}}, nil
	})
}

// trimPages bounds what one Trim drops.
const trimPages = 8

// Trim raises the chain's start to start and returns the segments that are no
// longer listed; their objects may be deleted after a grace. At most 8 pages
// go at once: call it again until Start says so. A start that is reached
// already is no error. Objects of a call whose answer was lost are named by
// nothing and left to the sweep of orphans.
func (c *Chain) Trim(ctx context.Context, owner Owner, start int64) ([]Segment, error) {
	var dropped []Segment
	err := c.append(ctx, owner, func(s *state) ([]Op, error) {
		dropped = nil
		if err := c.mayAppend(s, owner); err != nil {
			return nil, err
		}
		if start <= s.start {
			return nil, nil
		}
		if start > s.end {
			return nil, errcode.New(errcode.Conflict, "trim of %s to %d: the chain ends at %d; what was never archived needs a gap first", c.pid, start, s.end)
		}
		to := start
		if len(s.pages) > trimPages {
			to = min(to, s.pages[trimPages-1].Next)
		}
		segs, err := c.segments(ctx, s, s.start, to)
		if err != nil {
			return nil, err
		}
		t := &Trim{Start: to}
		for _, x := range segs {
			if x.Next <= to {
				dropped = append(dropped, x)
				t.Dropped = t.Dropped.plus(x)
			}
		}
		return []Op{{Trim: t}}, nil
	})
	if err != nil {
		return nil, err
	}
	return dropped, nil
}

// Replace puts output in the place of inputs, a run of listed segments outside
// the pages with the same range and records. Conflict: the run is not there as
// given, so the merge was made from an old view.
func (c *Chain) Replace(ctx context.Context, owner Owner, inputs []Segment, output Segment) error {
	if err := output.validate(); err != nil {
		return errcode.New(errcode.InvalidArgument, "replace: %s", err.Error())
	}
	if len(inputs) == 0 || len(inputs) > maxInputs || output.Partition != c.pid {
		return errcode.New(errcode.InvalidArgument, "replace of %d segments by one of %s, want 1 to %d of %s", len(inputs), output.Partition, maxInputs, c.pid)
	}
	r := &Replace{Output: output}
	for _, x := range inputs {
		r.Inputs = append(r.Inputs, x.Key())
	}
	return c.append(ctx, owner, func(s *state) ([]Op, error) {
		if err := c.mayAppend(s, owner); err != nil {
			return nil, err
		}
		if s.lists(output) {
			return nil, nil
		}
		sim := *s
		if err := sim.replace(r); err != nil {
			return nil, errcode.New(errcode.Conflict, "replace in the chain of %s: %s", c.pid, err.Error())
		}
		// The checkpoint in front of the same entry may put them into a page.
		if paged := len(s.segs) / c.opts.page * c.opts.page; paged > 0 && s.due() && output.Base < s.segs[paged-1].Next {
			return nil, errcode.New(errcode.Conflict, "replace in the chain of %s: the next checkpoint moves the run at offset %d into a page", c.pid, output.Base)
		}
		return []Op{{Replace: r}}, nil
	})
}
