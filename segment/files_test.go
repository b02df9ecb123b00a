package segment

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// dir is where the tests keep a partition's segments.
const dir = "topics/00000000000000aa/3"

var testOptions = Options{Topic: 0xaa, Partition: 3, Base: 100}

// newFS returns a crashable file system with the partition's directory.
func newFS(tb testing.TB) *vfs.MemFS {
	tb.Helper()
	fs := vfs.NewCrashableMem()
	if err := MakeDir(fs, "", dir); err == nil {
		tb.Fatal("a root that is no parent was accepted")
	}
	if err := MakeDir(fs, ".", dir); err != nil {
		tb.Fatal(err)
	}
	return fs
}

func mustCreate(tb testing.TB, fs vfs.FS) *Writer {
	tb.Helper()
	w, err := Create(fs, dir, testOptions)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// someBatches returns n batches of a few records with ascending offsets from
// base, compressed or not, generations rising now and then.
func someBatches(tb testing.TB, rng *rand.Rand, base int64, n int) [][]byte {
	tb.Helper()
	var out [][]byte
	for i := range n {
		recs := someRecords(rng, base, 1+rng.IntN(8))
		base = recs[len(recs)-1].Offset + 1 + int64(rng.IntN(2))
		out = append(out, mustBatch(tb, recs, BatchOptions{Codec: []Codec{CodecNone, CodecZstd}[rng.IntN(2)], Generation: uint32(1 + i/4)}))
	}
	return out
}

func mustAppend(tb testing.TB, w *Writer, batches ...[]byte) {
	tb.Helper()
	for i, b := range batches {
		if err := w.Append(b, int64(1000+i), int64(1001+i)); err != nil {
			tb.Fatal(err)
		}
	}
}

func headerOf(tb testing.TB, b []byte) BatchHeader {
	tb.Helper()
	h, err := VerifyBatch(b)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

func readFile(tb testing.TB, fs vfs.FS, path string) []byte {
	tb.Helper()
	f, err := fs.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(f)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func writeFile(tb testing.TB, fs vfs.FS, path string, b []byte) {
	tb.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		tb.Fatal(err)
	}
	_, err = f.Write(bytes.Clone(b)) // Write may change what it gets
	for _, err := range []error{err, f.Sync(), f.Close(), syncDir(fs, fs.PathDir(path))} {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func logPath() string { return dir + "/" + ActiveName(testOptions.Base) }
func segPath() string { return dir + "/" + SealedName(testOptions.Base) }

// scanAll reads every batch that a scanner gives.
func scanAll(tb testing.TB, s *Scanner) []byte {
	tb.Helper()
	var out []byte
	for {
		b, _, err := s.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, b...)
	}
}

// sealedSegment returns the bytes of a sealed segment of ten batches.
func sealedSegment(tb testing.TB, seed uint64) ([]byte, Info, [][]byte) {
	tb.Helper()
	fs := newFS(tb)
	w := mustCreate(tb, fs)
	batches := someBatches(tb, rand.New(rand.NewPCG(seed, 1)), testOptions.Base, 10)
	mustAppend(tb, w, batches...)
	in, err := w.Seal()
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return readFile(tb, fs, segPath()), in, batches
}

// names of segments read back, and nothing else does.
func TestNames(t *testing.T) {
	for _, base := range []int64{0, 7, 1 << 62} {
		if b, sealed, ok := ParseName(ActiveName(base)); b != base || sealed || !ok {
			t.Errorf("%s: %d %v %v", ActiveName(base), b, sealed, ok)
		}
		if b, sealed, ok := ParseName(SealedName(base)); b != base || !sealed || !ok {
			t.Errorf("%s: %d %v %v", SealedName(base), b, sealed, ok)
		}
	}
	for _, bad := range []string{"", ".log", "1.log", ActiveName(1) + ".tmp", "+0000000000000000001.log", "-0000000000000000001.seg", "99999999999999999999.seg", "0000000000000000000x.seg"} {
		if _, _, ok := ParseName(bad); ok {
			t.Errorf("%q is taken for a segment", bad)
		}
	}
}

// What is appended is readable at once, by position, by offset and by time, and
// a reader taken before sees what was there then.
func TestWriterReadsWhileAppending(t *testing.T) {
	fs := newFS(t)
	w := mustCreate(t, fs)
	if _, ok := w.Reader().SeekOffset(100); ok {
		t.Fatal("an empty segment has a batch")
	}
	if _, err := w.ReadAt(make([]byte, 1), 0); err != io.EOF {
		t.Fatal(err)
	}
	var want []byte
	for i, b := range someBatches(t, rand.New(rand.NewPCG(1, 5)), 100, 30) {
		before := w.Reader()
		mustAppend(t, w, b)
		want = append(want, b...)
		if got := scanAll(t, before.Scan(0, nil)); !bytes.Equal(got, want[:len(want)-len(b)]) {
			t.Fatalf("batch %d: the reader from before changed", i)
		}
		if got := scanAll(t, w.Reader().Scan(0, nil)); !bytes.Equal(got, want) {
			t.Fatalf("batch %d: got %d bytes, want %d", i, len(got), len(want))
		}
		h := headerOf(t, b)
		for o := h.BaseOffset; o < h.NextOffset(); o++ {
			e, ok := w.Reader().SeekOffset(o)
			if !ok || e.Base != h.BaseOffset {
				t.Fatalf("offset %d: %+v %v", o, e, ok)
			}
			raw, _, err := w.Reader().ReadBatch(e, nil)
			if err != nil || !bytes.Equal(raw, b) {
				t.Fatalf("offset %d: %v", o, err)
			}
		}
		if _, ok := w.Reader().SeekOffset(h.NextOffset()); ok {
			t.Fatal("an offset that is not there was found")
		}
		buf := make([]byte, len(want)+10)
		if n, err := w.ReadAt(buf, 0); n != len(want) || err != io.EOF {
			t.Fatal(n, err)
		}
		if i%7 == 3 { // without a descriptor it goes on as before
			if err := w.Park(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if in := w.Info(); in.Bytes != int64(len(want)) || in.MinAppend != 1000 || in.MaxAppend != 1001 || in.FirstGeneration != 1 || in.LastGeneration != 8 {
		t.Fatalf("%+v", in)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := w.ReadAt(make([]byte, 1), 0)
	wantCode(t, err, errcode.Closed)
	wantCode(t, w.Append(want[:1], 0, 0), errcode.Corrupt)
}

// The first batch with a record at or after a time is found although times go
// back and forth, also at a time between the batch's own (B119).
func TestSeekTime(t *testing.T) {
	raw, _, batches := sealedSegment(t, 3)
	r, _, err := OpenReader("x", bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	type at struct{ offset, ms int64 }
	var all []at
	for _, b := range batches {
		recs, err := DecodeBatch(nil, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range recs {
			all = append(all, at{recs[i].Offset, recs[i].Timestamp})
		}
	}
	probe := func(ms int64) {
		want := int64(-1)
		for _, a := range all {
			if a.ms >= ms {
				want = a.offset
				break
			}
		}
		e, ok := r.SeekTime(ms)
		if ok != (want >= 0) {
			t.Fatalf("time %d: found %v, want offset %d", ms, ok, want)
		}
		if !ok {
			return
		}
		b, _, err := r.ReadBatch(e, nil)
		if err != nil {
			t.Fatal(err)
		}
		offset, _, found, err := FindTime(b, ms, nil)
		if err != nil || !found || offset != want {
			t.Fatalf("time %d: offset %d found %v %v, want %d", ms, offset, found, err, want)
		}
	}
	for _, a := range all {
		for d := int64(-1); d <= 1; d++ {
			probe(a.ms + d)
		}
	}
	probe(0)
	probe(1 << 60)
}

// Batches out of order, damaged or from an older owner are refused, and the
// writer goes on.
func TestAppendRefuses(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	fs := newFS(t)
	w := mustCreate(t, fs)
	batch := func(offset int64, generation uint32) []byte {
		return mustBatch(t, someRecords(rng, offset, 3), BatchOptions{Generation: generation})
	}
	mustAppend(t, w, batch(200, 5))
	size := w.Size()
	flipped := batch(900, 5)
	flipped[70] ^= 1
	for name, c := range map[string]struct {
		raw  []byte
		code errcode.Code
	}{
		"offset again":     {batch(200, 5), errcode.Conflict},
		"below the base":   {batch(50, 5), errcode.Conflict},
		"older generation": {batch(900, 4), errcode.Conflict},
		"bad checksum":     {flipped, errcode.Corrupt},
		"two batches":      {append(batch(900, 5), batch(950, 5)...), errcode.Corrupt},
		"nothing":          {nil, errcode.Corrupt},
	} {
		if err := w.Append(c.raw, 1, 1); !errcode.Is(err, c.code) || w.Size() != size {
			t.Errorf("%s: %v, size %d", name, err, w.Size())
		}
	}
	mustAppend(t, w, batch(900, 5))
	_, err := Create(fs, dir, testOptions)
	wantCode(t, err, errcode.Exists)
	_, err = Create(fs, dir, Options{Base: -1})
	wantCode(t, err, errcode.InvalidArgument)
}

// Seal gives what Adopt, OpenReader and Verify find in the file, and the
// writer's readers live on until Close.
func TestSealAndAdopt(t *testing.T) {
	fs := newFS(t)
	w := mustCreate(t, fs)
	_, err := w.Seal()
	wantCode(t, err, errcode.Conflict) // nothing to seal
	batches := someBatches(t, rand.New(rand.NewPCG(6, 6)), 100, 10)
	mustAppend(t, w, batches...)
	r := w.Reader()
	in, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	if w.Info() != in || w.Durable() != in.Next || w.Path() != segPath() {
		t.Fatalf("%+v, durable to %d, %s", w.Info(), w.Durable(), w.Path())
	}
	data := bytes.Join(batches, nil)
	if got := scanAll(t, r.Scan(0, nil)); !bytes.Equal(got, data) {
		t.Fatal("the reader from before the seal does not read on")
	}
	_, err = w.Seal()
	wantCode(t, err, errcode.Conflict)
	wantCode(t, w.Append(batches[0], 1, 1), errcode.Conflict)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, err = Recover(fs, dir, RecoverOptions{Options: testOptions})
	wantCode(t, err, errcode.Conflict) // there is a sealed file
	_, err = Create(fs, dir, testOptions)
	wantCode(t, err, errcode.Exists)

	got, err := Adopt(fs, dir, testOptions)
	if err != nil || got != in {
		t.Fatalf("adopted %+v, sealed %+v, %v", got, in, err)
	}
	raw := readFile(t, fs, segPath())
	if int64(len(raw)) != in.Bytes || !bytes.HasPrefix(raw, data) {
		t.Fatalf("%d bytes, want %d", len(raw), in.Bytes)
	}
	for _, deep := range []bool{false, true} {
		rep, err := Verify("s", bytes.NewReader(raw), in.Bytes, deep)
		if err != nil || rep.Err() != nil || rep.Info != in || rep.Batches != 10 || rep.Records != in.Records {
			t.Fatalf("%+v %v", rep, err)
		}
	}
	o := testOptions
	for _, other := range []Options{{Topic: o.Topic + 1, Partition: o.Partition, Base: o.Base}, {Topic: o.Topic, Partition: o.Partition + 1, Base: o.Base}} {
		_, err := Adopt(fs, dir, other)
		wantCode(t, err, errcode.Corrupt)
	}
	_, err = Adopt(fs, dir, Options{Base: 5})
	wantCode(t, err, errcode.NotFound)
}

// MakeDir makes every level durable: a crash that keeps only synced names
// keeps the whole path.
func TestMakeDirIsDurable(t *testing.T) {
	fs := newFS(t)
	after := fs.CrashClone(vfs.CrashCloneCfg{})
	if _, err := after.List(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := after.Stat(fmt.Sprintf("%s/%s", dir, ActiveName(100))); err == nil {
		t.Fatal("a file appeared")
	}
}
