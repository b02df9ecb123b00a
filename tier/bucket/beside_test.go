package bucket

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// beside does something behind each object that a list shows, and behind each
// list: what a node does while somebody looks.
type beside struct {
	objstore.Store
	shown func(key string)
	ended func(prefix string)
}

func (b *beside) List(ctx context.Context, prefix, after string, _ int) (objstore.Page, error) {
	page, err := b.Store.List(ctx, prefix, after, 1)
	if b.shown != nil {
		for _, o := range page.Objects {
			b.shown(o.Key)
		}
	}
	if b.ended != nil && !page.More {
		b.ended(prefix)
	}
	return page, err
}

func remove(t testing.TB, st objstore.Store, keys ...string) {
	t.Helper()
	if err := st.Delete(ctx, keys); err != nil {
		t.Fatal(err)
	}
}

func shippedKey(i uint64) string { return manifest.WALKey("n1", 5, 100+10*i, 110+10*i) }

// A node that ships, puts states and deletes what they cover, in whatever order
// the store does that, between any two objects that a list shows: nothing of it
// is a hole (B132). What a restore needs and is not there is one all the same.
func TestVerifyBesideDeletes(t *testing.T) {
	pages := map[string]func(t *testing.T, st *mem.Store, b *beside){
		// Each time an object was listed, the next but one goes, which a later state
		// covers.
		"deletes beside the list": func(t *testing.T, st *mem.Store, b *beside) {
			b.shown = func(key string) {
				if key == shippedKey(0) {
					put(t, st, manifest.StateKey("n1", 5, 145), toyState(140, 145))
					remove(t, st, manifest.StateKey("n1", 5, 140))
					remove(t, st, shippedKey(0), shippedKey(1), shippedKey(3))
				}
			}
		},
		// A batch of deletes that ended in the middle, long ago.
		"left over": func(t *testing.T, st *mem.Store, _ *beside) {
			put(t, st, manifest.StateKey("n1", 5, 145), toyState(133, 145))
			remove(t, st, manifest.StateKey("n1", 5, 140), shippedKey(0), shippedKey(2))
		},
		// A state is put, and the log that it needs, when the lists have begun.
		"a state beside the list": func(t *testing.T, st *mem.Store, b *beside) {
			done := false
			b.ended = func(prefix string) {
				if prefix == manifest.PrefixWAL && !done {
					done = true
					put(t, st, shippedKey(5), toyObject(150, 160, 'a'))
					put(t, st, manifest.StateKey("n1", 5, 155), toyState(150, 155))
				}
			}
		},
		// The state that was listed goes, and then what it alone needed.
		"a state goes": func(t *testing.T, st *mem.Store, b *beside) {
			done := false
			b.ended = func(prefix string) {
				if prefix == manifest.PrefixState && !done {
					done = true
					put(t, st, manifest.StateKey("n1", 5, 145), toyState(140, 145))
					remove(t, st, manifest.StateKey("n1", 5, 140), shippedKey(0), shippedKey(2))
				}
			}
		},
		// A list may pass over what was put while it ran, and show what came later.
		"a list shows the later one": func(t *testing.T, st *mem.Store, b *beside) {
			n := 0
			b.ended = func(prefix string) {
				if prefix == manifest.PrefixState {
					n++
					if n == 1 {
						put(t, st, shippedKey(6), toyObject(160, 170, 'a'))
					} else if n == 2 {
						put(t, st, shippedKey(5), toyObject(150, 160, 'a'))
					}
				}
			}
		},
		// An incarnation that the metadata calls retired goes in any order.
		"retired": func(t *testing.T, st *mem.Store, _ *beside) {
			remove(t, st, manifest.StateKey("n1", 5, 140), shippedKey(1), shippedKey(3))
			put(t, st, manifest.MetaKey(1, 12), []byte("export!"))
		},
	}
	for name, act := range pages {
		for _, deep := range []bool{false, true} {
			st := deepArchive(t)
			b := &beside{Store: st}
			act(t, st, b)
			d := toy
			d.Retired = func(k manifest.Key, _ []byte) (func(string, uint64) bool, error) {
				return func(node string, inc uint64) bool { return k.Index >= 12 && node == "n1" && inc == 5 }, nil
			}
			if got, _ := verify(t, b, Options{Deep: deep, Decoders: d}); len(got) != 0 {
				t.Errorf("%s, deep %v: %v", name, deep, got)
			}
		}
	}
	// The same with a hole that is one: between two objects, at the end, and all.
	for name, x := range map[string]struct {
		lose       []uint64
		from, next int64
		deep       bool
	}{
		"in the middle":      {[]uint64{3}, 135, 140, false},
		"across the state":   {[]uint64{2, 3}, 133, 140, false},
		"behind the state":   {[]uint64{4}, 150, 160, false},
		"before its end":     {[]uint64{3, 4, 5}, 133, 146, true},
		"all that it needs":  {[]uint64{0, 1, 2, 3, 4, 5}, 133, 146, true},
		"before what is put": {[]uint64{0, 1, 2, 3, 4}, 133, 146, true},
	} {
		for _, deep := range []bool{false, true} {
			st := deepArchive(t)
			put(t, st, shippedKey(5), toyObject(150, 160, 'a'))
			put(t, st, manifest.StateKey("n1", 5, 145), toyState(133, 145))
			remove(t, st, manifest.StateKey("n1", 5, 140))
			if name == "in the middle" {
				put(t, st, manifest.WALKey("n1", 5, 125, 135), toyObject(125, 135, 'a'))
			}
			if name == "behind the state" {
				put(t, st, shippedKey(6), toyObject(160, 170, 'a'))
				remove(t, st, shippedKey(5))
			} else {
				for _, i := range x.lose {
					remove(t, st, shippedKey(i))
				}
			}
			got, _ := verify(t, st, Options{Deep: deep, Decoders: toy})
			found := slices.ContainsFunc(got, func(f Finding) bool { return f.What == WALHole && f.From == x.from && f.Next == x.next })
			if found != (deep || !x.deep) || len(got) > 1 {
				t.Errorf("%s, deep %v: %v, want [%d, %d)", name, deep, got, x.from, x.next)
			}
		}
	}
	// A state that nobody can read leaves it open.
	st := deepArchive(t)
	remove(t, st, shippedKey(1))
	if got, _ := verify(t, noStates{st}, Options{Decoders: toy}); len(got) != 1 || got[0].What != Unreadable {
		t.Errorf("%v", got)
	}
}

// noStates is a store that does not answer for states.
type noStates struct{ objstore.Store }

func (s noStates) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	if strings.HasPrefix(key, manifest.PrefixState) {
		return nil, objstore.Info{}, errcode.New(errcode.Transient, "no answer")
	}
	return s.Store.Get(ctx, key)
}

// TestVerifyBesideMerges: an object that goes while it is looked for was trimmed or
// merged when the chain says so by now, and then what stands in its place is looked
// at; an object that the chain still names is missing.
func TestVerifyBesideMerges(t *testing.T) {
	pid := broker.PartitionID{Topic: 2, Partition: 1}
	merge := func(t *testing.T, st *mem.Store, segs []manifest.Segment, spoil bool) {
		c, err := manifest.Load(ctx, st, pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		out, data := segmentOf(t, pid, segs[0].Base, segs[len(segs)-1].Next-segs[0].Base)
		out.Nonce = 99
		if spoil {
			data[70] ^= 1
		}
		put(t, st, out.Key(), data)
		if err := c.Replace(ctx, owner(1), segs, out); err != nil {
			t.Fatal(err)
		}
		for i := range segs {
			remove(t, st, segs[i].Key())
		}
	}
	for _, deep := range []bool{false, true} {
		for _, spoil := range []bool{false, true} {
			st, all := archive(t)
			var done atomic.Bool
			b := &beside{Store: st, shown: func(key string) {
				// The entries were listed, the objects were not.
				if strings.HasPrefix(key, manifest.PartitionPrefix(pid)+"s/") && done.CompareAndSwap(false, true) {
					merge(t, st, all[pid][1:3], spoil)
				}
			}}
			got, sum := verify(t, b, Options{Deep: deep})
			switch {
			case spoil && deep:
				if len(got) != 1 || got[0].What != ObjectCorrupt || got[0].From != 10 || got[0].Next != 30 {
					t.Errorf("a merge with other bytes: %v", got)
				}
			case len(got) != 0 || sum.Problems != 0:
				t.Errorf("deep %v: %v", deep, got)
			}
		}
	}
	// Between the list and the read; the trim of another one too.
	st, all := archive(t)
	var done atomic.Bool
	b := &reading{Store: st, before: func(key string) {
		if key == all[pid][1].Key() && done.CompareAndSwap(false, true) {
			merge(t, st, all[pid][1:3], false)
			c, err := manifest.Load(ctx, st, pid, 0)
			if err == nil {
				_, err = c.Trim(ctx, owner(1), 10)
			}
			if err != nil {
				t.Error(err)
			}
			remove(t, st, all[pid][0].Key())
		}
	}}
	if got, _ := verify(t, b, Options{Deep: true, Parallel: 1}); len(got) != 0 {
		t.Errorf("between list and read: %v", got)
	}
	// All of them.
	st, all = archive(t)
	done.Store(false)
	b = &reading{Store: st, before: func(key string) {
		if key == all[pid][1].Key() && done.CompareAndSwap(false, true) {
			c, err := manifest.Load(ctx, st, pid, 0)
			if err == nil {
				_, err = c.Trim(ctx, owner(1), 40)
			}
			if err != nil {
				t.Error(err)
			}
			for _, s := range all[pid] {
				remove(t, st, s.Key())
			}
		}
	}}
	if got, _ := verify(t, b, Options{Deep: true}); len(got) != 0 {
		t.Errorf("all trimmed: %v", got)
	}
	// One that is missing, of a chain that cannot be read on.
	st, all = archive(t)
	remove(t, st, all[pid][1].Key())
	put(t, st, manifest.EntryKey(pid, 6), []byte("x"))
	broken := &beside{Store: st, shown: func(string) {}}
	if got, _ := verify(t, &unlisted{broken, manifest.EntryKey(pid, 6)}, Options{}); len(got) != 2 || got[0].What != ChainBroken || got[1].What != ObjectMissing {
		t.Errorf("a broken chain: %v", got)
	}
	// One that goes and is named still.
	st, all = archive(t)
	done.Store(false)
	b = &reading{Store: st, before: func(key string) {
		if key == all[pid][1].Key() && done.CompareAndSwap(false, true) {
			remove(t, st, key)
		}
	}}
	if got, _ := verify(t, b, Options{Deep: true}); len(got) != 1 || got[0].What != ObjectMissing || got[0].Key != all[pid][1].Key() {
		t.Errorf("a lost object: %v", got)
	}
}

// unlisted passes over a key, as a list does that ran before it was put.
type unlisted struct {
	objstore.Store
	key string
}

func (u *unlisted) List(ctx context.Context, prefix, after string, n int) (objstore.Page, error) {
	page, err := u.Store.List(ctx, prefix, after, n)
	if len(page.Objects) > 0 && page.Objects[0].Key == u.key {
		return u.Store.List(ctx, prefix, u.key, n)
	}
	return page, err
}

// reading does something before a range of an object is read.
type reading struct {
	objstore.Store
	before func(key string)
}

func (r *reading) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	r.before(key)
	return r.Store.GetRange(ctx, key, p, off)
}
