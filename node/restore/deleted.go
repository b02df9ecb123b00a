package restore

import (
	"context"
	"errors"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// findTombstones learns which topics of the export were deleted since, and
// reports whether that is more than was known. A tombstone is created after the
// metadata confirmed the deletion and before the first object goes: without it
// a chain that is deleted in part would look empty or damaged (T16).
func (s *survey) findTombstones(ctx context.Context, store objstore.Store) (more bool, err error) {
	known := len(s.deleted)
	if s.deleted == nil {
		s.deleted = map[broker.TopicID]bool{}
	}
	err = list(ctx, store, manifest.PrefixDeleted, func(i objstore.Info) error {
		if k, err := manifest.ParseKey(i.Key); err == nil && k.Kind == manifest.KindTombstone {
			if _, named := s.meta.TopicByID(k.Partition.Topic); named {
				s.deleted[k.Partition.Topic] = true
			}
		}
		return nil
	})
	return len(s.deleted) > known, err
}

// topics are the topics of the export that are restored.
func (s *survey) topics() (out []raftmeta.Topic) {
	for _, t := range s.meta.Topics() {
		if !s.deleted[t.ID] {
			out = append(out, t)
		}
	}
	return out
}

// deleteTopics carries into the restored metadata what the tombstones say: the
// deletion was confirmed, and whoever collects the archive goes on with it.
func (r *run) deleteTopics(ctx context.Context) error {
	for id := range r.survey.deleted {
		if _, err := r.meta.DeleteTopicByID(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// loadChains reads the chain of every partition that is restored. A topic that
// is deleted while its chain is read makes the survey start again: its entries
// may have been gone in part.
func (s *survey) loadChains(ctx context.Context, o *Options) error {
	err := s.readChains(ctx, o)
	more, terr := s.findTombstones(ctx, o.Store)
	if terr == nil && more {
		return &vanished{errcode.New(errcode.ArchiveUnavailable, "a topic was deleted while its chain was read: %w", errors.Join(err, errDeleted))}
	}
	if err != nil {
		return err
	}
	return terr
}

var errDeleted = errcode.New(errcode.Gone, "its tombstone stands")
