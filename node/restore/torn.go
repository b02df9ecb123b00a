package restore

import (
	"context"
	"slices"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// The newest objects of a chain may not read: puts that the store tore, whose
// owner died before it passed them, or entries that were whole once and rotted.
// Nobody rests on the first kind, and the log of what they would have listed is
// shipped still. On the second kind others may rest: the log may have been
// collected, and objects deleted that a merge replaced. From the outside both look
// alike, so that what matters is held against the bucket:
//
//   - every object that the chain names without them is there. A merge, or a trim,
//     that was published and is lost would have let objects go;
//   - chain and shipped log reach as far as any object of the partition, and as
//     any state of its owner says. A segment that was published and is lost has
//     an object that reaches further, unless the log has its records too.
//
// Then nothing is lost by passing them. A trim may be undone, which retention
// does again; what an entry of a merge would have listed is an orphan.

// judgeTorn says for every chain that ends in such objects whether they may be
// passed. parts are the partitions behind the replay.
func (s *survey) judgeTorn(ctx context.Context, store objstore.Store, parts map[broker.PartitionID]*restored) error {
	for id, c := range s.chains {
		if len(c.Torn()) == 0 {
			continue
		}
		if err := mayPass(ctx, store, c, parts[id]); err != nil {
			return err
		}
	}
	return nil
}

func mayPass(ctx context.Context, store objstore.Store, c *manifest.Chain, p *restored) error {
	key := c.Torn()[0]
	segs, err := c.Segments(ctx, c.Start(), c.End())
	if err != nil {
		return errcode.Wrap(errcode.ArchiveUnavailable, err, "read what the chain of partition %s names", p.id)
	}
	missing := make(map[string]int64, len(segs))
	for i := range segs {
		missing[segs[i].Key()] = segs[i].Bytes
	}
	reach, by := p.reach, "a state of its owner"
	err = list(ctx, store, manifest.PartitionPrefix(p.id), func(o objstore.Info) error {
		k, err := manifest.ParseKey(o.Key)
		if err != nil || k.Kind != manifest.KindSegmentObject {
			return nil
		}
		if k.Next > reach {
			reach, by = k.Next, o.Key
		}
		if size, ok := missing[o.Key]; ok && size == o.Size {
			delete(missing, o.Key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A cluster that goes on may have passed it meanwhile: a new look shows it.
	for i := range segs {
		if k := segs[i].Key(); missing[k] > 0 {
			return &vanished{tornRefused(key, "%d objects that the chain names without it are not there or not whole, %s first: it may have replaced or trimmed them", len(missing), k)}
		}
	}
	if reach > p.next {
		return &vanished{tornRefused(key, "chain and shipped WAL of partition %s end at offset %d without it, %s says %d: it may have listed the records between", p.id, p.next, by, reach)}
	}
	return nil
}

// tornRefused is the error of an entry that is not passed.
func tornRefused(key, why string, args ...any) error {
	return errcode.New(errcode.Corrupt, "chain entry %s does not read, and others may rest on what it held: "+why+"; put the object back from a copy or an older version of it", append([]any{key}, args...)...)
}

// torn lists the objects that the restore passes.
func (s *survey) torn() (keys []string) {
	for _, c := range s.chains {
		keys = append(keys, c.Torn()...)
	}
	slices.Sort(keys)
	return keys
}
