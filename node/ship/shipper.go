package ship

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/wal"
)

// Defaults of Options.
const (
	DefaultInterval      = time.Second
	DefaultStateInterval = 10 * time.Minute
	DefaultStateBytes    = 256 << 20
	DefaultObjectBytes   = 32 << 20
)

const (
	coalesce     = 100 * time.Millisecond // shortest distance of ships that an ack=archived asks for
	idleCheck    = 10 * time.Second       // distance of fence checks when nothing is shipped
	firstBackoff = 200 * time.Millisecond
	maxBackoff   = 15 * time.Second
)

// Log is what the shipper needs of the WAL; *wal.Log is one.
type Log interface {
	ReadGroups(from uint64, maxBytes int) (wal.GroupRun, error)
	EachGroup(from uint64, maxBytes int, fn func(g wal.Group, raw []byte) error) (wal.GroupRun, error)
	Durable() uint64
	DurableChanged() <-chan struct{}
	NextLSN() uint64
	FirstLSN() uint64
	Hold(reader string, next uint64)
}

// Metadata exports what a restore needs beside records and positions.
type Metadata interface {
	// Changed returns a channel that is closed at the next change.
	Changed() <-chan struct{}
	// Export returns the state and its Raft index.
	Export() (index uint64, data []byte, err error)
}

// States captures the node for a state object. The capture may hold what is
// not durable yet: the shipper puts it only after its LSN was shipped.
type States interface {
	Capture() (*archive.State, error)
}

// Options configures a Shipper.
type Options struct {
	Store             objstore.Store
	Log               Log
	Metadata          Metadata
	States            States
	Node              string
	Incarnation       uint64
	ClusterGeneration uint64
	ClusterID         string
	FirstLSN          uint64 // of the incarnation
	Shipped           uint64 // known from before; the archive may hold more

	Interval      time.Duration
	StateInterval time.Duration
	StateBytes    int64
	ObjectBytes   int

	// Claimed says whether this cluster claimed its archive before; OnClaimed
	// remembers durably that it did. Nil: it is not remembered.
	Claimed   func() bool
	OnClaimed func(context.Context) error
	// OnShipped is called after the archive was seen to have what was put up
	// to lsn: a restart goes on behind it.
	OnShipped func(lsn uint64)
	// OnObject is called for every object that stands in the archive because of
	// this shipper, also when an earlier put of it had lost its answer; for one of
	// the log before it is put, so that there may be none.
	OnObject func(Object)
	// OnFenced is called once when this incarnation must not ship any more.
	OnFenced func(error)

	Now        func() time.Time
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Object is one object that was shipped: WAL, state or export.
type Object struct {
	Key        manifest.Key
	Bytes      int64
	ReplayFrom uint64 // of a state: the first frame that a restore from it needs
}

// Status is what an operator asks.
type Status struct {
	Shipped   uint64
	Durable   uint64
	RPO       time.Duration // age of the oldest durable frame that is not shipped, 0 = none
	Exported  uint64        // Raft index of the newest export
	LastError string        // of the last try, "" when it worked
	Failing   time.Time     // when LastError was "" last; zero while it is
	Answered  time.Time     // when the archive last did what it was asked, reads among it; zero = not yet
	Fenced    bool
}

// Shipper ships one incarnation's log.
type Shipper struct {
	opts       Options
	metrics    *metrics
	kick       chan struct{} // capacity 1: an ack=archived waits
	exportKick chan struct{} // capacity 1

	mu struct {
		sync.Mutex
		shipped   uint64    // objects up to here are put and confirmed
		exported  uint64    // Raft index of the newest export that was put
		confirmed uint64    // Raft index of the newest export that stood before a fence check that found nothing
		behind    time.Time // since when something durable is not shipped; zero = nothing is
		seen      sample    // what is not shipped before it is reached became durable before it was taken
		want      uint64    // highest LSN that an ack=archived waits for
		sure      uint64    // objects up to here are confirmed and known to be there, for archived answers
		fenced    error
		answered  time.Time
		failing   time.Time     // when none of the next three was set last
		shipErr   string        // of the last try to ship, "" when it worked
		exportErr string        // of the last try to export
		auditErr  string        // what the archive lost and the local log cannot give again
		changed   chan struct{} // closed at every change of the above
	}

	registered chan struct{} // closed when the archive is known to be this cluster's

	// Of the shipping goroutine.
	next       uint64 // first LSN that is not put
	held       uint64 // first LSN that the local log must keep
	pending    pending
	audits     audits
	stateBytes int64 // shipped since the last state object
	stateAt    time.Time
	stateLSN   uint64
	unsure     *archive.State // put, without an answer that says whether it stands; nil = there is none
	floor      uint64         // highest ReplayFrom of any state object of this incarnation
}

// New returns a Shipper; Run makes it work.
func New(o Options) *Shipper {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.StateInterval == 0 {
		o.StateInterval = DefaultStateInterval
	}
	if o.StateBytes == 0 {
		o.StateBytes = DefaultStateBytes
	}
	if o.ObjectBytes == 0 {
		o.ObjectBytes = DefaultObjectBytes
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Shipper{
		opts: o, kick: make(chan struct{}, 1), exportKick: make(chan struct{}, 1), registered: make(chan struct{}),
		next: max(o.Shipped+1, o.FirstLSN), stateAt: o.Now(),
	}
	s.held = s.next
	s.audits.begin(s.next, o.Now())
	s.mu.shipped, s.mu.sure = s.next-1, s.next-1
	s.mu.changed = make(chan struct{})
	s.metrics = newMetrics(o.Registerer, s)
	o.Log.Hold(holdName, s.next)
	return s
}

const holdName = "ship"

// Run ships until ctx ends.
func (s *Shipper) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.runShip(ctx) })
	g.Go(func() error { return s.runExport(ctx) })
	return g.Wait()
}

func (s *Shipper) runShip(ctx context.Context) error {
	backoff := time.Duration(0)
	for {
		err := s.step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case s.Fenced() != nil:
			<-ctx.Done()
			return nil
		case err != nil:
			s.note(&s.mu.shipErr, "shipping the log", err)
			backoff = min(max(2*backoff, firstBackoff), maxBackoff)
			if !sleep(ctx, backoff/2+jitter(backoff/2)) {
				return nil
			}
			continue
		}
		s.note(&s.mu.shipErr, "shipping the log", nil)
		s.answered()
		backoff = 0
		if !s.wait(ctx) {
			return nil
		}
	}
}

// step registers the incarnation if that has not happened yet, ships what is
// durable, and writes a state object when one is due.
func (s *Shipper) step(ctx context.Context) error {
	s.look()
	if !s.isRegistered() {
		if err := s.register(ctx); err != nil {
			return err
		}
		close(s.registered)
	}
	for {
		more, err := s.shipOnce(ctx)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	return s.stateIfDue(ctx, false)
}

// wait returns when there is something to ship or to check; false when ctx
// ended.
func (s *Shipper) wait(ctx context.Context) bool {
	changed := s.opts.Log.DurableChanged()
	timer := time.NewTimer(idleCheck)
	defer timer.Stop()
	if s.opts.Log.Durable() < s.next {
		// Nothing new: sleep until something is durable, or the idle check.
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-s.kick:
			return sleep(ctx, coalesce)
		case <-changed:
			s.look()
		}
	}
	// Let a whole interval gather, unless somebody waits for an answer.
	end, shortest := time.Now().Add(s.opts.Interval), s.opts.Interval/gathers
	for pause := shortest; ; {
		timer.Reset(min(pause, time.Until(end)))
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
		case <-s.kick:
			return sleep(ctx, coalesce)
		}
		if !time.Now().Before(end) {
			return true
		}
		n, err := s.gather()
		if err != nil || s.pending.full && s.worthIt() {
			return true // of an error the next try tells
		}
		if pause *= 2; n >= gatherBytes {
			pause = shortest
		}
	}
}

func (s *Shipper) isRegistered() bool {
	select {
	case <-s.registered:
		return true
	default:
		return false
	}
}

// sample says that everything up to lsn was durable at a time.
type sample struct {
	lsn uint64
	at  time.Time
}

// look notes what is durable. Only a sample that was reached is replaced: what
// became durable behind it did so later, so the time of the sample bounds the
// age of what is not shipped, also while an outage is made up for.
func (s *Shipper) look() {
	durable, now := s.opts.Log.Durable(), s.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.shipped >= s.mu.seen.lsn {
		s.mu.seen = sample{durable, now}
	}
	if durable > s.mu.shipped && s.mu.behind.IsZero() {
		s.mu.behind = now
	}
}

// note records how the last try of one task went; a repeated error is logged
// once.
func (s *Shipper) note(last *string, task string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
		s.metrics.errors.Inc()
	}
	switch {
	case text != "" && *last == "":
		s.opts.Logger.Warn(task+" to the archive fails and is tried again; what it holds is safe on disk", "error", err)
	case text == "" && *last != "":
		s.opts.Logger.Info(task + " to the archive works again")
	}
	*last = text
	switch {
	case s.troubleLocked() == "":
		s.mu.failing = time.Time{}
	case s.mu.failing.IsZero():
		s.mu.failing = s.opts.Now()
	}
}

// troubleLocked is what fails now, "" when nothing does. The caller holds s.mu.
func (s *Shipper) troubleLocked() string { return cmp.Or(s.mu.shipErr, s.mu.exportErr, s.mu.auditErr) }

// answered notes that a whole step, which ends with a read, worked.
func (s *Shipper) answered() {
	now := s.opts.Now()
	s.mu.Lock()
	s.mu.answered = now
	s.mu.Unlock()
}

// Fenced returns why this incarnation does not ship any more, or nil.
func (s *Shipper) Fenced() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.fenced
}

func (s *Shipper) fence(err error) error {
	s.mu.Lock()
	first := s.mu.fenced == nil
	if first {
		s.mu.fenced = err
		s.broadcastLocked()
	}
	s.mu.Unlock()
	if first && s.opts.OnFenced != nil {
		s.opts.OnFenced(err)
	}
	return err
}

func (s *Shipper) broadcastLocked() {
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// Status returns what is known now. It does not block.
func (s *Shipper) Status() Status {
	durable := s.opts.Log.Durable()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Shipped: s.mu.shipped, Durable: durable, Exported: s.mu.exported, Answered: s.mu.answered, Fenced: s.mu.fenced != nil}
	st.LastError, st.Failing = s.troubleLocked(), s.mu.failing
	if durable > s.mu.shipped && !s.mu.behind.IsZero() {
		st.RPO = s.opts.Now().Sub(s.mu.behind)
	}
	return st
}

// WaitArchived returns nil when every frame up to lsn and the metadata of Raft
// index metaIndex are in the archive, which was looked at again for it, and the
// fence was asked for after that and absent. It asks for a ship and an export at once. Errors: Fenced, or
// NotConfirmed when ctx ends.
func (s *Shipper) WaitArchived(ctx context.Context, lsn, metaIndex uint64) error {
	for {
		s.mu.Lock()
		changed, fenced := s.mu.changed, s.mu.fenced
		s.mu.want = max(s.mu.want, lsn)
		exported, done := s.mu.exported >= metaIndex, s.mu.sure >= lsn && s.mu.confirmed >= metaIndex
		shipped := s.mu.sure >= lsn
		s.mu.Unlock()
		switch {
		case fenced != nil:
			return fenced
		case done:
			return nil
		}
		if !exported {
			poke(s.exportKick)
		}
		if exported || !shipped {
			poke(s.kick)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errcode.New(errcode.NotConfirmed, "the archive did not confirm in time; the record is durable on this node and will be shipped: %w", ctx.Err())
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Finish ships everything that is durable now and writes a state object; a
// stopping node calls it after Run has ended and appends have stopped.
func (s *Shipper) Finish(ctx context.Context) error {
	if s.Fenced() != nil {
		return nil
	}
	// Nothing is written into an archive that may be somebody else's: step registers.
	if err := s.step(ctx); err != nil {
		return err
	}
	if err := errors.Join(s.exportOnce(ctx), s.stateIfDue(ctx, true)); err != nil {
		return err
	}
	// Nobody looks after this process any more.
	return s.audit(ctx, s.next, true)
}
