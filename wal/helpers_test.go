package wal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Every test of the package must leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testIncarnation = 0x1122334455667788

func testOptions(fs vfs.FS) Options {
	return Options{
		FS: fs, Dir: "wal", Incarnation: testIncarnation, FileSize: 256 << 10,
		MaxBytes: 64 << 20, PoolFiles: 2, AckSyncInterval: time.Hour,
	}
}

// oneFile are options of a log without spares: a file ends when it is full.
func oneFile(fs vfs.FS) Options {
	o := testOptions(fs)
	o.PoolFiles = -1
	return o
}

// entry is a frame with a body of its own.
type entry struct {
	lsn  uint64
	kind Kind
	body []byte
}

// opened is an open log with what it replayed.
type opened struct {
	*Log
	info     RecoveryInfo
	replayed []entry
}

// userFrames returns what was replayed except marks.
func (o *opened) userFrames() []entry {
	return slices.DeleteFunc(slices.Clone(o.replayed), func(e entry) bool { return e.kind == KindMark })
}

func tryOpen(o Options) (*opened, error) {
	out := &opened{}
	var err error
	next := uint64(0)
	out.Log, out.info, err = Open(o, func(f Frame) error {
		if next != 0 && f.LSN != next {
			return fmt.Errorf("replayed LSN %d after %d", f.LSN, next-1)
		}
		next = f.LSN + 1
		out.replayed = append(out.replayed, entry{f.LSN, f.Kind, bytes.Clone(f.Body)})
		return nil
	})
	return out, err
}

func mustOpen(t testing.TB, o Options) *opened {
	t.Helper()
	l, err := tryOpen(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustClose(t testing.TB, l *opened) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// body returns n bytes that depend on lsn, seed and position.
func body(seed, lsn uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, lsn))
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}

// stage reserves and fills one frame without waiting for it.
func stage(t testing.TB, l *Log, seed uint64, n int) entry {
	t.Helper()
	s, err := l.Reserve(KindCommit, n)
	if err != nil {
		t.Fatalf("reserve: %v", err)
	}
	b := body(seed, s.LSN, n)
	copy(s.Body, b)
	s.Done()
	return entry{s.LSN, KindCommit, b}
}

// put appends one frame and waits until it is durable.
func put(t testing.TB, l *Log, seed uint64, n int) entry {
	t.Helper()
	e := stage(t, l, seed, n)
	if err := l.WaitDurable(context.Background(), e.lsn); err != nil {
		t.Fatalf("wait durable %d: %v", e.lsn, err)
	}
	return e
}

// write appends one frame and waits until it is in the file only.
func write(t testing.TB, l *Log, seed uint64, n int) entry {
	t.Helper()
	e := stage(t, l, seed, n)
	if err := l.WaitWritten(context.Background(), e.lsn); err != nil {
		t.Fatalf("wait written %d: %v", e.lsn, err)
	}
	return e
}

func wantFrames(t testing.TB, got, want []entry) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d (got %v, want %v)", len(got), len(want), lsns(got), lsns(want))
	}
	for i := range got {
		if got[i].lsn != want[i].lsn || got[i].kind != want[i].kind || !bytes.Equal(got[i].body, want[i].body) {
			t.Fatalf("frame %d: LSN %d %v %d bytes, want LSN %d %v %d bytes", i, got[i].lsn, got[i].kind, len(got[i].body), want[i].lsn, want[i].kind, len(want[i].body))
		}
	}
}

func lsns(es []entry) []uint64 {
	out := make([]uint64, len(es))
	for i, e := range es {
		out[i] = e.lsn
	}
	return out
}

// logFiles returns the names of the log files, ascending.
func logFiles(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	names, err := fs.List("wal")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { _, ok := parseFileName(n); return !ok })
	slices.Sort(names)
	return names
}

// read returns a file's bytes.
func read(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(fs.PathJoin("wal", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// overwrite replaces a file's bytes, durably.
func overwrite(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(fs.PathJoin("wal", name), writeCategory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(bytes.Clone(b)); err != nil { // Write may change what it is given
		t.Fatal(err)
	}
	dir, err := fs.OpenDir("wal")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{f.Sync(), f.Close(), dir.Sync(), dir.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// newFS returns a crashable file system.
func newFS() *vfs.MemFS { return vfs.NewCrashableMem() }

// clone returns what a power loss now leaves, with pct percent of the
// un-synced blocks and names.
func clone(fs *vfs.MemFS, pct int, seed uint64) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: pct, RNG: rand.New(rand.NewPCG(seed, 1))})
}

// killed returns the file system as a killed process leaves it: all that was
// written, synced or not.
func killed(fs *vfs.MemFS) *vfs.MemFS { return clone(fs, 100, 0) }

// span is where a group stands in a file.
type span struct {
	off, size   int // header and frames
	first, next uint64
}

// spansOf returns the groups of a file's bytes.
func spansOf(t testing.TB, b []byte) []span {
	t.Helper()
	h, err := parseFileHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	var out []span
	for off := blockSize; off < len(b); {
		g, n, err := ParseGroup(b[off:], h.Salt)
		if err != nil {
			break
		}
		out = append(out, span{off, n, g.First, g.Next()})
		off += int(roundUp(int64(n)))
	}
	return out
}

func asError(err error, target **errcode.Error) bool { return errors.As(err, target) }
