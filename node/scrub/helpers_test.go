package scrub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// TestMain has the shared compressor made before the first bubble: what is made in
// one cannot be used in another.
func TestMain(m *testing.M) {
	ctx := context.Background()
	store := mem.New("warm", nil)
	chain, err := manifest.Load(ctx, store, pid(0), 0)
	if err == nil {
		_, err = chain.Fence(ctx, testOwner, manifest.FenceParams{})
	}
	if err == nil {
		_, err = manifest.Load(ctx, store, pid(0), 0)
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var testOwner = manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: 0x77, Node: "n1"}

// testFS counts opens of files and fails them on demand.
type testFS struct {
	vfs.FS
	mu    sync.Mutex
	fail  func(name string) error
	opens []string // of segment files
}

func (f *testFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	f.mu.Lock()
	if _, sealed, ok := segment.ParseName(f.PathBase(name)); ok && sealed {
		f.opens = append(f.opens, name)
		if f.fail != nil {
			if err := f.fail(name); err != nil {
				f.mu.Unlock()
				return nil, err
			}
		}
	}
	f.mu.Unlock()
	return f.FS.Open(name, o...)
}

func (f *testFS) setFail(fail func(name string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *testFS) opened() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.opens)
}

// rig is a scrubber over partitions that are lists of files, and over real chains.
type rig struct {
	t     testing.TB
	fs    *testFS
	bytes *mem.Store
	store objstore.Store // as the scrubber and the chains see it
	o     Options

	mu     sync.Mutex
	files  map[broker.PartitionID][]File
	sealed map[string][]byte // by path
	chains map[broker.PartitionID]*manifest.Chain
	gone   []manifest.Segment
}

func newRig(t testing.TB, archived bool) *rig {
	t.Helper()
	r := &rig{t: t, fs: &testFS{FS: vfs.NewMem()}, bytes: mem.New("scrub", nil), files: map[broker.PartitionID][]File{}, sealed: map[string][]byte{}, chains: map[broker.PartitionID]*manifest.Chain{}}
	r.store = r.bytes
	r.o = Options{
		FS: r.fs, Path: "scrub.json", Partitions: r, Poll: time.Second,
		Discard: func(_ broker.PartitionID, segs []manifest.Segment) {
			for _, x := range r.listed(0) {
				if slices.Contains(segs, x) {
					t.Errorf("an object was given up while the chain names it: %s", x.Key())
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.gone = append(r.gone, segs...)
		},
	}
	if archived {
		r.o.Archive, r.o.Store = r, objstore.For(storeOf{r}, objstore.CauseScrub)
	}
	return r
}

// storeOf is the rig's store of the moment.
type storeOf struct{ *rig }

func (s storeOf) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	return s.store.Put(ctx, key, body, size, o)
}

func (s storeOf) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	return s.store.Get(ctx, key)
}

func (s storeOf) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	return s.store.GetRange(ctx, key, p, off)
}

func (s storeOf) Head(ctx context.Context, key string) (objstore.Info, error) {
	return s.store.Head(ctx, key)
}

func (s storeOf) List(ctx context.Context, prefix, after string, n int) (objstore.Page, error) {
	return s.store.List(ctx, prefix, after, n)
}

func (s storeOf) Delete(ctx context.Context, keys []string) error { return s.store.Delete(ctx, keys) }
func (s storeOf) Capabilities() objstore.Capabilities             { return s.store.Capabilities() }
func (s storeOf) Close() error                                    { return nil }

func pid(n uint32) broker.PartitionID { return broker.PartitionID{Topic: 0xabc, Partition: n} }

// add seals n segments of ten records behind those of partition p, and archives them.
func (r *rig) add(p uint32, n int) {
	r.t.Helper()
	id := pid(p)
	dir := fmt.Sprintf("topics/%d", p)
	if err := r.fs.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	for range n {
		base := int64(0)
		if have := r.files[id]; len(have) > 0 {
			base = have[len(have)-1].Next
		}
		w, err := segment.Create(r.fs, dir, segment.Options{Topic: id.Topic, Partition: p, Base: base})
		if err != nil {
			r.t.Fatal(err)
		}
		for o := base; o < base+10; o++ {
			b, err := segment.AppendBatch(nil, []broker.Record{{Offset: o, Timestamp: 1000 + o, Value: bytes.Repeat([]byte{byte(o)}, 100)}}, segment.BatchOptions{Generation: 1})
			if err == nil {
				err = w.Append(b, 1000+o, 1000+o)
			}
			if err != nil {
				r.t.Fatal(err)
			}
		}
		in, err := w.Seal()
		if err = errors.Join(err, w.Close()); err != nil {
			r.t.Fatal(err)
		}
		f := File{Info: in, Path: w.Path(), Confirmed: r.o.Archive != nil}
		r.files[id] = append(r.files[id], f)
		r.sealed[f.Path] = r.read(f.Path)
		if r.o.Archive != nil {
			r.archive(id, &f)
		}
	}
}

// archive puts a file into the bucket and its chain.
func (r *rig) archive(id broker.PartitionID, f *File) {
	r.t.Helper()
	ctx := context.Background()
	chain := r.chains[id]
	if chain == nil {
		var err error
		if chain, err = manifest.Load(ctx, storeOf{r}, id, 0); err != nil {
			r.t.Fatal(err)
		}
		if _, err := chain.Fence(ctx, testOwner, manifest.FenceParams{}); err != nil {
			r.t.Fatal(err)
		}
		r.chains[id] = chain
	}
	x := manifest.Segment{
		Partition: id, Base: f.Base, Next: f.Next, Records: f.Records, Bytes: f.Bytes, MinTimestamp: f.MinTimestamp, MaxTimestamp: f.MaxTimestamp,
		MinAppend: f.MinAppend, MaxAppend: f.MaxAppend, FirstGeneration: f.FirstGeneration, LastGeneration: f.LastGeneration, Generation: 1, Nonce: 1,
		DataSHA256: f.DataSHA256, DataLength: f.DataLength, FooterPosition: f.FooterPosition, FooterLength: f.FooterLength, OriginTopic: id.Topic,
	}
	b := r.sealed[f.Path]
	if err := r.bytes.Put(ctx, x.Key(), bytes.NewReader(b), int64(len(b)), objstore.PutOptions{CreateOnly: true}); err != nil {
		r.t.Fatal(err)
	}
	if err := chain.Add(ctx, testOwner, x); err != nil {
		r.t.Fatal(err)
	}
}

// listed returns the chain of a partition, read anew.
func (r *rig) listed(p uint32) []manifest.Segment {
	r.t.Helper()
	chain, err := manifest.Load(context.Background(), r.bytes, pid(p), 0)
	if err != nil {
		r.t.Fatal(err)
	}
	list, err := chain.Segments(context.Background(), 0, chain.End())
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

func (r *rig) read(path string) []byte {
	f, err := r.fs.FS.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *rig) write(path string, b []byte) {
	r.t.Helper()
	f, err := r.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(bytes.Clone(b))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) object(key string) []byte {
	b, _, err := objstore.ReadAll(context.Background(), r.bytes, key, 1<<30)
	if err != nil {
		return nil
	}
	return b
}

func (r *rig) setObject(key string, b []byte) {
	r.t.Helper()
	err := r.bytes.Delete(context.Background(), []string{key})
	if err == nil && b != nil {
		err = r.bytes.Put(context.Background(), key, bytes.NewReader(b), int64(len(b)), objstore.PutOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// flipped is b with one bit of a batch changed.
func flipped(b []byte) []byte {
	b = bytes.Clone(b)
	b[segment.HeaderSize+20] ^= 1
	return b
}

// open returns a scrubber; run runs it until stop is called.
func (r *rig) open() *Scrubber {
	r.t.Helper()
	s, err := New(r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func run(s *Scrubber) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = s.Run(ctx) })
	return func() {
		cancel()
		done.Wait()
		s.Close()
	}
}

// IDs implements Partitions.
func (r *rig) IDs() (out []broker.PartitionID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.files {
		out = append(out, id)
	}
	return out
}

// Files implements Partitions.
func (r *rig) Files(id broker.PartitionID, from int64, limit int) (out []File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.files[id] {
		if f.Base >= from && len(out) < limit {
			out = append(out, f)
		}
	}
	return out
}

// Mend implements Partitions.
func (r *rig) Mend(id broker.PartitionID, info *segment.Info, fetch func(w io.Writer) error) (string, error) {
	list := r.Files(id, info.Base, 1)
	if len(list) == 0 || list[0].Base != info.Base {
		return "", errcode.New(errcode.Conflict, "gone")
	}
	var b bytes.Buffer
	if err := fetch(&b); err != nil {
		return "", err
	}
	if sha256.Sum256(b.Bytes()) != info.FileSHA256 {
		return "", errcode.New(errcode.Corrupt, "another file")
	}
	r.write(list[0].Path, b.Bytes())
	return list[0].Path + ".damaged", nil
}

// SetAside implements Partitions.
func (r *rig) SetAside(id broker.PartitionID, info *segment.Info) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[id] = slices.DeleteFunc(r.files[id], func(f File) bool { return f.Base == info.Base })
	return "aside", nil
}

// Refused implements Partitions.
func (r *rig) Refused(broker.PartitionID) error { return nil }

// Next implements Archive.
func (r *rig) Next(ctx context.Context, id broker.PartitionID, from int64) (seg manifest.Segment, ok bool, err error) {
	chain := r.chains[id]
	if chain == nil {
		return seg, false, nil
	}
	loc, err := chain.Find(ctx, from)
	return loc.Segment, loc.Kind == manifest.InSegment, err
}

// Refresh implements Archive.
func (r *rig) Refresh(ctx context.Context, id broker.PartitionID) error {
	_, err := r.chains[id].Refresh(ctx)
	return err
}

// Bytes implements Archive.
func (r *rig) Bytes(id broker.PartitionID) (int64, bool) {
	if c := r.chains[id]; c != nil {
		return c.Bytes(), true
	}
	return 0, false
}

// Own implements Archive.
func (r *rig) Own(_ context.Context, id broker.PartitionID) (Chain, error) {
	return rigChain{r.chains[id]}, nil
}

type rigChain struct{ *manifest.Chain }

func (c rigChain) Generation() uint32 { return testOwner.Generation }

func (c rigChain) Replace(ctx context.Context, input, output manifest.Segment) error {
	return c.Chain.Replace(ctx, testOwner, []manifest.Segment{input}, output)
}

// mergedSegment puts one object into the bucket that holds the records of files.
func mergedSegment(t testing.TB, r *rig, files []File) manifest.Segment {
	t.Helper()
	id := pid(0)
	if err := r.fs.MkdirAll("merged", 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := segment.Create(r.fs, "merged", segment.Options{Topic: id.Topic, Partition: id.Partition, Base: files[0].Base})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		reader, _, err := segment.OpenReader(f.Path, bytes.NewReader(r.sealed[f.Path]), f.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for scan := reader.Scan(f.Base, nil); ; {
			b, _, err := scan.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = w.Append(b, f.MinAppend, f.MaxAppend)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	in, err := w.Seal()
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	x := manifest.Segment{
		Partition: id, Base: in.Base, Next: in.Next, Records: in.Records, Bytes: in.Bytes, MinTimestamp: in.MinTimestamp, MaxTimestamp: in.MaxTimestamp,
		MinAppend: in.MinAppend, MaxAppend: in.MaxAppend, FirstGeneration: in.FirstGeneration, LastGeneration: in.LastGeneration, Generation: 1, Nonce: 2,
		DataSHA256: in.DataSHA256, DataLength: in.DataLength, FooterPosition: in.FooterPosition, FooterLength: in.FooterLength, OriginTopic: id.Topic,
	}
	r.setObject(x.Key(), r.read(w.Path()))
	return x
}
