package segment

import (
	"bytes"
	"errors"
	iofs "io/fs"
	"syscall"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/crash"
)

// promise is what a segment has said about itself.
type promise struct {
	created bool  // Create has returned
	sealed  bool  // Seal or Adopt has returned
	durable int64 // offset; everything below was said to be synced
}

// life is one process that goes on with the segment that a crash left. The
// batches are its log: all of them come again, in order.
type life struct {
	t       *crash.T
	fs      *crash.FS
	depth   int
	batches [][]byte
	heads   []BatchHeader
	whole   []byte // all batches

	p      promise
	broken bool // a change was made to fail
	armed  int  // changes until one fails; 0 = none does
}

func (f *life) fault(op crash.Op) (crash.Fault, error) {
	if f.armed == 0 {
		return crash.Pass, nil
	}
	if f.armed--; f.armed > 0 {
		return crash.Pass, nil
	}
	f.broken = true
	switch op.Kind {
	case "sync":
		return crash.Forget, syscall.EIO
	case "write":
		return crash.Tear, syscall.ENOSPC
	}
	return crash.Refuse, syscall.EIO
}

// ended says whether err ends this life: only a fault may do that.
func (f *life) ended(err error) bool {
	if err != nil && (!f.broken || !errcode.Is(err, errcode.Storage) && !errcode.Is(err, errcode.Poisoned)) {
		f.t.Fatal(err)
	}
	return err != nil
}

func (f *life) run() {
	t, rng := f.t, f.t.Rand
	camera := crash.FilmFaults(f.fs, rng, []int{6, 2, 0}[f.depth], func() promise { return f.p }, f.fault)
	if f.depth < 2 && rng.IntN(4) == 0 {
		f.armed = 1 + rng.IntN(10)
	}
	if w := f.open(); w != nil {
		if f.depth < 2 {
			f.work(w)
		}
		if err := w.Close(); err != nil && !f.broken {
			t.Fatal(err)
		}
	}
	f.fs.Hook(nil)
	shots := camera.Take()
	if f.depth < 2 {
		shots = append(shots, crash.Shot[promise]{FS: f.fs, State: f.p, Op: crash.Op{Kind: "end"}})
	}
	for _, s := range shots {
		f.develop(s)
	}
}

func (f *life) develop(s crash.Shot[promise]) {
	images := s.FS.Losses(f.t.Rand, []int{5, 3}[f.depth])
	if f.t.Rand.IntN(2) == 0 {
		images = append(images, s.FS.Kill())
	}
	for i, fs := range images {
		next := *f
		next.fs, next.p, next.depth, next.broken, next.armed = fs, s.State, f.depth+1, false, 0
		f.t.Step("%*s crash before change %d, %s %s: image %d of %d, %+v", f.depth, "", s.N, s.Op.Kind, s.Op.Path, i+1, len(images), s.State)
		next.run()
	}
}

// open finds what is there and compares it with the promise. It returns nil
// when there is nothing to append to.
func (f *life) open() *Writer {
	_, sealed := f.fs.Stat(segPath())
	_, active := f.fs.Stat(logPath())
	switch {
	case sealed == nil:
		f.adopt()
		return nil
	case active == nil:
		return f.recover()
	case !errors.Is(active, iofs.ErrNotExist):
		f.t.Fatal(active)
	case f.p.created:
		f.t.Fatal("the segment is gone")
	}
	if f.depth > 0 {
		f.t.Count()
	}
	w, err := Create(f.fs, dir, testOptions)
	if f.ended(err) {
		return nil
	}
	f.p.created = true
	return w
}

func (f *life) adopt() {
	in, err := Adopt(f.fs, dir, testOptions)
	if f.ended(err) {
		return
	}
	if in.DataLength != int64(len(f.whole)) {
		f.t.Fatalf("adopted %+v of %d bytes", in, len(f.whole))
	}
	if rep, err := Verify("s", bytes.NewReader(readFile(f.t, f.fs, segPath())), in.Bytes, true); err != nil || rep.Err() != nil {
		f.t.Fatalf("a sealed segment does not verify: %v %v", err, rep.Err())
	}
	f.p.created, f.p.sealed, f.p.durable = true, true, in.Next
	f.t.Count()
}

func (f *life) recover() *Writer {
	t := f.t
	if f.p.sealed {
		t.Fatal("the sealed name is gone")
	}
	// What the local state knows may be older than what was synced.
	flushed := f.p.durable
	if t.Rand.IntN(3) == 0 {
		flushed = testOptions.Base
	}
	w, _, err := Recover(f.fs, dir, RecoverOptions{Options: testOptions, Flushed: flushed})
	if f.ended(err) {
		return nil
	}
	got := scanAll(t, w.Reader().Scan(0, nil))
	if !bytes.HasPrefix(f.whole, got) || int64(len(got)) != w.Size() {
		t.Fatal("something was invented")
	}
	if w.Next() < f.p.durable || w.Durable() != w.Next() {
		t.Fatalf("recovered to %d, durable to %d, synced were %d", w.Next(), w.Durable(), f.p.durable)
	}
	f.p.created, f.p.durable = true, w.Durable()
	t.Count()
	return w
}

// work appends what is missing, syncs now and then, and seals at the end.
func (f *life) work(w *Writer) {
	rng := f.t.Rand
	for i, b := range f.batches {
		if f.heads[i].BaseOffset < w.Next() {
			continue
		}
		if f.ended(w.Append(b, int64(1000+i), int64(1001+i))) {
			return
		}
		f.p.durable = w.Durable()
		var err error
		switch rng.IntN(4) {
		case 0:
			err = w.Sync()
		case 1:
			err = w.Park()
		}
		if f.ended(err) {
			return
		}
		f.p.durable = w.Durable()
	}
	if rng.IntN(4) == 0 {
		return
	}
	if _, err := w.Seal(); f.ended(err) {
		return
	}
	f.p.sealed, f.p.durable = true, w.Durable()
}

// I4, I5, B45, B46, B47: between any two changes of a segment's life, and of its
// recovery, with failed and torn writes and syncs, the process dies or the
// power goes: what was synced is there, nothing else is but what was appended,
// what recovery kept stays, and the segment goes on to a seal that verifies.
func TestHistories(t *testing.T) {
	crash.Run(t, "segment", func(t *crash.T) {
		f := &life{t: t, fs: crash.NewFS(), p: promise{durable: testOptions.Base}}
		if err := MakeDir(f.fs, ".", dir); err != nil {
			t.Fatal(err)
		}
		f.batches = someBatches(t, t.Rand, testOptions.Base, 2+t.Rand.IntN(6))
		if t.Rand.IntN(8) == 0 { // one that is written in several steps
			base := headerOf(t, f.batches[len(f.batches)-1]).NextOffset()
			f.batches = append(f.batches, mustBatch(t, someRecords(t.Rand, base, 300), BatchOptions{Generation: 9}))
		}
		for _, b := range f.batches {
			f.heads = append(f.heads, headerOf(t, b))
		}
		f.whole = bytes.Join(f.batches, nil)
		f.run()
	})
}
