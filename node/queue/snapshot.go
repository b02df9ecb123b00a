package queue

import (
	"cmp"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
)

// Snapshot captures all groups of an attached partition at one moment, and the
// highest LSN staged for them: a replay from there on completes the states.
// The caller must not make them durable before that LSN is. It returns nothing
// for a partition that is not attached.
func (e *Engine) Snapshot(id broker.PartitionID) (states []State, lsn uint64) {
	p := e.partition(id)
	if p == nil {
		return nil, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// All groups stand still together. Captured one after another, an early
	// one could miss an operation that it stages while a late one already
	// shows a higher LSN; the replay would then skip it.
	for _, c := range p.mu.cursors {
		c.g.mu.Lock()
		defer c.g.mu.Unlock()
	}
	now := e.clock()
	lsn = p.mu.lsn
	for _, c := range p.mu.cursors {
		lsn = max(lsn, c.lsn)
		if !c.blank() {
			states = append(states, c.capture(now))
		}
	}
	return states, lsn
}

func (c *cursor) capture(now int64) State {
	s := State{Group: c.g.name, Committed: c.committed}
	if n := c.settled.len(); n > 0 {
		s.Ranges = make([][2]int64, 0, n)
		for sp := range c.settled.all() {
			s.Ranges = append(s.Ranges, [2]int64{sp.from, sp.to})
		}
	}
	for _, r := range c.recs {
		switch {
		case (r.state == leased || r.open) && now < r.deadline:
			s.Leased = append(s.Leased, Leased{r.offset, r.attempt, r.expiry, r.deadline})
		case r.state == delayed:
			s.Returned = append(s.Returned, Returned{r.offset, r.attempt, r.deadline / 1000})
		case r.attempt > 0: // else it is as good as fresh
			s.Returned = append(s.Returned, Returned{r.offset, r.attempt, 0})
		}
	}
	slices.SortFunc(s.Returned, func(a, b Returned) int { return cmp.Compare(a.Offset, b.Offset) })
	slices.SortFunc(s.Leased, func(a, b Leased) int { return cmp.Compare(a.Offset, b.Offset) })
	return s
}

// Description is what a group does on one partition.
type Description struct {
	Partition       uint32
	Committed       int64 // everything below is settled
	HighWatermark   int64
	Lag             int64 // visible records that are not settled
	InFlight        int   // leased
	Delayed         int   // nacked with a delay that has not ended
	Returned        int   // nacked or expired, deliverable
	Ranges          int   // settled ranges ahead of Committed
	OldestUnsettled int64 // lowest visible offset that is not settled; -1 when there is none
}

// Describe reports a group per partition that is served here, in order. A
// group that does not exist is NotFound.
func (e *Engine) Describe(topic broker.TopicID, name string) ([]Description, error) {
	if name == "" {
		name = broker.DefaultGroup
	}
	// The default group exists in every topic, also before its first use.
	g, err := e.group(topic, name, name == broker.DefaultGroup)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		return nil, g.closed
	}
	out := make([]Description, 0, g.served)
	for _, c := range g.cursors {
		if c == nil {
			continue
		}
		out = append(out, Description{
			Partition: c.id.Partition, Committed: c.committed, HighWatermark: c.hw, Lag: c.lag(),
			InFlight: c.inFlight, Delayed: c.delayed, Returned: len(c.ready), Ranges: c.settled.len(),
			OldestUnsettled: c.oldest(),
		})
	}
	return out, nil
}
