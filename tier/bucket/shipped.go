package bucket

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// writer is one incarnation of a node.
type writer struct {
	node        string
	incarnation uint64
}

func writerOf(k manifest.Key) writer { return writer{k.Node, k.Incarnation} }

// walkedLog follows the objects of one incarnation in order, and compares the
// frames of those that overlap: they have to be the same.
type walkedLog struct {
	v     *verifier
	opens bool
	wal   bool         // an object was seen
	last  manifest.Key // waits until it is known where its successor begins
	next  uint64       // highest end of an object
	sums  map[uint64][32]byte
}

// nodes looks at shipped WAL and at state objects.
func (v *verifier) nodes(ctx context.Context) error {
	if err := v.holes(ctx); err != nil {
		return err
	}
	var at *walkedLog
	var who writer
	err := Walk(ctx, v.store, manifest.PrefixWAL, func(o objstore.Info) error {
		k, err := manifest.ParseKey(o.Key)
		if err != nil {
			v.find(Finding{What: UnknownKey, Key: o.Key})
			return nil
		}
		if at == nil || who != writerOf(k) {
			if err := at.finish(ctx, who); err != nil {
				return err
			}
			who, at = writerOf(k), &walkedLog{v: v}
		}
		switch k.Kind {
		case manifest.KindWAL:
			v.count(func(s *Summary) { s.WALObjects++; s.WALBytes += o.Size })
			return at.object(ctx, k)
		case manifest.KindWALOpen:
			at.opens = true
		}
		return v.small(ctx, k)
	})
	if err != nil {
		return err
	}
	if err := at.finish(ctx, who); err != nil {
		return err
	}
	return v.states(ctx)
}

// object takes the next object of the log.
func (l *walkedLog) object(ctx context.Context, k manifest.Key) error {
	if l.wal {
		if err := l.read(ctx, k.First); err != nil {
			return err
		}
	}
	l.wal, l.last = true, k
	l.next = max(l.next, k.End)
	return nil
}

// finish looks at the last object, and at what is known of the whole log only.
func (l *walkedLog) finish(ctx context.Context, w writer) error {
	if l == nil || !l.wal {
		return nil
	}
	if !l.opens { // it sorts behind the objects
		l.v.find(Finding{What: NotOpened, Key: manifest.WALOpenKey(w.node, w.incarnation)})
	}
	return l.read(ctx, l.next)
}

// read decodes the object that waits, compares it with those before it, and
// keeps what one that begins at following needs to be compared with.
func (l *walkedLog) read(ctx context.Context, following uint64) error {
	d := &l.v.opts.Decoders
	if !l.v.opts.Deep || d.WAL == nil {
		return nil
	}
	k, before := l.last, l.sums
	l.sums = map[uint64][32]byte{}
	for lsn, sum := range before {
		if lsn >= following {
			l.sums[lsn] = sum // an older one reaches over this
		}
	}
	return l.v.read(ctx, k, WALCorrupt, func(k manifest.Key, stored []byte) error {
		if _, err := d.WAL(k, stored); err != nil || d.Frames == nil {
			return err
		}
		from, next := uint64(0), uint64(0)
		err := d.Frames(k, stored, func(lsn uint64, sum [32]byte) {
			if old, ok := before[lsn]; ok && old != sum {
				if from == 0 {
					from = lsn
				}
				next = lsn + 1
			}
			if lsn >= following {
				l.sums[lsn] = sum
			}
		})
		if from > 0 {
			l.v.find(Finding{What: WALConflict, Key: k.String(), From: int64(from), Next: int64(next),
				Detail: "its frames differ from those of an object before it: two copies of one data directory shipped"})
		}
		return err
	})
}

// states looks at state objects.
func (v *verifier) states(ctx context.Context) error {
	return Walk(ctx, v.store, manifest.PrefixState, func(o objstore.Info) error {
		k, err := manifest.ParseKey(o.Key)
		if err != nil {
			v.find(Finding{What: UnknownKey, Key: o.Key})
			return nil
		}
		v.count(func(s *Summary) { s.States++ })
		if decode := v.opts.Decoders.State; v.opts.Deep && decode != nil {
			return v.read(ctx, k, StateCorrupt, func(k manifest.Key, b []byte) error { _, err := decode(k, b); return err })
		}
		return nil
	})
}

// small looks into a claim, OPEN or FENCE.
func (v *verifier) small(ctx context.Context, k manifest.Key) error {
	if v.opts.Decoders.Small == nil || !isSmall(k.Kind) {
		return nil
	}
	return v.read(ctx, k, ClaimCorrupt, v.opts.Decoders.Small)
}

// read reads a whole object and hands it to a decoder. Its error is ctx's.
func (v *verifier) read(ctx context.Context, k manifest.Key, as What, decode func(manifest.Key, []byte) error) error {
	b, info, err := objstore.ReadAll(ctx, v.store, k.String(), maxObject)
	if err == nil {
		err = decode(k, b)
		v.checked(info.Size)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// An object that went between the list and now was garbage.
	if err != nil && !errcode.Is(err, errcode.NotFound) {
		v.failed(as, k.String(), broker.PartitionID{}, err)
	}
	return nil
}
