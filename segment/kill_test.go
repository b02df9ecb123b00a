package segment

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// The process dies when it has created a segment's file, or renamed a cut copy
// over it, and has not synced the directory. The next one goes on with the
// file; what it syncs survives the power loss that follows. I1, I4, B50.
func TestKillBeforeTheDirectoryIsSynced(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	batches := someBatches(t, rng, testOptions.Base, 3)
	fresh := func(t *testing.T) *crash.FS {
		fs := crash.NewFS()
		if err := MakeDir(fs, ".", dir); err != nil {
			t.Fatal(err)
		}
		return fs
	}
	// killed runs fn and returns what the process leaves that dies before the
	// first sync of the directory.
	killed := func(t *testing.T, fs *crash.FS, fn func()) *crash.FS {
		var left *crash.FS
		fs.Hook(func(op crash.Op) (crash.Fault, error) {
			if op.Kind == "syncdir" && left == nil {
				left = fs.Kill()
			}
			return crash.Pass, nil
		})
		fn()
		fs.Hook(nil)
		if left == nil {
			t.Fatal("the directory was not synced")
		}
		return left
	}
	goOn := func(t *testing.T, fs *crash.FS) {
		w, _, err := Recover(fs, dir, RecoverOptions{Options: testOptions, Flushed: testOptions.Base})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			if headerOf(t, b).BaseOffset >= w.Next() {
				mustAppend(t, w, b)
			}
		}
		if err := w.Sync(); err != nil {
			t.Fatal(err)
		}
		for _, after := range fs.Losses(rng, 8) {
			checkRecovered(t, after, w.Durable(), bytes.Join(batches, nil))
		}
	}
	t.Run("create", func(t *testing.T) {
		fs := fresh(t)
		goOn(t, killed(t, fs, func() { mustCreate(t, fs) }))
	})
	t.Run("cut", func(t *testing.T) {
		fs := fresh(t)
		w := mustCreate(t, fs)
		mustAppend(t, w, batches[0])
		if err := w.Sync(); err != nil {
			t.Fatal(err)
		}
		f, err := fs.OpenReadWrite(logPath(), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("torn"), w.Size()); err != nil {
			t.Fatal(err)
		}
		goOn(t, killed(t, fs, func() {
			if _, cut, err := Recover(fs, dir, RecoverOptions{Options: testOptions, Flushed: w.Durable()}); err != nil || cut != 4 {
				t.Fatalf("cut %d: %v", cut, err)
			}
		}))
	})
}
