package wal

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// grown opens a log whose first file has a durable frame and then one that is
// only written, and grew for both. Then there is a spare.
func grown(t *testing.T, fs vfs.FS) (*opened, []entry) {
	t.Helper()
	var room atomic.Bool
	o := testOptions(fs)
	o.FileSize, o.PoolFiles = 64<<10, 1
	o.DiskOK = func(bytes int64) error {
		if bytes > 0 && !room.Load() {
			return errReserve
		}
		return nil
	}
	l := mustOpen(t, o)
	synctest.Wait() // the janitor has found no room
	all := []entry{put(t, l.Log, 1, 100), write(t, l.Log, 1, 6000)}
	room.Store(true)
	if err := l.prewrite(); err != nil {
		t.Fatal(err)
	}
	room.Store(false)
	if s := l.Stats(); s.Spares != 1 || s.Files != 1 || s.Durable != 1 || s.Written != 2 {
		t.Fatalf("to begin with: %+v", s)
	}
	return l, all
}

// A file that grows ends at the next group once there is a spare. Wherever the
// power goes or the process dies on the way, what was answered is there, also
// what the old file had in the page cache only, and nothing else; the log goes
// on, and the start after that finds the same (I1, I4, B50).
func TestGrowingFileEndsAtTheFirstSpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := crash.NewFS()
		l, all := grown(t, fs)
		type promise struct{ acked, wrote int } // of all, how many
		var mu sync.Mutex
		said := promise{1, 2}
		rng := rand.New(rand.NewPCG(3, 3))
		camera := crash.Film(fs, rng, 100, func() promise { mu.Lock(); defer mu.Unlock(); return said })
		for i := range 3 {
			all = append(all, put(t, l.Log, 1, 50+5000*i))
			mu.Lock()
			said = promise{len(all), len(all)}
			mu.Unlock()
		}
		fs.Hook(nil)
		if s := l.Stats(); s.Files != 2 || s.Spares != 0 || s.Bytes > 2*l.o.FileSize-l.o.FileSize/4 {
			t.Fatalf("the file that grew did not end early: %+v", s)
		}
		mustClose(t, l)

		syncs := 0
		for _, s := range camera.Take() {
			if s.Op.Kind == "sync" || s.Op.Kind == "syncdir" {
				syncs++
			}
			kill := s.FS.Kill()
			for _, fs := range append(s.FS.Losses(rng, 64), kill) {
				least := s.State.acked
				if fs == kill {
					least = s.State.wrote
				}
				got := reopenTwice(t, fs, l.o, uint64(s.State.acked))
				if len(got) < least || len(got) > len(all) {
					t.Fatalf("a crash before change %d, %s %s: %d frames, %d were answered", s.N, s.Op.Kind, s.Op.Path, len(got), least)
				}
				wantFrames(t, got, all[:len(got)])
			}
		}
		if syncs != 6 { // the old file, the new header, its name, three groups
			t.Fatalf("%d syncs", syncs)
		}
	})
}

// reopenTwice opens what a crash left, appends, opens it again, and returns the
// frames that the first start found.
func reopenTwice(t *testing.T, fs *crash.FS, o Options, known uint64) []entry {
	t.Helper()
	o.FS, o.KnownDurable = fs, known
	l, err := tryOpen(o)
	if err != nil {
		t.Fatal(err)
	}
	found := l.userFrames()
	want := append(slices.Clone(found), put(t, l.Log, 2, 40))
	mustClose(t, l)
	again := mustOpen(t, o)
	wantFrames(t, again.userFrames(), want)
	mustClose(t, again)
	return found
}

// A spare that is there and does not open, because the process is out of
// descriptors, stops nobody: the file grows on, and ends as soon as the spare
// opens. A spare that fails its first write is not used, and the file grows on.
func TestGrowingFileGrowsOn(t *testing.T) {
	for name, c := range map[string]struct {
		failing []string
		err     error
		files   int // when nothing fails any more
	}{
		"out of descriptors": {[]string{"open", "create"}, syscall.EMFILE, 2},
		"a damaged spare":    {[]string{"write"}, syscall.EIO, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := newFS()
				fs := &faultFS{FS: mem}
				l, all := grown(t, fs)
				var hits atomic.Int64
				fs.set(func(op, path string) (action, error) {
					if slices.Contains(c.failing, op) && !strings.HasSuffix(path, sparePrefix+"1") { // the current file
						hits.Add(1)
						return fail, c.err
					}
					return pass, nil
				}, nil)
				for range 3 {
					all = append(all, put(t, l.Log, 1, 100))
				}
				if s := l.Stats(); s.Files != 1 || l.Err() != nil || hits.Load() == 0 {
					t.Fatalf("%d failures: %v %+v", hits.Load(), l.Err(), s)
				}
				fs.set(nil, nil)
				all = append(all, put(t, l.Log, 1, 100))
				if s := l.Stats(); s.Files != c.files {
					t.Fatalf("%d files, want %d", s.Files, c.files)
				}
				mustClose(t, l)
				again := mustOpen(t, testOptions(clone(mem, 0, 1)))
				wantFrames(t, again.userFrames(), all)
				mustClose(t, again)
			})
		})
	}
}

// A file that cannot grow, because the disk is full, is no stop while there is a
// spare: what its write left half done is not part of the log (I4, I15).
func TestFullDiskGoesOnInASpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newFS()
		fs := &faultFS{FS: mem}
		l, all := grown(t, fs)
		sp, _ := l.files.takeSpare()
		var refused atomic.Int64
		fs.set(func(op, path string) (action, error) {
			if op == "write" && strings.HasSuffix(path, sparePrefix+"1") {
				refused.Add(1)
				return shorten, nil
			}
			return pass, nil
		}, nil)
		e := stage(t, l.Log, 1, 9000)
		if err := l.WaitDurable(t.Context(), e.lsn); err == nil || l.Err() == nil {
			t.Fatal("the disk is not full: this test proves nothing")
		}
		l.files.addSpare(sp)
		time.Sleep(2 * retryMost)
		synctest.Wait()
		if err := l.Err(); err != nil || refused.Load() != 1 {
			t.Fatalf("%v after %d refusals", err, refused.Load())
		}
		all = append(all, e, put(t, l.Log, 1, 100))
		mustClose(t, l)
		again := mustOpen(t, testOptions(clone(mem, 0, 1)))
		wantFrames(t, again.userFrames(), all)
		mustClose(t, again)
	})
}
