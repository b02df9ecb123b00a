package raftmeta

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

const (
	maxInFlight    = 256 // requests that wait for Raft at a time; more wait for a place (I12)
	enqueueTimeout = 5 * time.Second
	applyTimeout   = 30 * time.Second // a caller without a deadline gets this one (I14)
)

// propose puts c through Raft and returns what it gave when it was applied.
// Forwarding to a leader elsewhere goes in here.
func (m *Meta) propose(ctx context.Context, c command) (result any, err error) {
	start := m.opts.Now()
	defer func() { m.metrics.proposed(c.op(), err, m.opts.Now().Sub(start)) }()

	data, err := encodeCommand(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	done := make(chan outcome, 1)
	go func() {
		defer m.leave()
		future := m.plane.raft.Apply(data, enqueueTimeout)
		if err := future.Error(); err != nil {
			done <- outcome{err: m.raftError(c.op(), err)}
			return
		}
		done <- future.Response().(outcome)
	}()
	look := time.NewTicker(diskLook)
	defer look.Stop()
	for waited := 0; ; {
		select {
		case out := <-done:
			return out.result, out.err
		case <-m.fatal.tripped:
			return nil, errcode.New(errcode.NotConfirmed, "%s may have been applied: the metadata plane stopped: %w", c.op(), m.fatal.err())
		case <-ctx.Done():
			return nil, errcode.New(errcode.NotConfirmed, "%s may have been applied: the wait ended before the answer; read the state before trying again: %w", c.op(), ctx.Err())
		case <-look.C:
			err := m.plane.store.disk.Err()
			if waited++; err == nil {
				waited = 0
			}
			if waited > 1 { // the disk may need hours: the caller is told why
				return nil, errcode.New(errcode.NotConfirmed, "%s may be applied later: %w", c.op(), err)
			}
		}
	}
}

// diskLook is how often a proposal that waits looks whether the disk is why.
const diskLook = 500 * time.Millisecond

// await puts any other request to Raft and waits for it, the end of ctx or the
// end of the plane. A request that is left behind keeps its place and ends at
// the latest when Raft shuts down.
func (m *Meta) await(ctx context.Context, request func() error) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer m.leave()
		done <- request()
	}()
	select {
	case err := <-done:
		return err
	case <-m.fatal.tripped:
		return m.fatal.err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enter takes a place among the requests in flight; leave gives it back.
func (m *Meta) enter(ctx context.Context) error {
	if err := m.fatal.refusal(); err != nil {
		return err
	}
	if err := m.plane.store.disk.Err(); err != nil {
		return errcode.Wrap(errcode.Storage, err, "metadata takes no changes now")
	}
	if err := ctx.Err(); err != nil {
		return errcode.New(errcode.Canceled, "not applied: the caller's wait had ended before: %w", err)
	}
	select {
	case m.places <- struct{}{}:
	case <-m.closing:
		return errClosed
	case <-ctx.Done():
		return errcode.New(errcode.Overloaded, "%d metadata requests are in flight and none ended in time; try again later: %w", maxInFlight, ctx.Err())
	}
	select {
	case <-m.closing:
		m.leave()
		return errClosed
	default:
		return nil
	}
}

func (m *Meta) leave() { <-m.places }

var errClosed = errcode.New(errcode.Closed, "the metadata plane is closed; the node is shutting down")

// raftError says what an error of Raft means for the caller: not applied, or perhaps.
func (m *Meta) raftError(o op, err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return errcode.New(errcode.Unavailable, "%s was not applied: this node does not lead the metadata plane now: %w", o, err).After(time.Second)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return errcode.New(errcode.Overloaded, "%s was not applied: the metadata plane took no command for %s: %w", o, enqueueTimeout, err).After(time.Second)
	default:
		return errcode.New(errcode.NotConfirmed, "%s may have been applied; read the state before trying again: %w", o, err)
	}
}
