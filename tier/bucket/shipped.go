package bucket

import (
	"context"

	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// nodes looks at shipped WAL and state objects. Covered WAL is deleted from the
// front, so an incarnation may begin anywhere; from there on a missing LSN is a
// hole. Overlaps are allowed.
func (v *verifier) nodes(ctx context.Context) error {
	var at manifest.Key // incarnation that is looked at
	var next uint64     // LSN up to which it is whole
	opened := false
	err := Walk(ctx, v.store, manifest.PrefixWAL, func(o objstore.Info) error {
		k, err := manifest.ParseKey(o.Key)
		if err != nil {
			v.find(Finding{What: UnknownKey, Key: o.Key})
			return nil
		}
		if k.Node != at.Node || k.Incarnation != at.Incarnation {
			if opened, err = v.isOpen(ctx, k); err != nil {
				return err
			}
			at, next = k, 0
		}
		if k.Kind != manifest.KindWAL {
			return nil
		}
		v.count(func(s *Summary) { s.WALObjects++; s.WALBytes += o.Size })
		if next == 0 && !opened {
			v.find(Finding{What: NotOpened, Key: manifest.WALOpenKey(k.Node, k.Incarnation)})
		}
		if next > 0 && k.First > next {
			v.find(Finding{What: WALHole, Key: o.Key, From: int64(next), Next: int64(k.First)})
		}
		next = max(next, k.End)
		if v.opts.Deep && v.opts.Decoders.WAL != nil {
			return v.read(ctx, k, WALCorrupt, v.opts.Decoders.WAL)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return Walk(ctx, v.store, manifest.PrefixState, func(o objstore.Info) error {
		k, err := manifest.ParseKey(o.Key)
		if err != nil {
			v.find(Finding{What: UnknownKey, Key: o.Key})
			return nil
		}
		v.count(func(s *Summary) { s.States++ })
		if v.opts.Deep && v.opts.Decoders.State != nil {
			return v.read(ctx, k, StateCorrupt, v.opts.Decoders.State)
		}
		return nil
	})
}

// isOpen says whether an incarnation's OPEN object is listed; it sorts behind
// the WAL objects.
func (v *verifier) isOpen(ctx context.Context, k manifest.Key) (bool, error) {
	key := manifest.WALOpenKey(k.Node, k.Incarnation)
	found, err := first(ctx, v.store, key, "")
	return found == key, err
}
