package manifest

import (
	"bytes"
	"context"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// A store may keep a part of what it was given and say that all is well. Such
// an object stands under the key of an entry and reads as none. It cannot be
// put again, since nothing is overwritten, and it is not deleted: a delete
// whose answer is lost may take effect later, on the entry that stands there by
// then.
//
// So it is passed. Whoever appends next writes the entry after it, linked to
// the last one that reads, and says in it how many objects it skips; from then
// on they are void, whatever they hold. Nobody rests on what is skipped: no
// operation counts before its entry was read back whole by the one who put it,
// and nobody else can have read it. An entry that this node had read whole
// before and that does not read any more is damage, not a torn put, and is
// refused: Load knows by its hint.
//
// Of two who disagree about an object, the one of the higher generation is
// right: the skip of a lower one is void.

// WithTornEnd has Load accept objects behind the last entry that do not read,
// when the hint says that none of them was ever read: by the owner, whose
// appends pass them, and by readers, to whom the chain ends before them. Without
// it they are Corrupt: whoever does not know what was read before cannot tell
// a torn put from an entry that rotted, and others may rest on that. A caller
// without a hint has to find out by what else the bucket holds; see Chain.Torn.
func WithTornEnd() Option { return func(o *options) { o.tornEnd = true } }

// Torn returns the keys of the objects behind the last entry that do not read,
// which the next entry skips.
func (c *Chain) Torn() []string {
	s := c.state.Load()
	var out []string
	for k := range s.torn {
		out = append(out, EntryKey(c.pid, s.seq+1+k))
	}
	return out
}

// torn reports whether err says that an object is there and does not read.
func torn(err error) bool { return errcode.Is(err, errcode.Corrupt) }

// tornReads is how often an object is read, twice each time, before it is
// called torn: bytes may be damaged on their way, and then differ next time.
const tornReads = 3

// tear returns the state whose next entry skips one more object.
func (s *state) tear(err error) (*state, error) {
	n := *s
	if n.torn++; n.torn > maxTorn {
		return nil, errcode.Wrap(errcode.Corrupt, err, "%d objects behind entry %d of the chain of %s do not read, no more are skipped: the store keeps only parts of what it takes, see tidemark bucket doctor", n.torn, s.seq, s.pid)
	}
	return &n, nil
}

// stays returns nil when an object that did not decode reads the same, and does
// not decode, every time: so it is what the store keeps. Bytes that are damaged on
// their way differ from one time to the next, and nothing may be skipped for them:
// a chain that a new owner cannot read for a while is not an empty one.
func stays(ctx context.Context, store objstore.Store, pid broker.PartitionID, seq uint64) error {
	key := EntryKey(pid, seq)
	var first []byte
	for n := range tornReads {
		b, err := get(ctx, store, key)
		if errcode.Is(err, errcode.NotFound) {
			return errcode.New(errcode.Transient, "%s is there and is not, from one moment to the next", key)
		}
		if err != nil {
			return err
		}
		if _, _, err = decodeEntry(b, "manifest entry "+key); !torn(err) || n > 0 && !bytes.Equal(b, first) {
			return errcode.New(errcode.Transient, "%s reads differently each time: it is damaged on its way here", key)
		}
		first = b
	}
	return nil
}

// skipped says what e, which skips objects, means for s. place: e is the next
// entry. void: it is of a former owner who could not read what s has.
func (s *state) skipped(e *Entry) (place, void bool) {
	if e.Seq == s.seq+1+e.Skips {
		return true, false
	}
	return false, e.Skips > 0 && e.Seq == s.seq+1 && e.Owner.compare(s.writer) < 0
}

// getNext reads the entry that follows s, over objects that do not read, and
// returns how many of those end the chain when there is none.
func (c *Chain) getNext(ctx context.Context, s *state) (e loaded, end uint64, err error) {
	for end = 0; ; end++ {
		e, err = getEntry(ctx, c.store, c.pid, s.seq+1+end)
		if !torn(err) || !c.opts.tornEnd || end == maxTorn {
			return e, end, err
		}
		if err := stays(ctx, c.store, c.pid, s.seq+1+end); err != nil {
			return loaded{}, end, err
		}
	}
}

// tornEnd returns the last entry at or below end that reads, and how many
// objects behind it do not.
func (l *loader) tornEnd(ctx context.Context, end, hint uint64, accept bool) (last, n uint64, err error) {
	for last = end; last > 0; last, n = last-1, n+1 {
		if _, err := l.exists(ctx, last); err != nil {
			return 0, 0, err
		}
		why := l.torn[last]
		switch {
		case why == nil:
			return last, n, nil
		case last <= hint:
			return 0, 0, errcode.Wrap(errcode.Corrupt, why, "entry %d was read whole before", last)
		case !accept:
			return 0, 0, errcode.Wrap(errcode.Corrupt, why, "the newest entry, %d, does not read: a put that the store tore, which the owner passes, or damage", last)
		case n == maxTorn:
			return 0, 0, errcode.Wrap(errcode.Corrupt, why, "more than %d objects at the end of the chain do not read", maxTorn)
		}
		if err := stays(ctx, l.store, l.pid, last); err != nil {
			return 0, 0, err
		}
	}
	return 0, n, nil
}

// skips marks what the entries in [from, end] skip. An object that reads here
// and outranks the one who skipped it stands.
func (l *loader) skips(from, end uint64) map[uint64]bool {
	out := map[uint64]bool{}
	for seq := from; seq <= end; seq++ {
		e, ok := l.have[seq]
		for k := uint64(1); ok && k <= e.entry.Skips && k < seq; k++ {
			if w, reads := l.have[seq-k]; !reads || w.entry.Owner.compare(e.entry.Owner) <= 0 {
				out[seq-k] = true
			}
		}
	}
	return out
}
