package node

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

// There are no index files beside the segments, which a crash could leave
// empty, short or without their segment: the index of an active file is built
// from its batches, that of a sealed one is inside it and under its checksum
// (B39, B40, B52). A bit that flips in a segment or in the log is never skipped
// and counted, it is reported and refused (I4), so that the cases of B36 end in
// a refusal that names file and position, see packages segment and wal. What can
// be short is the local state, and what can be left over stands below.

// gone stands for the length of a file that is not there.
const gone = -1

// cutShort returns a copy of the disk on which one file has only its first n
// bytes, or is gone.
func cutShort(t *testing.T, disk *vfs.MemFS, path string, n int64) *vfs.MemFS {
	t.Helper()
	out := disk.CrashClone(everything())
	if n == gone {
		dir, err := out.OpenDir(filepath.Dir(path))
		if err = errors.Join(err, out.Remove(path)); err == nil {
			err = errors.Join(dir.Sync(), dir.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	f, err := out.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(io.LimitReader(f, n))
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	w, err := out.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = w.Write(data)
		err = errors.Join(err, w.Sync(), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Each file of the local state is cut to nothing, to a half, to all but a byte,
// or gone: the start refuses and says why, or it serves every record. An empty
// checkpoint is never taken for an empty partition (B39, B40, B49, B52).
func TestShortLocalState(t *testing.T) {
	l := newLife(t)
	l.run()
	l.leftover.Wait()
	l.put(30)
	disk := l.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rand.New(rand.NewPCG(1, 1))})
	if err := l.Node.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(l.dir, "state")
	names, err := disk.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	served, refused := 0, 0
	for _, name := range names {
		path := filepath.Join(dir, name)
		st, err := disk.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int64{gone, 0, st.Size() / 2, st.Size() - 1} {
			if n < gone || n == st.Size() {
				continue
			}
			l.mem = cutShort(t, disk, path, n)
			if err := l.tryOpen(); err != nil {
				if text := err.Error(); !strings.Contains(text, "local state") && !strings.Contains(text, "wal") && !strings.Contains(text, "restore") {
					t.Fatalf("%s cut to %d of %d bytes: the refusal does not say what to do: %v", name, n, st.Size(), err)
				}
				refused++
				continue
			}
			if err := l.engine.All()[0].Refused(); err != nil {
				refused++
			} else {
				l.check(name + " cut short")
				served++
			}
			_ = l.Node.Close() // a refused partition may say so
		}
	}
	if served == 0 || refused == 0 {
		t.Fatalf("%d served, %d refused of %d files: the cut changes nothing, or is never survived", served, refused, len(names))
	}
}

// What crashes leave in a data directory: an active segment without a byte, the
// copy of a cut that was not finished, spare files that are empty, names of
// nobody. The start takes a second at most, serves every record, and the next
// one too; the partition goes on where it was (B44, B66).
func TestLeftOvers(t *testing.T) {
	l := newLife(t)
	l.put(100)
	p := l.engine.All()[0]
	if err := l.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	end := p.HighWatermark()
	l.close()
	topic := filepath.Join(l.dir, "topics", p.ID.Topic.String(), "0")
	for _, path := range []string{
		filepath.Join(topic, segment.ActiveName(end)),
		filepath.Join(topic, segment.ActiveName(end)+".cut"),
		filepath.Join(l.dir, "wal", "spare-900"),
		filepath.Join(l.dir, "identity.json.tmp"),
		filepath.Join(topic, "note.tmp"),
	} {
		f, err := l.mem.Create(path, vfs.WriteCategoryUnspecified)
		if err = errors.Join(err, f.Sync(), f.Close(), l.syncDir(filepath.Dir(path))); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		began := time.Now()
		l.open()
		if took := time.Since(began); took > 5*time.Second { // a second, on a machine of its own
			t.Fatalf("the start took %s", took)
		}
		if err := l.engine.All()[0].Refused(); err != nil {
			t.Fatal(err)
		}
		l.check("with what was left over")
		l.put(20)
		if err := l.engine.Seal(l.engine.All()[0]); err != nil {
			t.Fatal(err)
		}
		l.check("after more records")
		l.close()
	}
}

// A node whose data is most of its disk starts with the default limits: what is
// there counts as taken, the reserve is of what is free. With 30 % free it takes
// records as ever. Below the reserve it starts too, serves what it has, and
// refuses records alone (B57).
func TestStartOnANearlyFullDisk(t *testing.T) {
	l := newLife(t)
	l.put(100)
	l.close()
	for _, c := range []struct {
		free  uint64 // of a terabyte, of which 5 % are 51 GiB
		takes bool
	}{{300 << 30, true}, {30 << 30, false}, {1 << 20, false}} {
		l.o.DiskReserve = 0
		l.free = func() (uint64, bool) { return c.free, true }
		l.open()
		l.check(fmt.Sprintf("with %d bytes free", c.free))
		if c.takes {
			before := len(l.values)
			l.put(10)
			if len(l.values) != before+10 {
				t.Fatalf("%d of 10 records were taken", len(l.values)-before)
			}
		} else if err := l.tryProduce("t", numbered(1, 1)...); !errcode.Is(err, errcode.Storage) {
			t.Fatalf("produce with %d bytes free: %v", c.free, err)
		}
		l.close()
	}
}
