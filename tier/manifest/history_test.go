package manifest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// chainPromise is what the owners have been told of the chain so far.
type chainPromise struct {
	acked    []string // keys of segments whose Add returned nil; only appended to
	assigned int64    // exclusive end of the offsets that any owner gave to a record
	newest   uint32   // generation that was begun last
	served   uint32   // generation whose fence was answered last; it knows its own records
}

// contest is a chain and those who believe that they own it.
type contest struct {
	t      *crash.T
	bucket *crash.Bucket

	mu      sync.Mutex
	p       chainPromise
	nonce   uint32
	percent int // of the calls whose answer is not good
	film    int // shots to take
	seen    int
	shots   []chainShot
}

type chainShot struct {
	bucket *crash.Bucket
	p      chainPromise
	call   crash.Call
}

// claimant is a process.
type claimant struct {
	owner  Owner
	chain  *Chain
	fenced bool // its Fence returned nil
}

// decide is the bucket's hook: it takes shots, and loses answers.
func (c *contest) decide(call crash.Call) crash.Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	rng := c.t.Rand // only under the lock, as everywhere in this file
	c.seen++
	shot := chainShot{p: c.p, call: call}
	if at := len(c.shots); at < c.film {
		shot.bucket = c.bucket.Fork()
		c.shots = append(c.shots, shot)
	} else if at = rng.IntN(c.seen); at < c.film {
		shot.bucket = c.bucket.Fork()
		c.shots[at] = shot
	}
	if rng.IntN(100) >= c.percent {
		return crash.Answered
	}
	return crash.Failed + crash.Answer(rng.IntN(3))
}

func (c *contest) draw(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t.Rand.IntN(n)
}

// newest returns whether p is of the generation that was begun last.
func (c *contest) newest(p *claimant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.owner.Generation == c.p.newest
}

// load makes sure that p knows a chain; false when the bucket does not answer.
func (c *contest) load(p *claimant) bool {
	if p.chain != nil {
		return true
	}
	chain, err := Load(context.Background(), c.bucket, testPID, 0, quick, WithPageSegments(3))
	if err != nil {
		if !errcode.Is(err, errcode.Transient) {
			c.t.Fatalf("load: %v", err)
		}
		return false
	}
	p.chain = chain
	return true
}

// takeOver begins a generation, or goes on beginning the one that p has.
func (c *contest) takeOver(p *claimant) {
	if p.owner.Generation == 0 || p.fenced || !c.newest(p) {
		c.mu.Lock()
		c.p.newest++
		p.owner.Generation, p.fenced = c.p.newest, false
		c.mu.Unlock()
	}
	if !c.load(p) {
		return
	}
	c.mu.Lock()
	assigned := c.p.assigned
	c.mu.Unlock()
	params := FenceParams{PreviousEndAtLeast: assigned}
	if c.draw(2) == 0 { // whoever adopts may know less than was assigned
		params = FenceParams{Start: Unclean, PreviousEndAtLeast: max(0, assigned-int64(c.draw(30)))}
	}
	f, err := p.chain.Fence(context.Background(), p.owner, params)
	c.t.Step("%s fences %d with %+v, %d assigned: %+v %v", p.owner.Node, p.owner.Generation, params, assigned, f, err)
	if err != nil {
		if errcode.Is(err, errcode.Fenced) && c.newest(p) {
			c.t.Fatalf("the newest generation was fenced off: %v", err)
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.fenced = true
	if p.owner.Generation == c.p.newest && c.p.served < c.p.newest {
		c.p.served = c.p.newest
		if f.Start < assigned { // I3
			c.t.Fatalf("generation %d starts at %d, offsets up to %d were assigned before", f.Generation, f.Start, assigned)
		}
		c.p.assigned = max(c.p.assigned, f.Start)
	}
}

// produce gives offsets to records, if p may.
func (c *contest) produce(p *claimant) {
	if n := c.draw(40); p.fenced && c.newest(p) {
		c.mu.Lock()
		c.p.assigned += 1 + int64(n)
		c.t.Step("%s of %d assigns up to %d", p.owner.Node, p.owner.Generation, c.p.assigned)
		c.mu.Unlock()
	}
}

// upload puts the object of a segment and then its entry, as an owner does and
// as one does that does not know yet that it is none any more.
func (c *contest) upload(p *claimant) {
	if p.owner.Generation == 0 || !c.load(p) {
		return
	}
	at := p.chain.End()
	c.mu.Lock()
	limit := c.p.assigned
	c.nonce++
	nonce := c.nonce
	c.mu.Unlock()
	for _, g := range p.chain.Gaps() {
		if g.From >= at {
			limit = min(limit, g.From)
			break
		}
	}
	next := at + 1 + int64(c.draw(20))
	if next > limit {
		return
	}
	s := testSegment(at, next, p.owner.Generation, nonce)
	body := fmt.Sprintf("%d-%d of %d", s.Base, s.Next, s.Generation)
	ctx := context.Background()
	for try := 0; ; try++ {
		err := c.bucket.Put(ctx, s.Key(), strings.NewReader(body), int64(len(body)), objstore.PutOptions{CreateOnly: true})
		if err == nil || errcode.Is(err, errcode.Exists) {
			break
		}
		if try == 3 {
			return // it may be there or come later: nobody names it
		}
	}
	for range 3 {
		err := p.chain.Add(ctx, p.owner, s)
		c.t.Step("%s of %d adds %d to %d: %v", p.owner.Node, p.owner.Generation, s.Base, s.Next, err)
		switch {
		case err == nil:
			c.mu.Lock()
			c.p.acked = append(c.p.acked, s.Key())
			c.mu.Unlock()
			return
		case errcode.Is(err, errcode.Fenced):
			if c.newest(p) {
				c.t.Fatalf("the newest generation was fenced off: %v", err)
			}
			p.fenced = false
			return
		case errcode.Is(err, errcode.Exists), errcode.Is(err, errcode.Conflict), errcode.Is(err, errcode.PreconditionFailed):
			return
		}
	}
	p.chain = nil // it gave up, as a process that dies
}

// check reads the raw entries, apart from the code that wrote them, and says
// whether there are any.
func (c *contest) check() bool {
	ctx, t := context.Background(), c.t
	store := c.bucket.Store
	r := NewReplay(testPID)
	fence, seq := uint32(0), uint64(1)
	for ; ; seq++ {
		b, _, err := objstore.ReadAll(ctx, store, EntryKey(testPID, seq), maxStored)
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
				fence = max(fence, op.Fence.Generation)
			}
		}
		if e.Owner.Generation != fence {
			t.Fatalf("entry %d is of generation %d, the chain is fenced at %d (I8)", seq, e.Owner.Generation, fence)
		}
	}
	chain := r.Chain(store)
	segs, err := chain.Segments(ctx, chain.Start(), chain.End())
	if err != nil {
		t.Fatal(err)
	}
	chain.Coverage(segs,
		func(from, next int64) { t.Fatalf("hole %d to %d", from, next) },
		func(from, next int64) { t.Fatalf("overlap %d to %d", from, next) })
	listed := make(map[string]bool, len(segs))
	for _, s := range segs {
		listed[s.Key()] = true
		if s.Next > c.p.assigned {
			t.Fatalf("the chain names offsets up to %d, %d were assigned", s.Next, c.p.assigned)
		}
		want := fmt.Sprintf("%d-%d of %d", s.Base, s.Next, s.Generation)
		if b, _, err := objstore.ReadAll(ctx, store, s.Key(), 1<<10); err != nil || string(b) != want {
			t.Fatalf("the chain names %s, the bucket has %q: %v (I7)", s.Key(), b, err)
		}
	}
	for _, key := range c.p.acked {
		if !listed[key] {
			t.Fatalf("%s was published and is not in the chain", key)
		}
	}
	loaded, err := Load(ctx, store, testPID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.End() != chain.End() || loaded.Seq() != seq-1 || loaded.Generation() != fence || loaded.Totals() != chain.Totals() {
		t.Fatalf("loaded: end %d seq %d generation %d; replayed: %d, %d, %d", loaded.End(), loaded.Seq(), loaded.Generation(), chain.End(), seq-1, fence)
	}
	return seq > 1
}

// compete lets the claimants act in turn, and now and then two at once.
func (c *contest) compete(n int, all []*claimant) {
	for range n {
		p := all[c.draw(len(all))]
		switch c.draw(10) {
		case 0:
			c.takeOver(p)
		case 1, 2:
			c.bucket.Deliver()
		case 3:
			p.chain, p.fenced = nil, false // a restart of the same incarnation
		case 4: // one takes over while the other uploads
			other := all[c.draw(len(all))]
			if other == p {
				continue
			}
			c.race(func() { c.takeOver(p) }, func() { c.upload(other) })
		default:
			c.produce(p)
			c.upload(p)
		}
	}
}

// race runs both at once; a failure of either is this run's.
func (c *contest) race(fns ...func()) {
	var wait sync.WaitGroup
	failed := make([]any, len(fns))
	for i, fn := range fns {
		wait.Go(func() {
			defer func() { failed[i] = recover() }()
			fn()
		})
	}
	wait.Wait()
	for _, f := range failed {
		if f != nil {
			panic(f)
		}
	}
}

func claimants(from uint64) []*claimant {
	var out []*claimant
	for i := range uint64(3) {
		out = append(out, &claimant{owner: Owner{ClusterGeneration: 1, Incarnation: from + i, Node: fmt.Sprintf("n%d", i)}})
	}
	return out
}

// I3, I7, I8: several owners upload, lose answers, are late, die between object
// and entry and take each other's partition over. At any call all of them die;
// the bucket of that moment is held against what they had been told, and new
// ones go on from it.
func TestHistories(t *testing.T) {
	crash.Run(t, "chain", func(t *crash.T) {
		percent := []int{0, 10, 20, 40}[t.Rand.IntN(4)]
		c := &contest{t: t, bucket: crash.NewBucket(), percent: percent, film: 10}
		c.bucket.Hook(c.decide)
		all := claimants(0x100)
		c.takeOver(all[0])
		c.compete(12+t.Rand.IntN(20), all)
		shots := append(c.shots, chainShot{c.bucket, c.p, crash.Call{Op: "end"}})
		for _, s := range shots {
			t.Step("all die before %s %s: %d published, %d assigned, generation %d", s.call.Op, s.call.Key, len(s.p.acked), s.p.assigned, s.p.newest)
			after := &contest{t: t, bucket: s.bucket.Fork(), p: s.p, percent: percent / 2, nonce: 1 << 20}
			after.p.acked = s.p.acked[:len(s.p.acked):len(s.p.acked)]
			if !after.check() {
				continue // nothing had been written: no history
			}
			t.Count()
			after.bucket.Hook(after.decide)
			after.compete(2+t.Rand.IntN(6), claimants(0x200))
			after.bucket.Hook(nil)
			after.check()
			t.Count()
		}
	})
}
