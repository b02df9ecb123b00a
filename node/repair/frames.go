package repair

import (
	"context"
	"crypto/sha256"
	"math"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/wal"
)

// maxWALObject bounds a shipped WAL object as it is stored.
const maxWALObject = 160 << 20

// filling is a range of LSNs that an object of the archive has and the local
// log has not.
type filling struct {
	from, next uint64
	key        manifest.Key
}

// source is every frame that survives, wherever it is.
type source struct {
	survey *wal.Survey
	store  objstore.Store
	fills  []filling // ascending
}

// fill looks into the archive for what the survey misses. It returns what is
// nowhere. Behind an open hole it takes whatever follows without a gap.
func (s *source) fill(ctx context.Context, node string, incarnation uint64) (lost []LSNs, err error) {
	var keys []manifest.Key
	if s.store != nil && len(s.survey.Holes) > 0 {
		if keys, err = shippedKeys(ctx, s.store, node, incarnation); err != nil {
			return nil, err
		}
	}
	for _, h := range s.survey.Holes {
		at, end := h.From, h.Next
		for _, k := range keys {
			limit := end
			if h.Open && k.First <= max(at, end) {
				limit = max(end, k.End)
			}
			from, next := max(at, k.First), min(limit, k.End)
			if from >= next {
				continue
			}
			if from > at {
				lost = append(lost, LSNs{From: at, Next: from})
			}
			s.fills = append(s.fills, filling{from, next, k})
			at, end = next, max(end, next)
		}
		if at < end || h.Open {
			lost = append(lost, LSNs{From: at, Next: end, Open: h.Open})
		}
	}
	return lost, nil
}

// shippedKeys lists the objects of one incarnation, ascending.
func shippedKeys(ctx context.Context, store objstore.Store, node string, incarnation uint64) (keys []manifest.Key, err error) {
	for after := ""; ; {
		page, err := store.List(ctx, manifest.WALPrefix(node, incarnation), after, 0)
		if err != nil {
			return nil, errcode.Wrap(errcode.ArchiveUnavailable, err, "list shipped WAL")
		}
		for _, o := range page.Objects {
			after = o.Key
			if k, err := manifest.ParseKey(o.Key); err == nil && k.Kind == manifest.KindWAL {
				keys = append(keys, k)
			}
		}
		if !page.More || len(page.Objects) == 0 {
			return keys, nil
		}
	}
}

// group is one surviving group with its bytes, header and frames.
type group struct {
	wal.Group
	raw []byte
}

// groups calls fn for every surviving group in LSN order; what it gets is valid
// during the call.
func (s *source) groups(ctx context.Context, fn func(group) error) error {
	fills, sums := s.fills, map[uint64][sha256.Size]byte{}
	upTo := func(lsn uint64) error {
		for len(fills) > 0 && fills[0].from < lsn {
			if err := s.filled(ctx, fills[0], sums, fn); err != nil {
				return err
			}
			fills = fills[1:]
		}
		return nil
	}
	err := s.survey.Each(func(at wal.Located) error {
		if err := upTo(at.Group.First); err != nil {
			return err
		}
		if err := compare(at.Group, sums); err != nil {
			return err
		}
		return fn(group{at.Group, at.Raw})
	})
	if err != nil {
		return err
	}
	return upTo(math.MaxUint64)
}

// filled gives the groups of one object that lie in the filling, and keeps
// hashes of the frames behind it, which the local log has too.
func (s *source) filled(ctx context.Context, f filling, sums map[uint64][sha256.Size]byte, fn func(group) error) error {
	stored, _, err := objstore.ReadAll(ctx, s.store, f.key.String(), maxWALObject)
	if err != nil {
		return errcode.Wrap(errcode.ArchiveUnavailable, err, "read %s", f.key)
	}
	object, err := archive.DecodeWAL(stored)
	if err == nil && (object.First != f.key.First || object.Next != f.key.End || object.Incarnation != f.key.Incarnation) {
		err = errcode.New(errcode.Corrupt, "it says frames %d to %d of incarnation %016x", object.First, object.Next-1, object.Incarnation)
	}
	if err != nil {
		return errcode.Wrap(errcode.Corrupt, err, "shipped WAL %s", f.key)
	}
	next := f.from
	for rest := object.Groups; err == nil && len(rest) > 0; {
		var g wal.Group
		var n int
		if g, n, err = wal.ParseGroup(rest, object.Salt); err != nil {
			break
		}
		raw := rest[:n]
		rest = rest[n:]
		switch {
		case g.Next() <= f.from:
		case g.First >= f.next:
			err = g.Each(func(x wal.Frame) error { sums[x.LSN] = sumOf(x); return nil })
		case g.First != next || g.Next() > f.next:
			err = errcode.New(errcode.Corrupt, "its group of LSNs %d to %d does not fit into the hole of %d to %d", g.First, g.Next()-1, f.from, f.next-1)
		default:
			next = g.Next()
			err = fn(group{g, raw})
		}
	}
	if err == nil && next != f.next {
		err = errcode.New(errcode.Corrupt, "it ends at LSN %d", next-1)
	}
	return errcode.Wrap(errcode.Corrupt, err, "shipped WAL %s", f.key)
}

func sumOf(f wal.Frame) [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte{byte(f.Kind)})
	h.Write(f.Body)
	return [sha256.Size]byte(h.Sum(nil))
}

// compare holds local frames against those of an object that was used: other
// ones mean that the object is not this log's.
func compare(g wal.Group, sums map[uint64][sha256.Size]byte) error {
	if len(sums) == 0 {
		return nil
	}
	return g.Each(func(f wal.Frame) error {
		if sum, ok := sums[f.LSN]; ok && sum != sumOf(f) {
			return errcode.New(errcode.Conflict, "frame %d is another one in the archive than in the directory: two copies of this directory have run; do not repair it from this archive", f.LSN)
		}
		delete(sums, f.LSN)
		return nil
	})
}

// frames calls fn for every surviving frame in LSN order.
func (s *source) frames(ctx context.Context, fn func(wal.Frame) error) error {
	return s.groups(ctx, func(g group) error { return g.Each(fn) })
}
