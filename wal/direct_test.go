package wal

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// diskDir is a directory on a disk, also where those of other tests are in memory.
func diskDir(t *testing.T) string {
	t.Helper()
	if disk := os.Getenv("TESTDISK"); disk != "" {
		t.Setenv("TMPDIR", disk)
	}
	return t.TempDir()
}

// diskOptions are of a log on a real disk with files of 1 MiB.
func diskOptions(t *testing.T, fs vfs.FS) Options {
	t.Helper()
	o := testOptions(fs)
	o.Dir, o.FileSize = filepath.Join(diskDir(t), "wal"), 1<<20
	return o
}

// takesDirectWrites asks the file system of the test's directory itself.
func takesDirectWrites(t *testing.T) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(diskDir(t), "probe"), os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o600)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.WriteAt(alignedBytes(directBytes), 0)
	return err == nil
}

// intoPool appends until the current file is a prewritten one and says whether
// it has a direct writer.
func intoPool(t *testing.T, l *opened, into *[]entry) (direct bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		before := l.Stats().Files
		for l.Stats().Files == before {
			*into = append(*into, put(t, l.Log, 3, 100<<10))
		}
		if l.mu.direct != nil {
			return true
		}
		if l.Stats().Spares == 0 {
			time.Sleep(time.Millisecond) // the janitor writes one
		}
		if l.Stats().Files > 40 {
			return false
		}
	}
	return false
}

// Groups that go around the page cache and groups that go through it stand in
// one file, are read back while the log runs, and are all there after a restart
// (I1, I4). The log goes around the cache exactly where the file system can.
func TestDirectWrites(t *testing.T) {
	o := diskOptions(t, vfs.Default)
	l := mustOpen(t, o)
	var want []entry
	if got, can := intoPool(t, l, &want), takesDirectWrites(t); got != can {
		t.Fatalf("direct writes %v, the file system takes them: %v", got, can)
	}
	rng := rand.New(rand.NewPCG(5, 5))
	for range 60 {
		for range 1 + rng.IntN(4) {
			want = append(want, stage(t, l.Log, 3, 1+rng.IntN([]int{200, 5 << 10, 120 << 10}[rng.IntN(3)])))
		}
		last := want[len(want)-1].lsn
		wait := l.WaitDurable
		if rng.IntN(3) == 0 {
			wait = l.WaitWritten // stays in the page cache, between blocks that do not
		}
		if err := wait(context.Background(), last); err != nil {
			t.Fatal(err)
		}
		if rng.IntN(4) == 0 {
			checkShipped(t, l, want)
		}
	}
	checkShipped(t, l, want)
	mustClose(t, l)
	checkReplayed(t, mustOpen(t, o), want)
}

// checkShipped reads every durable group as a shipper does.
func checkShipped(t *testing.T, l *opened, want []entry) {
	t.Helper()
	bodies := map[uint64][]byte{}
	for _, e := range want {
		bodies[e.lsn] = e.body
	}
	for next := uint64(1); next <= l.Durable(); {
		run, err := l.ReadGroups(next, 1<<20)
		if err != nil || run.Next == run.First {
			t.Fatalf("read groups from LSN %d: %+v %v", next, run, err)
		}
		for _, g := range run.Groups {
			if err := ForEachFrame(g, run.Salt, func(f Frame) error {
				if b, ok := bodies[f.LSN]; ok && !bytes.Equal(b, f.Body) {
					t.Fatalf("LSN %d reads differently than it was written", f.LSN)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		next = run.Next
	}
}

func checkReplayed(t *testing.T, l *opened, want []entry) {
	t.Helper()
	got := l.userFrames()
	if len(got) != len(want) {
		t.Fatalf("%d frames after the restart, want %d", len(got), len(want))
	}
	for i, e := range want {
		if got[i].lsn != e.lsn || !bytes.Equal(got[i].body, e.body) {
			t.Fatalf("frame %d: LSN %d, want %d, or another body", i, got[i].lsn, e.lsn)
		}
	}
}

// A file system that hands out the descriptor and refuses the write costs
// nothing but the page cache: the same group is written in the ordinary way,
// nobody is refused, and nothing is lost. A disk that fails a direct write
// stalls the log, which heals with the same bytes (B65).
func TestDirectWriteFails(t *testing.T) {
	for name, cause := range map[string]error{"refused": syscall.EINVAL, "disk error": syscall.EIO, "disk full": syscall.ENOSPC} {
		t.Run(name, func(t *testing.T) {
			fs := &faultFS{FS: vfs.Default}
			o := diskOptions(t, fs)
			l := mustOpen(t, o)
			var want []entry
			if !intoPool(t, l, &want) {
				return // writes through the page cache fail in TestB65ShortWrite
			}
			left := 1
			fs.set(func(op, path string) (action, error) {
				// Only the direct descriptor was opened under the file's name.
				if op == "write" && strings.HasSuffix(path, ".wal") && left > 0 {
					left--
					return fail, cause
				}
				return pass, nil
			}, nil)
			e := stage(t, l.Log, 3, 40<<10)
			want = append(want, e)
			err := l.WaitDurable(context.Background(), e.lsn)
			if refused := errors.Is(cause, syscall.EINVAL); refused == (err != nil) || left != 0 {
				t.Fatalf("%v, %d writes did not fail", err, left)
			}
			for deadline := time.Now().Add(20 * time.Second); l.Err() != nil; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the log did not heal: %v", l.Err())
				}
			}
			want = append(want, put(t, l.Log, 3, 40<<10), put(t, l.Log, 3, 100))
			mustClose(t, l)
			checkReplayed(t, mustOpen(t, o), want)
		})
	}
}

// Memory for groups begins at a block boundary, whatever its size.
func TestAlignedBytes(t *testing.T) {
	for _, n := range []int{1, blockSize, 5*blockSize + 1, 1 << 20} {
		b := alignedBytes(n)
		if len(b) != n || cap(b) != n || addressOf(b)%blockSize != 0 {
			t.Fatalf("%d bytes: length %d, capacity %d, at %x", n, len(b), cap(b), addressOf(b))
		}
	}
}

// What goes around the page cache: a block by itself that is synced at once, and
// large groups. What lies between, and what nobody waits to see synced, does not.
func TestWhichWritesAreDirect(t *testing.T) {
	fs := &faultFS{FS: vfs.Default}
	l := mustOpen(t, diskOptions(t, fs))
	var all []entry
	if !intoPool(t, l, &all) {
		return // there are no such writes here
	}
	var direct, plain int
	ordinary := l.mu.file.(*faultFile).path // it was opened as a spare; the direct descriptor under the file's name
	fs.set(nil, func(op, path string) {
		switch {
		case op != "write":
		case path == ordinary:
			plain++
		case strings.HasSuffix(path, ".wal"):
			direct++
		}
	})
	for _, c := range []struct {
		what string
		n    int
		add  func(testing.TB, *Log, uint64, int) entry
		want int
	}{
		{"a block, synced", 100, put, 1},
		{"a block, written only", 100, write, 0},
		{"two blocks, synced", 5000, put, 0},
		{"a large group, written only", 40 << 10, write, 1},
	} {
		direct, plain = 0, 0
		if all = append(all, c.add(t, l.Log, 3, c.n)); direct != c.want || direct+plain != 1 {
			t.Errorf("%s: %d direct writes and %d others", c.what, direct, plain)
		}
	}
	fs.set(nil, nil)
	mustClose(t, l)
	checkReplayed(t, mustOpen(t, l.o), all)
}
