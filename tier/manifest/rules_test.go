package manifest

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// put stores an entry by hand, as another process would.
func putEntry(t *testing.T, f *faulty, c *Chain, o Owner, ops ...Op) {
	t.Helper()
	s := c.state.Load()
	e := &Entry{Partition: testPID, Seq: s.seq + 1, Owner: o, Nonce: 999, Previous: s.link, Checkpoint: s.point, Ops: ops}
	obj, err := encode(e.wire())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.put(context.Background(), EntryKey(testPID, e.Seq), obj.stored); err != nil {
		t.Fatal(err)
	}
	f.take()
}

// Who wins a collision decides what the loser does.
func TestCollisionRules(t *testing.T) {
	ctx := context.Background()
	seg := testSegment(0, 10, 2, 1)
	other := testSegment(0, 10, 2, 2)
	fence := func(o Owner) Op {
		return Op{Fence: &Fence{ClusterGeneration: o.ClusterGeneration, Generation: o.Generation, Incarnation: o.Incarnation}}
	}
	second := testOwner(2)
	third := testOwner(3)
	stranger := second
	stranger.Incarnation = 0x999
	newer := Owner{ClusterGeneration: 2, Generation: 3, Incarnation: 0x42, Node: "n9"}
	for name, x := range map[string]struct {
		winner Owner
		ops    []Op
		code   errcode.Code // of the loser's Add; 0 = success
		end    int64
	}{
		"own incarnation, same segment":  {second, []Op{{Add: &seg}}, 0, 10},
		"own incarnation, other segment": {second, []Op{{Add: &other}}, errcode.Exists, 10},
		"own incarnation, other work":    {second, []Op{{Gap: &Gap{From: 100, Next: 110, Reason: "x"}}}, 0, 10},
		"lower generation":               {testOwner(1), []Op{{Add: &other}}, 0, 10},
		"higher generation":              {third, []Op{fence(third)}, errcode.Fenced, 0},
		"same generation, other node":    {stranger, []Op{{Add: &other}}, errcode.Fenced, 0},
		"later cluster":                  {newer, []Op{fence(newer)}, errcode.Fenced, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty()
			c := mustLoad(t, f, 0)
			mustFence(t, c, 2, FenceParams{})
			putEntry(t, f, c, x.winner, x.ops...)
			err := c.Add(ctx, second, seg)
			if x.code == 0 && err != nil || x.code != 0 && !errcode.Is(err, x.code) {
				t.Errorf("add: %v, want %v", err, x.code)
			}
			if c.End() != x.end {
				t.Errorf("end %d, want %d", c.End(), x.end)
			}
			if again := mustLoad(t, f, 0); again.End() != c.End() || again.Seq() != c.Seq() || again.Generation() != c.Generation() {
				t.Errorf("another loader sees end %d at %d, want %d at %d", again.End(), again.Seq(), c.End(), c.Seq())
			}
		})
	}
}

// An answer that was lost is found by reading, at once; a store's 409 and a
// put that comes late are tried again; nothing is ever published twice.
func TestAmbiguousPuts(t *testing.T) {
	for name, seq := range map[string][]outcome{
		"lost":           {lost},
		"conflict":       {conflict},
		"conflict twice": {conflict, good, conflict, good},
		"read fails":     {lost, failed, good},
		"read is stale":  {lost, stale, good},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty()
			c := mustLoad(t, f, 0)
			mustFence(t, c, 1, FenceParams{})
			left := seq
			f.decide = func(op, key string) outcome {
				if len(left) == 0 {
					return good
				}
				o := left[0]
				left = left[1:]
				return o
			}
			mustAdd(t, c, 1, testSegment(0, 10, 1, 1))
			if c.Seq() != 2 || mustLoad(t, f.Store, 0).Seq() != 2 {
				t.Errorf("entry %d, want 2", c.Seq())
			}
		})
	}
}

// A put that arrives after the caller gave up belongs to the chain when it wins,
// and changes nothing when it loses.
func TestLatePut(t *testing.T) {
	ctx := context.Background()
	for _, wins := range []bool{true, false} {
		f := newFaulty()
		c := mustLoad(t, f, 0)
		mustFence(t, c, 1, FenceParams{})
		f.decide = func(op, key string) outcome {
			if op == "PUT" {
				return late
			}
			return good
		}
		first := testSegment(0, 10, 1, 1)
		if err := c.Add(ctx, testOwner(1), first); !errcode.Is(err, errcode.Transient) {
			t.Fatalf("add without an answer: %v", err)
		}
		f.decide = nil
		if wins {
			f.deliver()
		}
		second := testSegment(0, 10, 1, 2)
		err := c.Add(ctx, testOwner(1), second)
		f.deliver()
		if wins != errcode.Is(err, errcode.Exists) || !wins && err != nil {
			t.Errorf("wins=%v: second add: %v", wins, err)
		}
		loc, err := mustLoad(t, f, 0).Find(ctx, 5)
		if err != nil || (loc.Segment == first) != wins || (loc.Segment == second) == wins {
			t.Errorf("wins=%v: offset 5 is in %s: %v", wins, loc.Segment.Key(), err)
		}
	}
}

// An answer that stays away is an error, and repeating the call is safe.
func TestOutageIsNotEmpty(t *testing.T) {
	ctx := context.Background()
	f := newFaulty()
	c := mustLoad(t, f, 0)
	mustFence(t, c, 1, FenceParams{})
	for i := range int64(10) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
	}
	f.decide = func(string, string) outcome { return failed }
	for _, hint := range []uint64{0, 5, 11} { // B214
		if got, err := Load(ctx, f, testPID, hint, quick); !errcode.Is(err, errcode.Transient) {
			t.Errorf("hint %d: %v %v", hint, got, err)
		}
	}
	if err := c.Add(ctx, testOwner(1), testSegment(100, 110, 1, 50)); !errcode.Is(err, errcode.Transient) {
		t.Errorf("add: %v", err)
	}
	if c.End() != 100 {
		t.Errorf("end %d moved without an answer", c.End())
	}
	f.decide = nil
	mustAdd(t, c, 1, testSegment(100, 110, 1, 50))
}

// A hint that names an entry which is gone, or a hole in the chain, is loss and
// never a shorter chain (B197, B214).
func TestMissingEntries(t *testing.T) {
	ctx := context.Background()
	f := newFaulty()
	c := mustLoad(t, f, 0)
	mustFence(t, c, 1, FenceParams{})
	for i := range int64(40) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
	}
	if _, err := Load(ctx, f, testPID, 99, quick); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("hint above the end: %v", err)
	}
	s := c.state.Load()
	if s.age < 2 {
		t.Fatalf("the test wants entries after the checkpoint, there are %d", s.age)
	}
	if err := f.Store.Delete(ctx, []string{EntryKey(testPID, s.seq-1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(ctx, f, testPID, s.seq, quick); !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), EntryKey(testPID, s.seq-1)) {
		t.Errorf("hole in the chain: %v", err)
	}
}

// The numbers of fences, and which records count by them.
func TestFences(t *testing.T) {
	ctx := context.Background()
	f := newFaulty()
	c := mustLoad(t, f, 0)
	a := mustFence(t, c, 1, FenceParams{})
	mustAdd(t, c, 1, testSegment(0, 100, 1, 1))
	b := mustFence(t, c, 3, FenceParams{PreviousEndAtLeast: 150})
	if a.Start != 0 || b.PreviousEnd != 150 || b.Start != 150 || c.End() != 100 {
		t.Fatalf("clean: %+v %+v, end %d", a, b, c.End())
	}
	u := mustFence(t, c, 4, FenceParams{Start: Unclean, PreviousEndAtLeast: 120})
	if u.PreviousEnd != 150 || u.Start != 150+UncleanSkip {
		t.Fatalf("unclean below an earlier start: %+v", u)
	}
	v := mustFence(t, c, 5, FenceParams{Start: Unclean})
	if v.PreviousEnd != u.Start || v.Start != u.Start+UncleanSkip {
		t.Fatalf("unclean twice: %+v", v)
	}
	for _, x := range []struct {
		gen    uint32
		offset int64
		want   bool
	}{
		{1, 0, true}, {1, 149, true}, {1, 150, false}, {2, 100, false}, {3, 149, false}, {3, 150, false},
		{4, 150, false}, {4, u.Start, false}, {5, v.Start - 1, false}, {5, v.Start, true}, {5, v.Start + 1e6, true}, {6, v.Start, false},
	} {
		if got := c.CountsAt(x.gen, x.offset); got != x.want {
			t.Errorf("generation %d at %d counts: %v, want %v", x.gen, x.offset, got, x.want)
		}
	}
	if again, err := c.Fence(ctx, testOwner(5), FenceParams{Start: Unclean}); err != nil || again != v {
		t.Errorf("same fence again: %+v %v", again, err)
	}
	if _, err := c.Fence(ctx, testOwner(5), FenceParams{PreviousEndAtLeast: v.PreviousEnd + 1}); !errcode.Is(err, errcode.Conflict) {
		t.Errorf("same fence with a later end: %v", err)
	}
	if _, err := c.Fence(ctx, testOwner(4), FenceParams{}); !errcode.Is(err, errcode.Fenced) {
		t.Errorf("fence of an older generation: %v", err)
	}
	late := Owner{ClusterGeneration: 2, Generation: 5, Incarnation: 9, Node: "n1"}
	if _, err := c.Fence(ctx, late, FenceParams{}); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("later cluster with a used generation: %v", err)
	}
	late.Generation = 6
	if _, err := c.Fence(ctx, late, FenceParams{}); err != nil {
		t.Errorf("later cluster: %v", err)
	}
	early := Owner{ClusterGeneration: 1, Generation: 9, Incarnation: 8, Node: "n1"}
	if _, err := c.Fence(ctx, early, FenceParams{}); !errcode.Is(err, errcode.Fenced) {
		t.Errorf("earlier cluster with a higher generation: %v", err)
	}
}

// What stands where, around gaps, pages, the start and the end.
func TestFind(t *testing.T) {
	ctx := context.Background()
	f := newFaulty()
	c := mustLoad(t, f, 0, WithPageSegments(4))
	mustFence(t, c, 1, FenceParams{})
	for i := range int64(12) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
	}
	if err := c.Gap(ctx, testOwner(1), Gap{From: 120, Next: 200, Reason: "retention"}); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, c, 1, testSegment(200, 210, 1, 90))
	if err := c.Gap(ctx, testOwner(1), Gap{From: 230, Next: 240, Reason: "ahead"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Trim(ctx, testOwner(1), 15); err != nil {
		t.Fatal(err)
	}
	if len(c.Pages()) == 0 {
		t.Fatal("the test wants pages")
	}
	for _, x := range []struct {
		offset int64
		kind   Kind
		base   int64
		next   int64
	}{
		{0, Below, 0, 15}, {14, Below, 0, 15}, {15, InSegment, 10, 20}, {20, InSegment, 20, 30}, {39, InSegment, 30, 40}, {40, InSegment, 40, 50},
		{119, InSegment, 110, 120}, {120, InGap, 0, 200}, {199, InGap, 0, 200}, {200, InSegment, 200, 210}, {210, Beyond, 0, 210}, {235, Beyond, 0, 210},
	} {
		got, err := c.Find(ctx, x.offset)
		if err != nil || got.Kind != x.kind || got.Next != x.next || got.Segment.Base != x.base {
			t.Errorf("offset %d: %s %d next %d (%v), want %s %d next %d", x.offset, got.Kind, got.Segment.Base, got.Next, err, x.kind, x.base, x.next)
		}
	}
	for ms, base := range map[int64]int64{0: 10, 20_000: 10, 20_001: 20, 50_500: 50, 200_000: 200, 210_000: 200} {
		got, err := c.FindTime(ctx, 0, ms)
		if err != nil || got.Kind != InSegment || got.Segment.Base != base {
			t.Errorf("time %d: %s %d (%v), want segment %d", ms, got.Kind, got.Segment.Base, err, base)
		}
	}
	if got, err := c.FindTime(ctx, 0, 210_001); err != nil || got.Kind != Beyond {
		t.Errorf("time beyond: %+v %v", got, err)
	}
	if segs, err := c.Segments(ctx, 35, 51); err != nil || len(segs) != 3 || segs[0].Base != 30 || segs[2].Base != 50 {
		t.Errorf("segments 35 to 51: %v %v", segs, err)
	}
	if err := c.Add(ctx, testOwner(1), testSegment(210, 235, 1, 5)); !errcode.Is(err, errcode.Conflict) {
		t.Errorf("add into a gap: %v", err)
	}
	mustAdd(t, c, 1, testSegment(210, 230, 1, 6))
	if c.End() != 240 {
		t.Errorf("end %d, want 240 behind the gap", c.End())
	}
}

// Adds out of place are refused without a store call (B196).
func TestAddRefuses(t *testing.T) {
	ctx := context.Background()
	f := newFaulty()
	c := mustLoad(t, f, 0)
	mustFence(t, c, 1, FenceParams{})
	mustAdd(t, c, 1, testSegment(0, 10, 1, 1))
	f.take()
	bad := testSegment(10, 20, 1, 2)
	bad.FooterPosition++
	foreign := testSegment(10, 20, 1, 2)
	foreign.Partition.Partition++
	for name, x := range map[string]struct {
		seg  Segment
		code errcode.Code
	}{
		"overlap [5,14) after [0,10)": {testSegment(5, 14, 1, 2), errcode.Exists}, // B212
		"hole":                        {testSegment(11, 20, 1, 2), errcode.Conflict},
		"same range, other object":    {testSegment(0, 10, 1, 2), errcode.Exists},
		"other generation's upload":   {testSegment(10, 20, 2, 2), errcode.InvalidArgument},
		"footer does not fit":         {bad, errcode.InvalidArgument},
		"other partition":             {foreign, errcode.InvalidArgument},
	} {
		if err := c.Add(ctx, testOwner(1), x.seg); !errcode.Is(err, x.code) {
			t.Errorf("%s: %v, want %s", name, err, x.code)
		}
	}
	if err := c.Add(ctx, testOwner(1), testSegment(0, 10, 1, 1)); err != nil {
		t.Errorf("the same segment again: %v", err)
	}
	if calls := f.take(); len(calls) > 0 {
		t.Errorf("store calls %q", calls)
	}
}

// Readers of a chain and its writer work at the same time.
func TestConcurrentReaders(t *testing.T) {
	ctx := context.Background()
	c := mustLoad(t, newFaulty(), 0, WithPageSegments(8))
	mustFence(t, c, 1, FenceParams{})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				end := c.End()
				for o := int64(0); o < end; o += 7 {
					if l, err := c.Find(ctx, o); err != nil || l.Kind != InSegment {
						t.Errorf("offset %d below %d: %s %v", o, end, l.Kind, err)
						return
					}
				}
			}
		})
	}
	for i := range int64(100) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
	}
	close(done)
	wg.Wait()
}

// The segments that a trim drops are named although the answer to its entry
// was lost: their objects would stay for the sweep otherwise.
func TestTrimLostAnswer(t *testing.T) {
	ctx := context.Background()
	f := newFaulty()
	c := mustLoad(t, f, 0)
	mustFence(t, c, 1, FenceParams{})
	for i := range int64(4) {
		mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
	}
	left := 1
	f.decide = func(op, key string) outcome {
		if op == "PUT" && left > 0 {
			left--
			return lost
		}
		return good
	}
	if out, err := c.Trim(ctx, testOwner(1), 25); err != nil || len(out) != 2 {
		t.Errorf("dropped %d segments, want 2: %v", len(out), err)
	}
}

// A replace whose entry would carry a checkpoint that puts the run into a page is a
// conflict, at whatever moment it comes: the merge was made from an old view, and
// the next one is of what stays outside the pages.
func TestReplaceBesideACheckpoint(t *testing.T) {
	ctx := context.Background()
	conflicts := 0
	for adds := int64(3); adds < 40; adds++ {
		c := mustLoad(t, newFaulty(), 0, WithPageSegments(4))
		mustFence(t, c, 1, FenceParams{})
		for i := range adds {
			mustAdd(t, c, 1, testSegment(10*i, 10*i+10, 1, uint32(i)))
		}
		run := c.Unpaged()
		for from := 0; from+2 <= len(run); from++ {
			in := run[from : from+2]
			out := testSegment(in[0].Base, in[1].Next, 1, 1000)
			out.Records = in[0].Records + in[1].Records
			err := c.Replace(ctx, testOwner(1), in, out)
			if err == nil {
				break
			}
			if !errcode.Is(err, errcode.Conflict) {
				t.Fatalf("%d segments, run from %d of %d: %v", adds, from, len(run), err)
			}
			conflicts++
		}
	}
	if conflicts == 0 {
		t.Error("no checkpoint was due with a page full")
	}
}
