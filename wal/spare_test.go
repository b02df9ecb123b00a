package wal

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// The process dies when a file has become a spare and the directory was not
// synced yet; the next start takes that spare for its first file, and then the
// power goes. On disk the spare may still have its old name: it must not have
// got new content by then. I4, B50.
func TestKillInARecycleThenPowerLoss(t *testing.T) {
	fs := crash.NewFS()
	o := testOptions(fs)
	o.FileSize, o.PoolFiles = 64<<10, 2
	l := mustOpen(t, o)
	var killed []*crash.FS
	var mu sync.Mutex // the janitor recycles too
	renamed := false
	fs.Hook(func(op crash.Op) (crash.Fault, error) {
		mu.Lock()
		defer mu.Unlock()
		if renamed && op.Kind == "syncdir" {
			killed = append(killed, fs.Kill())
		}
		renamed = op.Kind == "rename" && strings.HasPrefix(op.Path, "wal/"+sparePrefix)
		return crash.Pass, nil
	})
	for range 8 {
		l.Hold("state", put(t, l.Log, 1, 40<<10).lsn)
		l.recycle() // what the janitor has done meanwhile is as good
	}
	mustClose(t, l)
	fs.Hook(nil)
	if len(killed) == 0 {
		t.Fatal("nothing was recycled")
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, fs := range killed {
		camera := crash.Film(fs, rng, 100, func() struct{} { return struct{}{} })
		o.FS = fs
		mustClose(t, mustOpen(t, o))
		fs.Hook(nil)
		for _, s := range camera.Take() {
			for _, fs := range s.FS.Losses(rng, 8) {
				o := o
				o.FS = fs
				l, err := tryOpen(o)
				if err != nil {
					t.Fatalf("power loss before %s %s: %v", s.Op.Kind, s.Op.Path, err)
				}
				mustClose(t, l)
			}
		}
	}
}
