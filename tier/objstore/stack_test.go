package objstore_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
	"github.com/tidemark-mq/tidemark/tier/objstore/storetest"
)

// Proves that the whole stack over a sound store keeps the contract.
func TestStackConformance(t *testing.T) {
	metrics, err := objstore.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	limiter := objstore.NewLimiter(objstore.Limits{}, nil)
	storetest.Run(t, func(t *testing.T) objstore.Store {
		return count.New(objstore.Stack(mem.New(t.Name(), nil), objstore.StackOptions{Metrics: metrics, Limiter: limiter}))
	})
}

// Proves that the whole stack over a store that fails a fifth of everything, in
// every way that is not a lie, still keeps the contract.
func TestStackOverFaults(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objstore.Store {
		f := fault.New(mem.New(t.Name(), nil), fault.Options{Seed: 5})
		for _, do := range []fault.Action{fault.Fail, fault.LoseAnswer, fault.Cut} {
			f.Add(fault.Rule{Chance: 0.07, Do: do})
		}
		return objstore.Stack(f, objstore.StackOptions{
			Retry:  objstore.RetryPolicy{Attempts: 20, Base: time.Microsecond, Most: time.Millisecond},
			Budget: objstore.NewRetryBudget(1e6, 1e6),
		})
	})
}

// Proves that an attempt that hangs ends with Transient, each in its time, while
// a caller's own end stays Canceled, and that the next attempt gets its chance.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fault.New(mem.New("", nil), fault.Options{})
		s := objstore.WithDeadlines(f, objstore.Deadlines{Attempt: 10 * time.Second, MinRate: 1000, Idle: 3 * time.Second})
		if err := put(s, "k", "v"); err != nil {
			t.Fatal(err)
		}
		f.Add(fault.Rule{Do: fault.Hang})
		start := time.Now()
		for op, err := range calls(t.Context(), s) {
			if !errcode.Is(err, errcode.Transient) || !strings.Contains(err.Error(), "10s") {
				t.Errorf("%s: %v", op, err)
			}
		}
		if d := time.Since(start); d != 60*time.Second {
			t.Errorf("six calls took %v", d)
		}
		start = time.Now()
		if err := s.Put(t.Context(), "big", strings.NewReader(strings.Repeat("x", 5000)), 5000, objstore.PutOptions{}); !errcode.Is(err, errcode.Transient) || time.Since(start) != 15*time.Second {
			t.Errorf("5,000 bytes at 1,000 a second: %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for op, err := range calls(ctx, s) {
			if !errcode.Is(err, errcode.Canceled) {
				t.Errorf("%s: the caller's end: %v", op, err)
			}
		}
		f.Clear()
		h := f.Add(fault.Rule{Ops: []string{fault.Head}, Times: 1, Do: fault.Hang})
		if _, err := objstore.WithRetries(s, objstore.RetryPolicy{}, nil, nil).Head(t.Context(), "k"); err != nil || h.Hits() != 1 {
			t.Errorf("after one hanging attempt: %v", err)
		}
	})
}

// stalling is a store whose bodies stop in the middle until their context ends.
type stalling struct{ objstore.Store }

func (s stalling) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	body := io.MultiReader(strings.NewReader("half"), stall{ctx})
	return objstore.ExactBody(ctx, io.NopCloser(body), key, 8), objstore.Info{Key: key, Size: 8}, nil
}

type stall struct{ ctx context.Context }

func (s stall) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// Proves that a body that stops moving ends with Transient, and that the time a
// caller takes between two reads does not count.
func TestBodyDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := objstore.WithDeadlines(stalling{mem.New("", nil)}, objstore.Deadlines{Idle: 3 * time.Second})
		body, _, err := s.Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		p := make([]byte, 4)
		time.Sleep(time.Hour) // the fake clock
		if _, err := io.ReadFull(body, p); err != nil {
			t.Fatalf("a slow caller: %v", err)
		}
		time.Sleep(time.Hour)
		start := time.Now()
		if _, err := io.ReadFull(body, p); !errcode.Is(err, errcode.Transient) || time.Since(start) != 3*time.Second {
			t.Errorf("a body that stalls: %v after %v", err, time.Since(start))
		}
	})
}

// Proves that each class has its own slots: none waits for another's, and no more
// calls are under way than the class has slots.
func TestPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fault.New(mem.New("", nil), fault.Options{})
		m := objstore.NewLimiter(objstore.Limits{Upload: 3, Read: 2, Background: 1}, nil)
		s := objstore.WithLimits(f, m)
		gate := make(chan struct{})
		h := f.Add(fault.Rule{Wait: gate})
		var wg sync.WaitGroup
		for _, cause := range []objstore.Cause{objstore.CauseScrub, objstore.CauseRead, objstore.CauseWAL} {
			before := h.Hits()
			view := objstore.For(s, cause)
			for range 10 {
				wg.Go(func() { _, _ = view.List(t.Context(), "", "", 0) })
			}
			synctest.Wait()
			if got, want := h.Hits()-before, m.Limit(cause.Class()); got != want {
				t.Errorf("%v: %d calls under way, want %d", cause, got, want)
			}
		}
		// Who waits for a slot ends with its context and leaves its place.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Head(ctx, "k"); !errcode.Is(err, errcode.Canceled) {
			t.Errorf("waiting past the deadline: %v", err)
		}
		close(gate)
		wg.Wait()
		if h.Hits() != 30 {
			t.Errorf("%d calls came through", h.Hits())
		}
	})
}

// Proves that a body holds its slot until it ends or is closed, once.
func TestBodyHoldsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := objstore.WithLimits(mem.New("", nil), objstore.NewLimiter(objstore.Limits{Background: 1}, nil))
		if err := put(s, "k", "v"); err != nil {
			t.Fatal(err)
		}
		blocked := func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := s.Head(ctx, "k")
			return errcode.Is(err, errcode.Canceled)
		}
		for _, end := range []func(io.ReadCloser){
			func(b io.ReadCloser) { b.Close(); b.Close() },
			func(b io.ReadCloser) { _, _ = io.ReadAll(b) },
		} {
			body, _, err := s.Get(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if !blocked() {
				t.Error("an open body holds no slot")
			}
			end(body)
			if blocked() {
				t.Error("a body that ended holds its slot")
			}
			body.Close()
		}
	})
}

// Proves that throttling halves the class and those below, once for calls that
// were under way together, never below one, and that slots come back one by one.
func TestThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fault.New(mem.New("", nil), fault.Options{})
		m := objstore.NewLimiter(objstore.Limits{Upload: 16, Read: 8, Background: 4, Recover: time.Second}, nil)
		s := objstore.WithLimits(f, m)
		limits := func() []int {
			return []int{m.Limit(objstore.Upload), m.Limit(objstore.Read), m.Limit(objstore.Background)}
		}
		burst := func(c objstore.Cause, n int) {
			view := objstore.For(s, c)
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() { _, _ = view.List(t.Context(), "", "", 0) })
			}
			wg.Wait()
		}
		f.Add(fault.Rule{Delay: 100 * time.Millisecond, Do: fault.Fail, Err: errcode.New(errcode.Throttled, "slow down")})
		for _, step := range []struct {
			cause objstore.Cause
			want  []int
		}{
			{objstore.CauseGarbage, []int{16, 8, 2}},
			{objstore.CauseRead, []int{16, 4, 1}},
			{objstore.CauseChain, []int{8, 2, 1}},
			{objstore.CauseChain, []int{4, 1, 1}},
		} {
			burst(step.cause, m.Limit(step.cause.Class()))
			if got := limits(); !slices.Equal(got, step.want) {
				t.Fatalf("after %v was throttled: %v, want %v", step.cause, got, step.want)
			}
		}
		f.Clear()
		for i, want := range []int{5, 6, 7} {
			time.Sleep(time.Second)
			burst(objstore.CauseChain, 20)
			if got := m.Limit(objstore.Upload); got != want {
				t.Fatalf("second %d of recovery: %d slots, want %d", i+1, got, want)
			}
		}
		time.Sleep(time.Minute)
		for range 60 {
			burst(objstore.CauseChain, 1)
			time.Sleep(time.Second)
		}
		if got := limits(); got[0] != 16 || got[1] != 1 {
			t.Errorf("after a minute of uploads: %v; want them back at 16, reads where they were", got)
		}
	})
}

// Proves that every cause has a name and a class, and that a view marks its calls.
func TestCauses(t *testing.T) {
	seen := map[string]bool{}
	for c := objstore.CauseOther; c <= objstore.CauseDoctor; c++ {
		if c.String() == "" || seen[c.String()] {
			t.Errorf("cause %d is called %q", c, c)
		}
		seen[c.String()] = true
	}
	if objstore.Cause(200).String() != "other" || objstore.Cause(200).Class() != objstore.Background {
		t.Error("an unknown cause is not other")
	}
	c := count.New(mem.New("", nil))
	v := objstore.For(c, objstore.CauseFence)
	calls(t.Context(), v)
	for call, n := range c.Calls() {
		if call.Cause != objstore.CauseFence || n != 1 {
			t.Errorf("%+v: %d", call, n)
		}
	}
	if len(c.Calls()) != 6 || v.Capabilities().Kind != "mem" || v.Close() != nil {
		t.Errorf("calls: %v", c.Calls())
	}
}

// Proves what is counted and under which labels: attempts with their results,
// bytes both ways, bodies that broke.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := objstore.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	f := fault.New(mem.New("", nil), fault.Options{})
	s := objstore.For(objstore.WithMetrics(f, m), objstore.CauseWAL)
	if err := put(s, "k", "12345"); err != nil {
		t.Fatal(err)
	}
	_ = put(s, "k", "again")
	_, _ = get(s, "k")
	_, _ = s.GetRange(t.Context(), "k", make([]byte, 3), 0)
	h := f.Add(fault.Rule{Ops: []string{fault.Get}, Do: fault.Cut})
	_, _ = get(s, "k")
	h.Remove()
	body, _, err := s.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	body.Close()
	got := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, fam := range families {
		for _, metric := range fam.Metric {
			name := strings.TrimPrefix(fam.GetName(), "tidemark_objstore_")
			for _, l := range metric.Label { // in the order of their names
				name += " " + l.GetValue()
			}
			got[name] = metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{
		"requests_total wal upload ok put":         1,
		"requests_total wal upload exists put":     1,
		"requests_total wal upload ok get":         3,
		"requests_total wal upload ok get_range":   1,
		"sent_bytes_total wal upload":              5,
		"received_bytes_total wal upload":          5 + 3 + 2,
		"broken_bodies_total wal upload transient": 1,
		"request_seconds upload put":               2,
		"request_seconds upload get":               3,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if t.Failed() {
		t.Logf("%v", got)
	}
	if _, err := objstore.NewMetrics(reg); err == nil {
		t.Error("the same metrics were registered twice")
	}
}

// Proves that a sweep finds its backend through the decorators, and that a store
// without one has nothing to sweep.
func TestSweepThroughStack(t *testing.T) {
	swept := &sweepable{Store: mem.New("", nil)}
	s := objstore.For(objstore.Stack(swept, objstore.StackOptions{}), objstore.CauseGarbage)
	if n, err := objstore.SweepUploads(t.Context(), s, time.Now()); n != 3 || err != nil {
		t.Errorf("sweep: %d, %v", n, err)
	}
	if n, err := objstore.SweepUploads(t.Context(), mem.New("", nil), time.Now()); n != 0 || err != nil {
		t.Errorf("nothing to sweep: %d, %v", n, err)
	}
}

type sweepable struct{ objstore.Store }

func (*sweepable) SweepUploads(context.Context, time.Time) (int, error) { return 3, nil }

// Proves the exact list of calls that a counting store writes.
func TestTranscript(t *testing.T) {
	c := count.New(mem.New("", nil))
	if err := put(c, "a/b", "data"); err != nil {
		t.Fatal(err)
	}
	_ = put(c, "a/b", "x")
	_, _ = get(c, "a/b")
	_, _ = c.GetRange(t.Context(), "none", make([]byte, 8), 4)
	_, _ = c.List(t.Context(), "a/", "a/a", 7)
	_, _ = c.Head(t.Context(), "a/b")
	_ = c.Delete(t.Context(), []string{"a/b", "a/c"})
	const want = `put a/b 4 create-only: ok
put a/b 1 create-only: exists
get a/b: ok
get_range none [4,12): not_found
list "a/" after "a/a" limit 7: ok
head a/b: ok
delete a/b a/c: ok
`
	if got := c.Transcript(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if sent, received := c.Bytes(); sent != 5 || received != 4 {
		t.Errorf("%d bytes sent, %d received", sent, received)
	}
	if c.Reset(); c.Transcript() != "" || c.Count(fault.Put) != 0 {
		t.Error("Reset kept something")
	}
}
