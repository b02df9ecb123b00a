package manifest

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	crand "crypto/rand"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Chain is one partition's chain as this process last saw it.
type Chain struct {
	store objstore.Store
	pid   broker.PartitionID
	opts  options
	state atomic.Pointer[state]
	turn  chan struct{} // capacity 1: holds a token while somebody appends
	pages *Pages

	spoiled map[Hash]bool // pages of which the store has a part only; of whoever appends, at most one page's segments
}

// Option changes what Load returns.
type Option func(*options)

type options struct {
	now      func() time.Time
	nonce    func() uint64
	attempts int           // of one append, before it gives up
	pause    time.Duration // longest pause before the second attempt; doubles
	page     int           // segments of a page
	parallel int           // reads at once while loading
	pages    *Pages        // nil: the chain's own
	tornEnd  bool          // see WithTornEnd
	summary  *atomic.Pointer[Summary]
}

func defaults() options {
	return options{now: time.Now, nonce: randomNonce, attempts: 6, pause: 50 * time.Millisecond, page: PageSegments, parallel: loadParallel}
}

// WithClock replaces the clock that entries are stamped with.
func WithClock(now func() time.Time) Option { return func(o *options) { o.now = now } }

// WithNonces replaces the source of nonces. It must be as good as random: two
// attempts with one nonce are taken for one.
func WithNonces(next func() uint64) Option { return func(o *options) { o.nonce = next } }

// WithRetry sets how often an append tries (6) and the longest pause before
// its second attempt (50 ms), which doubles with each further one.
func WithRetry(attempts int, pause time.Duration) Option {
	return func(o *options) { o.attempts, o.pause = max(1, attempts), max(0, pause) }
}

// WithPageSegments sets how many segments go into one page, at most and by
// default PageSegments. Chains written with different sizes read alike.
func WithPageSegments(n int) Option {
	return func(o *options) { o.page = min(max(1, n), PageSegments) }
}

// WithParallelReads sets how many entries Load reads at once (8).
func WithParallelReads(n int) Option { return func(o *options) { o.parallel = max(1, n) } }

// Summary is what a chain comes to, without its segments: a few tens of bytes
// that stay when the Chain itself does not.
type Summary struct {
	Start, End int64  // as of the methods of Chain
	Seq        uint64 // of the last entry: the hint for the next Load
	Totals     Totals
}

// WithSummary has the Chain keep p at what it comes to, from its load on.
func WithSummary(p *atomic.Pointer[Summary]) Option { return func(o *options) { o.summary = p } }

func randomNonce() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails: the runtime ends the process instead
	return binary.BigEndian.Uint64(b[:])
}

// wait sleeps a random part of the pause before attempt n (from 1), full
// jitter, or until ctx ends.
func (o options) wait(ctx context.Context, n int) error {
	limit := min(o.pause<<min(n-1, 10), 5*time.Second)
	if limit <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(rand.N(limit) + 1)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newChain(store objstore.Store, s *state, o options) *Chain {
	if o.pages == nil {
		o.pages = NewPages(cachedPages)
	}
	c := &Chain{store: store, pid: s.pid, opts: o, turn: make(chan struct{}, 1), pages: o.pages, spoiled: map[Hash]bool{}}
	c.set(s)
	return c
}

// set makes s what the chain is now. The caller has the turn, or nobody else
// has the chain yet.
func (c *Chain) set(s *state) {
	c.state.Store(s)
	if c.opts.summary != nil {
		c.opts.summary.Store(&Summary{Start: s.start, End: s.end, Seq: s.seq, Totals: s.totals})
	}
}

// Partition returns the partition that the chain lists.
func (c *Chain) Partition() broker.PartitionID { return c.pid }

// Start returns the first offset that the chain has not trimmed.
func (c *Chain) Start() int64 { return c.state.Load().start }

// End returns where the next segment begins: the exclusive end of what is
// archived, behind any gap that begins there.
func (c *Chain) End() int64 { return c.state.Load().end }

// Seq returns the seq of the last entry, 0 for an empty chain: the hint for
// the next Load.
func (c *Chain) Seq() uint64 { return c.state.Load().seq }

// Generation returns the generation that fenced the chain last, 0 for none.
func (c *Chain) Generation() uint32 { return c.state.Load().writer.Generation }

// Writer returns who fenced the chain last. Its node is empty when the fence
// is older than the last checkpoint.
func (c *Chain) Writer() Owner { return c.state.Load().writer }

// Len returns the number of segments that are not trimmed.
func (c *Chain) Len() int { return int(c.state.Load().totals.Segments) }

// Bytes returns the size of their objects.
func (c *Chain) Bytes() int64 { return c.state.Load().totals.Bytes }

// Resident returns about how many bytes of memory the chain takes: segments that
// are in no page, page references, gaps and fences. Pages are counted by who
// shares them.
func (c *Chain) Resident() int64 {
	s := c.state.Load()
	return 1<<10 + int64(cap(s.segs))*int64(unsafe.Sizeof(Segment{})) + int64(cap(s.pages))*int64(unsafe.Sizeof(PageRef{})) +
		int64(cap(s.gaps))*int64(unsafe.Sizeof(Gap{})+32) + int64(cap(s.fences))*int64(unsafe.Sizeof(Fence{}))
}

// Totals returns segments, records and bytes.
func (c *Chain) Totals() Totals { return c.state.Load().totals }

// Void returns how many entries of former owners this Chain has passed over.
func (c *Chain) Void() uint64 { return c.state.Load().void }

// Gaps returns the gaps that are not trimmed, ascending. One may begin above
// the end.
func (c *Chain) Gaps() []Gap { return slices.Clone(c.state.Load().gaps) }

// Fences returns the generations whose records may still count, ascending.
func (c *Chain) Fences() []Fence { return slices.Clone(c.state.Load().fences) }

// CountsAt reports whether a record of that generation at offset counts,
// wherever it was found: see Counts.
func (c *Chain) CountsAt(generation uint32, offset int64) bool {
	return Counts(c.state.Load().fences, generation, offset)
}

// Counts reports whether a record of that generation at offset counts: it does
// from the generation's start up to the previous end that the next generation
// set. fences ascend by generation. A generation that fences does not name
// never published here; whoever needs it merges the numbers of the assignment
// into the list.
func Counts(fences []Fence, generation uint32, offset int64) bool {
	i, ok := slices.BinarySearchFunc(fences, generation, func(f Fence, g uint32) int { return int(int64(f.Generation) - int64(g)) })
	if !ok || offset < fences[i].Start {
		return false
	}
	return i+1 == len(fences) || offset < fences[i+1].PreviousEnd
}
