package fault_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
	"github.com/tidemark-mq/tidemark/tier/objstore/storetest"
)

// Proves that a fault store without rules keeps the contract.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objstore.Store {
		return fault.New(mem.New(t.Name(), nil), fault.Options{})
	})
}

func put(s objstore.Store, key, data string) error {
	return s.Put(context.Background(), key, strings.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: true})
}

func get(s objstore.Store, key string) (string, error) {
	data, _, err := objstore.ReadAll(context.Background(), s, key, 1<<20)
	return string(data), err
}

func keys(t *testing.T, s objstore.Store, limit int) (all []string) {
	t.Helper()
	for after, more := "", true; more; {
		page, err := s.List(t.Context(), "", after, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Objects {
			all = append(all, o.Key)
			after = o.Key
		}
		more = page.More
	}
	return all
}

// Proves what each action does to the caller and to the store below, for puts.
func TestPutActions(t *testing.T) {
	for _, c := range []struct {
		do    fault.Action
		code  errcode.Code
		ok    bool
		below string // what is really there
	}{
		{fault.Pass, 0, true, "0123456789"},
		{fault.Fail, errcode.Transient, false, ""},
		{fault.LoseAnswer, errcode.Transient, false, "0123456789"},
		{fault.Pretend, 0, true, ""},
		{fault.Cut, errcode.Transient, false, ""},
		{fault.Tear, 0, true, "01234"},
		{fault.Flip, 0, true, "flipped"},
	} {
		s := fault.New(mem.New("", nil), fault.Options{})
		h := s.Add(fault.Rule{Ops: []string{fault.Put}, Do: c.do})
		err := put(s, "k", "0123456789")
		if (err == nil) != c.ok || err != nil && !errcode.Is(err, c.code) {
			t.Errorf("action %d: %v", c.do, err)
		}
		got, err := get(s.Unwrap(), "k")
		switch {
		case c.below == "flipped":
			if len(got) != 10 || got == "0123456789" {
				t.Errorf("action %d: %q is below", c.do, got)
			}
		case got != c.below || (err == nil) != (c.below != ""):
			t.Errorf("action %d: %q is below, %v; want %q", c.do, got, err, c.below)
		}
		if h.Hits() != 1 {
			t.Errorf("action %d: %d hits", c.do, h.Hits())
		}
	}
}

// Proves what each action does to reads.
func TestReadActions(t *testing.T) {
	const data = "0123456789"
	for _, c := range []struct {
		do         fault.Action
		code       errcode.Code // of whole reads; Internal stands for none
		whole      string
		ranged     int
		rangedCode errcode.Code
	}{
		{fault.Pass, 0, data, 10, 0},
		{fault.Fail, errcode.Transient, "", 0, errcode.Transient},
		{fault.LoseAnswer, errcode.Transient, "", 0, errcode.Transient},
		{fault.Pretend, errcode.NotFound, "", 0, errcode.NotFound},
		{fault.Cut, errcode.Transient, "", 5, errcode.Transient},
		{fault.Tear, errcode.Transient, "", 5, 0}, // ReadAll sees the missing half
		{fault.Flip, 0, "flipped", 10, 0},
	} {
		s := fault.New(mem.New("", nil), fault.Options{})
		if err := put(s, "k", data); err != nil {
			t.Fatal(err)
		}
		s.Add(fault.Rule{Ops: []string{fault.Get, fault.GetRange}, Do: c.do})
		got, err := get(s, "k")
		if errcode.Of(err) != c.code && err != nil || (err == nil) != (c.whole != "") {
			t.Errorf("action %d: get: %v", c.do, err)
		}
		if err == nil && (got == data) != (c.whole == data) {
			t.Errorf("action %d: get: %q", c.do, got)
		}
		p := make([]byte, 20)
		n, err := s.GetRange(t.Context(), "k", p, 0)
		if n != c.ranged || err != nil && !errcode.Is(err, c.rangedCode) || err == nil && c.rangedCode != 0 {
			t.Errorf("action %d: range: %d, %v", c.do, n, err)
		}
	}
	// A body that is torn ends as if it were whole.
	s := fault.New(mem.New("", nil), fault.Options{})
	if err := put(s, "k", data); err != nil {
		t.Fatal(err)
	}
	s.Add(fault.Rule{Do: fault.Tear})
	body, info, err := s.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if got, err := io.ReadAll(body); err != nil || string(got) != "01234" || info.Size != 10 {
		t.Errorf("torn body: %q, %v, %+v", got, err, info)
	}
}

// Proves that deletes can half happen, and that objects can get lost.
func TestDeleteActions(t *testing.T) {
	s := fault.New(mem.New("", nil), fault.Options{})
	for _, k := range []string{"a", "b", "c", "d"} {
		if err := put(s, k, k); err != nil {
			t.Fatal(err)
		}
	}
	h := s.Add(fault.Rule{Ops: []string{fault.Delete}, Do: fault.Cut})
	if err := s.Delete(t.Context(), []string{"a", "b"}); !errcode.Is(err, errcode.Transient) {
		t.Errorf("cut: %v", err)
	}
	h.Remove()
	if got := keys(t, s, 0); !slices.Equal(got, []string{"b", "c", "d"}) {
		t.Errorf("after half a delete: %q", got)
	}
	if err := s.Lose(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if _, err := get(s, "c"); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("the lost object: %v", err)
	}
}

// Proves which calls a rule takes: by operation, key, skip, times; and that Clear
// and Down do what they say.
func TestMatching(t *testing.T) {
	s := fault.New(mem.New("", nil), fault.Options{})
	denied := errcode.New(errcode.Denied, "no")
	h := s.Add(fault.Rule{Ops: []string{fault.Put}, Key: "d/*/m/*", Skip: 1, Times: 2, Do: fault.Fail, Err: denied})
	for i, c := range []struct {
		key  string
		fail bool
	}{
		{"d/01/m/1", false}, {"d/01/s/1", false}, {"d/01/m/2", true}, {"d/01/m/3", true}, {"d/01/m/4", false}, {"x/d/01/m/5", false},
	} {
		err := put(s, c.key, "v")
		if (err != nil) != c.fail || err != nil && (!errcode.Is(err, errcode.Denied) || !errors.Is(err, denied)) {
			t.Errorf("call %d, %s: %v", i, c.key, err)
		}
	}
	if h.Hits() != 2 {
		t.Errorf("%d hits", h.Hits())
	}
	down := s.Down(errcode.Throttled)
	if _, err := s.List(t.Context(), "", "", 0); !errcode.Is(err, errcode.Throttled) {
		t.Errorf("down: %v", err)
	}
	down.Remove()
	if _, err := s.List(t.Context(), "", "", 0); err != nil {
		t.Errorf("up: %v", err)
	}
	s.Down(errcode.Transient)
	s.Clear()
	if err := put(s, "after", "v"); err != nil {
		t.Errorf("cleared: %v", err)
	}
}

// Proves that the same seed makes the same calls fail, and that about as many
// fail as asked for.
func TestSeed(t *testing.T) {
	run := func(seed uint64) (pattern string) {
		s := fault.New(mem.New("", nil), fault.Options{Seed: seed})
		s.Add(fault.Rule{Chance: 0.3, Do: fault.Fail})
		for range 200 {
			if _, err := s.List(context.Background(), "", "", 0); err != nil {
				pattern += "x"
			} else {
				pattern += "."
			}
		}
		return pattern
	}
	first, again, other := run(1), run(1), run(2)
	if first != again || first == other {
		t.Error("the seed does not decide")
	}
	if n := strings.Count(run(3), "x"); n < 30 || n > 90 {
		t.Errorf("%d of 200 failed at a chance of 0.3", n)
	}
}

// Proves that delays and holds last as long as they say and end with the
// caller's context, and so does a call that hangs.
func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fault.New(mem.New("", nil), fault.Options{})
		slow := s.Add(fault.Rule{Delay: time.Second, Jitter: time.Second})
		start := time.Now()
		if err := put(s, "k", "v"); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < time.Second || d >= 2*time.Second {
			t.Errorf("took %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := s.Head(ctx, "k"); !errcode.Is(err, errcode.Canceled) {
			t.Errorf("delay past the deadline: %v", err)
		}
		slow.Remove()

		gate := make(chan struct{})
		held := s.Add(fault.Rule{Ops: []string{fault.Get}, Wait: gate})
		done := make(chan error)
		go func() {
			_, err := get(s, "k")
			done <- err
		}()
		synctest.Wait()
		if held.Hits() != 1 {
			t.Error("the call is not held")
		}
		close(gate)
		if err := <-done; err != nil {
			t.Errorf("held call: %v", err)
		}

		s.Clear()
		s.Add(fault.Rule{Do: fault.Hang})
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start = time.Now()
		if _, err := s.List(ctx, "", "", 0); !errcode.Is(err, errcode.Canceled) || time.Since(start) != time.Hour {
			t.Errorf("hang: %v after %v", err, time.Since(start))
		}
	})
}

// Proves that a stale list is the list of some changes ago, by whatever pages:
// new objects hidden, deleted ones back.
func TestStaleList(t *testing.T) {
	s := fault.New(mem.New("", nil), fault.Options{})
	var states [][]string // after so many changes
	states = append(states, nil)
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, keys(t, s.Unwrap(), 0))
	}
	for _, k := range []string{"b", "d", "f", "h", "a", "c"} {
		step(put(s, k, k))
	}
	step(s.Delete(t.Context(), []string{"d"}))
	step(s.Delete(t.Context(), []string{"a"}))
	step(put(s, "d", "again"))
	step(put(s, "z", "z"))
	for age := range len(states) {
		h := s.Add(fault.Rule{Ops: []string{fault.List}, Do: fault.Stale, Age: age})
		for _, limit := range []int{1, 2, 3, 0} {
			if got, want := keys(t, s, limit), states[len(states)-1-age]; !slices.Equal(got, want) {
				t.Errorf("age %d by %d: %q, want %q", age, limit, got, want)
			}
		}
		h.Remove()
	}
}

// Proves that rules come, go and act while calls run.
func TestConcurrent(t *testing.T) {
	s := fault.New(mem.New("", nil), fault.Options{Seed: 7})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				h := s.Add(fault.Rule{Chance: 0.2, Do: fault.Action(i % 7)})
				key := string(rune('a' + w))
				_ = s.Put(t.Context(), key, bytes.NewReader([]byte("v")), 1, objstore.PutOptions{})
				_, _ = get(s, key)
				_, _ = s.List(t.Context(), "", "", 3)
				_ = s.Delete(t.Context(), []string{key})
				h.Remove()
			}
		})
	}
	wg.Wait()
	if err := put(s, "end", "v"); err != nil {
		t.Errorf("after all rules went: %v", err)
	}
}
