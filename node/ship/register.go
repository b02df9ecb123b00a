package ship

import (
	"bytes"
	"context"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/wal"
)

const (
	smallObject = 64 << 10  // bounds what is read of claims, OPEN and FENCE
	maxObject   = 160 << 20 // and of a shipped object
)

// register makes sure that this cluster holds the archive, announces the
// incarnation, finds where shipping goes on, and looks for its fence and a
// later cluster generation. The order matters: a take-over claims first and lists incarnations
// then, so an OPEN that it does not list was created after its claim, and the
// look for a claim that follows finds it.
func (s *Shipper) register(ctx context.Context) error {
	claimed := s.opts.Claimed != nil && s.opts.Claimed()
	if err := CheckClaim(ctx, s.opts.Store, s.opts.ClusterID, s.opts.ClusterGeneration, claimed); err != nil {
		if errcode.Is(err, errcode.Conflict) || errcode.Is(err, errcode.Fenced) {
			return s.fence(err)
		}
		return err
	}
	if !claimed && s.opts.OnClaimed != nil {
		if err := s.opts.OnClaimed(ctx); err != nil {
			return err
		}
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	if s.opts.States != nil {
		if err := s.findFloor(ctx); err != nil {
			return err
		}
	}
	if err := s.findEnd(ctx); err != nil {
		return err
	}
	// What the list showed may have arrived a moment ago, long after it was
	// sent: the fence check comes behind the list as it comes behind a put.
	return s.checkFenceNow(ctx)
}

// open creates OPEN; an OPEN that is there already was created by this
// directory before a restart, or by a copy of it.
func (s *Shipper) open(ctx context.Context) error {
	o := archive.Open{
		Node: s.opts.Node, Incarnation: s.opts.Incarnation, ClusterGeneration: s.opts.ClusterGeneration,
		FirstLSN: s.opts.FirstLSN, TimeMS: s.opts.Now().UnixMilli(),
	}
	err := Create(ctx, s.opts.Store, manifest.WALOpenKey(s.opts.Node, s.opts.Incarnation), o.Encode())
	if err == nil || errcode.Is(err, errcode.Exists) {
		return nil
	}
	return err
}

// CheckClaim creates the claim of a first cluster generation, or checks that
// the one that stands is of this cluster. Conflict: the archive belongs to
// another cluster, or to none although this cluster claimed one before: an
// archive that was emptied, or another one, lacks what was shipped, and going
// on there would promise restores that cannot work.
func CheckClaim(ctx context.Context, store objstore.Store, clusterID string, generation uint64, claimed bool) error {
	key := manifest.ClusterKey(generation)
	data, err := ReadSmall(ctx, store, key)
	if errcode.Is(err, errcode.NotFound) && generation == 1 && !claimed {
		claim := archive.Claim{ClusterID: clusterID, Generation: 1}
		if err = Create(ctx, store, key, claim.Encode()); err == nil {
			return nil
		}
		if !errcode.Is(err, errcode.Exists) {
			return err
		}
		data, err = ReadSmall(ctx, store, key)
	}
	if errcode.Is(err, errcode.NotFound) {
		return errcode.New(errcode.Conflict, "archive %s has no claim of cluster generation %d: it is not the archive of this data directory; check --archive", store.Capabilities().URL, generation)
	}
	if err != nil {
		return err
	}
	claim, err := archive.DecodeClaim(data)
	if err != nil {
		return errcode.Wrap(errcode.Corrupt, err, "read %s", key)
	}
	if claim.ClusterID != clusterID {
		return errcode.New(errcode.Conflict, "archive %s belongs to cluster %s, this data directory to cluster %s: give each cluster a prefix of its own, or use tidemark restore", store.Capabilities().URL, claim.ClusterID, clusterID)
	}
	return nil
}

// checkLaterCluster fences this incarnation when somebody took the cluster over.
func (s *Shipper) checkLaterCluster(ctx context.Context) error {
	return s.checkLaterClusterIn(ctx, s.opts.Store)
}

func (s *Shipper) checkLaterClusterIn(ctx context.Context, store objstore.Store) error {
	data, err := ReadSmall(ctx, store, manifest.ClusterKey(s.opts.ClusterGeneration+1))
	switch {
	case errcode.Is(err, errcode.NotFound):
		return nil
	case err != nil:
		return err
	}
	by := "another node"
	if claim, err := archive.DecodeClaim(data); err == nil && claim.Node != "" {
		by = "node " + claim.Node
	}
	return s.fence(errcode.New(errcode.Fenced, "the cluster was taken over by %s (cluster generation %d): this node serves no more; send requests to the new cluster", by, s.opts.ClusterGeneration+1))
}

// checkFence fails with Fenced when FENCE stands, and with the store's error
// when nobody can tell: absent is only what the store calls absent.
func (s *Shipper) checkFence(ctx context.Context) error {
	return s.checkFenceIn(ctx, s.opts.Store)
}

func (s *Shipper) checkFenceIn(ctx context.Context, store objstore.Store) error {
	_, err := ReadSmall(ctx, store, manifest.WALFenceKey(s.opts.Node, s.opts.Incarnation))
	switch {
	case errcode.Is(err, errcode.NotFound):
		return nil
	case err != nil:
		return err
	}
	if err := s.checkLaterClusterIn(ctx, store); err != nil {
		return err
	}
	return s.fence(errcode.New(errcode.Fenced, "the archive fenced this node's incarnation %016x: this node serves no more; send requests to the new owner", s.opts.Incarnation))
}

// findEnd lists what is shipped from the known mark on, once, and goes on at
// the contiguous end. The newest object counts also behind a hole: covered
// objects are deleted, so an old copy of the directory sees only newer ones.
//
// Where that end lies before the beginning of the local log, nobody can ship what
// comes next. It was covered and deleted since the mark was written: then the
// log is whole from the newest state object on, see findFloor. Or the node ran without
// an archive for a while, and what it took then is in segment files alone: a hole
// until a state object stands behind it.
func (s *Shipper) findEnd(ctx context.Context) error {
	after := ""
	if s.next > 1 {
		// The known mark is the end of an object, and objects are named by
		// their first LSN: the list begins with the one that follows it.
		after = manifest.WALKey(s.opts.Node, s.opts.Incarnation, s.next-1, s.next-1)
	}
	least := s.opts.Log.FirstLSN()
	end, whole, behind, newest := s.next, max(s.next, s.floor), max(s.next, least), manifest.Key{}
	err := s.walk(ctx, after, func(k manifest.Key, _ int64) {
		if k.End > max(s.next, newest.End) {
			newest = k
		}
		if k.First <= end {
			end = max(end, k.End)
		}
		if k.First <= whole {
			whole = max(whole, k.End)
		}
		if k.First <= behind {
			behind = max(behind, k.End)
		}
	})
	if err != nil {
		return err
	}
	if newest.End > s.opts.Log.NextLSN() {
		return s.fence(s.older("the archive holds its log up to frame %d, the directory ends at %d", newest.End-1, s.opts.Log.NextLSN()-1))
	}
	if end < least {
		end = behind
	}
	if newest.Kind == manifest.KindWAL {
		err := s.compare(ctx, newest.String())
		if errcode.Is(err, errcode.Corrupt) {
			// Its frames are shipped again, see readBack.
			s.opts.Logger.Warn("the newest object of the shipped log does not read", "key", newest.String(), "error", err)
			end = max(s.next, least, min(end, newest.First))
		} else if err != nil {
			return err
		}
	}
	s.next = end
	s.audits.begin(end, s.opts.Now())
	if whole < least {
		s.audits.sure, s.audits.hole = whole, least-1
		s.note(&s.mu.auditErr, "keeping the shipped log whole", errcode.New(errcode.Gone,
			"frames %d to %d were never shipped, and the local log has let go of them: did the node run without its archive? Answers archived, and a restore of what came since, wait until the segments with their records are uploaded", whole, least-1))
	}
	return nil
}

// older is the error of a directory that is a copy from before: going on would
// give offsets a second meaning.
func (s *Shipper) older(format string, args ...any) error {
	return errcode.New(errcode.Fenced, "data directory is older than the archive of incarnation %016x: "+format+"; restore it with tidemark restore, do not start an old copy", append([]any{s.opts.Incarnation}, args...)...)
}

// compare checks that a shipped object has the frames that this log has.
func (s *Shipper) compare(ctx context.Context, key string) error {
	data, _, err := objstore.ReadAll(ctx, s.opts.Store, key, maxObject)
	if err != nil {
		return err
	}
	object, err := archive.DecodeWAL(data)
	if err == nil && manifest.WALKey(s.opts.Node, object.Incarnation, object.First, object.Next) != key {
		err = errcode.New(errcode.Corrupt, "it says frames %d to %d of incarnation %016x", object.First, object.Next-1, object.Incarnation)
	}
	if err != nil {
		return errcode.Wrap(errcode.Corrupt, err, "read %s", key)
	}
	local, err := s.frames(object.First, object.Next)
	if errcode.Is(err, errcode.Gone) {
		return nil // recycled here: nothing to compare with, and nothing is overwritten
	}
	if err != nil {
		return err
	}
	return object.Each(func(f wal.Frame) error {
		want, ok := local[f.LSN]
		if ok && (want.Kind != f.Kind || !bytes.Equal(want.Body, f.Body)) {
			return s.fence(s.older("frame %d differs from the one in %s", f.LSN, key))
		}
		return nil
	})
}

// frames reads the local frames of [first, next).
func (s *Shipper) frames(first, next uint64) (map[uint64]wal.Frame, error) {
	out := make(map[uint64]wal.Frame)
	for at := first; at < next; {
		run, err := s.opts.Log.ReadGroups(at, s.opts.ObjectBytes)
		if err != nil {
			return nil, err
		}
		if run.Next <= at {
			return out, nil
		}
		for _, g := range run.Groups {
			err := wal.ForEachFrame(g, run.Salt, func(f wal.Frame) error {
				if f.LSN >= first && f.LSN < next {
					out[f.LSN] = f
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		at = run.Next
	}
	return out, nil
}

// ReadSmall reads an object of at most 64 KiB.
func ReadSmall(ctx context.Context, store objstore.Store, key string) ([]byte, error) {
	data, _, err := objstore.ReadAll(ctx, store, key, smallObject)
	return data, err
}

// CheckArchive says whether a cluster may use an archive: Conflict when it is
// another cluster's, see CheckClaim, or when the store does not honour a
// create-only put, on which everything here rests; Fenced when a later
// generation of the cluster serves.
func CheckArchive(ctx context.Context, store objstore.Store, clusterID string, generation uint64, claimed bool) error {
	if err := CheckClaim(ctx, store, clusterID, generation, claimed); err != nil {
		return err
	}
	_, err := ReadSmall(ctx, store, manifest.ClusterKey(generation+1))
	switch {
	case errcode.Is(err, errcode.NotFound):
		return checkCreateOnly(ctx, store, manifest.ClusterKey(generation))
	case err != nil:
		return err
	}
	return errcode.New(errcode.Fenced, "cluster %s was taken over in archive %s (generation %d): this data directory must not serve any more; use the new cluster, or restore", clusterID, store.Capabilities().URL, generation+1)
}

// checkCreateOnly puts an object that exists once more, with its own bytes.
func checkCreateOnly(ctx context.Context, store objstore.Store, key string) error {
	data, err := ReadSmall(ctx, store, key)
	if err != nil {
		return err
	}
	err = put(ctx, store, key, data)
	switch {
	case errcode.Is(err, errcode.Exists):
		return nil
	case err == nil:
		return errcode.New(errcode.Conflict, "archive %s overwrites objects although it is asked to create only (If-None-Match): two nodes could destroy each other's data; use a store that honours it, see tidemark bucket doctor", store.Capabilities().URL)
	}
	return err
}
