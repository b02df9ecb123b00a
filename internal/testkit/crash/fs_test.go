package crash

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, fs *FS, name, content string) vfs.File {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.Write([]byte(content))
	must(t, err)
	return f
}

func syncDir(t *testing.T, fs *FS, name string) {
	t.Helper()
	d, err := fs.OpenDir(name)
	must(t, err)
	must(t, d.Sync())
}

// content is what a file system holds in its root, "name=bytes" sorted; a page
// is told by its first byte.
func content(t *testing.T, fs *FS) string {
	t.Helper()
	names, err := fs.List("")
	must(t, err)
	var out []string
	for _, name := range names {
		f, err := fs.Open(name)
		must(t, err)
		b, err := io.ReadAll(f)
		must(t, err)
		text := name + "="
		for i := 0; i < len(b); i += pageSize {
			text += strings.ReplaceAll(string(b[i]), "\x00", "0")
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func losses(t *testing.T, fs *FS) []string {
	t.Helper()
	var out []string
	for _, image := range fs.Losses(rand.New(rand.NewPCG(1, 1)), 1<<10) {
		out = append(out, content(t, image))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func wants(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("a power loss leaves\n%q, want\n%q", got, want)
	}
}

func pages(s string) string {
	var b strings.Builder
	for _, c := range s {
		b.WriteString(strings.Repeat(string(c), pageSize))
	}
	return b.String()
}

// A power loss keeps what was synced and any part of the rest: pages, length
// and name are choices of their own.
func TestLossesOfAFile(t *testing.T) {
	fs := NewFS()
	f := create(t, fs, "f", pages("a"))
	wants(t, losses(t, fs), "", "f=", "f=0", "f=a")
	must(t, f.Sync())
	wants(t, losses(t, fs), "", "f=a")
	syncDir(t, fs, "")
	wants(t, losses(t, fs), "f=a")
	w, err := fs.OpenReadWrite("f", vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = w.WriteAt([]byte(pages("bc")), 0)
	must(t, err)
	wants(t, losses(t, fs), "f=a", "f=a0", "f=ac", "f=b", "f=b0", "f=bc")
	must(t, w.SyncData())
	wants(t, losses(t, fs), "f=bc")
	if n := fs.Dirty(); n != 0 {
		t.Fatalf("%d things are dirty after a sync", n)
	}
}

// A rename that was not synced is there or not, whole: the file has one name. A
// removal may come back.
func TestLossesOfNames(t *testing.T) {
	fs := NewFS()
	must(t, create(t, fs, "a", "1").Sync(), create(t, fs, "b", "2").Sync())
	syncDir(t, fs, "")
	must(t, fs.Rename("a", "c"))
	wants(t, losses(t, fs), "a=1 b=2", "b=2 c=1")
	syncDir(t, fs, "")
	must(t, fs.Rename("c", "b"))
	wants(t, losses(t, fs), "b=1", "b=2 c=1")
	syncDir(t, fs, "")
	must(t, fs.Remove("b"))
	wants(t, losses(t, fs), "", "b=1")
}

// In a directory with a journal a name that survives brings along what came
// before it.
func TestLossesOfNamesInOrder(t *testing.T) {
	fs := NewFS()
	fs.Journal = "j"
	must(t, fs.MkdirAll("j", 0o755))
	syncDir(t, fs, "")
	must(t, create(t, fs, "j/b", "").Close(), create(t, fs, "j/a", "").Close(), fs.Remove("j/b"), create(t, fs, "j/c", "").Close())
	var seen []string
	for _, image := range fs.Kill().Losses(rand.New(rand.NewPCG(1, 1)), 1<<10) {
		names, err := image.List("j")
		must(t, err)
		seen = append(seen, strings.Join(names, ""))
	}
	slices.Sort(seen)
	wants(t, slices.Compact(seen), "", "a", "ac")
}

// The death of a process keeps everything and makes nothing durable, and the
// two file systems share nothing that is written later.
func TestKill(t *testing.T) {
	fs := NewFS()
	f := create(t, fs, "f", pages("ab"))
	killed := fs.Kill()
	_, err := f.Write([]byte(pages("c")))
	must(t, err)
	w, err := killed.OpenReadWrite("f", vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = w.WriteAt([]byte("x"), 0)
	must(t, err)
	if got := content(t, killed); got != "f=xb" {
		t.Fatalf("killed: %s", got)
	}
	if got := content(t, fs); got != "f=abc" {
		t.Fatalf("original: %s", got)
	}
	if content(t, killed.Losses(rand.New(rand.NewPCG(1, 1)), 1)[0]) != "" {
		t.Fatal("what was never synced survives every power loss")
	}
}

// A sync that failed forgets: later ones say that all is well and write only
// what was written after it.
func TestForget(t *testing.T) {
	fs := NewFS()
	f := create(t, fs, "f", pages("a"))
	must(t, f.Sync())
	syncDir(t, fs, "")
	w, err := fs.OpenReadWrite("f", vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = w.WriteAt([]byte(pages("b")), 0)
	must(t, err)
	fs.Hook(func(op Op) (Fault, error) {
		if op.Kind == "sync" {
			return Forget, syscall.EIO
		}
		return Pass, nil
	})
	if err := w.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v", err)
	}
	fs.Hook(nil)
	must(t, w.Sync())
	wants(t, losses(t, fs), "f=a", "f=b")
	_, err = w.WriteAt([]byte(pages("b")), 0) // the same bytes once more are dirty
	must(t, err)
	must(t, w.Sync())
	wants(t, losses(t, fs), "f=b")
}

// Where the choices are many the images are random: the extremes are among
// them, and pages are torn at sectors.
func TestRandomLosses(t *testing.T) {
	fs := NewFS()
	f := create(t, fs, "f", pages("aaaaaaaaaa"))
	must(t, f.Sync())
	syncDir(t, fs, "")
	w, err := fs.OpenReadWrite("f", vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = w.WriteAt([]byte(pages("bbbbbbbbbb")), 0)
	must(t, err)
	torn := false
	seen := map[string]bool{}
	for _, image := range fs.Losses(rand.New(rand.NewPCG(1, 1)), 40) {
		seen[content(t, image)] = true
		f, err := image.Open("f")
		must(t, err)
		b, err := io.ReadAll(f)
		must(t, err)
		for i := 0; i < len(b); i += sector {
			if strings.Trim(string(b[i:i+sector]), string(b[i])) != "" {
				t.Fatal("a sector is torn")
			}
			torn = torn || b[i] != b[i/pageSize*pageSize]
		}
	}
	if !seen["f=aaaaaaaaaa"] || !seen["f=bbbbbbbbbb"] || len(seen) < 20 || !torn {
		t.Fatalf("%d images, torn %v", len(seen), torn)
	}
}

// The rest of vfs.FS behaves as the contract says.
func TestContract(t *testing.T) {
	fs := NewFS()
	must(t, fs.MkdirAll("/d/e", 0o755))
	must(t, create(t, fs, "d/e/f", "hello").Close())
	if _, err := fs.Stat("d/x"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("stat: %v", err)
	}
	if _, err := fs.Create("x/f", vfs.WriteCategoryUnspecified); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("create without a directory: %v", err)
	}
	must(t, fs.Link("d/e/f", "d/g"))
	if err := fs.Link("d/e/f", "d/g"); !errors.Is(err, os.ErrExist) {
		t.Fatalf("link: %v", err)
	}
	if err := fs.Remove("d"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Fatalf("remove: %v", err)
	}
	l, err := fs.Lock("LOCK")
	must(t, err)
	if _, err := fs.Lock("/LOCK"); !errors.Is(err, syscall.EAGAIN) {
		t.Fatalf("second lock: %v", err)
	}
	must(t, l.Close())
	l, err = fs.Lock("LOCK")
	must(t, err)
	must(t, l.Close())
	f, err := fs.Open("d/g")
	must(t, err)
	b := make([]byte, 10)
	if n, err := f.ReadAt(b, 1); string(b[:n]) != "ello" || err != io.EOF {
		t.Fatalf("%q %v", b[:n], err)
	}
	if _, err := f.Write([]byte("x")); err == nil {
		t.Fatal("a file that is open for reading was written")
	}
	must(t, fs.RemoveAll("d"))
	names, err := fs.List("")
	if err != nil || !slices.Equal(names, []string{"LOCK"}) {
		t.Fatalf("%v %v", names, err)
	}
}

// A rename into another directory does not lose what it moves, nor what it had to
// make room for, moved on before: each is somewhere. Whoever syncs the directory
// that a file has left, and not the one that it went to, may lose it.
func TestLossesOfMoves(t *testing.T) {
	fs := NewFS()
	for _, dir := range []string{"from", "to", "kept"} {
		must(t, fs.MkdirAll(dir, 0o755))
	}
	must(t, create(t, fs, "from/a", "1").Sync(), create(t, fs, "to/a", "2").Sync())
	for _, dir := range []string{"from", "to", "kept", ""} {
		syncDir(t, fs, dir)
	}
	must(t, fs.Rename("to/a", "kept/a"), fs.Rename("from/a", "to/a"))
	for synced, want := range map[string][]string{
		"":     {"from/a=1 to/a=2", "from/a=1 to/a=1 kept/a=2", "from/a=1 to/a=2 kept/a=2", "to/a=1 kept/a=2"},
		"kept": {"from/a=1 to/a=2 kept/a=2", "from/a=1 to/a=1 kept/a=2", "to/a=1 kept/a=2"},
		"to":   {"from/a=1 to/a=1", "from/a=1 to/a=1 kept/a=2", "to/a=1", "to/a=1 kept/a=2"},
	} {
		fs := fs.Kill()
		syncDir(t, fs, synced)
		var got []string
		for _, image := range fs.Losses(rand.New(rand.NewPCG(1, 1)), 1<<10) {
			var there []string
			for _, name := range []string{"from/a", "to/a", "kept/a"} {
				if f, err := image.Open(name); err == nil {
					b, err := io.ReadAll(f)
					must(t, err)
					there = append(there, name+"="+string(b))
				}
			}
			got = append(got, strings.Join(there, " "))
		}
		slices.Sort(got)
		slices.Sort(want)
		wants(t, slices.Compact(got), want...)
	}
}
