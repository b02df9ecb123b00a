package garbage

import (
	"context"
	"math/rand/v2"
	"strings"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/raftmeta"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxBatch is how many keys one delete names at most.
const maxBatch = objstore.PageSize

// candidate is one object on its way out.
type candidate struct {
	key   string
	bytes int64
}

// confirm asks what every deletion asks first: the leader, behind a barrier, and
// the archive's fences. The metadata must know at least what the archive knows
// of it: a directory that was put back from a copy leads, too, and its view is
// old (B157).
func (c *Collector) confirm(ctx context.Context) (*raftmeta.State, error) {
	st, err := c.opts.Metadata.Confirm(ctx)
	if err != nil {
		return nil, &hindrance{err}
	}
	if n, ok := st.Node(c.opts.Node); !ok || uint64(n.Incarnation) != c.opts.Incarnation || n.State != raftmeta.NodeActive {
		return nil, &hindrance{errcode.New(errcode.Fenced, "incarnation %016x of node %s is not the active one of the metadata", c.opts.Incarnation, c.opts.Node)}
	}
	if generation := st.Cluster().Generation; generation != c.opts.ClusterGeneration {
		return nil, &hindrance{errcode.New(errcode.Fenced, "the metadata is of cluster generation %d, this node of %d", generation, c.opts.ClusterGeneration)}
	}
	if st.Index() < c.newest {
		return nil, &hindrance{errcode.New(errcode.Conflict, "the metadata here ends at index %d, the archive holds an export of index %d: the metadata directory is a copy from before; nothing is deleted, restore the node from the archive", st.Index(), c.newest)}
	}
	if err := c.opts.Fence.Confirm(ctx, c.opts.Store); err != nil {
		return nil, &hindrance{err}
	}
	return st, nil
}

// remove deletes what is left of a batch once everything was confirmed. check
// says, with the confirmed state, which of the objects may still go: it is
// asked last, right before the delete. It returns the keys that are gone. An
// error leaves open which are; asking again finds out (T26).
func (c *Collector) remove(ctx context.Context, cause Cause, batch []candidate, check func(context.Context, *raftmeta.State) ([]candidate, error)) ([]candidate, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	if len(batch) > maxBatch {
		return nil, errcode.New(errcode.Internal, "garbage: a batch of %d objects", len(batch))
	}
	st, err := c.confirm(ctx)
	if err != nil {
		return nil, err
	}
	if batch, err = check(ctx, st); err != nil {
		return nil, err
	}
	var going []candidate
	keys := make([]string, 0, len(batch))
	size := int64(0)
	for _, o := range batch {
		if neverDeleted(o.key) {
			return nil, errcode.New(errcode.Internal, "garbage: %s is never deleted", o.key)
		}
		if !c.opts.Pinned(o.key) {
			going = append(going, o)
			keys = append(keys, o.key)
			size += o.bytes
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	if err := c.opts.Store.Delete(ctx, keys); err != nil {
		return nil, refused(err, keys)
	}
	if err := c.sample(ctx, keys); err != nil {
		return nil, err
	}
	c.metrics.objects.WithLabelValues(cause.String()).Add(float64(len(keys)))
	c.metrics.bytes.WithLabelValues(cause.String()).Add(float64(size))
	c.mu.Lock()
	c.mu.deleted[cause] += int64(len(keys))
	c.mu.freed[cause] += size
	c.mu.Unlock()
	c.opts.Logger.Debug("deleted from the archive", "cause", cause.String(), "objects", len(keys), "bytes", size, "first", keys[0], "last", keys[len(keys)-1])
	return going, nil
}

// neverDeleted is the last line of defence: claims, tombstones, snapshots and
// fences go for no reason whatever.
func neverDeleted(key string) bool {
	return strings.HasPrefix(key, "cluster/") || strings.HasPrefix(key, "x/") || strings.HasPrefix(key, "snap/") || strings.HasSuffix(key, "/FENCE")
}

// refused makes of a failed delete an error that says what to do.
func refused(err error, keys []string) error {
	if errcode.Is(err, errcode.Denied) {
		err = errcode.Wrap(errcode.Denied, err, "the archive refuses deletes (%s and %d more); grant the node the right to delete objects, or it only grows", keys[0], len(keys)-1)
		return &hindrance{err}
	}
	return &hindrance{errcode.Wrap(errcode.ArchiveUnavailable, err, "delete %s and %d more", keys[0], len(keys)-1)}
}

// sample asks for one of the keys that the store says it deleted, for a byte of
// it: some stores say so of what they keep (T32).
func (c *Collector) sample(ctx context.Context, keys []string) error {
	key := keys[rand.IntN(len(keys))]
	var one [1]byte
	_, err := c.opts.Store.GetRange(ctx, key, one[:], 0)
	switch {
	case errcode.Is(err, errcode.NotFound):
		return nil
	case err != nil:
		return &hindrance{errcode.Wrap(errcode.ArchiveUnavailable, err, "see whether %s is deleted", key)}
	}
	return &hindrance{errcode.New(errcode.Conflict, "the archive says that it deleted %s, and still has it: its objects may be locked or kept by a rule of the bucket; see tidemark bucket doctor", key)}
}

// stands asks for one byte of an object that has to be there before older ones
// of its kind go.
func (c *Collector) stands(ctx context.Context, key string) error {
	var one [1]byte
	_, err := c.opts.Store.GetRange(ctx, key, one[:], 0)
	if errcode.Is(err, errcode.NotFound) {
		return errcode.New(errcode.Corrupt, "the archive lost %s: nothing older than it is deleted; put it back, or see tidemark bucket verify", key)
	}
	return errcode.Wrap(errcode.ArchiveUnavailable, err, "see whether %s is there", key)
}
