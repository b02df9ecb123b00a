package bucket

import (
	"context"
	"fmt"

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

// shippedLog follows the objects of one incarnation in order. Covered WAL is
// deleted from the front, so it may begin anywhere; from there on a missing LSN
// is a hole. Overlaps are allowed where the frames are the same.
type shippedLog struct {
	v     *verifier
	opens bool
	wal   bool         // an object was seen
	last  manifest.Key // waits until it is known where its successor begins
	next  uint64       // LSN up to which it is whole
	spans [][2]uint64  // that are there
	sums  map[uint64][32]byte
}

// nodes looks at shipped WAL and at state objects.
func (v *verifier) nodes(ctx context.Context) error {
	logs := map[writer]*shippedLog{}
	var at *shippedLog
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
			who, at = writerOf(k), &shippedLog{v: v}
			logs[who] = at
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
	return v.states(ctx, logs)
}

// object takes the next object of the log.
func (l *shippedLog) object(ctx context.Context, k manifest.Key) error {
	if l.wal {
		if err := l.read(ctx, k.First); err != nil {
			return err
		}
		if k.First > l.next {
			l.v.find(Finding{What: WALHole, Key: k.String(), From: int64(l.next), Next: int64(k.First)})
		}
	}
	if n := len(l.spans); n > 0 && k.First <= l.next {
		l.spans[n-1][1] = max(l.next, k.End)
	} else {
		l.spans = append(l.spans, [2]uint64{k.First, k.End})
	}
	l.wal, l.last = true, k
	l.next = max(l.next, k.End)
	return nil
}

// finish looks at the last object, and at what is known of the whole log only.
func (l *shippedLog) finish(ctx context.Context, w writer) error {
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
func (l *shippedLog) read(ctx context.Context, following uint64) error {
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

// states looks at state objects, and whether the log behind the newest one of
// each incarnation, which a restore begins with, is there.
func (v *verifier) states(ctx context.Context, logs map[writer]*shippedLog) error {
	newest := map[writer]manifest.Key{}
	err := Walk(ctx, v.store, manifest.PrefixState, func(o objstore.Info) error {
		k, err := manifest.ParseKey(o.Key)
		if err != nil {
			v.find(Finding{What: UnknownKey, Key: o.Key})
			return nil
		}
		v.count(func(s *Summary) { s.States++ })
		newest[writerOf(k)] = k
		if decode := v.opts.Decoders.State; v.opts.Deep && decode != nil {
			return v.read(ctx, k, StateCorrupt, func(k manifest.Key, b []byte) error { _, err := decode(k, b); return err })
		}
		return nil
	})
	if err != nil || v.opts.Decoders.Needs == nil || !v.opts.Deep {
		return err
	}
	for w, k := range newest {
		if err := v.needs(ctx, k, logs[w]); err != nil {
			return err
		}
	}
	return nil
}

// needs holds what a state object needs of the log against what is there.
func (v *verifier) needs(ctx context.Context, k manifest.Key, l *shippedLog) error {
	stored, _, err := objstore.ReadAll(ctx, v.store, k.String(), maxObject)
	if err != nil {
		return ctx.Err() // reported by the walk
	}
	from, upTo, err := v.opts.Decoders.Needs(k, stored)
	if err != nil || from > upTo {
		return nil // reported, or it needs nothing
	}
	next := from
	if l != nil {
		for _, s := range l.spans {
			if s[0] <= next && next < s[1] {
				next = s[1]
			}
		}
	}
	if next <= upTo {
		v.find(Finding{What: WALHole, Key: k.String(), From: int64(next), Next: int64(upTo) + 1,
			Detail: fmt.Sprintf("a restore that begins with this state object needs LSNs %d to %d", from, upTo)})
	}
	return nil
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
