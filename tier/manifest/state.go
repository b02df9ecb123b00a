package manifest

import (
	"slices"
	"sort"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// state is a chain as of one entry. It is immutable: apply returns the next
// one. Slices are shared between states; only the newest state is ever
// appended to, so an older one never sees the new elements, and everything but
// an append copies.
type state struct {
	pid    broker.PartitionID
	seq    uint64
	link   Hash   // of entry seq
	point  uint64 // seq of the last entry with a checkpoint
	writer Owner  // who fenced last; zero before the first fence
	age    int    // entries after point
	weight int    // bytes of JSON of those

	start, end int64
	totals     Totals
	pages      []PageRef
	segs       []Segment // after the last page
	gaps       []Gap     // ascending, those below start forgotten
	fences     []Fence   // ascending generation
	void       uint64    // entries that did not count, since this state's load
	torn       uint64    // objects after seq that do not read
}

func newState(pid broker.PartitionID) *state { return &state{pid: pid} }

// apply returns the state after e, whose JSON has size bytes and the hash sum.
// An error is of code Corrupt: the entry contradicts the chain.
func (s *state) apply(e *Entry, sum Hash, size int) (*state, error) {
	place, former := s.skipped(e)
	if e.Partition == s.pid && former {
		n := *s
		n.seq, n.link, n.torn = e.Seq, sum, 0
		n.age, n.weight, n.void = s.age+1, s.weight+size, s.void+1
		return &n, nil
	}
	if e.Partition != s.pid || !place {
		return nil, errcode.New(errcode.Corrupt, "chain of %s: entry says it is %d of %s, want %d", s.pid, e.Seq, e.Partition, s.seq+1)
	}
	if e.Previous != s.link {
		return nil, errcode.New(errcode.Corrupt, "chain of %s: entry %d links to %s, the entry before is %s", s.pid, e.Seq, e.Previous, s.link)
	}
	n := *s
	n.seq, n.link, n.torn = e.Seq, sum, 0
	n.age, n.weight = s.age+1, s.weight+size
	if !s.counts(e) {
		n.void++
		return &n, nil
	}
	for i, op := range e.Ops {
		if err := n.do(e, op); err != nil {
			return nil, errcode.Wrap(errcode.Corrupt, err, "chain of %s: entry %d, operation %d (%s)", s.pid, e.Seq, i, op.Name())
		}
	}
	if e.Checkpoint != n.point {
		return nil, errcode.New(errcode.Corrupt, "chain of %s: entry %d names entry %d as the last checkpoint, it is %d", s.pid, e.Seq, e.Checkpoint, n.point)
	}
	return &n, nil
}

// counts says whether e is from the writer that fenced last, or is the fence
// of a higher one. Everything else is a former owner's and void (I8).
func (s *state) counts(e *Entry) bool {
	if e.Owner.same(s.writer) {
		return true
	}
	for _, op := range e.Ops {
		if op.Fence != nil {
			return s.outranks(e.Owner)
		}
	}
	return false
}

// outranks says whether o may fence the chain: a later cluster generation or
// the same, and a generation that was never used.
func (s *state) outranks(o Owner) bool {
	return o.ClusterGeneration >= s.writer.ClusterGeneration && o.Generation > s.writer.Generation
}

func (s *state) do(e *Entry, op Op) error {
	switch {
	case op.Add != nil:
		return s.add(*op.Add)
	case op.Replace != nil:
		return s.replace(op.Replace)
	case op.Trim != nil:
		return s.trim(op.Trim)
	case op.Gap != nil:
		return s.gap(*op.Gap)
	case op.Fence != nil:
		return s.fence(e.Owner, *op.Fence)
	case op.Checkpoint != nil:
		return s.checkpoint(e, op.Checkpoint)
	default:
		return errcode.New(errcode.Corrupt, "no field is set")
	}
}

func (s *state) add(seg Segment) error {
	if seg.Base != s.end {
		return errcode.New(errcode.Corrupt, "segment begins at offset %d, the chain ends at %d", seg.Base, s.end)
	}
	if g, ok := s.firstGapFrom(seg.Base); ok && seg.Next > g.From {
		return errcode.New(errcode.Corrupt, "segment %d to %d reaches into the gap %d to %d", seg.Base, seg.Next, g.From, g.Next)
	}
	if seg.LastGeneration > s.writer.Generation || seg.Generation > s.writer.Generation {
		return errcode.New(errcode.Corrupt, "segment of generation %d, the chain is at %d", max(seg.LastGeneration, seg.Generation), s.writer.Generation)
	}
	s.segs = append(s.segs, seg)
	s.totals = s.totals.plus(seg)
	s.moveEnd(seg.Next)
	return nil
}

// moveEnd puts the end at offset, or behind the gap that begins there.
func (s *state) moveEnd(to int64) {
	s.end = to
	for {
		g, ok := s.firstGapFrom(s.end)
		if !ok || g.From != s.end {
			return
		}
		s.end = g.Next
	}
}

// firstGapFrom returns the first gap that begins at or above offset.
func (s *state) firstGapFrom(offset int64) (Gap, bool) {
	i := sort.Search(len(s.gaps), func(i int) bool { return s.gaps[i].From >= offset })
	if i == len(s.gaps) {
		return Gap{}, false
	}
	return s.gaps[i], true
}

func (s *state) replace(r *Replace) error {
	i := slices.IndexFunc(s.segs, func(x Segment) bool { return x.Base == r.Output.Base })
	if i < 0 || i+len(r.Inputs) > len(s.segs) {
		return errcode.New(errcode.Corrupt, "no run of %d segments begins at offset %d outside the pages", len(r.Inputs), r.Output.Base)
	}
	run := s.segs[i : i+len(r.Inputs)]
	sum := Totals{}
	for j, x := range run {
		if x.Key() != r.Inputs[j] || j > 0 && x.Base != run[j-1].Next {
			return errcode.New(errcode.Corrupt, "input %d is %q, the chain has %q there", j, r.Inputs[j], x.Key())
		}
		sum = sum.plus(x)
	}
	if last := run[len(run)-1]; last.Next != r.Output.Next || sum.Records != r.Output.Records {
		return errcode.New(errcode.Corrupt, "inputs end at %d with %d records, the output at %d with %d", last.Next, sum.Records, r.Output.Next, r.Output.Records)
	}
	s.segs = slices.Concat(s.segs[:i], []Segment{r.Output}, s.segs[i+len(r.Inputs):])
	s.totals = s.totals.minus(sum).plus(r.Output)
	return nil
}

func (s *state) trim(t *Trim) error {
	if t.Start <= s.start || t.Start > s.end {
		return errcode.New(errcode.Corrupt, "new start %d is not in %d (the start) to %d (the end)", t.Start, s.start, s.end)
	}
	left := s.totals.minus(t.Dropped)
	if left.negative() {
		return errcode.New(errcode.Corrupt, "drops %+v of %+v", t.Dropped, s.totals)
	}
	s.start, s.totals = t.Start, left
	s.pages = s.pages[sort.Search(len(s.pages), func(i int) bool { return s.pages[i].Next > t.Start }):]
	s.segs = s.segs[sort.Search(len(s.segs), func(i int) bool { return s.segs[i].Next > t.Start }):]
	s.gaps = s.gaps[sort.Search(len(s.gaps), func(i int) bool { return s.gaps[i].Next > t.Start }):]
	// A generation whose successor begins at or below the start has no record
	// left that could count. The last fence always stays.
	i := 0
	for i+1 < len(s.fences) && s.fences[i+1].PreviousEnd <= t.Start {
		i++
	}
	s.fences = s.fences[i:]
	return nil
}

func (s *state) gap(g Gap) error {
	if g.From < s.end {
		return errcode.New(errcode.Corrupt, "gap begins at offset %d, the chain ends at %d", g.From, s.end)
	}
	i := sort.Search(len(s.gaps), func(i int) bool { return s.gaps[i].From >= g.From })
	if i < len(s.gaps) && s.gaps[i].From < g.Next || i > 0 && s.gaps[i-1].Next > g.From {
		return errcode.New(errcode.Corrupt, "gap %d to %d overlaps another one", g.From, g.Next)
	}
	s.gaps = slices.Concat(s.gaps[:i], []Gap{g}, s.gaps[i:])
	s.moveEnd(s.end)
	return nil
}

func (s *state) fence(by Owner, f Fence) error {
	if f.ClusterGeneration != by.ClusterGeneration || f.Generation != by.Generation || f.Incarnation != by.Incarnation {
		return errcode.New(errcode.Corrupt, "names generation %d of incarnation %016x, its entry is from %d of %016x", f.Generation, f.Incarnation, by.Generation, by.Incarnation)
	}
	if by.same(s.writer) {
		return errcode.New(errcode.Corrupt, "generation %d fences the chain again", f.Generation)
	}
	if least := s.leastPreviousEnd(); f.PreviousEnd < least {
		return errcode.New(errcode.Corrupt, "previous end %d is below %d", f.PreviousEnd, least)
	}
	s.fences = append(s.fences, f)
	s.writer = by
	return nil
}

// leastPreviousEnd is the lowest offset at which another generation may end
// the one before: nothing at or above it was ever assigned, as far as the
// chain knows.
func (s *state) leastPreviousEnd() int64 {
	least := s.end
	if n := len(s.fences); n > 0 {
		least = max(least, s.fences[n-1].Start) // starts ascend
	}
	if n := len(s.gaps); n > 0 {
		least = max(least, s.gaps[n-1].Next)
	}
	return least
}

// checkpoint checks c against the state and takes its pages over.
func (s *state) checkpoint(e *Entry, c *Checkpoint) error {
	if c.Start != s.start || c.End != s.end || c.Totals != s.totals || len(c.Segments) > len(s.segs) || len(c.Fences) != len(s.fences) || len(c.Gaps) != len(s.gaps) {
		return errcode.New(errcode.Corrupt, "checkpoint of %d to %d with %+v, the chain is %d to %d with %+v", c.Start, c.End, c.Totals, s.start, s.end, s.totals)
	}
	paged := len(s.segs) - len(c.Segments)
	if !slices.Equal(s.segs[paged:], c.Segments) || !slices.Equal(s.fences, c.Fences) || !slices.Equal(s.gaps, c.Gaps) {
		return errcode.New(errcode.Corrupt, "checkpoint lists other segments, gaps or fences than the chain has")
	}
	sum := Totals{}
	for _, x := range s.segs[:paged] {
		sum = sum.plus(x)
	}
	have := len(s.pages)
	if len(c.Pages) < have || !slices.Equal(c.Pages[:have], s.pages) {
		return errcode.New(errcode.Corrupt, "checkpoint drops pages")
	}
	for _, p := range c.Pages[have:] {
		sum = sum.minus(p.Totals)
	}
	if sum != (Totals{}) {
		return errcode.New(errcode.Corrupt, "checkpoint's pages do not hold the segments that it left out: %+v", sum)
	}
	s.pages = c.Pages
	s.segs = slices.Clone(s.segs[paged:]) // lets go of the paged ones
	s.point, s.age, s.weight = e.Seq, 0, 0
	return nil
}

// restore returns the state after e, whose first operation is a checkpoint,
// without what came before it.
func restore(pid broker.PartitionID, e *Entry, sum Hash, size int) (*state, error) {
	c := e.Ops[0].Checkpoint
	s := &state{pid: pid, seq: e.Seq - 1 - e.Skips, link: e.Previous,
		start: c.Start, end: c.End, totals: c.Totals, pages: c.Pages, segs: c.Segments, gaps: c.Gaps, fences: c.Fences}
	if n := len(c.Fences); n > 0 {
		f := c.Fences[n-1]
		s.writer = Owner{ClusterGeneration: f.ClusterGeneration, Generation: f.Generation, Incarnation: f.Incarnation}
	}
	n, err := s.apply(e, sum, size)
	if err != nil {
		return nil, err
	}
	if n.void > 0 {
		return nil, errcode.New(errcode.Corrupt, "chain of %s: checkpoint entry %d is from generation %d, which its own fences do not name", pid, e.Seq, e.Owner.Generation)
	}
	return n, nil
}
