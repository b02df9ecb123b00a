package retention

import (
	"context"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/node/partition"
)

const (
	// leastFree is the free disk space without which nothing is done: the local
	// state could not be written, and who waits for it holds others up.
	leastFree = 4 << 20
	// mostEvicted bounds the segments that pressure takes in one turn.
	mostEvicted = 1024
)

// Sweeper applies retention to the partitions of a node.
type Sweeper struct {
	opts    Options
	metrics *metrics
	kick    chan struct{} // capacity 1: somebody trimmed by hand

	// Of a turn.
	turn  sync.Mutex
	clock clock
	parts map[broker.PartitionID]*part
	next  broker.PartitionID // where the archive's turn goes on

	mu struct {
		sync.Mutex
		paused string
	}
}

// part is what the sweeper remembers of a partition.
type part struct {
	stamps stamps
	kept   [][3]int64 // what the partition was given to keep
	open   bool       // a process before this one did not find out about what lies above seen
	seen   int64      // the append times of records from here on may be wrong: the clock was not known to be right since
	first  oldest     // of the archive's chain
	failed string     // what was logged last; "" = the last try worked
}

// New returns a sweeper; Run makes it work.
func New(o Options) (*Sweeper, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Sweeper{opts: o, kick: make(chan struct{}, 1), parts: make(map[broker.PartitionID]*part)}
	s.metrics = newMetrics(o.Registerer, s)
	s.clock.asks = o.Archive != nil
	for _, l := range o.Logs() {
		// What comes from here on comes by this process's clock.
		s.parts[l.ID()] = newPart(l, l.Local().HighWatermark)
	}
	return s, nil
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	tick := time.NewTicker(s.opts.Interval)
	defer tick.Stop()
	for {
		s.Turn(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.kick:
		}
	}
}

// Kick asks for a turn now: a log was trimmed by hand, and its chain is to follow.
func (s *Sweeper) Kick() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Trimmed counts what a trim by hand freed.
func (s *Sweeper) Trimmed(f partition.Freed) {
	s.metrics.trimmed("local", f.Segments, f.Bytes)
}

// Paused says why nothing is trimmed now; "" = the clocks agree.
func (s *Sweeper) Paused() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.paused
}

// Turn does what is due once, as Run does again and again.
func (s *Sweeper) Turn(ctx context.Context) {
	s.turn.Lock()
	defer s.turn.Unlock()
	logs := s.opts.Logs()
	if logs == nil {
		return // nothing can be changed now; what is known of the logs stays
	}
	s.remember(logs)
	trusted := s.checkClock(ctx, logs)
	if free, _ := s.opts.Disk(); free < leastFree {
		return
	}
	now := s.opts.Now().UnixMilli()
	for _, l := range logs {
		if ctx.Err() != nil {
			return
		}
		s.local(l, now, trusted)
	}
	s.pressure(logs)
	s.archive(ctx, logs, now, trusted)
}

// remember keeps what is known of the partitions that are here.
func (s *Sweeper) remember(logs []Log) {
	known := make(map[broker.PartitionID]*part, len(logs))
	for _, l := range logs {
		p := s.parts[l.ID()]
		if p == nil {
			p = newPart(l, l.Local().Oldest) // it began since
		}
		if limits, ok := l.Limits(); ok {
			p.stamps.created = limits.CreatedMS
		}
		known[l.ID()] = p
	}
	s.parts = known
}

// checkClock says whether append times and now can be compared.
func (s *Sweeper) checkClock(ctx context.Context, logs []Log) bool {
	resumed := s.clock.look(s.opts.Now(), s.opts.Elapsed())
	if a := s.opts.Archive; a != nil && s.clock.due(s.opts.Elapsed()) {
		ask, cancel := context.WithTimeout(ctx, archiveTimeout)
		skew, err := a.Skew(ask)
		cancel()
		s.clock.answered(s.opts.Elapsed(), skew, err == nil)
		resumed = s.clock.look(s.opts.Now(), s.opts.Elapsed()) || resumed
	}
	paused := s.clock.paused
	s.mu.Lock()
	before := s.mu.paused
	s.mu.paused = paused
	s.mu.Unlock()
	switch {
	case before == "" && paused != "":
		s.opts.Logger.Warn("retention is paused, nothing is trimmed", "reason", paused)
	case before != "" && paused == "":
		s.opts.Logger.Info("retention goes on, the clocks agree")
	}
	if paused != "" {
		for _, l := range logs {
			s.parts[l.ID()].keep(l, true)
		}
		return false
	}
	now, right := s.opts.Now().UnixMilli(), s.clock.right(s.opts.Elapsed())
	for _, l := range logs {
		p, local := s.parts[l.ID()], l.Local()
		if resumed || p.open {
			p.stamps.distrust(p.seen, local.HighWatermark, now)
			p.open = false
		}
		if right {
			p.stamps.clamp(now)
			p.seen = local.HighWatermark
		}
		p.stamps.forget(local.Oldest)
		p.keep(l, false)
	}
	return true
}

// local applies the limits to what is on this node. What is older than it goes
// with it, so the archive need not be asked.
func (s *Sweeper) local(l Log, now int64, trusted bool) {
	limits, ok := l.Limits()
	if !ok {
		return
	}
	p, local := s.parts[l.ID()], l.Local()
	start := local.Oldest
	if trusted { // else now says nothing about any append time
		p.stamps.correct(local.Pieces, now)
		p.keep(l, false)
		start = startByAge(local.Pieces, start, over(now, limits.AgeMS))
		start = startByBytes(local.Pieces, start, bytesOf(local.Pieces, 0), limits.Bytes)
	}
	if start > local.Oldest || len(local.Pieces) > 0 && local.Pieces[0].Next <= start {
		if !s.trim(l, start) {
			return
		}
		local = l.Local()
		if trusted {
			p.stamps.correct(local.Pieces, now)
		}
	}
	if s.opts.Archive == nil || !s.opts.Archive.Readable() {
		return // a copy goes only when its object can be read
	}
	sealed := local.Pieces[:local.Sealed]
	if below := localByAge(sealed, over(now, limits.LocalAgeMS)); trusted && below > 0 {
		s.evict(l, below, causeAge)
	}
	if below := localByBytes(local.Pieces, limits.LocalBytes); below > 0 {
		s.evict(l, below, causeSize)
	}
}

func (s *Sweeper) trim(l Log, start int64) bool {
	freed, err := l.Trim(start)
	s.metrics.trimmed("local", freed.Segments, freed.Bytes)
	return s.note(l, "trim the log", err)
}

func (s *Sweeper) evict(l Log, below int64, cause string) int64 {
	freed, err := l.Evict(below)
	s.metrics.evicted(cause, freed.Segments, freed.Bytes)
	s.note(l, "evict archived segments", err)
	return freed.Bytes
}

// note logs a failure once, counts it, and says whether there was none.
func (s *Sweeper) note(l Log, what string, err error) bool {
	p := s.parts[l.ID()]
	if err == nil {
		p.failed = ""
		return true
	}
	s.metrics.errors.Inc()
	if text := what + ": " + err.Error(); p.failed == "" {
		p.failed = text
		s.opts.Logger.Warn("retention of a partition failed and is tried again", "partition", l.ID().String(), "step", what, "error", err)
	}
	return false
}

// pressure makes room before the disk reaches its reserve: cached chunks first,
// then local copies of what the archive has.
func (s *Sweeper) pressure(logs []Log) {
	free, reserve := s.opts.Disk()
	need := 2*reserve - free
	if need <= 0 {
		return
	}
	need -= s.opts.Shrink(need)
	if need <= 0 || s.opts.Archive == nil || !s.opts.Archive.Readable() {
		return
	}
	var all []candidate
	byID := make(map[broker.PartitionID]Log, len(logs))
	for _, l := range logs {
		local := l.Local()
		for _, x := range local.Pieces[:local.Sealed] {
			if x.Confirmed {
				byID[l.ID()] = l
				all = append(all, candidate{l.ID(), x})
			}
		}
	}
	freed := int64(0)
	for id, below := range underPressure(all, need, mostEvicted) {
		freed += s.evict(byID[id], below, causePressure)
	}
	if freed > 0 {
		s.opts.Logger.Info("the disk is short of space, archived segments left it early", "bytes", freed, "free", free, "reserve", reserve)
	}
}
