package merge

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/upload"
)

const (
	// barredAt is how often an input may fail before it is passed over: one answer
	// may have been damaged on its way.
	barredAt = 2
	// mostBad bounds the inputs that failed and are remembered.
	mostBad = 10_000
	// mostWait is the longest pause after failures, unless the interval is longer.
	mostWait = time.Hour
)

// Merger merges the small segments of many partitions, one run at a time.
type Merger struct {
	opts    Options
	metrics *metrics
	limit   *rate.Limiter
	turns   chan struct{} // capacity 1: holds a token while a turn runs

	// Of the turn.
	last    look // at the partition that is looked at
	looked  map[broker.PartitionID]look
	pending map[broker.PartitionID]replace // whose answer is not known
	bad     map[string]int                 // by key of an input: how often it did not read as the chain says

	mu struct {
		sync.Mutex
		busy map[string]struct{} // outputs that no entry names, or not yet for sure
	}
}

// look is what a partition was when it was looked at.
type look struct {
	seq   uint64
	rules Rules
}

// replace is one change of a chain.
type replace struct {
	inputs []manifest.Segment
	output manifest.Segment
}

// New returns a Merger; Run makes it work. It removes what an earlier one left
// in the directory.
func New(o Options) (*Merger, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	m := &Merger{opts: o.withDefaults(), turns: make(chan struct{}, 1),
		looked: make(map[broker.PartitionID]look), pending: make(map[broker.PartitionID]replace), bad: make(map[string]int)}
	m.mu.busy = make(map[string]struct{})
	m.limit = rate.NewLimiter(rate.Limit(m.opts.BytesPerSecond), int(max(rateStep, min(m.opts.BytesPerSecond, readBytes))))
	if err := m.opts.FS.RemoveAll(m.opts.Dir); err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "empty %s", m.opts.Dir)
	}
	m.metrics = newMetrics(o.Registerer)
	return m, nil
}

// Run takes turns until ctx ends.
func (m *Merger) Run(ctx context.Context) error {
	wait, failures := m.opts.Interval, 0
	t := time.NewTimer(wait)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		err := m.Turn(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if wait = m.opts.Interval; err != nil {
			// What fails late leaves an object behind each time: not often, then.
			wait = min(wait<<min(failures+1, 10), max(wait, mostWait))
			failures++
			m.opts.Logger.Warn("small segments of the archive are not merged for now, it is tried again", "error", err, "again_in", wait)
		} else {
			failures = 0
		}
		t.Reset(wait)
	}
}

// InUse says whether an object is the output of a merge that no entry names yet:
// it is no orphan.
func (m *Merger) InUse(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.mu.busy[key]
	return ok
}

func (m *Merger) hold(key string) {
	m.mu.Lock()
	m.mu.busy[key] = struct{}{}
	m.mu.Unlock()
}

func (m *Merger) release(key string) {
	m.mu.Lock()
	delete(m.mu.busy, key)
	m.mu.Unlock()
}

// Turn merges what can be, a run of each partition after the other, until there
// is none. The error is one that every merge would meet now; nil also when the
// node is hindered. A turn that runs already is waited for, no longer than ctx.
func (m *Merger) Turn(ctx context.Context) error {
	select {
	case m.turns <- struct{}{}:
	case <-ctx.Done():
		return errcode.Wrap(errcode.Canceled, ctx.Err(), "wait for a turn of merging")
	}
	defer func() { <-m.turns }()
	ids := m.opts.Partitions()
	m.forget(ids)
	for len(ids) > 0 {
		var again []broker.PartitionID
		for _, id := range ids {
			merged, err := m.one(ctx, id)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, errHindered):
				return nil
			case err != nil:
				return err
			case merged:
				again = append(again, id)
			}
		}
		ids = again
	}
	return nil
}

// forget drops what is remembered of partitions that are not this node's now. A
// replace of theirs that is not decided is decided by whoever has them.
func (m *Merger) forget(ids []broker.PartitionID) {
	here := make(map[broker.PartitionID]bool, len(ids))
	for _, id := range ids {
		here[id] = true
	}
	for id := range m.looked {
		if !here[id] {
			delete(m.looked, id)
		}
	}
	for id, r := range m.pending {
		if !here[id] {
			m.release(r.output.Key())
			delete(m.pending, id)
		}
	}
}

var errHindered = errors.New("merges are hindered")

// one merges one run of a partition, or says by merged = false that there is
// none now.
func (m *Merger) one(ctx context.Context, id broker.PartitionID) (merged bool, err error) {
	chain := m.opts.Chain(id)
	if chain == nil {
		return false, nil
	}
	if r, ok := m.pending[id]; ok {
		// Before anything else: what a new merge would read may be replaced.
		ctx, cancel := context.WithTimeout(ctx, m.opts.Timeout)
		defer cancel()
		return m.judge(id, m.publish(ctx, id, chain, r))
	}
	run := m.choose(id, chain)
	if run == nil {
		return false, nil
	}
	bytes := int64(0)
	for i := range run {
		bytes += run[i].Bytes
	}
	if why := m.opts.Hindrance(bytes); why != "" {
		m.metrics.skip(hindered)
		m.opts.Logger.Debug("small segments of the archive wait to be merged", "reason", why)
		return false, errHindered
	}
	// At a low rate a merge takes its time: it must get to its end (T9).
	ctx, cancel := context.WithTimeout(ctx, m.opts.Timeout+time.Duration(2*bytes/m.opts.BytesPerSecond)*time.Second)
	defer cancel()
	return m.judge(id, m.merge(ctx, id, chain, run))
}

// choose returns the run of a partition that is merged next, nil for none.
func (m *Merger) choose(id broker.PartitionID, chain Chain) []manifest.Segment {
	rules, l := Rules{MinSegments: m.opts.MinSegments, TargetBytes: m.opts.TargetBytes}, m.opts.Limits(id)
	if rules.SpanMS = l.SpanMS; l.Bytes > 0 {
		rules.TargetBytes = min(rules.TargetBytes, l.Bytes)
	}
	m.last = look{chain.Seq(), rules}
	if was, ok := m.looked[id]; ok && was == m.last {
		m.metrics.skip(noRun)
		return nil // as it was when nothing was found
	}
	waits := false
	segs := chain.Unpaged()
	from, to, found := Choose(segs, chain.Start(), rules, func(x *manifest.Segment) bool {
		settled := m.opts.Copy(id, x.Base, x.Next).Settled
		waits = waits || !settled
		return !settled || m.bad[x.Key()] >= barredAt
	})
	switch {
	case found:
		return segs[from:to]
	case waits:
		m.metrics.skip(unsettled)
	default:
		m.looked[id] = m.last
		m.metrics.skip(noRun)
	}
	return nil
}

// merge builds, sends and publishes one run.
func (m *Merger) merge(ctx context.Context, id broker.PartitionID, chain Chain, run []manifest.Segment) error {
	sealed, err := m.build(ctx, run)
	// Whatever becomes of it, the disk is needed for other things. What cannot be
	// removed now is removed before the next one is built.
	defer func() { _ = m.opts.FS.RemoveAll(m.opts.Dir) }()
	if err != nil {
		return err
	}
	// The generation and the nonce make the key this attempt's alone (T7).
	a := upload.Attempt{Generation: chain.Generation(), Nonce: m.opts.Nonce()}
	key := manifest.SegmentKey(id, sealed.Info.Base, sealed.Info.Next, a.Generation, a.Nonce)
	m.hold(key)
	output, err := upload.Send(ctx, m.opts.FS, m.opts.Store, m.limit, id, sealed, a)
	if err == nil {
		// Soon it is the only copy.
		err = m.compare(ctx, key, &sealed.Info)
	}
	if err != nil {
		m.release(key) // nothing will name it
		return err
	}
	return m.publish(ctx, id, chain, replace{inputs: run, output: output})
}

// publish puts the output into the chain.
func (m *Merger) publish(ctx context.Context, id broker.PartitionID, chain Chain, r replace) error {
	err := chain.Replace(ctx, r.inputs, r.output)
	if err != nil && !decided(err) {
		// The entry may stand in the archive, or come to stand there.
		m.pending[id] = r
		return err
	}
	delete(m.pending, id)
	m.release(r.output.Key())
	if err != nil {
		return err
	}
	m.metrics.inputs.Add(float64(len(r.inputs)))
	m.metrics.outputs.Inc()
	m.metrics.bytes.Add(float64(r.output.Bytes))
	m.opts.Discard(id, r.inputs)
	m.opts.Logger.Info("archived segments merged", "partition", id.String(), "segments", len(r.inputs), "base", r.output.Base, "next", r.output.Next, "bytes", r.output.Bytes)
	return nil
}

// decided says whether a replace that failed with err certainly has no effect, and
// will not have one when it is tried again: a store that denies it now may allow it
// later, and the output is there.
func decided(err error) bool {
	switch errcode.Of(err) {
	case errcode.Fenced, errcode.Conflict, errcode.Exists, errcode.PreconditionFailed, errcode.InvalidArgument:
		return true
	}
	return false
}

// judge sorts how a merge ended. What is one partition's own does not hinder the
// others, and is not tried again at once (T9); anything else ends the turn.
func (m *Merger) judge(id broker.PartitionID, err error) (merged bool, _ error) {
	if err == nil {
		return true, nil
	}
	warn := func(text string) { m.opts.Logger.Warn(text, "partition", id.String(), "error", err) }
	var in *inputError
	switch code := errcode.Of(err); {
	case code == errcode.Conflict:
		m.metrics.skip(conflict) // a trim came in between, or a merge before a restart
		warn("archived segments changed while they were merged, the result is left alone")
	case code == errcode.Fenced || code == errcode.PreconditionFailed:
		m.metrics.skip(fenced)
		warn("archived segments are not merged, somebody else owns the partition")
	case errors.As(err, &in) && (code == errcode.Corrupt || code == errcode.NotFound || code == errcode.UnsupportedVersion):
		m.metrics.skip(damaged)
		if _, known := m.bad[in.key]; known || len(m.bad) < mostBad {
			m.bad[in.key]++
		} else {
			m.looked[id] = m.last
		}
		if m.bad[in.key] == barredAt {
			warn("an archived segment cannot be merged, until a restart it is passed over; verify the archive")
			return true, nil // what is left may have a run
		}
	case code == errcode.Storage || code == errcode.Poisoned:
		m.metrics.skip(disk)
		return false, err
	case code == errcode.Corrupt || code == errcode.InvalidArgument || code == errcode.TooLarge || code == errcode.Exists:
		m.metrics.skip(damaged)
		warn("archived segments cannot be merged; it is tried again when the partition's list of segments has changed")
		m.looked[id] = m.last
	default:
		m.metrics.skip(archive)
		return false, err
	}
	return false, nil
}
