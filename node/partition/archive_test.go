package partition

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/state"
	"github.com/tidemark-mq/tidemark/segment"
)

// memArchive is an archive in memory. It takes sealed segments by reading the
// local file, in order, each where the one before it ends.
type memArchive struct {
	mu    sync.Mutex
	parts map[broker.PartitionID]*archived
	reads int

	afterBounds func() // called before Bounds ends; nil = nothing
}

type archived struct {
	batches [][]byte
	end     int64
	seq     uint64
}

func newMemArchive() *memArchive {
	return &memArchive{parts: map[broker.PartitionID]*archived{}}
}

// take stores a sealed segment and returns the archive's end and sequence.
func (a *memArchive) take(fs vfs.FS, id broker.PartitionID, path string, s state.Sealed) (end int64, seq uint64, err error) {
	f, err := fs.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data := make([]byte, s.Bytes)
	if _, err := f.ReadAt(data, 0); err != nil {
		return 0, 0, err
	}
	r, _, err := segment.OpenReader(path, bytes.NewReader(data), s.Bytes)
	if err != nil {
		return 0, 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.parts[id]
	if p == nil {
		p = &archived{}
		a.parts[id] = p
	}
	if s.Next <= p.end {
		return p.end, p.seq, nil // it was taken before a crash
	}
	if s.Base != p.end {
		return 0, 0, errcode.New(errcode.Conflict, "segment %d behind an archive that ends at %d", s.Base, p.end)
	}
	scan := r.Scan(s.Base, nil)
	for {
		b, _, err := scan.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, err
		}
		p.batches = append(p.batches, bytes.Clone(b))
	}
	p.end, p.seq = s.Next, p.seq+1
	return p.end, p.seq, nil
}

// Read implements Archive.
func (a *memArchive) Read(_ context.Context, id broker.PartitionID, from int64, maxBytes int, _ int64) (run [][]byte, release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads++
	p := a.parts[id]
	if p == nil {
		return nil, nil, nil
	}
	size := 0
	i := p.find(from)
	for ; i < len(p.batches) && (size == 0 || size+len(p.batches[i]) <= maxBytes); i++ {
		run = append(run, bytes.Clone(p.batches[i]))
		size += len(p.batches[i])
	}
	// Whoever looks at what was given back sees rubbish.
	return run, func() {
		for _, b := range run {
			clear(b)
		}
	}, nil
}

// find returns the first batch that ends above offset.
func (p *archived) find(offset int64) int {
	return sort.Search(len(p.batches), func(i int) bool { h, _ := segment.ParseHeader(p.batches[i]); return h.NextOffset() > offset })
}

// Bounds implements Archive.
func (a *memArchive) Bounds(_ context.Context, id broker.PartitionID, offset int64) (base, next int64, ok bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.parts[id]
	if p == nil || offset >= p.end {
		return 0, 0, false, nil
	}
	h, err := segment.ParseHeader(p.batches[p.find(offset)])
	if a.afterBounds != nil {
		a.afterBounds()
	}
	return h.BaseOffset, h.NextOffset(), err == nil, err
}

// FindTime implements Archive.
func (a *memArchive) FindTime(_ context.Context, id broker.PartitionID, from, _, ms int64) (int64, bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.parts[id]; p != nil {
		for _, b := range p.batches {
			if at, _, ok, err := segment.FindTimeFrom(b, from, ms, nil); err != nil || ok {
				return at, ok, err
			}
		}
	}
	return 0, false, nil
}

// skip has the archive go on at an offset: retention passed what is below it.
func (a *memArchive) skip(id broker.PartitionID, to int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.parts[id]
	if p == nil {
		p = &archived{}
		a.parts[id] = p
	}
	p.end = max(p.end, to)
}

// archiveAll has a take every sealed segment of partition n.
func (r *rig) archiveAll(a *memArchive, n uint32) {
	r.t.Helper()
	p := r.engine.Get(pid(n))
	if l := p.Local(); l.Cut <= l.Oldest {
		a.skip(p.ID, l.Cut)
	}
	p.files.RLock()
	sealed := append([]state.Sealed(nil), p.files.sealed...)
	p.files.RUnlock()
	for _, s := range sealed {
		if s.Confirmed {
			continue
		}
		_, seq, err := a.take(r.fs, p.ID, p.segmentPath(s.Base), s)
		if err != nil {
			r.t.Fatal(err)
		}
		p.Confirm(&s.Info, seq)
	}
}

// segments lists the sealed files of partition n that are there.
func (r *rig) segments(n uint32) (paths []string) {
	r.t.Helper()
	p := r.engine.Get(pid(n))
	names, err := r.fs.List(p.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	sort.Strings(names)
	for _, name := range names {
		if strings.HasSuffix(name, ".seg") {
			paths = append(paths, r.fs.PathJoin(p.dir, name))
		}
	}
	return paths
}

// timesOf are the timestamps that encode gives: 1000 for single records.
const singleTime = 1000

// Local copies of archived segments go missing while the node runs and while
// it is stopped: every record is read once, in order, from whatever tier has
// it, one by one and by time too, and that a segment is archived survives the
// restart (B41, B122, B207).
func TestArchivedSegmentWithoutLocalCopy(t *testing.T) {
	fs := vfs.NewMem()
	archive := newMemArchive()
	change := func(o *Options) { o.Archive, o.Compress = archive, noCompression }
	r := open(t, fs, change)
	r.create(0)
	values, want := wants(3000)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	r.archiveAll(archive, 0)
	r.checkpoint()
	p := r.engine.Get(pid(0))
	p.evict(1 << 30)
	files := r.segments(0)
	if len(files) < 4 {
		t.Fatalf("only %d segments", len(files))
	}
	check := func(r *rig) {
		t.Helper()
		equal(t, r.all(0), want)
		p := r.engine.Get(pid(0))
		for i := 0; i < len(values); i += 97 {
			rec, err := p.Record(context.Background(), int64(i))
			if err != nil || string(rec.Value) != values[i] {
				t.Fatalf("record %d: %q %v", i, rec.Value, err)
			}
		}
		if at, err := p.FindTime(context.Background(), singleTime); err != nil || at != 0 {
			t.Fatalf("the first record by time: %d %v", at, err)
		}
		if at, err := p.FindTime(context.Background(), singleTime+1); err != nil || at != 3000 {
			t.Fatalf("a time after all records: %d %v", at, err)
		}
	}
	r.engine.handles.closeAll() // an open file would still be read
	if err := fs.Remove(files[1]); err != nil {
		t.Fatal(err)
	}
	check(r)
	r.close()
	if err := fs.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	if err := fs.Remove(files[2]); err != nil {
		t.Fatal(err)
	}
	r = open(t, fs, change)
	for _, s := range r.sealed {
		t.Errorf("segment %d is archived, and is handed to the archive again", s.Base)
	}
	check(r)
	// What the archive confirmed is forgotten here, once: the next start finds a
	// local state that names no file which is not there.
	entries, err := r.engine.opts.State.Load()
	if err != nil || len(entries) != 1 || len(entries[0].Sealed) != len(files)-3 {
		t.Fatalf("%d segments are listed of %d, 3 of which are missing: %v", len(entries[0].Sealed), len(files), err)
	}
	for _, s := range entries[0].Sealed {
		if _, err := fs.Stat(r.engine.Get(pid(0)).segmentPath(s.Base)); err != nil {
			t.Errorf("segment %d is listed: %v", s.Base, err)
		}
	}
	if end := entries[0].ArchivedEnd; end < entries[0].Sealed[0].Base {
		t.Errorf("archived up to %d, and files below %d are forgotten", end, entries[0].Sealed[0].Base)
	}
	r.close()
	r = open(t, fs, change)
	check(r)
	r.close()
}

// A missing segment that the archive covers with other objects, and has not
// confirmed, stays listed; without an archive every missing one does (I6, I10).
func TestUnconfirmedMissingSegmentStaysListed(t *testing.T) {
	fs := vfs.NewMem()
	archive := newMemArchive()
	change := func(o *Options) { o.Archive, o.Compress = archive, noCompression }
	r := open(t, fs, change)
	r.create(0)
	values, _ := wants(1000)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	r.archiveAll(archive, 0)
	r.checkpoint()
	files := r.segments(0)
	r.close()
	if err := fs.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	r = open(t, fs, func(o *Options) { o.Compress = noCompression }) // started without the archive
	entries, err := r.engine.opts.State.Load()
	if err != nil || len(entries[0].Sealed) != len(files) {
		t.Fatalf("%d segments are listed of %d: %v", len(entries[0].Sealed), len(files), err)
	}
	r.close()
}

// A sealed segment that only this disk had goes missing: reads of it fail with
// the file's name, the records around it are served, and a restart takes the
// partition out of service.
func TestUnarchivedSegmentIsMissing(t *testing.T) {
	fs := vfs.NewMem()
	archive := newMemArchive()
	change := func(o *Options) { o.Archive, o.Compress = archive, noCompression }
	r := open(t, fs, change)
	r.create(0, 1)
	values, _ := wants(2000)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	r.checkpoint()
	p := r.engine.Get(pid(0))
	p.evict(1 << 30)
	gone := r.sealed[1]
	path := p.segmentPath(gone.Base)
	r.engine.handles.closeAll()
	if err := fs.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Record(context.Background(), gone.Base); !errcode.Is(err, errcode.Storage) || !strings.Contains(err.Error(), path) {
		t.Fatalf("record in the missing file: %v", err)
	}
	for _, at := range []int64{gone.Base - 1, gone.Next} {
		if rec, err := p.Record(context.Background(), at); err != nil || string(rec.Value) != values[at] {
			t.Fatalf("record %d beside it: %v", at, err)
		}
	}
	r.close()
	r = open(t, fs, change)
	if err := r.engine.Get(pid(0)).Refused(); !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), path) {
		t.Fatalf("refusal: %v", err)
	}
	if _, err := r.produce(1, "x"); err != nil {
		t.Fatal(err)
	}
	r.close()
}

// One archived record after the other is read: each batch is fetched once.
func TestColdRecordsOneByOne(t *testing.T) {
	fs := vfs.NewMem()
	archive := newMemArchive()
	r := open(t, fs, func(o *Options) { o.Archive = archive })
	r.create(0)
	values, _ := wants(1000)
	if _, err := r.produce(0, values...); err != nil {
		t.Fatal(err)
	}
	p := r.engine.Get(pid(0))
	if err := r.engine.Seal(p); err != nil {
		t.Fatal(err)
	}
	r.archiveAll(archive, 0)
	r.checkpoint()
	p.evict(1 << 30)
	for _, path := range r.segments(0) {
		if err := fs.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for i := range values {
		if rec, err := p.Record(context.Background(), int64(i)); err != nil || string(rec.Value) != values[i] {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if archive.reads > 2 {
		t.Fatalf("%d reads of the archive for one batch", archive.reads)
	}
	r.close()
}

// A generation begins behind a gap, and nothing was written in it yet: a read
// at the old end finds nothing and no damage, and then the first new record.
// Lookups by time pass over the gap.
func TestReadAcrossAGap(t *testing.T) {
	r := openWith(t, vfs.NewMem(), rigConfig{idle: true})
	r.create(0)
	values, want := wants(20)
	for _, v := range values {
		if _, err := r.produce(0, v); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(0)
	r.checkpoint()
	p := r.engine.Get(pid(0))
	p.evict(1 << 30)
	const start = 20 + 1<<32
	p.Rebase(2, 20, start, [][2]int64{{20, start}})
	for _, from := range []int64{20, 21, start - 1} {
		if run, err := p.Read(context.Background(), from, 1, nil); err != nil || len(run) != 0 {
			t.Fatalf("read at %d: %d batches %v", from, len(run), err)
		}
	}
	if _, err := p.Record(context.Background(), 25); !errcode.Is(err, errcode.Gone) {
		t.Fatalf("a record in the gap: %v", err)
	}
	if at, err := p.FindTime(context.Background(), singleTime+1); err != nil || at != start {
		t.Fatalf("a time after all: %d %v", at, err)
	}
	if base, err := r.produce(0, "new"); err != nil || base != start {
		t.Fatalf("base %d %v", base, err)
	}
	for range 2 {
		equal(t, r.all(0), append(want, "4294967316=new"))
		run, err := p.Read(context.Background(), 20, 1, nil)
		if err != nil || len(run) != 1 {
			t.Fatalf("read at the gap: %d batches %v", len(run), err)
		}
		r.flush(0) // into a segment of its own
		r.checkpoint()
		p.evict(1 << 30)
	}
	if len(r.sealed) != 1 || r.sealed[0].Next != 20 {
		t.Fatalf("a segment does not end at the gap: %+v", r.sealed)
	}
	r.close()
}
