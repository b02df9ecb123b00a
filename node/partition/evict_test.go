package partition

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/segment"
)

// archivedRig is a rig with sealed segments of uncompressed records, all of
// them in archive, and nothing in memory.
func archivedRig(t *testing.T, fs vfs.FS, archive *memArchive, values []string) *rig {
	t.Helper()
	r := open(t, fs, func(o *Options) { o.Archive, o.Compress = archive, noCompression })
	r.create(0)
	r.produceAll(0, values)
	r.flush(0)
	r.archiveAll(archive, 0)
	r.checkpoint()
	r.engine.Get(pid(0)).evict(1 << 30)
	return r
}

// Only what the archive confirmed byte by byte is evicted: not a segment that
// the chain covers with other objects, whatever else is known of the chain, and
// a restart does not forget the difference (I6).
func TestEvictNeedsConfirmation(t *testing.T) {
	fs := vfs.NewMem()
	archive := newMemArchive()
	change := func(o *Options) { o.Archive, o.Compress = archive, noCompression }
	r := open(t, fs, change)
	r.create(0)
	values, want := wants(400)
	p := r.engine.Get(pid(0))
	for quarter := range slices.Chunk(values, 100) {
		r.produceAll(0, quarter)
		if err := r.engine.Seal(p); err != nil {
			t.Fatal(err)
		}
	}
	sealed := p.Local()
	if sealed.Sealed < 4 {
		t.Fatalf("only %d segments", sealed.Sealed)
	}
	for i := range sealed.Sealed {
		s := p.files.sealed[i]
		_, seq, err := archive.take(fs, p.ID, p.segmentPath(s.Base), s)
		if err != nil {
			t.Fatal(err)
		}
		info := s.Info
		switch i {
		case 1: // the chain has other objects there
			p.SetArchived(s.Next, seq)
		case 2: // the object has other bytes
			info.FileSHA256[0] ^= 1
			p.Confirm(&info, seq)
		default:
			p.Confirm(&info, seq)
		}
	}
	r.checkpoint()
	for range 2 {
		r.close()
		r = open(t, fs, change)
		p = r.engine.Get(pid(0))
		if _, err := r.engine.Evict(p, p.HighWatermark()); err != nil {
			t.Fatal(err)
		}
		l := p.Local()
		if l.Sealed != 2 || l.Pieces[0].Base != sealed.Pieces[1].Base || l.Pieces[1].Base != sealed.Pieces[2].Base {
			t.Errorf("left: %+v", l.Pieces)
		}
		if len(r.sealed) != 2 {
			t.Errorf("%d segments are offered to the archive for confirmation, want 2", len(r.sealed))
		}
		p.evict(1 << 30)
		equal(t, r.all(0), want)
	}
	r.close()
}

// A replay walks over an offset while its local copy goes, and another one is
// evicted or trimmed up to where it stands, again and again: every offset once,
// no error (B103, B207).
func TestReplayWhileLocalCopiesGo(t *testing.T) {
	values, want := wants(300)
	rounds := 500
	if testing.Short() {
		rounds = 60
	}
	for round := range rounds {
		archive := newMemArchive()
		r := archivedRig(t, vfs.NewMem(), archive, values)
		p := r.engine.Get(pid(0))
		at := p.Local().Pieces[1].Base
		var wg sync.WaitGroup
		begin := make(chan struct{})
		var got []string
		var readErr error
		wg.Go(func() {
			<-begin
			got, readErr = replay(p, at+int64(round%50))
		})
		wg.Go(func() {
			<-begin
			_, err := r.engine.Evict(p, p.HighWatermark())
			if err == nil && round%2 == 0 {
				_, err = r.engine.Trim(p, at)
			}
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			<-begin
			if _, err := p.FindTime(context.Background(), singleTime); err != nil {
				t.Error("find a time:", err)
			}
			if _, err := p.Record(context.Background(), at+10); err != nil {
				t.Error("read one record:", err)
			}
		})
		close(begin)
		wg.Wait()
		if readErr != nil {
			t.Fatalf("round %d: %v", round, readErr)
		}
		equal(t, got, want[at+int64(round%50):])
		r.close()
		if t.Failed() {
			return
		}
	}
}

// replay reads from an offset to the high watermark in small steps.
func replay(p *Partition, from int64) (out []string, err error) {
	var buf Buffer
	for {
		run, err := p.Read(context.Background(), from, 512, &buf)
		if err != nil || len(run) == 0 {
			return out, err
		}
		for _, b := range run {
			recs, err := segment.DecodeBatch(nil, b, nil)
			if err != nil {
				return out, err
			}
			for i := range recs {
				if recs[i].Offset < from {
					continue
				}
				out = append(out, fmt.Sprintf("%d=%s", recs[i].Offset, recs[i].Value))
				from = recs[i].Offset + 1
			}
		}
	}
}

// The local copy of records goes while memory still has them: a look for their
// time finds them in the archive (B123).
func TestFindTimeOfEvictedRecordsInMemory(t *testing.T) {
	archive := newMemArchive()
	r := open(t, vfs.NewMem(), func(o *Options) { o.Archive, o.FlushBytes = archive, 1<<20 })
	r.create(0)
	if _, err := r.produce(0, "a", "b", "c"); err != nil {
		t.Fatal(err)
	}
	p := r.engine.Get(pid(0))
	if err := r.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	r.archiveAll(archive, 0)
	if freed, err := r.engine.Evict(p, 3); err != nil || freed.Segments != 1 {
		t.Fatalf("%+v %v", freed, err)
	}
	for ms, want := range map[int64]int64{1000: 0, 1001: 1, 1002: 2, 1003: 3} {
		if at, err := p.FindTime(context.Background(), ms); err != nil || at != want {
			t.Errorf("time %d is at %d, want %d (%v)", ms, at, want, err)
		}
	}
	r.close()
}

// slowOpen holds the opening of segment files for reading until it is let go.
type slowOpen struct {
	vfs.FS
	opened chan string   // receives the path once the file is open
	goOn   chan struct{} // closed: go on
}

func (f *slowOpen) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.Open(name, o...)
	if err == nil && f.opened != nil {
		if _, sealed, ok := segment.ParseName(f.PathBase(name)); ok && sealed {
			select {
			case f.opened <- name:
				<-f.goOn
			default:
			}
		}
	}
	return file, err
}

// A file goes in the moment in which a reader opens it: the reader finishes,
// and the descriptor, which keeps the disk space, is not kept.
func TestEvictWhileAFileIsOpened(t *testing.T) {
	fs := &slowOpen{FS: vfs.NewMem()}
	values, want := wants(300)
	r := archivedRig(t, fs, newMemArchive(), values)
	p := r.engine.Get(pid(0))
	fs.opened, fs.goOn = make(chan string), make(chan struct{})
	done := make(chan error)
	var got []string
	go func() {
		run, err := p.Read(context.Background(), 0, 1, nil)
		if err == nil && len(run) == 1 {
			var recs []string
			recs, err = values1(run[0])
			got = recs
		}
		done <- err
	}()
	path := <-fs.opened
	if _, err := r.engine.Evict(p, p.HighWatermark()); err != nil {
		t.Fatal(err)
	}
	close(fs.goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 || got[0] != want[0] {
		t.Errorf("read %q, want to begin with %q", got, want[0])
	}
	r.engine.handles.mu.Lock()
	if _, kept := r.engine.handles.byID[path]; kept {
		t.Errorf("%s is removed and kept open", path)
	}
	r.engine.handles.mu.Unlock()
	r.close()
}

func values1(batch []byte) (out []string, err error) {
	recs, err := segment.DecodeBatch(nil, batch, nil)
	for i := range recs {
		out = append(out, fmt.Sprintf("%d=%s", recs[i].Offset, recs[i].Value))
	}
	return out, err
}

// The power fails at every change of the disk that an eviction and a trim make:
// the next start has every record from its start on, either start is one that
// was asked for, an answered one stays, and files that nothing names are gone.
func TestCrashAtEveryStep(t *testing.T) {
	values, want := wants(400)
	for _, kept := range []int{0, 100} {
		for step := 0; ; step++ {
			mem := vfs.NewCrashableMem()
			fs := &stepFS{FS: mem, left: -1}
			archive := newMemArchive()
			change := func(o *Options) { o.Archive, o.Compress = archive, noCompression }
			r := archivedRig(t, fs, archive, values)
			p := r.engine.Get(pid(0))
			answered := int64(0)
			fs.arm(step, func() *vfs.MemFS {
				return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rngOf(step)})
			})
			_, err := r.engine.Evict(p, 200)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = r.engine.Trim(p, 300); err != nil {
				t.Fatal(err)
			}
			crashed := fs.image()
			done := crashed == nil
			if done {
				answered = 300
				crashed = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rngOf(step)})
			}
			r.close()
			r = open(t, crashed, change)
			p = r.engine.Get(pid(0))
			if at := p.Oldest(); at != 0 && at != 300 || at < answered {
				t.Fatalf("step %d: the log begins at %d", step, at)
			}
			p.evict(1 << 30)
			equal(t, r.all(0), want[p.Oldest():])
			named := p.Local()
			if files := r.dir(0); len(files) > len(named.Pieces) {
				t.Fatalf("step %d: files %v, named are %+v", step, files, named.Pieces)
			}
			r.close()
			if done {
				break
			}
		}
	}
}

func rngOf(step int) *rand.Rand { return rand.New(rand.NewPCG(uint64(step), 9)) }

// stepFS takes an image of the disk before its n-th change.
type stepFS struct {
	vfs.FS
	mu    sync.Mutex
	left  int // changes until the image; negative: none
	take  func() *vfs.MemFS
	clone *vfs.MemFS
}

func (f *stepFS) arm(n int, take func() *vfs.MemFS) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.take = n, take
}

// image returns what was taken, nil when there were not so many changes; none is
// taken from now on.
func (f *stepFS) image() *vfs.MemFS {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = -1
	return f.clone
}

func (f *stepFS) step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		f.clone = f.take()
	}
	if f.left >= 0 {
		f.left--
	}
}

func (f *stepFS) Remove(name string) error {
	f.step()
	return f.FS.Remove(name)
}

func (f *stepFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return f.wrap(file, err)
}

func (f *stepFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, o...)
	return f.wrap(file, err)
}

func (f *stepFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(from, to, c)
	return f.wrap(file, err)
}

func (f *stepFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &stepFile{file, f}, nil
}

type stepFile struct {
	vfs.File
	fs *stepFS
}

func (f *stepFile) Write(b []byte) (int, error) {
	f.fs.step()
	return f.File.Write(b)
}

func (f *stepFile) WriteAt(b []byte, off int64) (int, error) {
	f.fs.step()
	return f.File.WriteAt(b, off)
}

func (f *stepFile) Sync() error {
	f.fs.step()
	return f.File.Sync()
}

func (f *stepFile) SyncData() error {
	f.fs.step()
	return f.File.SyncData()
}

// A file counts as settled once its confirmation is durable, and not while a
// checkpoint that is to make it durable runs, or has failed: what the chain names
// there may be merged only then (I6).
func TestCopyIsSettledDurably(t *testing.T) {
	fs := vfs.NewMem()
	archive := newMemArchive()
	r := open(t, fs, func(o *Options) { o.Archive, o.Compress = archive, noCompression })
	r.create(0)
	values, _ := wants(400)
	r.produceAll(0, values)
	r.flush(0)
	p := r.engine.Get(pid(0))
	s := p.files.sealed[0]
	settled := func(what string, want bool) {
		t.Helper()
		c := p.Copy(s.Base, s.Next)
		if c.Settled != want || c.Path != p.segmentPath(s.Base) {
			t.Fatalf("%s: %+v", what, c)
		}
	}
	settled("sealed", false)
	_, seq, err := archive.take(fs, p.ID, p.segmentPath(s.Base), s)
	if err != nil {
		t.Fatal(err)
	}
	p.Confirm(&s.Info, seq)
	settled("confirmed", false)
	c := r.engine.capture(p)
	settled("in a checkpoint", false)
	c.giveBack()
	settled("behind a checkpoint that failed", false)
	r.checkpoint()
	settled("durable", true)
	if c := p.Copy(s.Base, s.Next+1); c.Settled || c.Path != "" {
		t.Fatalf("with its neighbour: %+v", c)
	}
	if c := p.Copy(1<<40, 1<<41); !c.Settled || c.Path != "" {
		t.Fatalf("where nothing is: %+v", c)
	}
}
