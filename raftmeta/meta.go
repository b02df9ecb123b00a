package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Meta is an open metadata plane. All methods may be called concurrently.
type Meta struct {
	opts    Options
	fatal   *fatal
	fsm     *fsm
	plane   *plane
	metrics *metrics

	kick    chan struct{} // capacity 1: the snapshotter looks at the log again
	places  chan struct{} // capacity maxInFlight: requests to Raft in flight
	closing chan struct{}

	stop      context.CancelFunc // ends the goroutines below
	running   sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// Open opens the metadata in o.Dir, or creates it there, and returns when this
// node leads and everything committed is applied. ctx bounds the opening only.
func Open(ctx context.Context, o Options) (_ *Meta, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	m := &Meta{
		opts:    o.withDefaults(),
		fatal:   newFatal(),
		kick:    make(chan struct{}, 1),
		places:  make(chan struct{}, maxInFlight),
		closing: make(chan struct{}),
	}
	m.metrics = newMetrics(o.Registerer)
	m.fsm = newFSM(m.fatal, m.kickSnapshotter)
	ended, err := m.fatal.guard(func() (err error) { m.plane, err = openPlane(&m.opts, m.fatal, m.fsm); return err })
	if err != nil {
		if ended && m.plane != nil { // it failed as soon as it ran
			err = errors.Join(err, m.plane.close(m.fatal))
		}
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	m.stop = stop
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	m.plane.store.disk.Patient() // not before: a start says what is wrong and ends
	m.running.Go(func() { m.runSnapshotter(background) })
	return m, nil
}

func (m *Meta) start(ctx context.Context) error {
	start := m.opts.Now()
	if err := m.lead(ctx); err != nil {
		return err
	}
	if err := m.create(ctx); err != nil {
		return err
	}
	if err := m.metrics.register(m); err != nil {
		return err
	}
	c := m.State().Cluster()
	m.opts.Logger.Info("metadata is ready", "cluster", c.ID, "cluster_generation", c.Generation, "changed_index", m.State().Index(),
		"topics", m.State().NumTopics(), "raft_addr", m.Addr(), "took", m.opts.Now().Sub(start))
	return m.fatal.arm(m.reportFatal)
}

func (m *Meta) reportFatal(err error) {
	m.opts.Logger.Error("metadata takes no changes until a restart", "error", err)
	if m.opts.OnFatal != nil {
		m.opts.OnFatal(err)
	}
}

func (m *Meta) kickSnapshotter() {
	select {
	case m.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// lead waits until this node leads and everything committed is applied.
func (m *Meta) lead(ctx context.Context) error {
	if err := m.plane.elect(m.opts.NodeID); err != nil {
		// The election timeout does the same, in one to two seconds.
		m.opts.Logger.Warn("raft did not take the request for an immediate election", "error", err)
	}
	for led := false; !led; {
		select {
		case led = <-m.plane.raft.LeaderCh():
		case <-m.fatal.tripped:
			return m.fatal.err()
		case <-ctx.Done():
			return errcode.New(errcode.Unavailable, "the metadata plane has no leader: %w", ctx.Err())
		}
	}
	err := m.await(ctx, func() error { return m.plane.raft.Barrier(0).Error() })
	if fatal := m.fatal.err(); fatal != nil {
		return fatal // among them a command of the log that this build does not know
	}
	return errcode.Wrap(errcode.Unavailable, err, "pass the start barrier of the metadata plane")
}

// create gives a new directory its cluster. A crash before the mark is set
// repeats it, which changes nothing when the command had been applied.
func (m *Meta) create(ctx context.Context) error {
	if m.State().Cluster().ID == "" {
		c, err := m.firstCommand()
		if err != nil {
			return err
		}
		if _, err := m.propose(ctx, c); err != nil {
			return errcode.Wrap(errcode.Internal, err, "create the cluster")
		}
	} else if b := m.opts.Bootstrap; b != nil && b.Adopt != nil {
		if err := m.adopted(b); err != nil {
			return err
		}
	}
	_, err := m.fatal.guard(func() error {
		if set, err := m.plane.store.mark(markInitialised); set != nil || err != nil {
			return err
		}
		return m.plane.store.setMark(markInitialised, []byte{1})
	})
	return err
}

// adopted refuses to adopt over another cluster; the same one has been adopted
// already, by an attempt whose end the caller did not see.
func (m *Meta) adopted(b *Bootstrap) error {
	s, err := ParseExport(b.Adopt)
	if err != nil {
		return err
	}
	if now := m.State().Cluster(); now.ID != s.cluster.ID || now.Generation != b.Generation {
		return errcode.New(errcode.Exists, "metadata directory %s holds cluster %s of generation %d; generation %d of cluster %s is adopted into an empty directory only",
			m.opts.Dir, now.ID, now.Generation, b.Generation, s.cluster.ID)
	}
	return nil
}

func (m *Meta) firstCommand() (command, error) {
	if b := m.opts.Bootstrap; b != nil && b.Adopt != nil {
		return &adopt{Generation: b.Generation, Export: b.Adopt}, nil
	}
	id, err := random(m.opts.Rand)
	if err != nil {
		return nil, err
	}
	c := Cluster{ID: fmt.Sprintf("%016x", id), Generation: 1, CreatedMs: m.opts.Now().UnixMilli()}
	if _, err := io.ReadFull(m.opts.Rand, c.Salt[:]); err != nil {
		return nil, errcode.Wrap(errcode.Internal, err, "read random bytes")
	}
	return &initCluster{c}, nil
}

// drainTimeout is how long Close lets requests in flight end with an answer.
const drainTimeout = 2 * time.Second

// Close ends the plane and waits for its goroutines. Proposals in flight get
// their answer or not_confirmed. Reads of the last state go on working.
func (m *Meta) Close() error {
	m.closeOnce.Do(func() {
		close(m.closing)
		m.drain(drainTimeout)
		m.plane.store.disk.Hasten() // what still waits for the disk now is not answered any more
		m.stop()
		m.metrics.unregister()
		m.closeErr = m.plane.close(m.fatal)
		m.running.Wait()
		// Raft has answered what was left, unless a failed Pebble holds it.
		m.drain(unwindTimeout)
	})
	return m.closeErr
}

// drain waits until no request is in flight, at most for limit.
func (m *Meta) drain(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	taken := 0
	for taken < maxInFlight {
		select {
		case m.places <- struct{}{}:
			taken++
			continue
		case <-timer.C:
		}
		break
	}
	for range taken {
		<-m.places
	}
}

// Addr returns the address Raft listens on.
func (m *Meta) Addr() string { return string(m.plane.transport.LocalAddr()) }

// Err returns why the plane takes no changes now, nil while it does: what
// stopped it until a restart, or, with errcode.Storage and a time to wait, what
// the disk does not take at the moment. It does not block.
func (m *Meta) Err() error {
	if err := m.fatal.err(); err != nil {
		return err
	}
	return m.plane.store.disk.Err()
}

// DiskWaits returns how many writes of the log had to wait for the disk so far.
func (m *Meta) DiskWaits() uint64 { return m.plane.store.disk.Waits() }

// State returns the metadata as last applied. It takes no lock and never blocks.
func (m *Meta) State() *State { return m.fsm.published.Load().state }

// Changed returns a channel that is closed at the next change. Take it first
// and State after it: then no change is missed.
func (m *Meta) Changed() <-chan struct{} { return m.fsm.published.Load().next }

// Topic finds a topic by its exact name.
func (m *Meta) Topic(name string) (Topic, bool) { return m.State().Topic(name) }

// TopicByID finds a topic by its incarnation id.
func (m *Meta) TopicByID(id broker.TopicID) (Topic, bool) { return m.State().TopicByID(id) }

// Topics returns all topics, sorted by name.
func (m *Meta) Topics() []Topic { return m.State().Topics() }

// Assignment returns who serves a partition.
func (m *Meta) Assignment(p broker.PartitionID) (Assignment, bool) { return m.State().Assignment(p) }

// Export returns the state as canonical JSON and the raft index of the last
// change in it; see State.Export.
func (m *Meta) Export() (index uint64, data []byte, err error) { return m.State().Export() }
