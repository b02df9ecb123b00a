package node

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// archiveKnown returns nil once the archive has said that it is this cluster's and
// that nobody else has taken over, else why nothing may be put there.
func (n *Node) archiveKnown() error {
	if err := n.Fenced(); err != nil {
		return errcode.New(errcode.Fenced, "this node serves no more: %w", err)
	}
	select {
	case <-n.shipper.Registered():
		return nil
	default:
		return errcode.New(errcode.ArchiveUnavailable, "the archive has not yet said that it is this cluster's")
	}
}

// waitArchive waits until archiveKnown has an answer that stays.
func (n *Node) waitArchive(ctx context.Context) error {
	select {
	case <-n.shipper.Registered():
	case <-n.serving.Done():
	case <-ctx.Done():
	}
	return n.archiveKnown()
}
