package manifest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// peer is one node of the model: what it believes, right or wrong.
type peer struct {
	owner  Owner
	chain  *Chain // nil after a crash
	hint   uint64 // highest seq that it has seen
	fenced bool   // its Fence for owner returned nil
	retry  []Segment
}

// model is several owners, former owners and crashes over one faulty store.
// What it checks is written against the raw entries in the store, apart from
// the code under test.
type model struct {
	store    *faulty
	peers    []*peer
	lastGen  uint32
	assigned int64             // exclusive end of offsets that any owner ever gave to a record
	acked    map[string]uint32 // key of every segment whose Add returned nil, with the generation
	gone     map[string]bool   // trimmed or replaced: they may be absent
	served   map[uint32]bool   // generations that began
	nonce    uint32
	seen     uint64 // entries in the store, so far
	end      int64
}

func (m *model) segment(base, next int64, gen uint32) Segment {
	m.nonce++
	return testSegment(base, next, gen, m.nonce)
}

func (m *model) ensure(t *rapid.T, p *peer) bool {
	if p.chain != nil {
		return true
	}
	hint := p.hint
	if rapid.Bool().Draw(t, "without hint") {
		hint = 0
	}
	c, err := Load(context.Background(), m.store, testPID, hint, quick, WithPageSegments(4))
	if err != nil {
		return false // the store failed, or was stale about an entry known to exist
	}
	p.chain = c
	return true
}

func (m *model) note(p *peer) {
	if p.chain == nil {
		return
	}
	p.hint = max(p.hint, p.chain.Seq())
}

// takeOver makes a node the owner of a new generation.
func (m *model) takeOver(t *rapid.T) {
	p := rapid.SampledFrom(m.peers).Draw(t, "node")
	if !p.fenced && p.owner.Generation == m.lastGen && m.lastGen > 0 {
		m.fence(t, p, rapid.Bool().Draw(t, "again unclean"))
		return
	}
	m.lastGen++
	p.owner.Generation, p.fenced, p.retry = m.lastGen, false, nil
	m.fence(t, p, rapid.Bool().Draw(t, "unclean"))
}

func (m *model) fence(t *rapid.T, p *peer, unclean bool) {
	if !m.ensure(t, p) {
		return
	}
	params := FenceParams{PreviousEndAtLeast: m.assigned}
	if unclean {
		// Whoever adopts may know less than was assigned.
		params = FenceParams{Start: Unclean, PreviousEndAtLeast: m.assigned - int64(rapid.IntRange(0, int(min(m.assigned, 50))).Draw(t, "unknown"))}
	}
	f, err := p.chain.Fence(context.Background(), p.owner, params)
	m.note(p)
	if err != nil {
		if errcode.Is(err, errcode.Fenced) && p.owner.Generation == m.lastGen {
			t.Fatalf("the newest generation %d was fenced off: %v", m.lastGen, err)
		}
		return
	}
	p.fenced = true
	if p.owner.Generation == m.lastGen && !m.served[m.lastGen] {
		m.served[m.lastGen] = true
		if f.Start < m.assigned { // I3
			t.Fatalf("generation %d starts at %d, offsets up to %d were assigned before", f.Generation, f.Start, m.assigned)
		}
		m.assigned = max(m.assigned, f.Start)
	}
}

// produce assigns offsets by the newest owner.
func (m *model) produce(t *rapid.T) {
	for _, p := range m.peers {
		if p.fenced && p.owner.Generation == m.lastGen {
			m.assigned += int64(rapid.IntRange(1, 40).Draw(t, "records"))
		}
	}
}

// add lets any node publish, former owners too.
func (m *model) add(t *rapid.T) {
	p := rapid.SampledFrom(m.peers).Draw(t, "node")
	if p.owner.Generation == 0 || !m.ensure(t, p) {
		return
	}
	segs := p.retry
	if segs == nil || rapid.Bool().Draw(t, "new objects") {
		segs = nil
		at := p.chain.End()
		limit := m.assigned
		for _, g := range p.chain.Gaps() {
			if g.From >= at {
				limit = min(limit, g.From)
				break
			}
		}
		for range rapid.IntRange(1, 3).Draw(t, "segments") {
			n := int64(rapid.IntRange(1, 30).Draw(t, "length"))
			if at+n > limit {
				break
			}
			segs = append(segs, m.segment(at, at+n, p.owner.Generation))
			at += n
		}
		if len(segs) == 0 {
			return
		}
	}
	err := p.chain.Add(context.Background(), p.owner, segs...)
	m.note(p)
	switch {
	case err == nil:
		p.retry = nil
		for _, s := range segs {
			m.acked[s.Key()] = p.owner.Generation
		}
	case errcode.Is(err, errcode.Fenced), errcode.Is(err, errcode.PreconditionFailed):
		if errcode.Is(err, errcode.Fenced) && p.owner.Generation == m.lastGen {
			t.Fatalf("the newest generation %d was fenced off: %v", m.lastGen, err)
		}
		p.retry = nil
	case errcode.Is(err, errcode.Exists), errcode.Is(err, errcode.Conflict):
		p.retry = nil
	default:
		p.retry = segs // not known: the same segments again
	}
}

func (m *model) gap(t *rapid.T) {
	p := rapid.SampledFrom(m.peers).Draw(t, "node")
	if p.chain == nil || p.owner.Generation == 0 || p.chain.End() >= m.assigned {
		return
	}
	at := p.chain.End()
	_ = p.chain.Gap(context.Background(), p.owner, Gap{From: at, Next: at + min(5, m.assigned-at), Reason: "lost"})
	m.note(p)
}

func (m *model) trim(t *rapid.T) {
	p := rapid.SampledFrom(m.peers).Draw(t, "node")
	if p.chain == nil || p.owner.Generation == 0 {
		return
	}
	start := p.chain.Start() + int64(rapid.IntRange(0, 60).Draw(t, "by"))
	if start > p.chain.End() {
		return
	}
	// The answer may be lost: whatever ends at or below the start may be gone.
	for _, s := range m.listed(t) {
		if s.Next <= start {
			m.gone[s.Key()] = true
		}
	}
	_, _ = p.chain.Trim(context.Background(), p.owner, start)
	m.note(p)
}

func (m *model) merge(t *rapid.T) {
	p := rapid.SampledFrom(m.peers).Draw(t, "node")
	if p.chain == nil || p.owner.Generation == 0 {
		return
	}
	segs, err := p.chain.Segments(context.Background(), 0, p.chain.End())
	if err != nil || len(segs) < 2 || segs[0].Next != segs[1].Base {
		return
	}
	out := m.segment(segs[0].Base, segs[1].Next, p.owner.Generation)
	out.Records = segs[0].Records + segs[1].Records
	m.gone[segs[0].Key()], m.gone[segs[1].Key()] = true, true
	_ = p.chain.Replace(context.Background(), p.owner, segs[:2], out)
	m.note(p)
}

func (m *model) crash(t *rapid.T) {
	p := rapid.SampledFrom(m.peers).Draw(t, "node")
	p.chain, p.fenced, p.retry = nil, false, nil
}

func (m *model) refresh(t *rapid.T) {
	p := rapid.SampledFrom(m.peers).Draw(t, "node")
	if p.chain != nil {
		_, _ = p.chain.Refresh(context.Background())
		m.note(p)
	}
}

// listed is what a loader without faults reads.
func (m *model) listed(t *rapid.T) []Segment {
	c, err := Load(context.Background(), m.store.Store, testPID, 0)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	segs, err := c.Segments(context.Background(), 0, c.End())
	if err != nil {
		t.Fatal(err)
	}
	return segs
}

// check holds the store's raw entries against the invariants.
func (m *model) check(t *rapid.T) {
	ctx := context.Background()
	r := NewReplay(testPID)
	fence := uint32(0)
	seq := uint64(1)
	for ; ; seq++ {
		b, _, err := objstore.ReadAll(ctx, m.store.Store, EntryKey(testPID, seq), maxStored)
		if errcode.Is(err, errcode.NotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		e, err := r.Apply(seq, b)
		if err != nil {
			t.Fatalf("entry %d: %v", seq, err)
		}
		for _, op := range e.Ops {
			if op.Fence != nil {
				if op.Fence.Generation <= fence {
					t.Fatalf("entry %d fences with %d after %d", seq, op.Fence.Generation, fence)
				}
				fence = op.Fence.Generation
			}
		}
		if e.Owner.Generation != fence {
			t.Fatalf("entry %d is of generation %d, the chain is fenced at %d (I8)", seq, e.Owner.Generation, fence)
		}
	}
	if seq-1 < m.seen {
		t.Fatalf("%d entries, there were %d", seq-1, m.seen)
	}
	m.seen = seq - 1
	full := r.Chain(m.store.Store)
	if full.End() < m.end {
		t.Fatalf("the end fell from %d to %d (B197)", m.end, full.End())
	}
	m.end = full.End()
	segs, err := full.Segments(ctx, full.Start(), full.End())
	if err != nil {
		t.Fatal(err)
	}
	full.Coverage(segs,
		func(from, next int64) { t.Fatalf("hole %d to %d", from, next) },
		func(from, next int64) { t.Fatalf("overlap %d to %d (B212)", from, next) })
	have := make(map[string]bool, len(segs))
	total := Totals{}
	for _, s := range segs {
		have[s.Key()] = true
		total = total.plus(s)
	}
	if total != full.Totals() {
		t.Fatalf("chain counts %+v, lists %+v", full.Totals(), total)
	}
	for key := range m.acked {
		if !have[key] && !m.gone[key] {
			t.Fatalf("%s was acknowledged and is not in the chain", key)
		}
	}
	// Loading from the last checkpoint gives the same as replaying all.
	c, err := Load(ctx, m.store.Store, testPID, m.seen)
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Segments(ctx, 0, c.End())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(segs, other) || c.Start() != full.Start() || c.End() != full.End() || !slices.Equal(c.Gaps(), full.Gaps()) || !slices.Equal(c.Fences(), full.Fences()) || c.Generation() != full.Generation() {
		t.Fatalf("load from the checkpoint: %d segments %d to %d; full replay: %d, %d to %d", len(other), c.Start(), c.End(), len(segs), full.Start(), full.End())
	}
	for i, p := range m.peers {
		if p.chain != nil && (p.chain.Seq() > m.seen || p.chain.End() > m.end) {
			t.Fatalf("node %d believes in entry %d and end %d, the store has %d and %d", i, p.chain.Seq(), p.chain.End(), m.seen, m.end)
		}
	}
}

// Several owners, former owners among them, over a store that loses answers,
// delivers late, refuses, and is stale: whatever happens, one generation
// writes at a time, what was acknowledged stays, no range is named twice, no
// offset is assigned twice (I3, I8, B196, B197, B212).
func TestChainModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{store: newFaulty(), acked: map[string]uint32{}, gone: map[string]bool{}, served: map[uint32]bool{}}
		for i := range 3 {
			m.peers = append(m.peers, &peer{owner: Owner{ClusterGeneration: 1, Incarnation: uint64(0x100 + i), Node: fmt.Sprintf("n%d", i)}})
		}
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "faults"), 1))
		percent := rapid.SampledFrom([]int{0, 10, 30, 60}).Draw(t, "percent")
		m.store.decide = func(op, key string) outcome {
			if rnd.IntN(100) >= percent {
				return good
			}
			return failed + outcome(rnd.IntN(int(stale-failed)+1))
		}
		t.Repeat(map[string]func(*rapid.T){
			"takeOver": m.takeOver,
			"produce":  m.produce,
			"add":      m.add,
			"add2":     m.add,
			"add3":     m.add,
			"gap":      m.gap,
			"trim":     m.trim,
			"merge":    m.merge,
			"crash":    m.crash,
			"refresh":  m.refresh,
			"deliver":  func(*rapid.T) { m.store.deliver() },
			"":         m.check,
		})
	})
}
