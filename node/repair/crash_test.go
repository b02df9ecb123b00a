package repair

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/datadir"
)

var errStopped = errors.New("the process is killed here")

// stopFS lets a number of changing calls pass and fails all later ones, as if
// the process had been killed between two of them.
type stopFS struct {
	vfs.FS
	left, seen *atomic.Int64
}

func newStopFS(after int64) *stopFS {
	f := &stopFS{FS: vfs.Default, left: new(atomic.Int64), seen: new(atomic.Int64)}
	f.left.Store(after)
	return f
}

// pass counts a changing call. The databases of a rebuild, which tries failed
// writes again, are left out: what is in them counts only once READY stands.
func (f *stopFS) pass(path string) error {
	if strings.Contains(path, filepath.Join(datadir.RepairDir, "state")) {
		return nil
	}
	f.seen.Add(1)
	if f.left.Add(-1) < 0 {
		return errStopped
	}
	return nil
}

func (f *stopFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.pass(name); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name, c)
	return f.file(name, file, err)
}

func (f *stopFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, o...)
	return f.file(name, file, err)
}

func (f *stopFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.file(name, file, err)
}

func (f *stopFS) file(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &stopFile{file, f, name}, nil
}

func (f *stopFS) Rename(from, to string) error {
	if err := f.pass(from); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *stopFS) Link(from, to string) error {
	if err := f.pass(from); err != nil {
		return err
	}
	return f.FS.Link(from, to)
}

func (f *stopFS) Remove(name string) error {
	if err := f.pass(name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *stopFS) RemoveAll(name string) error {
	if err := f.pass(name); err != nil {
		return err
	}
	return f.FS.RemoveAll(name)
}

func (f *stopFS) MkdirAll(name string, perm os.FileMode) error {
	if err := f.pass(name); err != nil {
		return err
	}
	return f.FS.MkdirAll(name, perm)
}

type stopFile struct {
	vfs.File
	fs   *stopFS
	name string
}

func (f *stopFile) Write(b []byte) (int, error) {
	if err := f.fs.pass(f.name); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *stopFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.fs.pass(f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, at)
}

func (f *stopFile) Sync() error {
	if err := f.fs.pass(f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *stopFile) SyncData() error {
	if err := f.fs.pass(f.name); err != nil {
		return err
	}
	return f.File.SyncData()
}

// A rebuild that is killed anywhere leaves the directory as it was, or one that
// no node starts on and that the same call completes; whatever the place, in the
// end just the damaged frames are lost, and no offset is given out twice (I3,
// I4). Each step of putting things in place is tried, and every few of building.
func TestRebuildIsKilledAnywhere(t *testing.T) {
	base := live(t, 1<<20, false, false)
	hit := flip(t, base.files(t)[1])
	count := newStopFS(1 << 40)
	whole := base.copy(t)
	if _, err := Run(ctx, Options{Dir: whole.dir, FS: count}, planned); err != nil {
		t.Fatal(err)
	}
	total := count.seen.Load()
	whole.check(t, hit)
	const placing = 70 // steps after READY, and some before it
	every := max(1, (total-placing)/8)
	last := int64(1)
	if testing.Short() {
		last = 4
	}
	interrupted, resumed := 0, 0
	for after := int64(1); after < total; after += map[bool]int64{true: every, false: last}[after < total-placing] {
		w := base.copy(t)
		before := contents(t, w.dir)
		_, err := Run(ctx, Options{Dir: w.dir, FS: newStopFS(after)}, planned)
		if err == nil {
			t.Fatalf("stopped after %d of %d steps, and nothing failed", after, total)
		}
		interrupted++
		switch {
		case ready(vfs.Default, w.dir):
			resumed++
			mustRefuse(t, w, errcode.Conflict)
		case reflect.DeepEqual(outside(contents(t, w.dir), w.dir), outside(before, w.dir)):
			mustRefuse(t, w, errcode.Corrupt)
		default: // the journal is gone: everything is in place
		}
		// Killed a second time on the way.
		_, _ = Run(ctx, Options{Dir: w.dir, FS: newStopFS(after % 23)}, planned)
		if _, err := Run(ctx, Options{Dir: w.dir}, planned); err != nil {
			t.Fatalf("after %d of %d steps, run again: %v", after, total, err)
		}
		w.checkQuietly(t, hit, fmt.Sprintf("after %d of %d steps", after, total))
	}
	if interrupted < 20 || resumed < 10 && !testing.Short() {
		t.Fatalf("only %d interrupted, %d resumed", interrupted, resumed)
	}
}

// A refill that is killed anywhere is run again, and nothing is lost (I4).
func TestRefillIsKilledAnywhere(t *testing.T) {
	base := live(t, 1<<20, true, true)
	flip(t, base.files(t)[1])
	remove(t, base.files(t)[3])
	nothing := func(uint64) bool { return false }
	for after := int64(1); ; after += 3 {
		w := base.copy(t)
		fs := newStopFS(after)
		_, err := Run(ctx, Options{Dir: w.dir, Store: w.archive, FS: fs}, planned)
		if err == nil {
			w.check(t, nothing)
			if after < 10 {
				t.Fatalf("only %d steps", after)
			}
			return
		}
		report, err := Run(ctx, Options{Dir: w.dir, Store: w.archive}, planned)
		if err != nil || report.NewIncarnation != "" {
			t.Fatalf("after %d steps, run again: %+v %v", after, report, err)
		}
		w.checkQuietly(t, nothing, fmt.Sprintf("after %d steps", after))
	}
}

// outside leaves out what is in the folder repair and in kept folders.
func outside(files map[string]string, dir string) map[string]string {
	out := map[string]string{}
	for path, b := range files {
		if !strings.HasPrefix(path, dir+"/"+datadir.RepairDir+"/") && !strings.Contains(path, "/damaged-") {
			out[path] = b
		}
	}
	return out
}

// checkQuietly is the part of check that needs one start.
func (w *world) checkQuietly(t *testing.T, hit damaged, when string) {
	t.Helper()
	n := start(t, w.dir, w.archive)
	defer stop(t, n)
	got := readBack(t, n)
	for at, value := range w.stored {
		if have, ok := got[at]; ok && have != value || !ok && !hit(w.lsn[at]) {
			t.Fatalf("%s: %v, LSN %d, survived the damage and is gone", when, at, w.lsn[at])
		}
	}
	w.giveOut(t, n)
}
