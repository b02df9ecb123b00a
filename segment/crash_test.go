package segment

import (
	"bytes"
	"errors"
	iofs "io/fs"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// powerLoss is one possible state of the disk after a power loss, with what had
// been promised at that moment.
type powerLoss struct {
	fs      *vfs.MemFS
	created bool  // Create had returned
	durable int64 // as Durable said after the last Sync that returned
}

// Power fails before any file operation of a segment's life, with any part of
// what was not synced on disk or not. Everything below the last synced mark is
// there afterwards, nothing is there that was not appended, and the segment
// goes on from there to a seal that verifies (I4).
func TestCrashAnywhere(t *testing.T) {
	rounds := uint64(25)
	if testing.Short() {
		rounds = 5
	}
	for seed := range rounds {
		rng := rand.New(rand.NewPCG(seed, 77))
		mem := newFS(t)
		now := powerLoss{durable: testOptions.Base}
		var crashes []powerLoss
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && rng.IntN(3) == 0 {
				c := now
				c.fs = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 80, 100}[rng.IntN(5)], RNG: rng})
				crashes = append(crashes, c)
			}
			return nil
		}))
		batches := someBatches(t, rng, testOptions.Base, 4+rng.IntN(12))
		if seed%4 == 0 { // one that is written in several steps
			last := headerOf(t, batches[len(batches)-1])
			batches = append(batches, mustBatch(t, someRecords(rng, last.NextOffset(), 5000), BatchOptions{Generation: last.Generation}))
		}
		w, err := Create(fs, dir, testOptions)
		if err != nil {
			t.Fatal(err)
		}
		now.created = true
		for _, b := range batches {
			mustAppend(t, w, b)
			now.durable = w.Durable()
			switch rng.IntN(4) {
			case 0:
				if err := w.Sync(); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := w.Park(); err != nil {
					t.Fatal(err)
				}
			}
			now.durable = w.Durable()
		}
		if _, err := w.Seal(); err != nil {
			t.Fatal(err)
		}
		now.durable = w.Durable()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for _, c := range crashes {
			checkCrash(t, rng, c, batches)
		}
	}
}

func checkCrash(t *testing.T, rng *rand.Rand, c powerLoss, batches [][]byte) {
	t.Helper()
	whole := bytes.Join(batches, nil)
	if _, err := c.fs.Stat(segPath()); err == nil {
		in, err := Adopt(c.fs, dir, testOptions)
		if err != nil || in.DataLength != int64(len(whole)) {
			t.Fatalf("adopt: %+v %v", in, err)
		}
		// What Adopt returned for stays, without a file of the other name.
		after := c.fs.CrashClone(vfs.CrashCloneCfg{})
		names, err := after.List(dir)
		if err != nil || len(names) != 1 || names[0] != SealedName(testOptions.Base) {
			t.Fatalf("after adopting: %v %v", names, err)
		}
		return
	}
	if _, err := c.fs.Stat(logPath()); errors.Is(err, iofs.ErrNotExist) {
		if c.created {
			t.Fatal("the segment is gone")
		}
		return
	}
	// Recovery may be interrupted by the next power loss, any number of times.
	mem := c.fs
	var again []*vfs.MemFS
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			again = append(again, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}))
		}
		return nil
	}))
	w := checkRecovered(t, fs, c.durable, whole)
	kept := w.Size()
	for _, fs := range append(again, mem.CrashClone(vfs.CrashCloneCfg{})) {
		r := checkRecovered(t, fs, c.durable, whole)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// What recovery kept is durable although nobody synced it since.
	r := checkRecovered(t, mem.CrashClone(vfs.CrashCloneCfg{}), w.Next(), whole)
	if r.Size() != kept {
		t.Fatalf("kept %d bytes, then %d", kept, r.Size())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	// The rest comes again, as from the WAL, and the segment is what it would
	// have been without the crash.
	for _, b := range batches {
		if h := headerOf(t, b); h.BaseOffset >= w.Next() {
			mustAppend(t, w, b)
		} else {
			w.Widen(1000, 1001)
		}
	}
	if err := w.Sync(); err != nil {
		t.Fatal(err)
	}
	r = checkRecovered(t, mem.CrashClone(vfs.CrashCloneCfg{}), w.Durable(), whole)
	if r.Size() != int64(len(whole)) {
		t.Fatalf("%d bytes after the next power loss, want %d", r.Size(), len(whole))
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	in, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	raw := readFile(t, mem, segPath())
	rep, err := Verify("s", bytes.NewReader(raw), in.Bytes, true)
	if err != nil || rep.Err() != nil || !bytes.HasPrefix(raw, whole) || rep.Info != in {
		t.Fatalf("%v %v", err, rep.Problems)
	}
}

// checkRecovered recovers the active segment and compares it with a prefix of
// what was appended.
func checkRecovered(t *testing.T, fs vfs.FS, durable int64, whole []byte) *Writer {
	t.Helper()
	w, _, err := Recover(fs, dir, RecoverOptions{Options: testOptions, Flushed: durable})
	if err != nil {
		t.Fatalf("recover, durable to %d: %v", durable, err)
	}
	if w.Next() < durable {
		t.Fatalf("recovered to %d, %d was durable", w.Next(), durable)
	}
	if got := scanAll(t, w.Reader().Scan(0, nil)); !bytes.HasPrefix(whole, got) || int64(len(got)) != w.Size() {
		t.Fatal("something was invented")
	}
	return w
}

// A process that is killed leaves bytes that read well but were never synced.
// Recover and Adopt make them durable before anybody relies on them.
func TestKilledProcessThenPowerLoss(t *testing.T) {
	raw, in, batches := sealedSegment(t, 12)
	unsynced := func(path string, content []byte) *vfs.MemFS {
		fs := newFS(t)
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(bytes.Clone(content)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return fs
	}
	fs := unsynced(logPath(), bytes.Join(batches, nil))
	if err := syncDir(fs, dir); err != nil { // Create had done that
		t.Fatal(err)
	}
	w := checkRecovered(t, fs, testOptions.Base, bytes.Join(batches, nil))
	after := checkRecovered(t, fs.CrashClone(vfs.CrashCloneCfg{}), w.Durable(), bytes.Join(batches, nil))
	if w.Durable() != in.Next || after.Next() != in.Next {
		t.Fatalf("durable to %d, after the power loss %d, want %d", w.Durable(), after.Next(), in.Next)
	}
	fs = unsynced(segPath(), raw)
	if _, err := Adopt(fs, dir, testOptions); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, fs.CrashClone(vfs.CrashCloneCfg{}), segPath()); !bytes.Equal(got, raw) {
		t.Fatalf("%d bytes after the power loss, want %d", len(got), len(raw))
	}
}

// The sealed name is durable when Seal returns: its Info may be recorded.
func TestSealIsDurable(t *testing.T) {
	fs := newFS(t)
	w := mustCreate(t, fs)
	mustAppend(t, w, someBatches(t, rand.New(rand.NewPCG(1, 1)), testOptions.Base, 3)...)
	if _, err := w.Seal(); err != nil {
		t.Fatal(err)
	}
	names, err := fs.CrashClone(vfs.CrashCloneCfg{}).List(dir)
	if err != nil || len(names) != 1 || names[0] != SealedName(testOptions.Base) {
		t.Fatalf("%v %v", names, err)
	}
}
