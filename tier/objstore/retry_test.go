package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// rig is a retrying store over a counted store that can misbehave.
type rig struct {
	objstore.Store
	fault *fault.Store
	below *count.Store // what reaches the store
}

func newRig(p objstore.RetryPolicy, b *objstore.RetryBudget) *rig {
	f := fault.New(mem.New("", nil), fault.Options{Seed: 1})
	c := count.New(f)
	return &rig{objstore.WithRetries(c, p, b, nil), f, c}
}

func put(s objstore.Store, key, data string) error {
	return s.Put(context.Background(), key, strings.NewReader(data), int64(len(data)), objstore.PutOptions{CreateOnly: true})
}

func get(s objstore.Store, key string) (string, error) {
	data, _, err := objstore.ReadAll(context.Background(), s, key, 1<<20)
	return string(data), err
}

// calls runs each method once.
func calls(ctx context.Context, s objstore.Store) map[string]error {
	errs := map[string]error{}
	errs[fault.Put] = s.Put(ctx, "new", strings.NewReader("v"), 1, objstore.PutOptions{CreateOnly: true})
	_, _, errs[fault.Get] = s.Get(ctx, "k")
	_, errs[fault.GetRange] = s.GetRange(ctx, "k", make([]byte, 1), 0)
	_, errs[fault.Head] = s.Head(ctx, "k")
	_, errs[fault.List] = s.List(ctx, "", "", 0)
	errs[fault.Delete] = s.Delete(ctx, []string{"k"})
	return errs
}

// Proves for every call that what may pass is repeated until it passes, within
// the attempts, and that answers are not repeated. The body of a put is sent
// again whole. B181.
func TestRetriedCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for code, again := range map[errcode.Code]bool{
			errcode.Transient: true, errcode.Throttled: true,
			errcode.NotFound: false, errcode.Exists: false, errcode.Denied: false, errcode.InvalidArgument: false,
			errcode.Corrupt: false, errcode.Internal: false,
		} {
			for _, op := range []string{fault.Put, fault.Get, fault.GetRange, fault.Head, fault.List, fault.Delete} {
				r := newRig(objstore.RetryPolicy{Attempts: 4}, nil)
				if err := put(r.fault.Unwrap(), "k", "v"); err != nil {
					t.Fatal(err)
				}
				r.fault.Add(fault.Rule{Ops: []string{op}, Times: 3, Do: fault.Fail, Err: errcode.New(code, "told to")})
				err := calls(t.Context(), r)[op]
				want := 1
				if again {
					want = 4
				}
				if (err == nil) != again || err != nil && !errcode.Is(err, code) || r.below.Count(op) != want {
					t.Errorf("%v: %s: %v after %d attempts; want %d", code, op, err, r.below.Count(op), want)
				}
				if op == fault.Put && again {
					if got, err := get(r.fault.Unwrap(), "new"); err != nil || got != "v" {
						t.Errorf("%v: the object is %q, %v", code, got, err)
					}
				}
			}
		}
		// And not for ever.
		r := newRig(objstore.RetryPolicy{Attempts: 3}, nil)
		r.fault.Down(errcode.Transient)
		if _, err := get(r, "k"); !errcode.Is(err, errcode.Transient) || r.below.Count(fault.Get) != 3 {
			t.Errorf("a store that stays down: %v after %d attempts", err, r.below.Count(fault.Get))
		}
	})
}

// Proves that a create-only put whose answer was lost succeeds when its own bytes
// are there, and only then; also when the reading is troubled at first: the
// precondition makes it safe to try again. B189.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := bytes.Repeat([]byte("mine"), 100_000)
		other := bytes.Clone(mine)
		other[len(other)-1] ^= 1
		for _, c := range []struct {
			name  string
			there []byte // put by somebody else between the attempts; nil: the lost put itself took effect
			want  errcode.Code
		}{
			{"own bytes", nil, 0},
			{"the same bytes by another", mine, 0}, // nobody can tell, nobody is harmed
			{"one bit differs", other, errcode.Exists},
			{"another size", []byte("short"), errcode.Exists},
		} {
			r := newRig(objstore.RetryPolicy{}, nil)
			action := fault.LoseAnswer
			if c.there != nil {
				action = fault.Fail
				if err := put(r.fault.Unwrap(), "k", string(c.there)); err != nil {
					t.Fatal(err)
				}
			}
			r.fault.Add(fault.Rule{Ops: []string{fault.Put}, Times: 1, Do: action})
			r.fault.Add(fault.Rule{Ops: []string{fault.Get}, Times: 1, Do: fault.Cut})
			err := r.Put(t.Context(), "k", bytes.NewReader(mine), int64(len(mine)), objstore.PutOptions{CreateOnly: true})
			if c.want == 0 && err != nil || c.want != 0 && !errcode.Is(err, c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		// On a first attempt Exists is the truth, whatever the bytes are.
		r := newRig(objstore.RetryPolicy{}, nil)
		if err := errors.Join(put(r, "k", "v")); err != nil {
			t.Fatal(err)
		}
		if err := put(r, "k", "v"); !errcode.Is(err, errcode.Exists) || r.below.Count(fault.Get) != 0 {
			t.Errorf("taken from the start: %v, %d reads", err, r.below.Count(fault.Get))
		}
		// What cannot be read stays unknown: never success, never Exists.
		r = newRig(objstore.RetryPolicy{Attempts: 3}, nil)
		r.fault.Add(fault.Rule{Ops: []string{fault.Put}, Times: 1, Do: fault.LoseAnswer})
		r.fault.Add(fault.Rule{Ops: []string{fault.Get}, Do: fault.Fail})
		if err := put(r, "k", "v"); !errcode.Is(err, errcode.Transient) {
			t.Errorf("unreadable: %v", err)
		}
	})
}

// Proves that a body that breaks goes on where it was, that one whose store stays
// down ends with the error, and that an object that was replaced meanwhile is not
// mixed.
func TestBrokenBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := strings.Repeat("0123456789", 10_000)
		r := newRig(objstore.RetryPolicy{Attempts: 4}, nil)
		if err := put(r, "k", data); err != nil {
			t.Fatal(err)
		}
		cut := r.fault.Add(fault.Rule{Ops: []string{fault.Get}, Times: 2, Do: fault.Cut})
		if got, err := get(r, "k"); err != nil || got != data || cut.Hits() != 2 {
			t.Errorf("cut twice: %d bytes, %v, %d cuts", len(got), err, cut.Hits())
		}
		r.fault.Add(fault.Rule{Ops: []string{fault.Get}, Do: fault.Cut})
		if _, err := get(r, "k"); !errcode.Is(err, errcode.Transient) {
			t.Errorf("always cut: %v", err)
		}
		r.fault.Clear()

		r.fault.Add(fault.Rule{Ops: []string{fault.Get}, Times: 1, Do: fault.Cut})
		body, _, err := r.Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if _, err := io.ReadFull(body, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the fake clock: a later modification
		if err := r.Put(t.Context(), "k", strings.NewReader(strings.ToUpper(data)), int64(len(data)), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(body); !errcode.Is(err, errcode.Internal) {
			t.Errorf("replaced while it was read: %v", err)
		}
	})
}

// Proves that pauses are drawn from zero to a doubling bound, that the store's own
// wish is respected, and that a call does not sleep past its caller's deadline.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var draws []float64
		rnd := func() float64 {
			draws = append(draws, 1)
			return 1
		}
		f := fault.New(mem.New("", nil), fault.Options{})
		s := objstore.WithRetries(f, objstore.RetryPolicy{Attempts: 6, Base: time.Second, Most: 5 * time.Second}, nil, rnd)
		f.Down(errcode.Transient)
		start := time.Now()
		if _, err := get(s, "k"); err == nil {
			t.Fatal("no error")
		}
		if d := time.Since(start); d != (1+2+4+5+5)*time.Second || len(draws) != 5 {
			t.Errorf("five pauses took %v", d)
		}
		f.Clear()
		f.Add(fault.Rule{Times: 1, Do: fault.Fail, Err: errcode.New(errcode.Throttled, "wait").After(17 * time.Second)})
		start = time.Now()
		if _, err := s.List(t.Context(), "", "", 0); err != nil || time.Since(start) != 17*time.Second {
			t.Errorf("asked to wait 17 s: %v after %v", err, time.Since(start))
		}
		f.Clear()
		f.Down(errcode.Transient)
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		start = time.Now()
		_, err := s.List(ctx, "", "", 0)
		if !errcode.Is(err, errcode.Transient) || time.Since(start) != time.Second {
			t.Errorf("near the deadline: %v after %v; want the store's error after one pause", err, time.Since(start))
		}
	})
}

// Proves that 64 uploads whose first tries all fail all finish: the budget has
// room for a burst. B183.
func TestBurstOfErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(objstore.RetryPolicy{}, objstore.NewRetryBudget(0, 0))
		r.fault.Add(fault.Rule{Ops: []string{fault.Put}, Times: 64, Do: fault.Fail})
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				if err := put(r, fmt.Sprintf("k%d", i), "v"); err != nil {
					t.Errorf("upload %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	})
}

// Proves that an outage of ten minutes met by 32 tasks that try for ever gets few
// requests, and that the node is back within one backoff when it ends. B184.
func TestOutageIsNoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tasks, outage = 32, 10 * time.Minute
		r := newRig(objstore.RetryPolicy{}, objstore.NewRetryBudget(0, 0))
		down := r.fault.Down(errcode.Transient)
		begin := time.Now()
		var back [tasks]time.Duration
		var firsts atomic.Int64 // calls of the tasks, which no budget holds back
		var wg sync.WaitGroup
		for i := range tasks {
			wg.Go(func() {
				for {
					firsts.Add(1)
					if err := put(r, fmt.Sprintf("k%d", i), "v"); err == nil {
						back[i] = time.Since(begin) - outage
						return
					}
				}
			})
		}
		time.Sleep(outage)
		down.Remove()
		during := r.below.Count(fault.Put)
		retries := during - int(firsts.Load())
		wg.Wait()
		if most := 100 + 10*600 + tasks; retries > most {
			t.Errorf("%d retries in ten minutes; the budget allows %d", retries, most)
		}
		if most := 20 * 600; during > most {
			t.Errorf("%d requests in ten minutes, more than %d", during, most)
		}
		for i, d := range back {
			if d > 21*time.Second { // one pause and one wait for the budget, each at most 10 s
				t.Errorf("task %d came back after %v", i, d)
			}
		}
		t.Logf("%d requests, %d of them retries", during, retries)
	})
}

// Proves that a caller who goes away ends the retrying at once.
func TestRetryEndsWithCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(objstore.RetryPolicy{Base: time.Hour, Most: time.Hour}, nil)
		r.fault.Down(errcode.Transient)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := r.Head(ctx, "k")
			done <- err
		}()
		synctest.Wait()
		start := time.Now()
		cancel()
		if err := <-done; err == nil || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
