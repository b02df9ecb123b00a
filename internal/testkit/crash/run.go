package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Numbers of histories of all models together.
const (
	defaultHistories = 12_000
	shortHistories   = 3_000
)

// Environment.
const (
	seedEnv      = "TIDEMARK_SEED"
	historiesEnv = "TIDEMARK_HISTORIES"
)

// maxTrace bounds the trace of one run that a failure prints.
const maxTrace = 200

// Plan is how many histories are made, and from which seed.
type Plan struct {
	Total int
	Seed  uint64
}

// ReadPlan reads the environment.
func ReadPlan(getenv func(string) string, short bool) (Plan, error) {
	p := Plan{Total: defaultHistories, Seed: 1}
	if short {
		p.Total = shortHistories
	}
	if s := getenv(historiesEnv); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return p, fmt.Errorf("%s=%q is not a number of histories", historiesEnv, s)
		}
		p.Total = n
	}
	if s := getenv(seedEnv); s != "" {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			return p, fmt.Errorf("%s=%q is not a seed", seedEnv, s)
		}
		p.Seed = n
	}
	return p, nil
}

// share returns how many histories a model makes; all shares together are
// never less than the total.
func (p Plan) share(model string) int { return (p.Total*shares[model] + 999) / 1000 }

// seedOf returns the seed of run i: the first is the plan's own.
func (p Plan) seedOf(i int) uint64 {
	if i == 0 {
		return p.Seed
	}
	return rand.New(rand.NewPCG(p.Seed, uint64(i))).Uint64()
}

// T is what one run of a model sees. Fatal and its like end this run and fail
// the test with the seed; they may be called from the run's own goroutine only.
type T struct {
	testing.TB
	Seed uint64
	Rand *rand.Rand // of the run's own goroutine

	count    int
	cleanups []func()
	mu       sync.Mutex
	trace    []string
}

// stop is what Fatal panics with.
type stop struct{ message string }

// Count says that a history is over.
func (t *T) Count() { t.count++ }

// Step notes what the run does, for the trace of a failure.
func (t *T) Step(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.trace) == maxTrace {
		t.trace = append(t.trace[:0], t.trace[maxTrace/2:]...)
	}
	t.trace = append(t.trace, fmt.Sprintf(format, args...))
}

// Fatalf implements testing.TB.
func (t *T) Fatalf(format string, args ...any) { panic(stop{fmt.Sprintf(format, args...)}) }

// Fatal implements testing.TB.
func (t *T) Fatal(args ...any) { panic(stop{fmt.Sprint(args...)}) }

// FailNow implements testing.TB.
func (t *T) FailNow() { panic(stop{"failed"}) }

// Errorf implements testing.TB: one failure is enough.
func (t *T) Errorf(format string, args ...any) { t.Fatalf(format, args...) }

// Error implements testing.TB.
func (t *T) Error(args ...any) { t.Fatal(args...) }

// Helper implements testing.TB.
func (*T) Helper() {}

// Cleanup implements testing.TB: f is called at the end of the run.
func (t *T) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *T) finish() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
	t.cleanups = nil
}

// Run makes a model's share of the histories on all cores: it calls run with
// ever new seeds until they have counted that many. It fails when a history
// does, and when they turn out to be too few.
func Run(t *testing.T, model string, run func(t *T)) {
	t.Helper()
	plan, err := ReadPlan(os.Getenv, testing.Short())
	if err != nil {
		t.Fatal(err)
	}
	if shares[model] == 0 {
		t.Fatalf("model %q has no share of the histories", model)
	}
	start := time.Now()
	want := int64(plan.share(model))
	var made, runs atomic.Int64
	var failed atomic.Bool
	var workers sync.WaitGroup
	// One worker when one run is replayed: it is the first, and alone.
	for range min(int(want), runtime.GOMAXPROCS(0)*max(1, idle[model])) {
		workers.Go(func() {
			for made.Load() < want && !failed.Load() {
				i := runs.Add(1) - 1
				if i > want+100 {
					return // runs that count nothing do not go on for ever
				}
				n, message := once(t, plan.seedOf(int(i)), run)
				made.Add(int64(n))
				if message != "" {
					failed.Store(true)
					t.Errorf("%s\nagain: %s=%d %s=1 go test -run '^%s$' (this package)", message, seedEnv, plan.seedOf(int(i)), historiesEnv, t.Name())
				}
			}
		})
	}
	workers.Wait()
	took := time.Since(start)
	// Read by the targets of the Makefile.
	fmt.Printf("crash histories: %s %d of %d, %d runs, seed %d, %.1f s, %.2f ms each\n",
		model, made.Load(), want, runs.Load(), plan.Seed, took.Seconds(), took.Seconds()*1000/float64(max(made.Load(), 1)))
	if made.Load() < want && !failed.Load() {
		t.Errorf("%d crash histories were made, %d were asked for", made.Load(), want)
	}
}

// once makes one run; message says why it failed.
func once(tb testing.TB, seed uint64, run func(*T)) (count int, message string) {
	tb.Helper()
	t := &T{TB: tb, Seed: seed, Rand: rand.New(rand.NewPCG(seed, 7))}
	defer func() {
		count = t.count
		if r := recover(); r != nil {
			s, ok := r.(stop)
			if !ok {
				panic(r)
			}
			message = s.message + "\nwhat the run did:\n  " + strings.Join(t.trace, "\n  ")
			func() {
				defer func() { _ = recover() }() // the first failure is the one to tell
				t.finish()
			}()
		}
	}()
	run(t)
	t.finish()
	return t.count, ""
}
