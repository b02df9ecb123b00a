package repair

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node"
	"github.com/tidemark-mq/tidemark/node/restore"
)

func planned(*Plan) error { return nil }

// mustRefuse proves that a node does not start on the directory.
func mustRefuse(t *testing.T, w *world, code errcode.Code) {
	t.Helper()
	n, err := node.Open(ctx, options(w.dir, w.archive))
	if err == nil {
		stop(t, n)
		t.Fatal("a node starts on the damaged directory")
	}
	if !errcode.Is(err, code) {
		t.Fatalf("a start fails with %v, want %v", err, code)
	}
}

// damages are the ways in which a log is broken.
var damages = map[string]func(t *testing.T, w *world) damaged{
	"a group in the middle": func(t *testing.T, w *world) damaged { return flip(t, w.files(t)[1]) },
	"two groups": func(t *testing.T, w *world) damaged {
		a, b := flip(t, w.files(t)[1]), flip(t, w.files(t)[2])
		return func(lsn uint64) bool { return a(lsn) || b(lsn) }
	},
	"a group in the last file": func(t *testing.T, w *world) damaged {
		files := w.files(t)
		return flip(t, files[len(files)-1])
	},
	"a file in the middle": func(t *testing.T, w *world) damaged { return remove(t, w.files(t)[2]) },
	"the first file":       func(t *testing.T, w *world) damaged { return remove(t, w.files(t)[0]) },
	"the last file": func(t *testing.T, w *world) damaged {
		files := w.files(t)
		return remove(t, files[len(files)-1])
	},
	"every file": func(t *testing.T, w *world) damaged {
		if err := os.RemoveAll(w.dir + "/wal"); err != nil {
			t.Fatal(err)
		}
		return func(uint64) bool { return true }
	},
	"a header": func(t *testing.T, w *world) damaged {
		change(t, w.files(t)[1], func(b []byte) { b[50] ^= 1 })
		return func(uint64) bool { return false }
	},
	"a header with its salt": func(t *testing.T, w *world) damaged {
		path := w.files(t)[1]
		hit := remove(t, w.copy(t).files(t)[1])
		change(t, path, func(b []byte) { b[25] ^= 1 })
		return hit
	},
}

func change(t *testing.T, path string, fn func([]byte)) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		fn(b)
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// contents returns the files of a directory, but the lock.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "LOCK" {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// flushes are sizes of tails: with the small one most records are in files too.
func flushes() []int64 {
	if testing.Short() {
		return []int64{8 << 10}
	}
	return []int64{8 << 10, 1 << 20}
}

// Whatever is broken, with or without flushed files, and without an archive: a
// node refuses, a look changes nothing, a repair loses just what was hit (I4),
// gives no offset twice (I3), and the node serves.
func TestRebuild(t *testing.T) {
	for _, flush := range flushes() {
		base := live(t, flush, false, false)
		for name, damage := range damages {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := base.copy(t)
				hit := damage(t, w)
				if refuses := w.survey(t).Damaged() || name == "the first file" || name == "every file" || name == "the last file"; !refuses {
					t.Fatal("no damage was done")
				}
				before := contents(t, w.dir)
				plan, err := Look(ctx, Options{Dir: w.dir})
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(contents(t, w.dir), before) {
					t.Fatal("a look has changed the directory")
				}
				switch {
				case plan.Action == Nothing && (name == "the first file" || name == "the last file"):
					return // no frame of it was needed or proven: recovery accepts that
				case name == "a header":
					if plan.Action != Refill || len(plan.Lost) > 0 {
						t.Fatalf("plan %+v", plan)
					}
				case plan.Action != Rebuild || len(plan.Damage) == 0 || len(plan.Lost) == 0 || len(plan.Partitions) != 3:
					t.Fatalf("plan %+v", plan)
				}
				mustRefuse(t, w, errcode.Corrupt)
				report, err := Run(ctx, Options{Dir: w.dir}, planned)
				if err != nil {
					t.Fatal(err)
				}
				if name != "every file" {
					if kept, err := os.ReadDir(report.Kept); err != nil || len(kept) == 0 {
						t.Fatalf("nothing is kept: %v", err)
					}
				}
				w.check(t, hit)
				if again, err := Look(ctx, Options{Dir: w.dir}); err != nil || again.Action != Nothing {
					t.Fatalf("after the repair: %+v, %v", again, err)
				}
			})
		}
	}
}

// With an archive that has the frames nothing is lost: incarnation and
// generations stay, and the archive goes on to be this directory's.
func TestRefillFromTheArchive(t *testing.T) {
	base := live(t, 1<<20, true, true)
	for _, name := range []string{"a group in the middle", "two groups", "a file in the middle", "a header", "a header with its salt"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := base.copy(t)
			damages[name](t, w)
			mustRefuse(t, w, errcode.Corrupt)
			if name != "a header" {
				if plan, err := Look(ctx, Options{Dir: w.dir}); err != nil || plan.Action != Rebuild || !plan.UsesArchive {
					t.Fatalf("without the archive: %+v, %v", plan, err)
				}
			}
			report, err := Run(ctx, Options{Dir: w.dir, Store: w.archive}, planned)
			if err != nil || report.Action != Refill || len(report.Lost) > 0 || report.NewIncarnation != "" {
				t.Fatalf("%+v, %v", report, err)
			}
			w.check(t, func(uint64) bool { return false })
			w.restored(t, func(uint64) bool { return false })
		})
	}
}

// With an archive that has a part, only the rest is lost. What survives, in the
// directory or in the archive, is in the archive again after the node has run:
// a restore finds it (I16).
func TestRebuildWithAnArchive(t *testing.T) {
	for _, flush := range flushes() {
		base := live(t, flush, true, false)
		for name, damage := range damages {
			for _, ask := range []bool{true, false} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					w := base.copy(t)
					hit := damage(t, w)
					o := Options{Dir: w.dir}
					if ask {
						o.Store = w.archive
					}
					plan, err := Look(ctx, o)
					if err != nil {
						t.Fatal(err)
					}
					if plan.Action == Nothing {
						return
					}
					report, err := Run(ctx, o, planned)
					if err != nil {
						t.Fatal(err)
					}
					if ask { // what the archive has is not lost
						all := hit
						hit = func(lsn uint64) bool {
							for _, l := range report.Lost {
								if l.From <= lsn && (lsn < l.Next || l.Open) {
									return all(lsn)
								}
							}
							return false
						}
					}
					w.check(t, hit)
					w.restored(t, hit)
				})
			}
		}
	}
}

// restored proves that a restore from the archive, after the repaired node has
// shipped, has every record that the node has.
func (w *world) restored(t *testing.T, hit damaged) {
	t.Helper()
	n := start(t, w.dir, w.archive)
	want := readBack(t, n)
	stop(t, n) // it ships what there is
	dir := t.TempDir() + "/restored"
	// An hour later nobody has to be watched.
	later := func() time.Time { return time.Now().Add(48 * time.Hour) }
	if _, err := restore.Run(ctx, restore.Options{Store: w.archive, Dir: dir, NodeID: "node-1", RaftAddr: "127.0.0.1:0", TakeOver: true, Now: later}); err != nil {
		t.Fatal(err)
	}
	n = start(t, dir, w.archive)
	defer stop(t, n)
	got := readBack(t, n)
	for at, value := range want {
		if got[at] != value {
			t.Fatalf("%v, LSN %d, is on the node and not in a restored one", at, w.lsn[at])
		}
	}
	for at, value := range got {
		if w.stored[at] != value {
			t.Fatalf("%v is a record that nobody stored", at)
		}
	}
}

// What a repair of the log cannot help is refused with a reason, and nothing is
// changed.
func TestRefusals(t *testing.T) {
	base := live(t, 8<<10, false, false)
	flip(t, base.files(t)[1])
	for _, x := range []struct {
		name   string
		spoil  func(t *testing.T, w *world)
		code   errcode.Code
		phrase string
	}{
		{"a file of another incarnation", func(t *testing.T, w *world) {
			other := live(t, 1<<20, false, false)
			b, err := os.ReadFile(other.files(t)[0])
			if err == nil {
				err = os.WriteFile(w.dir+"/wal/00000000000000099999.wal", b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			change(t, w.dir+"/wal/00000000000000099999.wal", func(b []byte) {
				binary.BigEndian.PutUint64(b[16:], 99999)
				binary.BigEndian.PutUint32(b[60:], crc32.Checksum(b[:60], crc32.MakeTable(crc32.Castagnoli)))
			})
		}, errcode.Conflict, "of incarnation"},
		{"no metadata", func(t *testing.T, w *world) { removeAll(t, w.dir+"/raft") }, errcode.Corrupt, "tidemark restore"},
		{"no local state", func(t *testing.T, w *world) { removeAll(t, w.dir+"/state") }, errcode.Corrupt, "tidemark restore"},
		{"no identity", func(t *testing.T, w *world) { removeAll(t, w.dir+"/identity.json") }, errcode.NotFound, "identity.json"},
		{"a segment file is gone", func(t *testing.T, w *world) { removeAll(t, w.dir+"/topics") }, errcode.Corrupt, "put the file back"},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := base.copy(t)
			x.spoil(t, w)
			before := contents(t, w.dir)
			_, err := Look(ctx, Options{Dir: w.dir})
			if !errcode.Is(err, x.code) || !strings.Contains(err.Error(), x.phrase) {
				t.Errorf("look: %v, want %v with %q", err, x.code, x.phrase)
			}
			if _, err := Run(ctx, Options{Dir: w.dir}, planned); !errcode.Is(err, x.code) {
				t.Errorf("run: %v", err)
			}
			if !reflect.DeepEqual(contents(t, w.dir), before) {
				t.Error("the directory was changed")
			}
		})
	}
	// A running node has the directory, and keeps it.
	w := base.copy(t)
	if _, err := Run(ctx, Options{Dir: w.dir}, planned); err != nil {
		t.Fatal(err)
	}
	n := start(t, w.dir, nil)
	if _, err := Look(ctx, Options{Dir: w.dir}); !errcode.Is(err, errcode.Conflict) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("beside a running node: %v", err)
	}
	stop(t, n)
	if _, err := Look(ctx, Options{Dir: w.dir + "/none"}); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := os.Stat(w.dir + "/none"); err == nil {
		t.Error("a look has made a directory")
	}
}

func removeAll(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}
