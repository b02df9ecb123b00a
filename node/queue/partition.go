package queue

import (
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// partition is a partition that is served here, and its cursors.
type partition struct {
	e  *Engine
	id broker.PartitionID

	mu struct {
		sync.Mutex
		cfg     PartitionConfig // Start and HighWatermark as they are now
		gaps    spans           // at or above Start
		cursors []*cursor       // by group name
		lsn     uint64          // highest staged for groups that are deleted
	}
}

// Attach begins serving a partition, with the groups as Snapshot gave them and
// Apply completed them; groups of the topic that states does not name begin at
// the start. State beyond the end of the log is cut off, logged and counted:
// records that are not there cannot have been settled (B69). With cfg.Replay
// nothing is served or cut before Serve.
func (e *Engine) Attach(id broker.PartitionID, cfg PartitionConfig, states []State) error {
	if err := cfg.withDefaults(); err != nil {
		return errcode.Wrap(errcode.InvalidArgument, err, "attach partition %v", id)
	}
	if id.Partition >= broker.MaxPartitions {
		return errcode.New(errcode.InvalidArgument, "attach partition %v: partitions are 0 to %d", id, broker.MaxPartitions-1)
	}
	seen := make(map[string]bool, len(states))
	for i := range states {
		name := states[i].Group
		if err := broker.ValidateName("group", name); err != nil {
			return errcode.Wrap(errcode.InvalidArgument, err, "attach partition %v", id)
		}
		if seen[name] {
			return errcode.New(errcode.InvalidArgument, "attach partition %v: two states of group %q", id, name)
		}
		seen[name] = true
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return errClosed
	}
	t := e.mu.topics[id.Topic]
	if t == nil {
		t = &topic{partitions: make(map[uint32]*partition), groups: make(map[string]*group)}
	}
	if t.partitions[id.Partition] != nil {
		return errcode.New(errcode.Conflict, "partition %v is attached already; detach it first", id)
	}
	for name := range t.groups {
		delete(seen, name)
	}
	if len(t.groups)+len(seen) > MaxGroups {
		return errcode.New(errcode.TooMany, "attach partition %v: topic %v would have %d groups, over the bound of %d", id, id.Topic, len(t.groups)+len(seen), MaxGroups)
	}

	p := &partition{e: e, id: id}
	p.mu.cfg = cfg
	for _, g := range cfg.Gaps {
		p.mu.gaps.add(max(g[0], cfg.Start), g[1])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range states {
		g, err := e.makeGroup(t, id.Topic, states[i].Group)
		if err != nil {
			return err // not reached: the names and their number were checked
		}
		p.join(g, &states[i])
	}
	for _, g := range t.groups {
		if p.find(g.name) == nil {
			p.join(g, nil)
		}
	}
	t.partitions[id.Partition] = p
	e.mu.topics[id.Topic] = t
	return nil
}

// find returns the cursor of a group, nil when it has none here.
func (p *partition) find(name string) *cursor {
	i, ok := p.search(name)
	if !ok {
		return nil
	}
	return p.mu.cursors[i]
}

func (p *partition) search(name string) (int, bool) {
	return sort.Find(len(p.mu.cursors), func(i int) int { return strings.Compare(name, p.mu.cursors[i].g.name) })
}

// join gives g a cursor on p, from s, or at the start when s is nil. Engine.mu
// is held for writing, and p.mu.
func (p *partition) join(g *group, s *State) *cursor {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := newCursor(g, p.id, &p.mu.cfg)
	i, _ := p.search(g.name)
	p.mu.cursors = slices.Insert(p.mu.cursors, i, c)
	g.setCursor(p.id.Partition, c)
	g.served++
	if s != nil {
		c.restore(s, p.e.clock())
	}
	if c.serving {
		p.clamp(c)
	}
	p.settleHoles(c)
	g.refresh(c)
	return c
}

// settleHoles settles for c what of the log holds no records.
func (p *partition) settleHoles(c *cursor) {
	c.settleRange(0, p.mu.cfg.Start)
	for sp := range p.mu.gaps.all() {
		c.settleRange(sp.from, sp.to)
	}
}

// end is the lowest offset that a record may still get: the high watermark,
// or the end of the gap it stands at.
func (p *partition) end() int64 {
	end := max(p.mu.cfg.HighWatermark, p.mu.cfg.Start)
	for sp := range p.mu.gaps.all() {
		if sp.from <= end {
			end = max(end, sp.to)
		}
	}
	return end
}

// clamp cuts off what c knows of offsets beyond the end of the log.
func (p *partition) clamp(c *cursor) {
	end, was := p.end(), c.committed
	if !c.clampTo(end) {
		return
	}
	p.e.metrics.clamped.Inc()
	// The offsets from here on will be given to other records. A later replay
	// of the old entries must not settle those.
	c.g.scratch = appendCut(c.g.scratch[:0], end)
	if _, err := c.g.stage(c, c.g.scratch); err != nil {
		p.e.opt.Logger.Error("the journal refused that a group was cut to the end of the log; a restart before the next checkpoint may take new records for settled ones",
			"partition", p.id.String(), "group", c.g.name, "log_end", end, "error", err)
	}
	p.e.opt.Logger.Warn("a group was ahead of the log and stands at its end now; records that were settled and lost are not delivered again, new ones are",
		"partition", p.id.String(), "group", c.g.name, "committed", was, "log_end", end)
}

// each calls fn for every cursor, under its group's lock, and lets the groups
// hand out what fn made deliverable. p.mu is held.
func (p *partition) each(fn func(c *cursor)) {
	for _, c := range p.mu.cursors {
		c.g.mu.Lock()
		fn(c)
		c.g.refresh(c)
		c.g.mu.Unlock()
	}
}

// partition returns p if it is attached, else nil.
func (e *Engine) partition(id broker.PartitionID) *partition {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if t := e.mu.topics[id.Topic]; t != nil {
		return t.partitions[id.Partition]
	}
	return nil
}

// Serve ends a replay: it cuts off what the groups know of offsets beyond the
// end of the log, and begins to hand out. Groups that the replay deleted on all
// partitions of the topic that are served here are gone.
func (e *Engine) Serve(id broker.PartitionID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.mu.topics[id.Topic]
	if t == nil || t.partitions[id.Partition] == nil {
		return errNotServed(id.Topic, int(id.Partition))
	}
	p := t.partitions[id.Partition]
	p.mu.Lock()
	p.mu.cfg.Replay = false
	p.each(func(c *cursor) {
		p.clamp(c)
		p.settleHoles(c)
		c.serving = true
	})
	p.mu.Unlock()
	for _, g := range t.groups {
		if g.blank() {
			t.remove(g)
		}
	}
	return nil
}

// blank says that a replay deleted the group everywhere.
func (g *group) blank() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.cursors {
		if c != nil && !c.blank() {
			return false
		}
	}
	return true
}

// Detach ends serving a partition: its leases are forgotten, calls that wait
// for it alone are sent away with Unavailable, and so are all calls on a topic
// whose last partition it was. What has to survive is in Snapshot and in the
// journal. A partition that is not attached is left alone.
func (e *Engine) Detach(id broker.PartitionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.mu.topics[id.Topic]
	if t == nil || t.partitions[id.Partition] == nil {
		return
	}
	p := t.partitions[id.Partition]
	delete(t.partitions, id.Partition)
	p.mu.Lock()
	for _, c := range p.mu.cursors {
		c.g.mu.Lock()
		c.g.drop(c)
		c.g.mu.Unlock()
	}
	p.mu.cursors = nil
	p.mu.Unlock()
	if len(t.partitions) > 0 {
		return
	}
	for _, g := range t.groups {
		g.close(errNotServed(id.Topic, AnyPartition))
	}
	delete(e.mu.topics, id.Topic)
}

// drop takes c from its group, which is locked.
func (g *group) drop(c *cursor) {
	c.serving = false
	c.reset(c.committed)
	c.ring.unlink()
	sendAway(&c.pinned, errNotServed(g.topic, int(c.id.Partition)))
	g.cursors[c.id.Partition] = nil
	g.served--
	if g.served == 0 {
		sendAway(&g.anyone, errNotServed(g.topic, AnyPartition))
	}
}

// Configure changes how the records of an attached partition are leased, from
// the next lease on. Zero values mean the defaults.
func (e *Engine) Configure(id broker.PartitionID, visibility time.Duration, maxInFlight int) error {
	p := e.partition(id)
	if p == nil {
		return errNotServed(id.Topic, int(id.Partition))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	cfg := p.mu.cfg
	cfg.VisibilityTimeout, cfg.MaxInFlight = visibility, maxInFlight
	if err := cfg.withDefaults(); err != nil {
		return errcode.Wrap(errcode.InvalidArgument, err, "configure partition %v", id)
	}
	p.mu.cfg = cfg
	p.each(func(c *cursor) { c.configure(&cfg) })
	return nil
}

// Advance makes the records below highWatermark visible to every group. It
// never takes any back, and is cheap: it is called for every commit.
func (e *Engine) Advance(id broker.PartitionID, highWatermark int64) {
	p := e.partition(id)
	if p == nil {
		return // moved away in this moment
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if highWatermark <= p.mu.cfg.HighWatermark {
		return
	}
	p.mu.cfg.HighWatermark = highWatermark
	for _, c := range p.mu.cursors {
		c.g.mu.Lock()
		c.hw = highWatermark
		c.g.refresh(c)
		c.g.mu.Unlock()
	}
}

// Trim tells that the log begins at start now: for every group the records
// below are settled, and leases on them lapse (B102).
func (e *Engine) Trim(id broker.PartitionID, start int64) {
	p := e.partition(id)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if start <= p.mu.cfg.Start {
		return
	}
	p.mu.cfg.Start = start
	p.mu.gaps.cutBelow(start)
	p.each(func(c *cursor) { c.settleRange(0, start) })
}

// Gap tells that the offsets [from, to) hold no records and never will: they
// count as settled in every group, and positions jump over them.
func (e *Engine) Gap(id broker.PartitionID, from, to int64) {
	p := e.partition(id)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	from = max(from, p.mu.cfg.Start)
	if from >= to {
		return
	}
	p.mu.gaps.add(from, to)
	p.each(func(c *cursor) { c.settleRange(from, to) })
}

// Skip settles [from, to), records that are proven unreadable or missing, in
// every group, and counts them. It returns the highest LSN staged. Offsets at
// or above the high watermark are left alone: they may still get records.
func (e *Engine) Skip(id broker.PartitionID, from, to int64) (lsn uint64, err error) {
	p := e.partition(id)
	if p == nil {
		return 0, errNotServed(id.Topic, int(id.Partition))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	from, to = max(from, p.mu.cfg.Start), min(to, p.mu.cfg.HighWatermark)
	p.each(func(c *cursor) {
		lo := max(from, c.committed)
		if lo >= to || err != nil {
			return
		}
		c.g.scratch = appendSkip(c.g.scratch[:0], lo, to)
		var n uint64
		if n, err = c.g.stage(c, c.g.scratch); err != nil {
			return
		}
		lsn = max(lsn, n)
		e.metrics.skipped.Add(float64(c.settleRange(lo, to)))
	})
	return lsn, err
}
