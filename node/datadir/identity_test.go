package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Every test of the package must leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t testing.TB, fs vfs.FS, name string, data []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(bytes.Clone(data)) // the file system may change what it is given
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func memory(t testing.TB) vfs.FS {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("d", 0o755); err != nil {
		t.Fatal(err)
	}
	return fs
}

// A new directory gets an incarnation of its own and keeps it; a zero one is
// drawn again.
func TestIdentityStays(t *testing.T) {
	fs := memory(t)
	first, err := Open(fs, "d", "n1", bytes.NewReader(append(make([]byte, 8), 0, 0, 0, 0, 0, 0, 0, 7)))
	if err != nil || first.Incarnation != 7 || first.NodeID != "n1" {
		t.Fatalf("%+v %v", first, err)
	}
	again, err := Open(fs, "d", "n1", bytes.NewReader(nil))
	if err != nil || again != first {
		t.Fatalf("%+v %v", again, err)
	}
	other, err := Open(memory(t), "d", "n1", nil)
	if err != nil || other.Incarnation == 0 || other.Incarnation == first.Incarnation {
		t.Fatalf("%+v %v", other, err)
	}
}

// Without random numbers there is no identity, and nothing is written.
func TestNoRandomNumbers(t *testing.T) {
	fs := memory(t)
	if _, err := Open(fs, "d", "n1", bytes.NewReader([]byte{1, 2})); err == nil {
		t.Fatal("an identity from two random bytes")
	}
	if names, err := fs.List("d"); err != nil || len(names) != 0 {
		t.Fatal(names, err)
	}
}

// A directory of another node is refused with both names.
func TestOtherNode(t *testing.T) {
	fs := memory(t)
	if _, err := Open(fs, "d", "n1", nil); err != nil {
		t.Fatal(err)
	}
	_, err := Open(fs, "d", "n2", nil)
	if !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), `"n1"`) || !strings.Contains(err.Error(), `"n2"`) {
		t.Fatal(err)
	}
}

// An identity that was torn anywhere, or says nothing, is damage: it never
// becomes a new identity over old data. The file stays as it is.
func TestTornIdentity(t *testing.T) {
	fs := memory(t)
	if _, err := Open(fs, "d", "n1", nil); err != nil {
		t.Fatal(err)
	}
	path := fs.PathJoin("d", identityFile)
	whole := bytes.TrimSpace(read(t, fs, path))
	bad := [][]byte{[]byte("null"), []byte("[]"), bytes.Repeat([]byte{0}, len(whole)), []byte(`{"format":"tidemark-data","version":1}`),
		[]byte(`{"format":"tidemark-data","version":1,"node_id":"n1"}`), []byte(`{"format":"tidemark-data","version":1,"node_id":"n1","incarnation":"xyz"}`),
		[]byte(`{"format":"other","version":1,"node_id":"n1","incarnation":"0000000000000001"}`)}
	for n := range whole {
		bad = append(bad, whole[:n])
	}
	for _, b := range bad {
		write(t, fs, path, b)
		if _, err := Open(fs, "d", "n1", nil); !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), identityFile) {
			t.Fatalf("%q: %v", b, err)
		}
		if !bytes.Equal(read(t, fs, path), b) {
			t.Fatalf("%q was overwritten", b)
		}
	}
}

func read(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	_, err = b.ReadFrom(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A later version is named, also when its fields have another form.
func TestLaterVersion(t *testing.T) {
	fs := memory(t)
	write(t, fs, fs.PathJoin("d", identityFile), []byte(`{"format":"tidemark-data","version":2,"node_id":["n1"],"incarnation":{}}`))
	if _, err := Open(fs, "d", "n1", nil); !errcode.Is(err, errcode.UnsupportedVersion) || !strings.Contains(err.Error(), "version 2") {
		t.Fatal(err)
	}
}

// A directory with data and without identity is refused: a new incarnation over
// an old log would give frames a second meaning. What a crash of the very first
// start leaves is not data.
func TestLostIdentity(t *testing.T) {
	for _, name := range []string{"raft", "state", "wal", "topics", "notes.txt"} {
		fs := memory(t)
		if err := fs.MkdirAll(fs.PathJoin("d", name), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(fs, "d", "n1", nil); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), name) {
			t.Fatalf("%s: %v", name, err)
		}
		if names, _ := fs.List("d"); len(names) != 1 {
			t.Fatalf("%s: %v", name, names)
		}
	}
	fs := memory(t)
	for _, name := range []string{LockFile, identityFile + ".tmp", "lost+found"} {
		write(t, fs, fs.PathJoin("d", name), []byte("half"))
	}
	if _, err := Open(fs, "d", "n1", nil); err != nil {
		t.Fatal(err)
	}
}

// Power is lost before any call of the first start: afterwards there is no
// identity or the whole one, and an Open that had returned is there for ever.
func TestCrashOfTheFirstStart(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		fs := vfs.NewCrashableMem()
		if err := errors.Join(fs.MkdirAll("d", 0o755), SyncDir(fs, "d"), SyncDir(fs, ".")); err != nil {
			t.Fatal(err)
		}
		crash, calls := rng.IntN(8), 0
		var image *vfs.MemFS
		clone := func() *vfs.MemFS {
			return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rng})
		}
		hooked := errorfs.Wrap(fs, errorfs.InjectorFunc(func(errorfs.Op) error {
			if calls == crash {
				image = clone()
			}
			calls++
			return nil
		}))
		id, err := Open(hooked, "d", "n1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if image == nil {
			image = clone()
			if got, err := Read(image, "d"); err != nil || got != id {
				t.Fatalf("seed %d: it had returned: %+v %v", seed, got, err)
			}
		}
		got, err := Read(image, "d")
		if err == nil && got != id || err != nil && !errcode.Is(err, errcode.NotFound) {
			t.Fatalf("seed %d: %+v %v", seed, got, err)
		}
		if _, err := Open(image, "d", "n1", nil); err != nil {
			t.Fatalf("seed %d: a start after the crash: %v", seed, err)
		}
	}
}

// A file system that fails at any call fails the start with code storage, and
// the next one works.
func TestFailingFileSystem(t *testing.T) {
	for k := 0; ; k++ {
		mem := memory(t)
		calls := 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if calls++; calls == k+1 {
				return fmt.Errorf("%v: input/output error", op.Kind)
			}
			return nil
		}))
		_, err := Open(fs, "d", "n1", nil)
		if calls <= k {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if err != nil && !errcode.Is(err, errcode.Storage) {
			t.Fatalf("call %d: %v", k, err)
		}
		if _, err := Open(mem, "d", "n1", nil); err != nil {
			t.Fatalf("call %d, afterwards: %v", k, err)
		}
	}
}

// One process has the directory at a time; the lock is there again after it was
// given up.
func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there yet")
	first, err := Lock(vfs.Default, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(vfs.Default, dir); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("second process: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(vfs.Default, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	// A locked directory is still a new one.
	if _, err := Open(vfs.Default, dir, "n1", nil); err != nil {
		t.Fatal(err)
	}
}

// The file of version 1 is read for ever.
func TestGoldenVersion1(t *testing.T) {
	want, err := os.ReadFile(filepath.Join("testdata", "v1.identity.json"))
	if err != nil {
		t.Fatal(err)
	}
	id, err := parse("identity", want)
	if err != nil || id != (Identity{Format: identityFormat, Version: 1, NodeID: "node-1", Incarnation: 0x0123456789abcdef}) {
		t.Fatalf("%+v %v", id, err)
	}
	fs := memory(t)
	if err := Write(fs, "d", id); err != nil {
		t.Fatal(err)
	}
	if got := read(t, fs, fs.PathJoin("d", identityFile)); !bytes.Equal(got, want) {
		t.Fatalf("this build writes %s", got)
	}
}
