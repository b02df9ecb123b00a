package raftmeta

import (
	"context"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// confirmTimeout bounds a Confirm whose caller has no deadline (I14).
const confirmTimeout = 30 * time.Second

// Confirm returns the state behind a barrier: this node leads, a quorum says
// so, and everything that was committed before the call is in it. Who is about
// to destroy something asks here first, because State alone may be a view that
// the others have left behind (I7, I10). Any error means: not now. It changes
// nothing and may be called again.
func (m *Meta) Confirm(ctx context.Context) (*State, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	err := m.await(ctx, func() error {
		// The leader first: a node that lost its followers fails here, after at
		// most its lease, instead of waiting for a barrier that cannot commit.
		if err := m.plane.raft.VerifyLeader().Error(); err != nil {
			return err
		}
		return m.plane.raft.Barrier(confirmTimeout).Error()
	})
	if err != nil {
		return nil, errcode.New(errcode.Unavailable, "the metadata plane does not confirm what it knows: %w", err).After(time.Second)
	}
	if err := m.fatal.err(); err != nil {
		return nil, err
	}
	return m.State(), nil
}
