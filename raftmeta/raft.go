package raftmeta

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Marks of the directory.
const (
	markNode        = "node"        // the node id the directory was made for
	markInitialised = "initialised" // the cluster exists: from now on an empty state is damage
)

// retainingLog keeps the log back to the older of the two newest snapshots.
type retainingLog struct {
	*store
	snapshots *snapshots
}

// DeleteRange implements raft.LogStore. Raft deletes a prefix below its newest
// snapshot to compact, and a suffix above it that lost an election.
func (l retainingLog) DeleteRange(low, high uint64) error {
	if high > l.snapshots.newest.Load() {
		return l.store.DeleteRange(low, high)
	}
	keep, err := l.snapshots.keepFrom()
	if err != nil {
		return err
	}
	return l.store.DeleteRange(low, min(high, keep-1))
}

// plane is the Raft instance and what it stands on.
type plane struct {
	store     *store
	snapshots *snapshots
	transport *raft.NetworkTransport
	raft      *raft.Raft
}

// openPlane builds Raft from what is in the directory. It has to run under fatal.guard.
func openPlane(o *Options, f *fatal, m *fsm) (_ *plane, err error) {
	logDir := filepath.Join(o.Dir, "log")
	if err := makeDirs(o.Dir, logDir); err != nil {
		return nil, err
	}
	p := &plane{}
	done := false
	defer func() {
		if !done {
			err = errors.Join(err, p.close(f))
		}
	}()
	// Snapshots without a log, or the reverse, are the rest of a directory.
	hadSnapshots, err := filepath.Glob(filepath.Join(o.Dir, snapshotsDir, "*-*-*"))
	if err != nil {
		return nil, errcode.Wrap(errcode.InvalidArgument, err, "metadata directory %s", o.Dir)
	}
	if p.store, err = openStore(o.FS, logDir, len(hadSnapshots) > 0, f, o.Logger); err != nil {
		return nil, err
	}
	var reached uint64
	if p.snapshots, reached, err = openSnapshots(o.Dir, o.Logger); err != nil {
		return nil, err
	}
	if err := p.store.claim(o.NodeID); err != nil {
		return nil, err
	}
	if err := p.checkReach(o.Dir, reached); err != nil {
		return nil, err
	}
	if err := p.snapshots.setAside(); err != nil {
		return nil, err
	}
	if p.transport, err = newTransport(o); err != nil {
		return nil, err
	}
	if err := p.bootstrap(o); err != nil {
		return nil, err
	}
	p.raft, err = raft.NewRaft(raftConfig(o), m, retainingLog{p.store, p.snapshots}, p.store, p.snapshots, p.transport)
	if err != nil {
		return nil, errcode.Wrap(errcode.Storage, err, "start the metadata plane in %s", o.Dir)
	}
	done = true
	return p, nil
}

func raftConfig(o *Options) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(o.NodeID)
	c.Logger = raftLogger{logger: o.Logger.With("component", "raft")}
	c.TrailingLogs = o.TrailingLogs
	c.BatchApplyCh = true // concurrent proposals share an fsync
	c.NoLegacyTelemetry = true
	// Snapshots are the snapshotter's: Raft looks only once per interval, and
	// a node that restarts more often would never take one (B156).
	c.SnapshotInterval, c.SnapshotThreshold = 24*time.Hour, 1<<62
	return c
}

// makeDirs creates dir and log inside it, durably: a log that is fsynced in a
// directory that a crash removes is not on stable storage.
func makeDirs(dir, log string) error {
	if err := os.MkdirAll(log, 0o700); err != nil {
		return errcode.Wrap(errcode.Storage, err, "create the metadata directory %s", dir)
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	d, err := vfs.Default.OpenDir(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	return errcode.Wrap(errcode.Storage, err, "sync directory %s", dir)
}

// claim marks a new directory with the node's id and refuses another node's.
func (s *store) claim(node string) error {
	owner, err := s.mark(markNode)
	switch {
	case err != nil:
		return err
	case owner == nil:
		return s.setMark(markNode, []byte(node))
	case string(owner) != node:
		return errcode.New(errcode.Conflict, "this metadata directory belongs to node %s, not %s; start with that node id, or give %s a data directory of its own", owner, node, node)
	}
	return nil
}

// checkReach refuses a directory whose parts do not add up to one state: the
// log has to go on where the newest good snapshot ends, without a hole, at
// least as far as any snapshot ever reached. Raft itself would panic on a hole
// or start with an empty state.
func (p *plane) checkReach(dir string, reached uint64) error {
	initialised, err := p.store.mark(markInitialised)
	if err != nil {
		return err
	}
	base, first, last := p.snapshots.newest.Load(), p.store.first.Load(), p.store.last.Load()
	end := max(base, last)
	broken := first > base+1 || // covers a log that starts above 1 without any snapshot
		end < reached ||
		initialised != nil && end == 0
	if broken {
		return errcode.New(errcode.Corrupt, "metadata directory %s is damaged: the newest good snapshot ends at index %d, the log holds %d to %d, and index %d had been reached; "+
			"put the missing files back, or restore the cluster from its archive into an empty directory", dir, base, first, last, reached)
	}
	var entry raft.Log
	for i := max(base+1, first); i <= last && first > 0; i++ {
		err := p.store.GetLog(i, &entry)
		if errors.Is(err, raft.ErrLogNotFound) {
			return errcode.New(errcode.Corrupt, "metadata directory %s is damaged: entry %d of its log of %d to %d is missing; restore the directory from a copy, or the cluster from its archive", dir, i, first, last)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bootstrap writes the configuration of a cluster of one into a directory that
// has none. A crash inside leaves a term without a log: it is begun again.
func (p *plane) bootstrap(o *Options) error {
	if p.snapshots.newest.Load() > 0 || p.store.last.Load() > 0 {
		return nil
	}
	if err := p.store.forgetStable(); err != nil {
		return err
	}
	one := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(o.NodeID), Address: p.transport.LocalAddr()}}}
	err := raft.BootstrapCluster(raftConfig(o), p.store, p.store, p.snapshots, p.transport, one)
	return errcode.Wrap(errcode.Storage, err, "bootstrap the metadata plane in %s", o.Dir)
}

// newTransport listens on the Raft address. Mutual TLS goes in here as another
// raft.StreamLayer; until then nothing but this machine may connect.
func newTransport(o *Options) (*raft.NetworkTransport, error) {
	host, _, err := net.SplitHostPort(o.BindAddr)
	if err != nil {
		return nil, errcode.New(errcode.InvalidArgument, "raft address %.80q is not host:port: %w", o.BindAddr, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, errcode.New(errcode.InvalidArgument, "raft address %s is not a loopback address; the metadata plane speaks plaintext and serves one node: use 127.0.0.1", o.BindAddr)
	}
	logger := raftLogger{logger: o.Logger.With("component", "raft")}
	t, err := raft.NewTCPTransportWithLogger(o.BindAddr, nil, maxPooledConns, transportTimeout, logger)
	if err != nil {
		return nil, errcode.Wrap(errcode.Unavailable, err, "listen on raft address %s", o.BindAddr)
	}
	return t, nil
}

const (
	maxPooledConns   = 3
	transportTimeout = 10 * time.Second
)

// elect asks Raft for an election without waiting for a timeout. Only a lone
// voter does this: among several it would depose a working leader.
func (p *plane) elect(id string) error {
	future := p.raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return err
	}
	servers, self := future.Configuration().Servers, raft.ServerID(id)
	voters := 0
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	if voters != 1 || len(servers) != 1 || servers[0].ID != self {
		return nil
	}
	addr := p.transport.LocalAddr()
	request := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: []byte(addr)}}
	return p.transport.TimeoutNow(self, addr, request, &raft.TimeoutNowResponse{})
}

// close ends Raft and its goroutines, then what they used.
func (p *plane) close(f *fatal) error {
	var errs []error
	if p.raft != nil {
		shutdown := p.raft.Shutdown()
		f.unpark() // a parked main goroutine ends only now
		errs = append(errs, waitShutdown(shutdown, f))
	}
	if p.transport != nil {
		p.transport.CloseStreams() // Close leaves pooled connections, and who serves their other ends, alone
		errs = append(errs, p.transport.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.close())
	}
	return errcode.Wrap(errcode.Storage, errors.Join(errs...), "close the metadata plane")
}

// waitShutdown waits for Raft's goroutines: for ever in good order, for a
// while when Pebble failed under them.
func waitShutdown(shutdown raft.Future, f *fatal) error {
	done := make(chan error, 1)
	go func() { done <- shutdown.Error() }()
	var limit <-chan time.Time
	if f.err() != nil {
		limit = time.After(unwindTimeout)
	}
	select {
	case err := <-done:
		return err
	case <-limit:
		return errcode.New(errcode.Storage, "raft did not end within %s after the metadata log had failed", unwindTimeout)
	}
}
