package datadir

import (
	"math/rand/v2"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// The process dies, or the power goes, between any two steps of the first
// start; the next start, and the one after another power loss, find the
// identity that records may have been written under by then. I4, B50, B159.
func TestIdentitySurvivesEveryCrash(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	fs := crash.NewFS()
	if err := fs.MkdirAll("d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := SyncDir(fs, ""); err != nil {
		t.Fatal(err)
	}
	var first *Identity // once Open has returned it
	camera := crash.Film(fs, rng, 100, func() *Identity { return first })
	id, err := Open(fs, "d", "n1", nil)
	if err != nil {
		t.Fatal(err)
	}
	first = &id
	fs.Hook(nil)
	shots := append(camera.Take(), crash.Shot[*Identity]{FS: fs, State: first})
	histories := 0
	for _, s := range shots {
		for _, left := range append(s.FS.Losses(rng, 64), s.FS.Kill()) {
			found, err := Open(left, "d", "n1", nil)
			if err != nil || s.State != nil && found != *s.State {
				t.Fatalf("%+v after a crash before %s %s, want %+v: %v", found, s.Op.Kind, s.Op.Path, s.State, err)
			}
			for _, after := range left.Losses(rng, 64) {
				if again, err := Open(after, "d", "n1", nil); err != nil || again != found {
					t.Fatalf("%+v after a second power loss, want %+v: %v", again, found, err)
				}
				histories++
			}
		}
	}
	if histories < 15 {
		t.Fatalf("%d histories", histories)
	}
}

// A data directory whose parents were missing is there after every loss of
// power behind Lock: nobody may store records below a name that goes (I1, B50).
func TestNewDirectorySurvivesEveryLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	fs := crash.NewFS()
	if err := fs.MkdirAll("srv", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := SyncDir(fs, ""); err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(fs, "srv/tidemark/prod/data")
	if err != nil {
		t.Fatal(err)
	}
	losses := fs.Losses(rng, 64)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	for _, left := range losses {
		if _, err := left.Stat("srv/tidemark/prod/data"); err != nil {
			t.Fatalf("after a power loss: %v", err)
		}
	}
	if len(losses) < 2 {
		t.Fatalf("%d losses: nothing was at stake", len(losses))
	}
}
