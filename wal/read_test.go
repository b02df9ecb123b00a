package wal

import (
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Only durable groups are read, from the one that holds the LSN, never across
// files, and about as many bytes as asked. I2.
func TestReadGroups(t *testing.T) {
	l := mustOpen(t, testOptions(newFS()))
	all := fillFiles(t, l, 3)
	undurable := write(t, l.Log, 1, 10)
	firsts := map[uint64]bool{}
	for _, n := range logFiles(t, l.o.FS) {
		first, _ := parseFileName(n)
		firsts[first] = true
	}
	var got []entry
	for next := uint64(1); next < undurable.lsn; {
		run, err := l.ReadGroups(next, 70<<10)
		if err != nil {
			t.Fatal(err)
		}
		if run.First != next || run.Next <= next || run.Incarnation != testIncarnation {
			t.Fatalf("run [%d, %d) at %d", run.First, run.Next, next)
		}
		if len(run.Groups) > 2 {
			t.Fatalf("%d groups of 30 KiB in 70 KiB", len(run.Groups))
		}
		for first := run.First + 1; first < run.Next; first++ {
			if firsts[first] {
				t.Fatalf("run [%d, %d) spans files", run.First, run.Next)
			}
		}
		err = ForEachFrame(slices.Concat(run.Groups...), run.Salt, func(f Frame) error {
			got = append(got, entry{f.LSN, f.Kind, f.Body})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		next = run.Next
	}
	wantFrames(t, got, all)
	run, err := l.ReadGroups(undurable.lsn, 1<<20)
	if err != nil || len(run.Groups) != 0 || run.First != run.Next {
		t.Fatalf("what is not durable was read: %+v, %v", run, err)
	}
	if _, err := l.ReadGroups(0, 1); err == nil {
		t.Fatal("LSN 0 was read")
	}
	mustClose(t, l)
}

// A group is returned whole, whichever of its LSNs is asked for.
func TestReadInsideAGroup(t *testing.T) {
	l := mustOpen(t, testOptions(newFS()))
	for range 7 {
		stage(t, l.Log, 1, 10)
	}
	put(t, l.Log, 1, 10)
	put(t, l.Log, 1, 10)
	run, err := l.ReadGroups(5, 1)
	if err != nil || run.First != 1 || run.Next != 9 || len(run.Groups) != 1 {
		t.Fatalf("[%d, %d) %d groups, %v", run.First, run.Next, len(run.Groups), err)
	}
	mustClose(t, l)
}

// DurableChanged fires at the next advance and at Close, and not before.
func TestDurableChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, testOptions(newFS()))
		e := write(t, l.Log, 1, 10)
		c := l.DurableChanged()
		select {
		case <-c:
			t.Fatal("fired before anything was synced")
		case <-time.After(time.Minute):
		}
		if err := l.WaitDurable(t.Context(), e.lsn); err != nil {
			t.Fatal(err)
		}
		<-c
		c = l.DurableChanged()
		mustClose(t, l)
		<-c
	})
}

// Padding is zero, whatever the reused buffer held before.
func TestPaddingIsZero(t *testing.T) {
	mem := newFS()
	l := mustOpen(t, oneFile(mem))
	for _, n := range []int{9000, 10, 5000, 1} {
		put(t, l.Log, 1, n)
	}
	b := read(t, mem, fileName(1))
	spans := spansOf(t, b)
	if len(spans) != 4 {
		t.Fatalf("%d groups", len(spans))
	}
	for _, s := range spans {
		for i := s.off + s.size; i < int(roundUp(int64(s.off+s.size))); i++ {
			if b[i] != 0 {
				t.Fatalf("group at %d: byte %d of the padding is %#x", s.off, i, b[i])
			}
		}
	}
	mustClose(t, l)
}

// Groups that do not follow each other, or of another file's salt, are refused.
func TestForEachFrameRefuses(t *testing.T) {
	none := func(Frame) error { return nil }
	g := fuzzGroup(7) // LSNs 9 to 11
	if err := ForEachFrame(g, 7, none); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"twice the same": append(slices.Clone(g), g...), "cut": g[:len(g)-1], "rubbish behind": append(slices.Clone(g), 1),
	} {
		if err := ForEachFrame(b, 7, none); !errcode.Is(err, errcode.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ForEachFrame(g, 8, none); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("other salt: %v", err)
	}
	stop := errcode.New(errcode.Gone, "enough")
	if err := ForEachFrame(g, 7, func(Frame) error { return stop }); !errcode.Is(err, errcode.Gone) {
		t.Errorf("callback's error: %v", err)
	}
	if _, err := ParseMark(g[:15]); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("short mark: %v", err)
	}
}

// EachGroup gives the groups of ReadGroups, one at a time and in memory that it
// uses again, and ends with the first error of its caller, whose code it keeps.
func TestEachGroup(t *testing.T) {
	l := mustOpen(t, oneFile(newFS()))
	fillFiles(t, l, 2)
	whole, err := l.ReadGroups(1, 200<<10)
	if err != nil || len(whole.Groups) < 4 {
		t.Fatalf("%d groups, %v", len(whole.Groups), err)
	}
	at := 0
	run, err := l.EachGroup(1, 200<<10, func(g Group, raw []byte) error {
		if want, n, err := ParseGroup(whole.Groups[at], whole.Salt); err != nil || g.First != want.First || n != len(raw) || !slices.Equal(raw, whole.Groups[at]) {
			t.Fatalf("group %d is LSN %d with %d bytes, want LSN %d with %d, %v", at, g.First, len(raw), want.First, n, err)
		}
		at++
		return nil
	})
	if err != nil || at != len(whole.Groups) || run.First != whole.First || run.Next != whole.Next || run.Salt != whole.Salt || run.Groups != nil {
		t.Fatalf("%d groups of %d, %+v, %v", at, len(whole.Groups), run, err)
	}
	calls := 0
	run, err = l.EachGroup(1, 200<<10, func(Group, []byte) error {
		calls++
		if calls == 2 {
			return errcode.New(errcode.Conflict, "enough")
		}
		return nil
	})
	if !errcode.Is(err, errcode.Conflict) || calls != 2 || run.Next != 0 {
		t.Fatalf("%d calls, %+v, %v", calls, run, err)
	}
	mustClose(t, l)
}

// The scanner reads each byte of a file once, however its groups lie to its
// window: what the window has of a group is moved, not read again.
func TestScannerReadsOnce(t *testing.T) {
	for _, size := range []int{10, 300 << 10, 700 << 10, scanWindow - 100, scanWindow + 5000} {
		var file []byte
		for i := range 12 {
			file = append(file, make([]byte, roundUp(int64(len(file)))-int64(len(file)))...)
			for range size {
				file = append(file, byte(i))
			}
		}
		r := &counting{data: file}
		s := &scanner{}
		s.reset(r, int64(len(file)), 0)
		off := int64(0)
		for i := range 12 {
			for _, n := range []int{min(size, 48), size} { // a header, and the group
				if b, err := s.bytes(off, n); err != nil || len(b) != n || b[0] != byte(i) || b[n-1] != byte(i) {
					t.Fatalf("%d bytes at %d: %d, %v", n, off, len(b), err)
				}
			}
			off += roundUp(int64(size))
		}
		if r.read > len(file) {
			t.Fatalf("groups of %d bytes: %d bytes read of a file of %d", size, r.read, len(file))
		}
		if b, err := s.bytes(off-roundUp(int64(size)), 2*size); err != nil || len(b) != size {
			t.Fatalf("behind the end: %d bytes, %v", len(b), err)
		}
	}
}

// counting counts the bytes that are read of data.
type counting struct {
	data []byte
	read int
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	n := copy(p, c.data[min(off, int64(len(c.data))):])
	c.read += n
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
