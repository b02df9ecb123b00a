package manifest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A store that keeps half of an entry and says that all is well costs that
// entry its place and nothing else: what was published is in the chain, the
// owner goes on, and who loads the chain afterwards reads it (I7, I8).
func TestTornEntryIsPassed(t *testing.T) {
	for _, times := range []int{1, 3, 8} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			store := mem.New("torn", nil)
			bad := fault.New(store, fault.Options{})
			c := mustLoad(t, bad, 0, WithPageSegments(4))
			mustFence(t, c, 1, FenceParams{})
			mustAdd(t, c, 1, testSegment(0, 10, 1, 1))
			rule := bad.Add(fault.Rule{Ops: []string{fault.Put}, Key: "t/*/m/*", Do: fault.Tear, Times: times})
			mustAdd(t, c, 1, testSegment(10, 20, 1, 2))
			if rule.Hits() == 0 {
				t.Fatal("nothing was torn")
			}
			mustAdd(t, c, 1, testSegment(20, 30, 1, 3))
			for _, hint := range []uint64{0, 2, c.Seq()} {
				again := mustLoad(t, store, hint)
				if again.End() != 30 || again.Len() != 3 || again.Seq() < 5 {
					t.Fatalf("hint %d: end %d, %d segments, seq %d", hint, again.End(), again.Len(), again.Seq())
				}
			}
			// The next owner too, and a chain long enough for checkpoints.
			next := mustLoad(t, store, 0, WithPageSegments(4))
			mustFence(t, next, 2, FenceParams{})
			for i := range int64(30) {
				mustAdd(t, next, 2, testSegment(30+10*i, 40+10*i, 2, uint32(i+4)))
			}
			if last := mustLoad(t, store, 0); last.End() != 330 || last.Len() != 33 {
				t.Fatalf("end %d, %d segments", last.End(), last.Len())
			}
			if _, err := c.Trim(context.Background(), testOwner(1), 10); !errcode.Is(err, errcode.Fenced) {
				t.Fatalf("the former owner: %v", err)
			}
		})
	}
}

// A store that tears everything ends the append with an error, and does not
// fill the chain with halves without end (I12, I14).
func TestStoreThatTearsEverything(t *testing.T) {
	store := mem.New("torn", nil)
	bad := fault.New(store, fault.Options{})
	c := mustLoad(t, bad, 0)
	mustFence(t, c, 1, FenceParams{})
	bad.Add(fault.Rule{Ops: []string{fault.Put}, Do: fault.Tear})
	for range 3 {
		err := c.Add(context.Background(), testOwner(1), testSegment(0, 10, 1, 1))
		if !errcode.Is(err, errcode.Transient) || !strings.Contains(err.Error(), "doctor") {
			t.Fatal(err)
		}
	}
	page, err := store.List(context.Background(), "", "", 0)
	if err != nil || len(page.Objects) != 1+3*tears {
		t.Fatalf("%d objects, %v", len(page.Objects), err)
	}
	// It comes to its senses.
	bad.Clear()
	mustAdd(t, c, 1, testSegment(0, 10, 1, 1))
	if again := mustLoad(t, store, 0); again.End() != 10 || again.Len() != 1 {
		t.Fatalf("end %d", again.End())
	}
}

// The owner dies right behind the torn put. A start that knows how far the
// chain was read passes the torn end; one that had read that very entry whole,
// and one that knows nothing, call it damage: others may rest on it (I10, B214).
func TestTornEndAfterARestart(t *testing.T) {
	ctx := context.Background()
	store := mem.New("torn", nil)
	c := mustLoad(t, store, 0)
	mustFence(t, c, 1, FenceParams{})
	mustAdd(t, c, 1, testSegment(0, 10, 1, 1))
	mustAdd(t, c, 1, testSegment(10, 20, 1, 2))
	key := EntryKey(testPID, 3)
	whole := read(t, store, key)
	overwrite(t, store, key, whole[:len(whole)/2])
	for _, l := range []struct {
		hint uint64
		opts []Option
	}{{0, nil}, {2, nil}, {3, []Option{WithTornEnd()}}} {
		if _, err := Load(ctx, store, testPID, l.hint, l.opts...); !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), key) {
			t.Fatalf("hint %d: %v", l.hint, err)
		}
	}
	reader := mustLoad(t, store, 2, WithTornEnd())
	if reader.End() != 10 || reader.Len() != 1 {
		t.Fatalf("end %d", reader.End())
	}
	if l, err := reader.Find(ctx, 5); err != nil || l.Kind != InSegment {
		t.Fatalf("%+v %v", l, err)
	}
	owner := mustLoad(t, store, 2, WithTornEnd())
	mustAdd(t, owner, 1, testSegment(10, 25, 1, 3))
	if moved, err := reader.Refresh(ctx); err != nil || !moved || reader.End() != 25 {
		t.Fatalf("moved %v, end %d, %v", moved, reader.End(), err)
	}
	if c := mustLoad(t, store, 0); c.End() != 25 || c.Len() != 2 {
		t.Fatalf("end %d, %d segments", c.End(), c.Len())
	}
	// An entry that rots later is no torn put: nothing skips it, and either a
	// checkpoint behind it makes it needless or the chain is damaged.
	damaged := 0
	for seq := uint64(1); seq <= owner.Seq(); seq++ {
		good := read(t, store, EntryKey(testPID, seq))
		overwrite(t, store, EntryKey(testPID, seq), []byte("rot"))
		c, err := Load(ctx, store, testPID, owner.Seq(), WithTornEnd())
		if errcode.Is(err, errcode.Corrupt) {
			damaged++
		} else if err != nil || c.End() != 25 || c.Len() != 2 {
			t.Fatalf("entry %d rots: %v", seq, err)
		}
		overwrite(t, store, EntryKey(testPID, seq), good)
	}
	if damaged == 0 {
		t.Fatal("no entry is needed")
	}
}

// A former owner that cannot read the newest entry skips it: who has read it
// keeps it, for its writer outranks the one who skipped (I8).
func TestSkipOfAFormerOwnerIsVoid(t *testing.T) {
	ctx := context.Background()
	store := mem.New("torn", nil)
	old := mustLoad(t, store, 0)
	mustFence(t, old, 1, FenceParams{})
	now := mustLoad(t, store, 0)
	mustFence(t, now, 2, FenceParams{}) // entry 2
	blind := &half{Store: store, key: EntryKey(testPID, 2)}
	zombie := mustLoad(t, blind, 1, WithTornEnd())
	if err := zombie.Add(ctx, testOwner(1), testSegment(0, 10, 1, 1)); err != nil {
		t.Fatal(err) // it believes so
	}
	mustAdd(t, now, 2, testSegment(0, 20, 2, 2))
	for _, c := range []*Chain{now, mustLoad(t, store, 0)} {
		if c.End() != 20 || c.Len() != 1 || c.Generation() != 2 || c == now && c.Void() == 0 {
			t.Fatalf("end %d, %d segments, generation %d, void %d", c.End(), c.Len(), c.Generation(), c.Void())
		}
	}
}

// half serves half of one object.
type half struct {
	objstore.Store
	key string
}

func (h *half) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	body, info, err := h.Store.Get(ctx, key)
	if err == nil && key == h.key {
		b, _ := io.ReadAll(body)
		info.Size = int64(len(b) / 2)
		return io.NopCloser(bytes.NewReader(b[:len(b)/2])), info, nil
	}
	return body, info, err
}

// A torn page does not stop the chain: another one, a segment shorter, is
// written in its place (I7).
func TestTornPageIsReplaced(t *testing.T) {
	store := mem.New("torn", nil)
	bad := fault.New(store, fault.Options{})
	c := mustLoad(t, bad, 0, WithPageSegments(8))
	mustFence(t, c, 1, FenceParams{})
	rule := bad.Add(fault.Rule{Ops: []string{fault.Put}, Key: "t/*/p/*", Do: fault.Tear, Times: 2})
	for i := range int64(60) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
	}
	if rule.Hits() != 2 || len(c.Pages()) == 0 {
		t.Fatalf("%d torn pages, %d pages", rule.Hits(), len(c.Pages()))
	}
	again := mustLoad(t, store, 0)
	segs, err := again.Segments(context.Background(), 0, 600)
	if err != nil || len(segs) != 60 {
		t.Fatalf("%d segments, %v", len(segs), err)
	}
}

// Two owners, one of them a former one, and a store that tears one put in four
// and forgets others: every segment whose Add was answered is in the chain that
// is read at the end, once, and every load in between reads a prefix of it.
func TestTornHistories(t *testing.T) {
	runs := 400
	if testing.Short() {
		runs = 60
	}
	for seed := range runs {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		store := mem.New("torn", nil)
		bad := fault.New(store, fault.Options{Seed: uint64(seed) + 1})
		bad.Add(fault.Rule{Ops: []string{fault.Put}, Key: "t/*", Do: fault.Tear, Chance: 0.25})
		bad.Add(fault.Rule{Ops: []string{fault.Put}, Key: "t/*/m/*", Do: fault.LoseAnswer, Chance: 0.1})
		var acked []string
		var old, now *Chain
		gen, nonce, known := uint32(0), uint32(0), uint64(0)
		for range 4 + rng.IntN(12) {
			if now == nil || rng.IntN(5) == 0 {
				old = now
				c, err := Load(context.Background(), bad, testPID, known, quick, WithPageSegments(3), WithTornEnd())
				if err != nil {
					t.Fatalf("seed %d: load: %v", seed, err)
				}
				next := gen + 1
				if _, err := c.Fence(context.Background(), testOwner(next), FenceParams{PreviousEndAtLeast: c.End()}); err != nil {
					if errcode.Is(err, errcode.Corrupt) && !strings.Contains(err.Error(), "doctor") {
						t.Fatalf("seed %d: fence: %v", seed, err)
					}
					gen = next // it may be there
					continue
				}
				now, gen = c, next
				known = c.Seq()
			}
			writer, g := now, gen
			if old != nil && rng.IntN(4) == 0 {
				writer, g = old, gen-1
			}
			nonce++
			s := testSegment(writer.End(), writer.End()+1+int64(rng.IntN(9)), g, nonce)
			err := writer.Add(context.Background(), testOwner(g), s)
			switch {
			case err == nil:
				acked = append(acked, s.Key())
				known = max(known, writer.Seq())
			case writer == now && errcode.Is(err, errcode.Fenced) && now.Generation() == gen:
				t.Fatalf("seed %d: the newest owner was fenced off: %v", seed, err)
			case errcode.Is(err, errcode.Corrupt) && !strings.Contains(err.Error(), "doctor"):
				t.Fatalf("seed %d: add: %v", seed, err)
			}
		}
		c, err := Load(context.Background(), store, testPID, known, quick, WithTornEnd())
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		segs, err := c.Segments(context.Background(), 0, c.End())
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var keys []string
		for i := range segs {
			keys = append(keys, segs[i].Key())
		}
		for _, key := range acked {
			if n := len(slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k != key })); n != 1 {
				t.Fatalf("seed %d: %s was answered and is %d times in the chain", seed, key, n)
			}
		}
	}
}

func read(t *testing.T, s objstore.Store, key string) []byte {
	t.Helper()
	b, _, err := objstore.ReadAll(context.Background(), s, key, maxStored)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func overwrite(t *testing.T, s objstore.Store, key string, b []byte) {
	t.Helper()
	if err := s.Delete(context.Background(), []string{key}); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(context.Background(), key, bytes.NewReader(b), int64(len(b)), objstore.PutOptions{CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
}
