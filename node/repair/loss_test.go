package repair

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
	"github.com/tidemark-mq/tidemark/node/datadir"
	"github.com/tidemark-mq/tidemark/segment"
)

// was and built are a damaged data directory and what a rebuild has made for it.
// Two names of the log are in both.
var (
	was = map[string]string{
		"identity.json": "old identity", "raft/000004.log": "old raft", "raft/CURRENT": "old current",
		"state/000007.sst": "old state", "topics/aa/0/000.log": "old tail", "topics/aa/1/000.seg": "sealed",
		"wal/0001.wal": "old log 1", "wal/0100.wal": "damaged", "wal/0200.wal": "old log 3",
	}
	built = map[string]string{
		"identity.json": "new identity", "raft/000009.log": "new raft", "raft/CURRENT": "new current",
		"state/000002.sst": "new state", "state/CURRENT": "new state's", "topics/aa/0/000.log": "old tail and more", "topics/bb/0/000.log": "first",
		"wal/0001.wal": "new log", "wal/0080.wal": "new log 2",
	}
)

// write makes files below dir: their bytes are synced, as whoever writes a file
// here does it, and the names of files and folders are not.
func write(t *testing.T, fs vfs.FS, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := path.Join(dir, name)
		if err := fs.MkdirAll(path.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := fs.Create(p, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
}

// below returns the files below dir, without those below a folder that is left out.
func below(t *testing.T, fs vfs.FS, dir string, without ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	var walk func(at string)
	walk = func(at string) {
		names, err := fs.List(path.Join(dir, at))
		if err != nil {
			t.Fatal(err)
		}
	names:
		for _, name := range names {
			rel := path.Join(at, name)
			for _, w := range without {
				if strings.HasPrefix(rel, w) {
					continue names
				}
			}
			st, err := fs.Stat(path.Join(dir, rel))
			if err != nil {
				t.Fatal(err)
			}
			if st.IsDir() {
				walk(rel)
				continue
			}
			f, err := fs.Open(path.Join(dir, rel))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(f)
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			out[rel] = string(b)
		}
	}
	walk("")
	return out
}

// The power goes at each step of saying that a rebuild is complete and of putting
// it in place, and of what was not synced by then any part is lost; then again
// while the repair goes on. What is there afterwards is the directory as it was,
// with nothing said, or a rebuild that is complete to the last byte and that the
// same call finishes: with all that is new in its place and all that was replaced
// kept (I1, I4, B50).
func TestPlacingOutlivesPowerLosses(t *testing.T) {
	const kept = "damaged-x"
	losses := 24
	if testing.Short() {
		losses = 8
	}
	rng := rand.New(rand.NewPCG(3, 5))
	fs := crash.NewFS()
	write(t, fs, "data", was)
	if err := syncTree(fs, "data"); err != nil {
		t.Fatal(err)
	}
	if err := datadir.SyncDir(fs, ""); err != nil {
		t.Fatal(err)
	}
	o := (&Options{Dir: "data", FS: fs}).withDefaults()
	if err := segment.MakeDir(fs, "data", o.path(datadir.RepairDir)); err != nil {
		t.Fatal(err)
	}
	write(t, fs, o.path(datadir.RepairDir), built)
	j := &journal{Incarnation: "new", Kept: kept, OldLog: []string{"0001.wal", "0100.wal", "0200.wal"}}
	nothing := func() struct{} { return struct{}{} }
	film := crash.Film(fs, rng, 500, nothing)
	if err := j.commit(&o); err != nil {
		t.Fatal(err)
	}
	if err := j.place(&o); err != nil {
		t.Fatal(err)
	}
	fs.Hook(nil)

	disks, early, resumed, done := 0, 0, 0, 0
	var look func(disk *crash.FS, again bool, when string)
	look = func(disk *crash.FS, again bool, when string) {
		disks++
		o := (&Options{Dir: "data", FS: disk}).withDefaults()
		if !ready(disk, "data") {
			have := below(t, disk, "data", datadir.RepairDir, "wal/"+kept)
			if have["identity.json"] == was["identity.json"] {
				early++
				if !maps.Equal(have, was) {
					t.Fatalf("%s: nothing says that there is a rebuild, and the directory is %v", when, have)
				}
				return
			}
			done++
			placed(t, disk, kept, when)
			return
		}
		resumed++
		j, err := readJournal(&o)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		film := crash.Film(disk, rng, 3, nothing)
		if err := j.place(&o); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		disk.Hook(nil)
		placed(t, disk, kept, when)
		if !again {
			return
		}
		for _, shot := range film.Take() {
			for _, disk := range shot.FS.Losses(rng, 4) {
				look(disk, false, fmt.Sprintf("%s, then before %s %s", when, shot.Op.Kind, shot.Op.Path))
			}
		}
	}
	look(fs.Kill(), false, "at the end")
	for _, shot := range film.Take() {
		for _, disk := range shot.FS.Losses(rng, losses) {
			look(disk, true, fmt.Sprintf("a loss before %s %s", shot.Op.Kind, shot.Op.Path))
		}
	}
	if early < 20 || resumed < 100 || done < 5 {
		t.Fatalf("%d disks: %d before, %d resumed, %d after", disks, early, resumed, done)
	}
	t.Logf("%d disks: %d before, %d resumed, %d after", disks, early, resumed, done)
}

// placed fails unless everything that was built is in its place, what it does not
// replace is as it was, and what it does is kept.
func placed(t *testing.T, fs vfs.FS, kept, when string) {
	t.Helper()
	want := maps.Clone(built)
	want["topics/aa/1/000.seg"] = was["topics/aa/1/000.seg"]
	if have := below(t, fs, "data", datadir.RepairDir, "wal/"+kept); !maps.Equal(have, want) {
		t.Fatalf("%s: in place is\n%v, want\n%v", when, have, want)
	}
	old := maps.Clone(was)
	maps.DeleteFunc(old, func(name, _ string) bool { return strings.HasPrefix(name, "topics/") })
	have := map[string]string{}
	for name, text := range below(t, fs, path.Join("data", "wal", kept)) {
		if path.Ext(name) == ".wal" {
			name = "wal/" + name
		}
		have[name] = text
	}
	if !maps.Equal(have, old) {
		t.Fatalf("%s: kept is\n%v, want\n%v", when, have, old)
	}
}
