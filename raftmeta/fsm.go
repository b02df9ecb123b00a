package raftmeta

import (
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// fsm applies the log to the state. Raft calls Apply, Snapshot and Restore
// from one goroutine at a time; readers take what was published last.
type fsm struct {
	fatal     *fatal
	work      *State // private; published as clones, so that its trees are written by one goroutine only
	published atomic.Pointer[publication]
	applied   atomic.Uint64 // raft index of the last command, rejected ones included
	onCommand func()        // told after every command; must not block
}

// publication is a state and the channel that is closed when the next comes.
type publication struct {
	state *State
	next  chan struct{}
}

// outcome is what Apply returns to the proposer.
type outcome struct {
	result any
	err    error
}

func newFSM(f *fatal, onCommand func()) *fsm {
	m := &fsm{fatal: f, work: newState(), onCommand: onCommand}
	m.published.Store(&publication{state: m.work.clone(), next: make(chan struct{})})
	return m
}

// Apply implements raft.FSM. After a command that this build does not
// understand nothing is applied any more.
func (m *fsm) Apply(l *raft.Log) any {
	if err := m.fatal.err(); err != nil {
		return outcome{err: err}
	}
	c, err := decodeCommand(l.Data)
	if err != nil {
		return m.stop(l.Index, err)
	}
	result, changed, err := c.apply(m.work, l.Index)
	if c.op() == opAdopt && (errcode.Is(err, errcode.UnsupportedVersion) || errcode.Is(err, errcode.Corrupt)) {
		return m.stop(l.Index, err) // its proposer could read it, this build cannot
	}
	if changed {
		m.work.index = l.Index
		m.publish()
	}
	m.applied.Store(l.Index)
	m.onCommand()
	return outcome{result, err}
}

func (m *fsm) stop(index uint64, err error) outcome {
	err = errcode.Wrap(errcode.Corrupt, err, "entry %d of the metadata log cannot be applied; the node stops rather than differ from the others", index)
	m.fatal.trip(err)
	return outcome{err: err}
}

func (m *fsm) publish() {
	old := m.published.Swap(&publication{state: m.work.clone(), next: make(chan struct{})})
	close(old.next)
}

// Snapshot implements raft.FSM. The clone it takes is written while later
// commands are applied.
func (m *fsm) Snapshot() (raft.FSMSnapshot, error) {
	// Raft would give the snapshot an index beyond the command that stopped us.
	if err := m.fatal.err(); err != nil {
		return nil, err
	}
	return &fsmSnapshot{m.work.clone()}, nil
}

// Restore implements raft.FSM.
func (m *fsm) Restore(r io.ReadCloser) error {
	data, err := io.ReadAll(io.LimitReader(r, MaxExportBytes+1))
	if err != nil {
		return errcode.Wrap(errcode.Storage, err, "read a metadata snapshot")
	}
	s, err := ParseExport(data)
	if err != nil {
		return errcode.Wrap(errcode.Corrupt, err, "restore a metadata snapshot")
	}
	m.work = s
	m.applied.Store(s.index)
	m.publish()
	return nil
}

type fsmSnapshot struct{ state *State }

// Persist implements raft.FSMSnapshot; Raft closes or cancels the sink.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	_, data, err := s.state.Export()
	if err != nil {
		return err
	}
	// The log is cut on the strength of these bytes: they have to read back.
	if _, err := ParseExport(data); err != nil {
		return errcode.Wrap(errcode.Internal, err, "read the metadata snapshot back before it replaces the log")
	}
	_, err = sink.Write(data)
	return errcode.Wrap(errcode.Storage, err, "write the metadata snapshot %s", sink.ID())
}

// Release implements raft.FSMSnapshot.
func (s *fsmSnapshot) Release() {}
