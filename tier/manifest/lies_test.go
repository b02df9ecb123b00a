package manifest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// listedKeys returns what a chain names from its beginning, read through it.
func listedKeys(c *Chain) (keys []string, err error) {
	segs, err := c.Segments(context.Background(), 0, c.End())
	for i := range segs {
		keys = append(keys, segs[i].Key())
	}
	return keys, err
}

// Puts of pages and of the checkpoints that name them go wrong in each way, once,
// a few times and for as long as it takes. Whatever an append answers, whoever
// reads the bucket right then finds every segment that was answered, each page
// included: no entry rests on a page that its writer has not read back. When the
// store is well again the same append succeeds, and nothing is named twice (I7).
func TestPutsOfPagesLie(t *testing.T) {
	const total = 60
	for _, do := range []fault.Action{fault.Fail, fault.LoseAnswer, fault.Pretend, fault.Cut, fault.Tear, fault.Flip} {
		for _, key := range []string{"t/*/p/*", "t/*"} {
			for _, times := range []int{1, 3, 9, 0} {
				t.Run(fmt.Sprint(do, " of ", strings.ReplaceAll(key, "/", "."), " ", times), func(t *testing.T) {
					store := mem.New("lies", nil)
					bad := fault.New(store, fault.Options{Seed: uint64(times)})
					c := mustLoad(t, bad, 0, WithPageSegments(16))
					mustFence(t, c, 1, FenceParams{})
					for i := range int64(10) {
						mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
					}
					want, err := listedKeys(c)
					if err != nil {
						t.Fatal(err)
					}
					rule := bad.Add(fault.Rule{Ops: []string{fault.Put}, Key: key, Do: do, Times: times})
					failed := 0
					for i := int64(10); i < total; i++ {
						s := testSegment(10*i, 10*i+10, 1, uint32(i))
						for try := 0; ; try++ {
							err := c.Add(context.Background(), testOwner(1), s)
							known := mustLoad(t, store, c.Seq(), WithTornEnd())
							got, rerr := listedKeys(known)
							if rerr != nil {
								t.Fatalf("segment %d, append %v: who reads the bucket then: %v", i, err, rerr)
							}
							if !slices.Equal(got[:min(len(got), len(want))], want) || len(got) > len(want)+1 || len(got) > len(want) && got[len(want)] != s.Key() || err == nil && len(got) != len(want)+1 {
								t.Fatalf("segment %d, append %v: %d segments, %d were answered", i, err, len(got), len(want))
							}
							if err == nil {
								want = append(want, s.Key())
								break
							}
							failed++
							if try == 1 {
								rule.Remove() // the store is well again
							} else if try == 5 {
								t.Fatalf("segment %d on a store that is well: %v", i, err)
							}
						}
					}
					if rule.Hits() == 0 || times == 0 && failed == 0 && do != fault.LoseAnswer {
						t.Fatalf("%d lies, %d appends failed", rule.Hits(), failed)
					}
					if got, err := listedKeys(mustLoad(t, store, 0)); err != nil || len(got) != total || len(c.Pages()) == 0 {
						t.Fatalf("%d segments, %d pages: %v", len(got), len(c.Pages()), err)
					}
				})
			}
		}
	}
}

// paged returns a chain with pages and checkpoints, and what it names at each seq.
func paged(t *testing.T) (*mem.Store, [][]string) {
	t.Helper()
	store := mem.New("paged", nil)
	c := mustLoad(t, store, 0, WithPageSegments(4))
	mustFence(t, c, 1, FenceParams{})
	at := [][]string{nil, nil}
	for i := range int64(30) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
		keys, err := listedKeys(c)
		if err != nil || uint64(len(at)) != c.Seq() {
			t.Fatal(len(at), c.Seq(), err)
		}
		at = append(at, keys)
	}
	if len(c.Pages()) < 2 {
		t.Fatalf("%d pages", len(c.Pages()))
	}
	return store, at
}

// truthOrError holds that a load and a reading through it gave an error, or what
// the chain named at the seq that it says it has read, which is not below what was
// known.
func truthOrError(t *testing.T, what string, hint uint64, c *Chain, err error, at [][]string) (ok bool) {
	t.Helper()
	var got []string
	if err == nil {
		if c.Seq() < hint {
			t.Fatalf("%s: entry %d was known, the chain ends at %d", what, hint, c.Seq())
		}
		got, err = listedKeys(c)
	}
	switch {
	case err == nil && !slices.Equal(got, at[c.Seq()]):
		t.Fatalf("%s: at entry %d it names %d segments, want %d", what, c.Seq(), len(got), len(at[c.Seq()]))
	case err != nil && !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.Transient):
		t.Fatalf("%s: %v (%s)", what, err, errcode.Of(err))
	}
	return err == nil
}

// Each read of entries, checkpoints and pages goes wrong in each way, one after
// the other and for good, whatever was known before: a reader gets an error, or
// the chain as it is or was, never another one (B202, B209, B214). An owner that
// was shown an old chain or a torn one appends behind what is really there, or
// not at all (I7, I8).
func TestReadsOfAChainLie(t *testing.T) {
	store, at := paged(t)
	last := uint64(len(at) - 1)
	ways := []fault.Action{fault.Fail, fault.LoseAnswer, fault.Pretend, fault.Cut, fault.Tear, fault.Flip}
	served, refused := 0, 0
	for _, do := range ways {
		for _, key := range []string{"t/*/m/*", "t/*/p/*"} {
			for _, hint := range []uint64{0, 7, last} {
				for _, times := range []int{1, 2, 0} {
					for skip := 0; ; skip++ {
						what := fmt.Sprintf("action %d on %s for %d reads after %d, hint %d", do, key, times, skip, hint)
						below := store.Clone()
						bad := fault.New(below, fault.Options{Seed: uint64(skip)})
						rule := bad.Add(fault.Rule{Ops: []string{fault.Get}, Key: key, Do: do, Skip: skip, Times: times})
						c, err := Load(context.Background(), bad, testPID, hint, quick, WithPageSegments(4), WithTornEnd())
						if truthOrError(t, what, hint, c, err, at) {
							served++
						} else {
							refused++
						}
						if rule.Hits() == 0 {
							break
						}
						if err == nil && skip%3 == 0 {
							bad.Clear()
							owns(t, what, c, below, at[last])
						}
					}
				}
			}
		}
	}
	if served < 50 || refused < 50 {
		t.Fatalf("%d answers, %d errors", served, refused)
	}
}

// owns fences a chain that was read under lies, publishes one segment, and holds
// that the bucket then names what it named before and that segment.
func owns(t *testing.T, what string, c *Chain, store objstore.Store, before []string) {
	t.Helper()
	ctx := context.Background()
	_, err := c.Fence(ctx, testOwner(2), FenceParams{})
	s := testSegment(c.End(), c.End()+10, 2, 99)
	if err == nil {
		err = c.Add(ctx, testOwner(2), s)
	}
	known := mustLoad(t, store, 0)
	got, rerr := listedKeys(known)
	if rerr != nil {
		t.Fatalf("%s: after %v the chain reads %v", what, err, rerr)
	}
	want := before
	if err == nil {
		want = append(slices.Clone(before), s.Key())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%s: after an append that ended with %v, %d segments are named, want %d", what, err, len(got), len(want))
	}
}

// switched serves one object's bytes under another one's key.
type switched struct {
	objstore.Store
	key, with string
}

func (s *switched) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	if key == s.key {
		key = s.with
	}
	return s.Store.Get(ctx, key)
}

// Whole bytes that verify, under a key that is not theirs: another entry or page
// of the chain, or the same of another partition, is never taken for what was
// asked for.
func TestOtherBytesUnderAKey(t *testing.T) {
	store, at := paged(t)
	last := uint64(len(at) - 1)
	other := broker.PartitionID{Topic: testPID.Topic, Partition: testPID.Partition + 1}
	page, err := store.List(context.Background(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, o := range page.Objects {
		keys = append(keys, o.Key)
		// The same object, as a copy of the partition's folder would have it.
		overwrite(t, store, strings.Replace(o.Key, PartitionPrefix(testPID), PartitionPrefix(other), 1), read(t, store, o.Key))
	}
	errors := 0
	for i, key := range keys {
		for _, with := range []string{keys[(i+1)%len(keys)], keys[(i+len(keys)-1)%len(keys)], keys[0], keys[len(keys)-1]} {
			if with == key {
				continue
			}
			for _, hint := range []uint64{0, last} {
				c, err := Load(context.Background(), &switched{store, key, with}, testPID, hint, quick)
				if !truthOrError(t, fmt.Sprintf("%s under %s, hint %d", with, key, hint), hint, c, err, at) {
					errors++
				}
			}
		}
	}
	if errors < len(keys)/4 {
		t.Fatalf("only %d loads noticed", errors)
	}
	if _, err := Load(context.Background(), store, other, 0, quick); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("the chain of another partition, copied: %v", err)
	}
}
