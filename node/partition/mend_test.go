package partition

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

func contentOf(t tb, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

func putContent(t tb, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(bytes.Clone(b))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

// A power loss, or the death of the process, before each change that a repair of a
// file, or the setting aside of one, makes to the disk, with any part of what was
// not synced: the partition serves after the start, every record reads as it was
// written, the file is the damaged one, the sealed bytes or gone to the archive,
// never a part of a copy; copies that were begun are swept; and the repair works
// then (I6).
func TestMendAtEachStep(t *testing.T) {
	values, want := wants(300)
	for _, aside := range []bool{false, true} {
		fs := crash.NewFS()
		fs.Journal = "state"
		archive := newMemArchive()
		r := archivedRig(t, fs, archive, values)
		f := r.engine.Get(pid(0)).Files(0, 10)[1]
		sealed := contentOf(t, fs, f.Path)
		bad := flip(sealed, 80)
		putContent(t, fs, f.Path, bad)
		if d, err := fs.OpenDir(fs.PathDir(f.Path)); err != nil || errors.Join(d.Sync(), d.Close()) != nil {
			t.Fatal("sync the directory")
		}
		repair := func(r *rig) error {
			p := r.engine.Get(pid(0))
			if aside {
				_, err := r.engine.SetAside(p, &f.Info)
				return err
			}
			_, err := r.engine.Mend(p, &f.Info, func(w io.Writer) error {
				for _, part := range [][]byte{sealed[:len(sealed)/2], sealed[len(sealed)/2:]} {
					if _, err := w.Write(bytes.Clone(part)); err != nil {
						return err
					}
				}
				return nil
			})
			return err
		}
		rng := rand.New(rand.NewPCG(7, 7))
		var mu sync.Mutex // the local state's database changes files of its own
		var images []*crash.FS
		fs.Hook(func(crash.Op) (crash.Fault, error) {
			mu.Lock()
			defer mu.Unlock()
			images = append(images, fs.Kill())
			images = append(images, fs.Losses(rng, 8)...)
			return crash.Pass, nil
		})
		if err := repair(r); err != nil {
			t.Fatal(err)
		}
		fs.Hook(nil)
		mu.Lock()
		images = append(images, fs.Kill())
		images = append(images, fs.Losses(rng, 8)...)
		mu.Unlock()
		r.close()
		if len(images) < 12 {
			t.Fatalf("only %d images", len(images))
		}
		left, mended := 0, 0
		for i, image := range images {
			r := open(t, image, func(o *Options) { o.Archive, o.Compress = archive, noCompression })
			p := r.engine.Get(pid(0))
			if err := p.Refused(); err != nil {
				t.Fatalf("image %d: %v", i, err)
			}
			equal(t, r.all(0), want)
			if !p.named(&f.Info) {
				// Set aside; or the disk has the new name of the damaged file and not
				// yet the copy under the old one: the archive has it.
				if _, err := image.Stat(f.Path); err == nil {
					t.Fatalf("image %d: a file is there that nothing names", i)
				}
				r.close()
				left++
				continue
			} else if got := contentOf(t, image, f.Path); !bytes.Equal(got, bad) && !bytes.Equal(got, sealed) {
				t.Fatalf("image %d: the file has neither what it had nor what was sealed", i)
			} else if err := repair(r); err != nil {
				t.Fatalf("image %d: the repair does not work: %v", i, err)
			}
			equal(t, r.all(0), want)
			if names, err := image.List(p.dir); err != nil || strings.Contains(strings.Join(names, " "), mendExt) {
				t.Fatalf("image %d: left over: %q %v", i, names, err)
			}
			if !aside && !bytes.Equal(contentOf(t, image, f.Path), sealed) {
				t.Fatalf("image %d: the repaired file is not what was sealed", i)
			}
			mended++
			r.close()
		}
		if !aside && left*4 > mended || aside && left == 0 || mended == 0 {
			t.Errorf("aside %v: %d of %d images without the file", aside, left, len(images))
		}
	}
}

// A copy that is not exactly what was sealed, too long, too short or another, a
// disk that fails, and a segment that left meanwhile change nothing; a reader that
// has the damaged file open finishes, the next one reads the good one; damaged
// files are kept up to a bound.
func TestMendIsExact(t *testing.T) {
	fs := vfs.NewMem()
	archive := newMemArchive()
	values, want := wants(700)
	r := archivedRig(t, fs, archive, values)
	p := r.engine.Get(pid(0))
	files := p.Files(0, 100)
	if len(files) < maxDamaged+2 {
		t.Fatalf("%d files", len(files))
	}
	f := files[0]
	sealed := contentOf(t, fs, f.Path)
	give := func(b []byte, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			if _, werr := w.Write(bytes.Clone(b)); werr != nil {
				return werr
			}
			return err
		}
	}
	for _, c := range []struct {
		fetch func(io.Writer) error
		code  errcode.Code
	}{
		{give(sealed[:len(sealed)-1], nil), errcode.Corrupt},
		{give(append(bytes.Clone(sealed), 0), nil), errcode.Corrupt},
		{give(flip(sealed, 99), nil), errcode.Corrupt},
		{give(sealed, errcode.New(errcode.Transient, "it broke off")), errcode.Transient},
	} {
		if _, err := r.engine.Mend(p, &f.Info, c.fetch); !errcode.Is(err, c.code) {
			t.Errorf("want %s: %v", c.code, err)
		}
	}
	h, err := p.openSealed(&f.Sealed)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files[:maxDamaged+1] {
		good := contentOf(t, fs, f.Path)
		putContent(t, fs, f.Path, flip(good, 80))
		kept, err := r.engine.Mend(p, &f.Info, give(good, nil))
		if err != nil || (kept == "") != (i == maxDamaged) || !bytes.Equal(contentOf(t, fs, f.Path), good) {
			t.Errorf("file %d: kept %q, %v", i, kept, err)
		}
		if kept != "" && !bytes.Equal(contentOf(t, fs, kept), flip(good, 80)) {
			t.Errorf("file %d: what was kept is not what was there", i)
		}
	}
	if b, _, err := h.ReadBatch(h.Index().At(0), nil); err == nil && len(b) == 0 {
		t.Error("a reader of the old file got nothing")
	}
	p.e.handles.release(h)
	equal(t, r.all(0), want)
	if _, err := r.engine.Evict(p, f.Next); err != nil {
		t.Fatal(err)
	}
	if _, err := r.engine.Mend(p, &f.Info, give(sealed, nil)); !errcode.Is(err, errcode.Conflict) {
		t.Errorf("a file that was evicted: %v", err)
	}
	if _, err := r.engine.SetAside(p, &f.Info); !errcode.Is(err, errcode.Conflict) {
		t.Errorf("a file that was evicted: %v", err)
	}
	if _, err := fs.Stat(f.Path); err == nil {
		t.Error("a file that was evicted is back")
	}
	r.close()
}

// Damage in a file that is nowhere else is an error where it is, and only there:
// what stands before and behind it is read, by page and record by record, and
// nobody is told that the archive helps (B36).
func TestDamageStaysLocal(t *testing.T) {
	fs := vfs.NewMem()
	values := make([]string, 40)
	for i := range values {
		values[i] = strings.Repeat(string(rune('a'+i%26)), 30<<10)
	}
	told := 0
	r := open(t, fs, func(o *Options) {
		o.Compress, o.SegmentBytes = noCompression, 8<<20
		o.OnDamaged = func(broker.PartitionID, int64, error) { told++ }
	})
	r.create(0)
	r.produceAll(0, values)
	r.flush(0)
	p := r.engine.Get(pid(0))
	if err := r.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	r.checkpoint()
	p.evict(1 << 30)
	f := p.Files(0, 1)[0]
	h, err := p.openSealed(&f.Sealed)
	if err != nil {
		t.Fatal(err)
	}
	x := h.Index()
	damaged := map[int64]bool{} // offsets
	content := contentOf(t, fs, f.Path)
	for i := range 5 {
		n := i * (x.Len() - 1) / 4
		e, next := x.At(n), f.Next
		if n+1 < x.Len() {
			next = x.At(n + 1).Base
		}
		for o := e.Base; o < next; o++ {
			damaged[o] = true
		}
		content[e.End()-3] ^= 16
	}
	p.e.handles.release(h)
	p.e.handles.forgetFile(f.Path)
	putContent(t, fs, f.Path, content)
	if len(damaged) == len(values) {
		t.Fatalf("everything is damaged: %d batches", x.Len())
	}
	for o := range int64(len(values)) {
		rec, err := p.Record(context.Background(), o)
		if damaged[o] != errcode.Is(err, errcode.Corrupt) || err == nil && string(rec.Value) != values[o] {
			t.Errorf("record %d, damaged %v: %v", o, damaged[o], err)
		}
		run, err := p.Read(context.Background(), o, 1<<20, nil)
		if damaged[o] != errcode.Is(err, errcode.Corrupt) || !damaged[o] && !reaches(run, o) {
			t.Errorf("read from %d, damaged %v: %d batches, %v", o, damaged[o], len(run), err)
		}
	}
	if told != 0 {
		t.Errorf("%d reads went on in an archive that there is not", told)
	}
	r.close()
}
