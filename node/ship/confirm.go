package ship

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Confirm returns nil when the archive says, now, that this incarnation may
// change it: it is registered, no FENCE of it stands and no later cluster
// generation was claimed. store is the archive, under whatever cause its
// requests are to count. Two GETs. An answer that says nothing is an error, and
// a FENCE or a claim takes the node out of service as in shipping (I7, I8).
func (s *Shipper) Confirm(ctx context.Context, store objstore.Store) error {
	if err := s.Fenced(); err != nil {
		return err
	}
	if !s.isRegistered() {
		return errcode.New(errcode.Unavailable, "the archive has not yet said that it is this cluster's")
	}
	if err := s.checkFenceIn(ctx, store); err != nil {
		return err
	}
	return s.checkLaterClusterIn(ctx, store)
}

// Registered returns a channel that is closed once the archive has said that it is
// this cluster's and the incarnation is registered there.
func (s *Shipper) Registered() <-chan struct{} { return s.registered }

// Confirmed returns the Raft index of the newest export that stood in the
// archive before a fence check that found nothing: whoever takes over from
// here on restores that metadata or newer.
func (s *Shipper) Confirmed() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.confirmed
}

// maxState bounds a state object as it is stored.
const maxState = 256 << 20

// findFloor learns at registration from which frame on the newest state object
// of this incarnation needs the log. Objects that do not read are passed over:
// no restore can begin with them either.
func (s *Shipper) findFloor(ctx context.Context) error {
	var keys []manifest.Key
	for after := ""; ; {
		page, err := s.opts.Store.List(ctx, manifest.StatePrefix(s.opts.Node, s.opts.Incarnation), after, 0)
		if err != nil {
			return err
		}
		for _, o := range page.Objects {
			after = o.Key
			if k, err := manifest.ParseKey(o.Key); err == nil && k.Kind == manifest.KindState {
				keys = append(keys, k)
			}
		}
		if !page.More || len(page.Objects) == 0 {
			break
		}
	}
	for i := len(keys) - 1; i >= 0; i-- {
		st, err := ReadState(ctx, s.opts.Store, keys[i])
		if err == nil {
			// The frames that it covers may be deleted: then it alone says that
			// this directory is a copy from before.
			if next := s.opts.Log.NextLSN(); st.LSN >= next {
				return s.fence(s.older("the archive holds its state at frame %d, the directory ends at %d", st.LSN, next-1))
			}
			s.floor = st.ReplayFrom
			return nil
		}
		if !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.NotFound) {
			return err
		}
		s.opts.Logger.Warn("a state object does not read and is passed over", "key", keys[i].String(), "error", err)
	}
	return nil
}

// ReadState reads a state object and holds it against its key. Errors: Corrupt,
// UnsupportedVersion, and the store's.
func ReadState(ctx context.Context, store objstore.Store, key manifest.Key) (*archive.State, error) {
	data, _, err := objstore.ReadAll(ctx, store, key.String(), maxState)
	if err != nil {
		return nil, err
	}
	st, err := archive.DecodeState(data)
	if err == nil && manifest.StateKey(st.Node, st.Incarnation, st.LSN) != key.String() {
		err = errcode.New(errcode.Corrupt, "it says LSN %d of node %s, incarnation %016x", st.LSN, st.Node, st.Incarnation)
	}
	if err != nil {
		return nil, errcode.Wrap(errcode.Corrupt, err, "read %s", key)
	}
	return st, nil
}
