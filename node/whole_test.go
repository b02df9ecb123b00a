package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/segment"
)

// A directory that lost a part in the first second of its life, before any
// checkpoint says what was in it, is refused with the name of the part and what
// to do. Once the part is back it serves what it had (I1, I3, I4, I10, B159).
func TestLostPartIsRefused(t *testing.T) {
	for _, c := range []struct {
		what string
		lost []string
	}{
		{"log", []string{"wal"}},
		{"local state", []string{"state"}},
		{"metadata", []string{"raft"}},
		{"log and local state", []string{"wal", "state", "topics", "cache"}}, // everything but raft
		{"all", []string{"wal", "state", "raft", "topics", "cache"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			m := newMemNode(t, nil)
			createTopic(t, m.Node, "t", 1)
			produce(t, m.Node, "t", broker.AckAccepted, numbered(0, 3)...)
			image := m.mem.CrashClone(everything())
			m.close()
			m.mem = image
			for _, name := range c.lost {
				if err := m.move(name, name+".lost"); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the first refusal puts nothing in its place
				err := m.tryOpen()
				if !errcode.Is(err, errcode.Corrupt) {
					t.Fatalf("%v (%s)", err, errcode.Of(err))
				}
				part := false
				for _, name := range c.lost {
					part = part || strings.Contains(err.Error(), filepath.Join(m.dir, name)+" is gone")
				}
				if !part || !strings.Contains(err.Error(), "tidemark restore") || !strings.Contains(err.Error(), "remove the directory") {
					t.Fatal(err)
				}
			}
			for _, name := range c.lost {
				if err := m.move(name+".lost", name); err != nil {
					t.Fatal(err)
				}
			}
			m.open()
			defer m.close()
			if got := readAll(t, m.Node, "t", 0); len(got) != 3 {
				t.Fatalf("%d records of 3", len(got))
			}
		})
	}
}

// move renames a part of the data directory, wherever it is.
func (m *memNode) move(from, to string) error {
	from, to = filepath.Join(m.dir, from), filepath.Join(m.dir, to)
	if filepath.Base(from) == "raft" || filepath.Base(to) == "raft" {
		return os.Rename(from, to)
	}
	if _, err := m.mem.Stat(from); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return m.mem.Rename(from, to)
}

// A part that is there and new is as good as lost: the folder was made by hand,
// or by a start of an earlier build (I3, I10, B159).
func TestEmptyPartIsRefused(t *testing.T) {
	for _, part := range []string{"state", "raft"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			m, other := newMemNode(t, nil), newMemNode(t, func(o *Options) { o.NodeID = "node-2" })
			m.close()
			other.close()
			if err := m.move(part, part+".lost"); err != nil {
				t.Fatal(err)
			}
			if part == "raft" {
				if err := os.CopyFS(filepath.Join(m.dir, "raft"), os.DirFS(filepath.Join(other.dir, "raft"))); err != nil {
					t.Fatal(err)
				}
			} else if err := errors.Join(m.mem.MkdirAll(filepath.Join(m.dir, "state"), 0o755), touch(m, "state/note")); err != nil {
				t.Fatal(err)
			}
			if err := m.tryOpen(); !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.Conflict) {
				t.Fatalf("%v (%s)", err, errcode.Of(err))
			}
		})
	}
}

func touch(m *memNode, name string) error {
	f, err := m.mem.Create(filepath.Join(m.dir, name), "")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// The first start dies, or the power goes, between any two changes it makes.
// The next one starts, serves, and is a start of a whole directory (I1, B50).
func TestFirstStartDiesAnywhere(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "d")
	fs := crash.NewFS()
	fs.Journal = "state" // Pebble relies on that order
	if err := segment.MakeDir(fs, "/", root); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 4))
	most := 60
	if testing.Short() {
		most = 20
	}
	// The metadata is on disk: a copy of it is taken with each picture.
	copies := 0
	camera := crash.Film(fs, rng, most, func() string {
		copies++
		to := filepath.Join(root, "raft", broker.TopicID(copies).String())
		if _, err := os.Stat(filepath.Join(dir, "raft")); err == nil {
			if err := os.CopyFS(to, os.DirFS(filepath.Join(dir, "raft"))); err != nil {
				t.Error(err)
			}
		}
		return to
	})
	options := func(dir string, fs *crash.FS) Options {
		o := testOptions(dir, nil)
		o.FS = historyFS{fs}
		return o
	}
	n, err := Open(context.Background(), options(dir, fs))
	if err != nil {
		t.Fatal(err)
	}
	fs.Hook(nil)
	closeNode(t, n)
	shots := camera.Take()
	begun := 0
	for _, s := range shots {
		for _, left := range []*crash.FS{s.FS.Kill(), s.FS.Loss(rng)} {
			if err := os.RemoveAll(filepath.Join(dir, "raft")); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(s.State); err == nil {
				if err := os.CopyFS(filepath.Join(dir, "raft"), os.DirFS(s.State)); err != nil {
					t.Fatal(err)
				}
			}
			if id, err := datadir.Read(left, dir); err == nil && id.Begun {
				begun++
			}
			n, err := Open(context.Background(), options(dir, left))
			if err != nil {
				t.Fatalf("crash before change %d, %s %s: %v", s.N, s.Op.Kind, s.Op.Path, err)
			}
			if id, err := datadir.Read(left, dir); err != nil || !id.Begun {
				t.Fatalf("crash before change %d: %+v %v", s.N, id, err)
			}
			createTopic(t, n, "t", 1)
			produce(t, n, "t", broker.AckAccepted, numbered(0, 1)...)
			closeNode(t, n)
		}
	}
	t.Logf("%d crashes, %d of them with everything there", 2*len(shots), begun)
	if len(shots) < 15 || begun == 2*len(shots) {
		t.Fatalf("%d pictures, %d of a whole directory", len(shots), begun)
	}
}
