package wal

import (
	"encoding/binary"
	"math"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// tornImage returns a directory as a killed process leaves it: durable frames,
// then one frame that is written but not synced, and where that last one
// stands.
func tornImage(t *testing.T, durable, lastSize int) (fs *vfs.MemFS, want []entry, last entry, file string, at span) {
	t.Helper()
	mem := newFS()
	l := mustOpen(t, oneFile(mem))
	for range durable {
		want = append(want, put(t, l.Log, 1, 300))
	}
	last = write(t, l.Log, 1, lastSize)
	fs = killed(mem)
	names := logFiles(t, fs)
	file = names[len(names)-1]
	spans := spansOf(t, read(t, fs, file))
	return fs, want, last, file, spans[len(spans)-1]
}

// reopenAndAppend opens fs, checks what is there, appends n frames, and checks
// that another start finds all of them at contiguous LSNs.
func reopenAndAppend(t *testing.T, fs vfs.FS, want []entry, n int) {
	t.Helper()
	l := mustOpen(t, testOptions(fs))
	wantFrames(t, l.userFrames(), want)
	for range n {
		want = append(want, put(t, l.Log, 2, 200))
	}
	run, err := l.ReadGroups(want[len(want)-1].lsn, 1)
	if err != nil || run.Next != want[len(want)-1].lsn+1 {
		t.Fatalf("read back at once: %+v, %v", run, err)
	}
	mustClose(t, l)
	again := mustOpen(t, testOptions(fs))
	wantFrames(t, again.userFrames(), want)
	mustClose(t, again)
}

// B30: the last frame, cut at every byte of its group, is dropped alone; what
// follows gets its LSN. I4.
func TestB30CutAtEveryByte(t *testing.T) {
	fs, want, _, file, at := tornImage(t, 3, 96)
	image := read(t, fs, file)
	for k := range at.size {
		cut := append([]byte(nil), image...)
		clear(cut[at.off+k:])
		dst := vfs.NewMem()
		_ = dst.MkdirAll("wal", 0o755)
		overwrite(t, dst, file, cut)
		l := mustOpen(t, testOptions(dst))
		wantFrames(t, l.userFrames(), want)
		next := put(t, l.Log, 3, 10)
		// One LSN went to the closing mark of this start.
		if next.lsn != at.first+1 {
			t.Fatalf("cut at %d: next LSN %d, want %d", k, next.lsn, at.first+1)
		}
		mustClose(t, l)

		// The same with the file ending there instead of zeros.
		short := vfs.NewMem()
		_ = short.MkdirAll("wal", 0o755)
		overwrite(t, short, file, image[:at.off+k])
		s := mustOpen(t, testOptions(short))
		wantFrames(t, s.userFrames(), want)
		mustClose(t, s)
	}
}

// B31: a garbage size in the last group or its frame is a torn tail, and costs
// no memory.
func TestB31GarbageSizes(t *testing.T) {
	sizes := []uint32{0, 1, math.MaxInt32, math.MaxUint32, 1 << 31, 32 << 20, 32<<20 + 1}
	for _, field := range []int{4, 16, groupHeaderSize} { // group bytes, frames, frame length
		for _, v := range sizes {
			if field == 16 && v == 1 {
				continue // that is what stands there
			}
			fs, want, _, file, at := tornImage(t, 3, 90)
			b := read(t, fs, file)
			binary.BigEndian.PutUint32(b[at.off+field:], v)
			overwrite(t, fs, file, b)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			l := mustOpen(t, testOptions(fs))
			runtime.ReadMemStats(&after)
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
				t.Errorf("field %d = %d: start allocated %d bytes", field, v, grown)
			}
			wantFrames(t, l.userFrames(), want)
			mustClose(t, l)
			reopenAndAppend(t, fs, want, 1)
		}
	}
}

// A frame length that lies is refused even when the checksum of the group
// fits it.
func TestFrameLengthsMustFillTheGroup(t *testing.T) {
	for _, v := range []uint32{0, 1, 9, 11, math.MaxInt32, math.MaxUint32} {
		b := make([]byte, groupHeaderSize+frameHeaderSize+10)
		binary.BigEndian.PutUint32(b[groupHeaderSize:], v)
		b[groupHeaderSize+4] = byte(KindCommit)
		sealGroup(b, 5, 1, 1, 0)
		if _, _, err := ParseGroup(b, 5); !errcode.Is(err, errcode.Corrupt) {
			t.Errorf("length %d: %v", v, err)
		}
	}
}

// B33: a megabyte of zeros after the last frame is the end of the log.
func TestB33ZeroTail(t *testing.T) {
	fs, want, last, file, _ := tornImage(t, 3, 90)
	overwrite(t, fs, file, append(read(t, fs, file), make([]byte, 1<<20)...))
	reopenAndAppend(t, fs, append(want, last), 3)
}

// B35: a flipped bit before valid later data is damage: the start is refused,
// says where, and changes nothing. I4.
func TestB35FlippedBit(t *testing.T) {
	mem := newFS()
	l := mustOpen(t, testOptions(mem))
	for range 10 {
		put(t, l.Log, 1, 40<<10) // several files
	}
	mustClose(t, l)
	fs := killed(mem)
	names := logFiles(t, fs)
	if len(names) < 2 {
		t.Fatalf("files %v, want at least 2", names)
	}
	for _, name := range names {
		image := read(t, fs, name)
		spans := spansOf(t, image)
		for i, s := range spans {
			if name == names[len(names)-1] && i == len(spans)-1 {
				continue // the closing mark: nothing proves it durable
			}
			flipped := append([]byte(nil), image...)
			flipped[s.off+s.size/2] ^= 4
			dir := killed(fs)
			overwrite(t, dir, name, flipped)
			before := dir.String()
			_, err := tryOpen(testOptions(dir))
			if !errcode.Is(err, errcode.Corrupt) {
				t.Fatalf("%s group %d of %d: %v", name, i, len(spans), err)
			}
			var e *errcode.Error
			if !asError(err, &e) || e.Facts["file"] != "wal/"+name || e.Facts["position"] != int64(s.off) || e.Facts["lsn"] != s.first {
				t.Fatalf("%s group %d at %d: facts %v of %v", name, i, s.off, e.Facts, err)
			}
			if after := dir.String(); after != before {
				t.Fatalf("a refused start changed the directory:\n%s\n%s", before, after)
			}
		}
		for at := range fileHeaderSize { // the header was durable before the name
			flipped := append([]byte(nil), image...)
			flipped[at] ^= 1
			dir := killed(fs)
			overwrite(t, dir, name, flipped)
			if _, err := tryOpen(testOptions(dir)); !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.UnsupportedVersion) {
				t.Fatalf("%s header byte %d: %v", name, at, err)
			}
		}
	}
}

// B38: five frames in one group whose second half is zeroed: none of them
// comes back, or all five when nothing is missing.
func TestB38GroupIsAllOrNothing(t *testing.T) {
	for _, zero := range []bool{true, false} {
		mem := newFS()
		l := mustOpen(t, oneFile(mem))
		want := []entry{put(t, l.Log, 1, 100)}
		specs := make([]Want, 5)
		for i := range specs {
			specs[i] = Want{KindIngress, 3000}
		}
		slots := make([]Slot, 5)
		if err := l.ReserveAll(slots, specs); err != nil {
			t.Fatal(err)
		}
		var five []entry
		for _, s := range slots {
			b := body(1, s.LSN, 3000)
			copy(s.Body, b)
			s.Done()
			five = append(five, entry{s.LSN, KindIngress, b})
		}
		if err := l.WaitWritten(t.Context(), slots[4].LSN); err != nil {
			t.Fatal(err)
		}
		fs := killed(mem)
		file := logFiles(t, fs)[0]
		b := read(t, fs, file)
		spans := spansOf(t, b)
		s := spans[len(spans)-1]
		if s.next-s.first != 5 {
			t.Fatalf("the five frames stand in a group of %d", s.next-s.first)
		}
		if zero {
			clear(b[s.off+s.size/2 : s.off+s.size])
		} else {
			want = append(want, five...)
		}
		overwrite(t, fs, file, b)
		reopenAndAppend(t, fs, want, 2)
	}
}

// B45: tear, restart, append 5, restart: everything old and the five, at
// contiguous LSNs.
func TestB45AppendAfterTear(t *testing.T) {
	fs, want, _, file, at := tornImage(t, 4, 9000)
	b := read(t, fs, file)
	clear(b[at.off+blockSize : at.off+2*blockSize])
	overwrite(t, fs, file, b)
	reopenAndAppend(t, fs, want, 5)
}

// B47: a last frame of full length with a wrong checksum does not hide what is
// appended after the restart.
func TestB47BadChecksumAtTheEnd(t *testing.T) {
	fs, want, _, file, at := tornImage(t, 4, 500)
	b := read(t, fs, file)
	b[at.off+at.size-1] ^= 0xff
	overwrite(t, fs, file, b)
	reopenAndAppend(t, fs, want, 3)
}

// B50: a process dies with frames in the page cache only; the next start
// replays them, and then the power goes. Whatever was replayed, and so may
// have been checkpointed, is still there. I1, I2.
func TestB50PowerLossAfterReplay(t *testing.T) {
	for seed := range uint64(40) {
		mem := newFS()
		l := mustOpen(t, testOptions(mem))
		want := []entry{put(t, l.Log, 1, 100)}
		for range 5 {
			want = append(want, write(t, l.Log, 1, 5000))
		}
		// The process is gone, the machine is not: the same file system goes on.
		second, err := tryOpen(testOptions(mem))
		if err != nil {
			t.Fatal(err)
		}
		wantFrames(t, second.userFrames(), want)
		if second.Durable() < want[len(want)-1].lsn {
			t.Fatalf("durable LSN %d after replay up to %d", second.Durable(), want[len(want)-1].lsn)
		}
		after := clone(mem, int(seed%3)*50, seed)
		o := testOptions(after)
		o.KnownDurable = want[len(want)-1].lsn // a checkpoint that trusted the replay
		third := mustOpen(t, o)
		wantFrames(t, third.userFrames(), want)
		mustClose(t, third)
		second.Close()
		l.Close()
	}
}

// A checkpoint proves what the log itself cannot: an end below it is damage,
// and one inside a group proves the whole group.
func TestKnownDurable(t *testing.T) {
	fs, want, last, file, at := tornImage(t, 3, 90)
	intact := testOptions(killed(fs))
	intact.KnownDurable = last.lsn
	l := mustOpen(t, intact)
	wantFrames(t, l.userFrames(), append(want, last))
	if l.info.Durable != last.lsn {
		t.Fatalf("proven %d, want %d", l.info.Durable, last.lsn)
	}
	mustClose(t, l)

	b := read(t, fs, file)
	b[at.off+at.size-1] ^= 1
	overwrite(t, fs, file, b)
	torn := testOptions(fs)
	torn.KnownDurable = last.lsn
	if _, err := tryOpen(torn); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("log ends below a checkpoint: %v", err)
	}

	empty := testOptions(newFS())
	empty.KnownDurable = 5
	if _, err := tryOpen(empty); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("log is gone below a checkpoint: %v", err)
	}
}

// The first file must reach down to what somebody still needs.
func TestMissingFirstFile(t *testing.T) {
	mem := newFS()
	l := mustOpen(t, testOptions(mem))
	for range 10 {
		put(t, l.Log, 1, 60<<10)
	}
	mustClose(t, l)
	fs := killed(mem)
	names := logFiles(t, fs)
	if err := fs.Remove("wal/" + names[0]); err != nil {
		t.Fatal(err)
	}
	second, _ := parseFileName(names[1])
	o := testOptions(fs)
	o.NextNeeded = second - 1
	if _, err := tryOpen(o); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("needed frames are missing: %v", err)
	}
	o.NextNeeded = second
	mustClose(t, mustOpen(t, o))
}

// A hole in the chain of files is damage.
func TestMissingMiddleFile(t *testing.T) {
	mem := newFS()
	l := mustOpen(t, testOptions(mem))
	for range 20 {
		put(t, l.Log, 1, 60<<10)
	}
	mustClose(t, l)
	fs := killed(mem)
	names := logFiles(t, fs)
	if len(names) < 3 {
		t.Fatalf("files %v", names)
	}
	if err := fs.Remove("wal/" + names[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(testOptions(fs)); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("a file is missing in the middle: %v", err)
	}
}

// A file of another data directory is refused, and one of a newer format is
// named as such.
func TestForeignFiles(t *testing.T) {
	fs, _, _, file, _ := tornImage(t, 1, 10)
	o := testOptions(killed(fs))
	o.Incarnation++
	if _, err := tryOpen(o); !errcode.Is(err, errcode.Conflict) {
		t.Fatalf("other incarnation: %v", err)
	}
	b := read(t, fs, file)
	b[7] = 2
	overwrite(t, fs, file, b)
	if _, err := tryOpen(testOptions(fs)); !errcode.Is(err, errcode.UnsupportedVersion) {
		t.Fatalf("newer version: %v", err)
	}
}

// A log file under the name of another LSN is damage.
func TestFileUnderAWrongName(t *testing.T) {
	fs, _, _, file, _ := tornImage(t, 1, 10)
	if err := fs.Rename("wal/"+file, "wal/"+fileName(9)); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(testOptions(fs)); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("wrong name: %v", err)
	}
}

// A checkpoint inside a group proves all of the group: it was fsynced whole.
func TestKnownDurableInsideAGroup(t *testing.T) {
	mem := newFS()
	l := mustOpen(t, oneFile(mem))
	want := []entry{put(t, l.Log, 1, 10)}
	for range 4 {
		want = append(want, stage(t, l.Log, 1, 10))
	}
	if err := l.WaitWritten(t.Context(), want[4].lsn); err != nil {
		t.Fatal(err)
	}
	fs := killed(mem)
	if s := spansOf(t, read(t, fs, fileName(1))); len(s) != 2 || s[1].next-s[1].first != 4 {
		t.Fatalf("groups %v", s)
	}
	o := testOptions(fs)
	o.KnownDurable = want[2].lsn
	again := mustOpen(t, o)
	wantFrames(t, again.userFrames(), want)
	if again.info.Durable != want[4].lsn || again.info.Rewritten != 0 {
		t.Fatalf("%+v", again.info)
	}
	mustClose(t, again)
}

// A group that verifies but stands in the place of another LSN is no part of
// the log: the tail is cut there.
func TestMisplacedGroup(t *testing.T) {
	fs, want, _, file, at := tornImage(t, 3, 90)
	b := read(t, fs, file)
	first := spansOf(t, b)[0]
	copy(b[at.off:at.off+blockSize], b[first.off:first.off+blockSize])
	overwrite(t, fs, file, b)
	reopenAndAppend(t, fs, want, 2)
}
