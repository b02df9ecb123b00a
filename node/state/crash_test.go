package state

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/segment"
)

// The power goes between any two steps of a first start, of a commit and of the
// starts that follow, on a file system that keeps any of the names that were not
// synced and loses the others: the local state opens, and has every mark that was
// committed (I4, B50).
func TestNamesAreKeptInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	fs := crash.NewFS()
	if err := segment.MakeDir(fs, ".", "d/state"); err != nil {
		t.Fatal(err)
	}
	var committed atomic.Uint64 // Pebble cleans up in a goroutine of its own
	camera := crash.Film(fs, rng, 400, committed.Load)
	open := func(fs vfs.FS) *DB {
		t.Helper()
		db, err := Open(fs, "d/state", nil)
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	for n := uint64(1); n <= 4; n++ { // each start makes a manifest and a marker
		db := open(fs)
		b := db.NewBatch()
		b.PutMarks(Marks{Incarnation: 1, Durable: n})
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		committed.Store(n)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	fs.Hook(nil)
	histories := 0
	for _, s := range camera.Take() {
		for _, left := range s.FS.Losses(rng, 12) {
			db, err := Open(left, "d/state", nil)
			if err != nil {
				t.Fatalf("after a power loss before %s %s with mark %d committed: %v", s.Op.Kind, s.Op.Path, s.State, err)
			}
			m, err := db.Marks()
			if err != nil || m.Durable < s.State {
				t.Fatalf("after a power loss before %s %s: mark %d, %d was committed: %v", s.Op.Kind, s.Op.Path, m.Durable, s.State, err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			histories++
		}
	}
	if histories < 50 {
		t.Fatalf("%d histories", histories)
	}
	t.Logf("%d histories", histories)
}
