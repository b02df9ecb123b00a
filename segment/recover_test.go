package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

func recoverOptions(flushed int64) RecoverOptions {
	return RecoverOptions{Options: testOptions, Flushed: flushed, MinAppend: 1000, MaxAppend: 2000}
}

// checkGoesOn appends next behind what w recovered, seals, and checks the file:
// the sums that recovery rebuilt are those of the bytes.
func checkGoesOn(t *testing.T, fs vfs.FS, w *Writer, kept []byte, next []byte) {
	t.Helper()
	if got := scanAll(t, w.Reader().Scan(0, nil)); !bytes.Equal(got, kept) {
		t.Fatalf("recovered %d bytes, want %d", len(got), len(kept))
	}
	mustAppend(t, w, next)
	in, err := w.Seal()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	raw := readFile(t, fs, segPath())
	rep, err := Verify("s", bytes.NewReader(raw), in.Bytes, true)
	if err != nil || rep.Err() != nil || rep.Info != in || !bytes.HasPrefix(raw, append(bytes.Clone(kept), next...)) {
		t.Fatalf("%v %v\n%+v\n%+v", err, rep.Problems, rep.Info, in)
	}
}

// The last batch cut at every byte of its length: all earlier batches are
// there, nothing else, and the next append follows them (B30).
func TestRecoverCutAtEveryByte(t *testing.T) {
	batches := someBatches(t, rand.New(rand.NewPCG(1, 30)), 100, 4)
	kept := bytes.Join(batches[:3], nil)
	last := batches[3]
	flushed := headerOf(t, batches[2]).NextOffset()
	for k := range last {
		fs := newFS(t)
		writeFile(t, fs, logPath(), append(bytes.Clone(kept), last[:k]...))
		w, cut, err := Recover(fs, dir, recoverOptions(flushed))
		if err != nil || cut != int64(k) {
			t.Fatalf("cut at %d: %d bytes cut, %v", k, cut, err)
		}
		if w.Next() != flushed || w.Durable() != w.Next() {
			t.Fatalf("cut at %d: next %d, durable to %d", k, w.Next(), w.Durable())
		}
		checkGoesOn(t, fs, w, kept, last)
	}
}

// The length field of the last batch is garbage: recovery starts, allocates
// nothing of that size and keeps the batches before (B31).
func TestRecoverGarbageLength(t *testing.T) {
	batches := someBatches(t, rand.New(rand.NewPCG(1, 31)), 100, 4)
	kept := bytes.Join(batches[:3], nil)
	for _, length := range []uint32{0, 1, 48, 49, MaxBatch - 12, MaxBatch, math.MaxInt32, math.MaxUint32, 1 << 31} {
		fs := newFS(t)
		last := bytes.Clone(batches[3])
		binary.BigEndian.PutUint32(last[8:], length)
		writeFile(t, fs, logPath(), append(bytes.Clone(kept), last...))
		var w *Writer
		n := allocated(func() {
			var err error
			if w, _, err = Recover(fs, dir, recoverOptions(0)); err != nil {
				t.Fatalf("length %d: %v", length, err)
			}
		})
		if n > 4*scanBuffer {
			t.Errorf("length %d: %d bytes allocated", length, n)
		}
		checkGoesOn(t, fs, w, kept, batches[3])
	}
}

// The second half of a batch of five records is zero after a crash: none of the
// five comes back, never three (B38).
func TestRecoverBatchIsAllOrNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 38))
	first, five := mustBatch(t, someRecords(rng, 100, 3), BatchOptions{}), mustBatch(t, someRecords(rng, 200, 5), BatchOptions{})
	zeroed := bytes.Clone(five)
	clear(zeroed[len(zeroed)/2:])
	fs := newFS(t)
	writeFile(t, fs, logPath(), append(bytes.Clone(first), zeroed...))
	w, _, err := Recover(fs, dir, recoverOptions(0))
	if err != nil || w.Info().Records != 3 {
		t.Fatalf("%+v %v", w.Info(), err)
	}
	checkGoesOn(t, fs, w, first, five)
}

// Damage below the flushed offset is refused with file and position, and not a
// byte of the file or a name in the directory changes (B35 for the active segment).
func TestRecoverRefusesDamage(t *testing.T) {
	batches := someBatches(t, rand.New(rand.NewPCG(1, 35)), 100, 10)
	whole := bytes.Join(batches, nil)
	end := headerOf(t, batches[9]).NextOffset()
	third := len(batches[0]) + len(batches[1])
	flipped := bytes.Clone(whole)
	flipped[third+80] ^= 1
	for name, c := range map[string]struct {
		content []byte
		flushed int64
		at      int
	}{
		"bit in batch 3 of 10":      {flipped, end, third},
		"only batch 3 is below":     {flipped, headerOf(t, batches[2]).NextOffset(), third},
		"cut in the last batch":     {whole[:len(whole)-1], end, len(whole) - len(batches[9])},
		"last batch gone":           {whole[:len(whole)-len(batches[9])], end, len(whole) - len(batches[9])},
		"empty":                     {nil, end, 0},
		"batch twice":               {append(bytes.Clone(batches[0]), whole...), end, len(batches[0])},
		"flushed beyond everything": {whole, end + 1, len(whole)},
	} {
		fs := newFS(t)
		writeFile(t, fs, logPath(), c.content)
		_, _, err := Recover(fs, dir, recoverOptions(c.flushed))
		var e *errcode.Error
		if !errors.As(err, &e) || e.Code != errcode.Corrupt || e.Facts["position"] != int64(c.at) || !strings.Contains(e.Error(), ActiveName(100)) {
			t.Fatalf("%s: %v %v, want position %d", name, err, e, c.at)
		}
		names, _ := fs.List(dir)
		if len(names) != 1 || !bytes.Equal(readFile(t, fs, logPath()), c.content) {
			t.Fatalf("%s: something was changed: %v", name, names)
		}
	}
	// The same bit above the flushed offset is a torn end: the batches below
	// stay, the rest comes again from the WAL.
	fs := newFS(t)
	writeFile(t, fs, logPath(), flipped)
	w, cut, err := Recover(fs, dir, recoverOptions(headerOf(t, batches[2]).BaseOffset-1))
	if err != nil || cut != int64(len(whole)-third) {
		t.Fatalf("%d cut, %v", cut, err)
	}
	checkGoesOn(t, fs, w, whole[:third], batches[2])
	_, _, err = Recover(fs, dir, RecoverOptions{Options: Options{Base: 7}})
	wantCode(t, err, errcode.NotFound)
}

// Valid batches above the flushed offset are kept and durable on return, and
// their append times are added when the WAL brings them.
func TestRecoverKeepsWhatIsValid(t *testing.T) {
	batches := someBatches(t, rand.New(rand.NewPCG(1, 39)), 100, 6)
	fs := newFS(t)
	writeFile(t, fs, logPath(), bytes.Join(batches, nil))
	w, cut, err := Recover(fs, dir, recoverOptions(headerOf(t, batches[2]).NextOffset()))
	if err != nil || cut != 0 {
		t.Fatal(cut, err)
	}
	if in := w.Info(); in.MinAppend != 1000 || in.MaxAppend != 2000 {
		t.Fatalf("%+v", in)
	}
	w.Widen(1500, 2500)
	w.Widen(0, 0)
	if in := w.Info(); in.MinAppend != 1000 || in.MaxAppend != 2500 {
		t.Fatalf("%+v", in)
	}
	checkGoesOn(t, fs, w, bytes.Join(batches, nil), mustBatch(t, someRecords(rand.New(rand.NewPCG(1, 1)), 9000, 2), BatchOptions{Generation: 9}))
}

// A failed read is an error of its own, never the end of the log: nothing is cut.
func TestRecoverFailedReadIsNotTheEnd(t *testing.T) {
	mem := newFS(t)
	batches := someBatches(t, rand.New(rand.NewPCG(1, 40)), 100, 3)
	whole := bytes.Join(batches, nil)
	writeFile(t, mem, logPath(), whole)
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt {
			return syscall.EIO
		}
		return nil
	}))
	_, _, err := Recover(fs, dir, recoverOptions(0))
	if !errcode.Is(err, errcode.Storage) || !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if !bytes.Equal(readFile(t, mem, logPath()), whole) {
		t.Fatal("the log was changed")
	}
}

// Whatever single operation fails, the writer says so, takes nothing more
// (I5), and recovery afterwards finds everything that was durable.
func TestFailurePoisons(t *testing.T) {
	batches := someBatches(t, rand.New(rand.NewPCG(1, 41)), 100, 8)
	big := mustBatch(t, someRecords(rand.New(rand.NewPCG(2, 41)), 5000, 6000), BatchOptions{Generation: 3}) // > SyncStep
	for fail := 0; ; fail++ {
		mem := newFS(t)
		n, hit := 0, errorfs.OpKind(-1)
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			switch op.Kind {
			case errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpRename, errorfs.OpOpenDir:
				if n++; n-1 == fail {
					hit = op.Kind
					return syscall.EIO
				}
			}
			return nil
		}))
		durable := testOptions.Base
		w, err := Create(fs, dir, testOptions)
		run := func() error {
			for i, b := range append(batches[:len(batches):len(batches)], big) {
				if err := w.Append(b, 1, 2); err != nil {
					return err
				}
				if i%3 == 2 {
					if err := w.Sync(); err != nil {
						return err
					}
					durable = w.Durable()
				}
			}
			_, err := w.Seal()
			return err
		}
		if err == nil {
			err = run()
		}
		if hit < 0 {
			if err != nil {
				t.Fatal(err)
			}
			if fail < 10 {
				t.Fatalf("only %d operations", fail)
			}
			return
		}
		if !errors.Is(err, syscall.EIO) || !errcode.Is(err, errcode.Storage) && !errcode.Is(err, errcode.Poisoned) {
			t.Fatalf("operation %d (%v): %v", fail, hit, err)
		}
		if w != nil {
			size := w.Size()
			wantCode(t, w.Append(batches[0], 1, 1), errcode.Poisoned)
			wantCode(t, w.Sync(), errcode.Poisoned)
			wantCode(t, w.Park(), errcode.Poisoned)
			_, err := w.Seal()
			wantCode(t, err, errcode.Poisoned)
			if w.Err() == nil || w.Size() != size {
				t.Fatal("the writer forgot its failure")
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		after := mem.CrashClone(vfs.CrashCloneCfg{})
		if _, err := after.Stat(segPath()); err == nil {
			if _, err := Adopt(after, dir, testOptions); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if w == nil {
			continue // nothing was promised
		}
		r, _, err := Recover(after, dir, recoverOptions(durable))
		if err != nil {
			t.Fatalf("operation %d (%v): %v", fail, hit, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
