package raftmeta

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// snapshotRetry is the pause after a snapshot that failed: a full disk is not
// helped by trying at every command.
const snapshotRetry = 10 * time.Second

// runSnapshotter takes snapshots until ctx ends: when SnapshotThreshold
// entries have come since the last one on disk, counted across restarts, and
// at each SnapshotInterval when a command came at all (B155, B156).
func (m *Meta) runSnapshotter(ctx context.Context) {
	timer := time.NewTicker(m.opts.SnapshotInterval)
	defer timer.Stop()
	for ctx.Err() == nil {
		due := m.sinceSnapshot() >= m.opts.SnapshotThreshold
		for !due {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				due = m.fsm.applied.Load() > m.plane.snapshots.newest.Load()
			case <-m.kick:
				due = m.sinceSnapshot() >= m.opts.SnapshotThreshold
			}
		}
		if err := m.Snapshot(ctx); err != nil && ctx.Err() == nil {
			m.opts.Logger.Error("metadata snapshot failed; the log grows until one succeeds", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(snapshotRetry):
			}
		}
	}
}

// sinceSnapshot returns the number of log entries after the newest snapshot.
func (m *Meta) sinceSnapshot() uint64 {
	newest := m.plane.snapshots.newest.Load()
	return max(m.plane.raft.AppliedIndex(), newest) - newest
}

// Snapshot writes the state to disk now and cuts the log. It returns when the
// snapshot is durable.
func (m *Meta) Snapshot(ctx context.Context) error {
	start := m.opts.Now()
	err := m.await(ctx, func() error { return m.plane.raft.Snapshot().Error() })
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		err = nil
	}
	m.metrics.snapshotted(err, m.opts.Now().Sub(start))
	return errcode.Wrap(errcode.Storage, err, "take a metadata snapshot")
}
