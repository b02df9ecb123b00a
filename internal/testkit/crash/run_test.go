package crash

import (
	"math/rand/v2"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The shares add up, so that the number that is asked for is made.
func TestShares(t *testing.T) {
	sum := 0
	for _, n := range shares {
		sum += n
	}
	if sum != 1000 {
		t.Fatalf("the models make %d of 1000 histories", sum)
	}
}

// Number and seed come from the environment; what is no number is refused.
func TestReadPlan(t *testing.T) {
	env := map[string]string{}
	get := func(name string) string { return env[name] }
	for _, short := range []bool{false, true} {
		if p, err := ReadPlan(get, short); err != nil || p.Seed != 1 || short != (p.Total == shortHistories) {
			t.Fatalf("%+v %v", p, err)
		}
	}
	env[historiesEnv], env[seedEnv] = "1000000", "0x10"
	p, err := ReadPlan(get, true)
	if err != nil || p.Total != 1_000_000 || p.Seed != 16 || p.share("wal") < 100_000 {
		t.Fatalf("%+v %v", p, err)
	}
	if p.seedOf(0) != 16 || p.seedOf(1) == p.seedOf(2) {
		t.Fatal("seeds")
	}
	for _, bad := range []string{"0", "-1", "many"} {
		env[historiesEnv] = bad
		if _, err := ReadPlan(get, true); err == nil {
			t.Fatalf("%q histories were accepted", bad)
		}
	}
}

// A failure ends the run, names what the run did, and runs the cleanups; the
// same seed draws the same numbers.
func TestOnce(t *testing.T) {
	var drawn [2]uint64
	cleaned := 0
	for i := range drawn {
		n, message := once(t, 7, func(t *T) {
			t.Cleanup(func() { cleaned++ })
			drawn[i] = t.Rand.Uint64()
			t.Count()
			t.Step("step %d", 1)
			t.Errorf("broken %s", "here")
			t.Count()
		})
		if n != 1 || !strings.Contains(message, "broken here") || !strings.Contains(message, "step 1") {
			t.Fatalf("%d %q", n, message)
		}
	}
	if drawn[0] != drawn[1] || cleaned != 2 {
		t.Fatalf("%v, %d cleanups", drawn, cleaned)
	}
	if n, message := once(t, 1, func(t *T) { t.Count() }); n != 1 || message != "" {
		t.Fatalf("%d %q", n, message)
	}
}

// A camera keeps as many shots as it may, each with the state of its moment.
func TestCamera(t *testing.T) {
	for most := range 9 {
		fs, n := NewFS(), 0
		c := Film(fs, rand.New(rand.NewPCG(1, 1)), most, func() int { return n })
		for range 3 {
			create(t, fs, "f", "a") // two changes: the file, its byte
			n++
		}
		shots := c.Take()
		if len(shots) != min(most, 6) {
			t.Fatalf("%d shots of 6 changes, at most %d", len(shots), most)
		}
		for _, s := range shots {
			if s.State != (s.N-1)/2 || s.Op.Path != "f" || (s.Op.Kind == "create") != (s.N%2 == 1) {
				t.Fatalf("%+v", s)
			}
			if got := content(t, s.FS); got != []string{"", "f=", "f=a", "f=", "f=a", "f="}[s.N-1] {
				t.Fatalf("before change %d: %q", s.N, got)
			}
		}
		if len(c.Take()) != 0 {
			t.Fatal("shots were taken twice")
		}
	}
}
