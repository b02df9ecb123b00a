package reflog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// open returns a log of the smallest size in a file of its own.
func open(t *testing.T) (*Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ring")
	l, err := Open(path, MinSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, path
}

// records reads the groups of a ring that never wrapped, checks them, and
// counts every record by its content.
func records(t *testing.T, path string) map[string]int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for at := 0; at+headerLen <= len(data); {
		n := int(binary.BigEndian.Uint64(data[at:]))
		if n == 0 {
			break
		}
		if n%blockSize != 0 {
			t.Fatalf("group at %d has %d bytes, not whole blocks", at, n)
		}
		g := data[at : at+n]
		if want := binary.BigEndian.Uint32(g[12:]); crc32.Checksum(g[headerLen:], castagnoli) != want {
			t.Fatalf("group at %d does not match its checksum", at)
		}
		pos := headerLen
		for range binary.BigEndian.Uint32(g[8:]) {
			size := int(binary.BigEndian.Uint32(g[pos:]))
			pos += frameLen
			got[string(g[pos:pos+size])]++
			pos += size
		}
		at += n
	}
	return got
}

// What Append answered is in the file, once each, in whole groups with valid
// checksums, however many appenders run; and they shared syncs.
func TestAppendIsInTheFile(t *testing.T) {
	l, path := open(t)
	const writers, each = 32, 50
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := l.Append(fmt.Appendf(nil, "writer %d record %d", w, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := records(t, path)
	if len(got) != writers*each {
		t.Fatalf("the file holds %d different records, want %d", len(got), writers*each)
	}
	for rec, n := range got {
		if n != 1 {
			t.Errorf("%q is %d times in the file", rec, n)
		}
	}
	s := l.Stats()
	if s.Records != writers*each || s.Groups == 0 || s.Groups >= s.Records {
		t.Errorf("%+v: want %d records in fewer groups", s, writers*each)
	}
}

// A single appender makes one group per record and never waits for company.
func TestLoneAppenderSyncsAtOnce(t *testing.T) {
	l, _ := open(t)
	for i := range 10 {
		if err := l.Append([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if s := l.Stats(); s.Records != 10 || s.Groups != 10 {
		t.Errorf("%+v, want 10 records in 10 groups", s)
	}
}

// Groups stay under their bound and the ring wraps inside its size, so the
// file never grows and never loses its allocated blocks.
func TestLargeRecordsStayInsideTheRing(t *testing.T) {
	l, path := open(t)
	rec := bytes.Repeat([]byte("0123456789abcdef"), 12<<20/16)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := l.Append(rec); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s := l.Stats(); s.Records != 8 || s.Groups < 4 {
		t.Errorf("%+v: want 8 records of 12 MiB in at least 4 groups of at most 32 MiB", s)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != MinSize {
		t.Errorf("the file has %d bytes (%v), want %d", st.Size(), err, int64(MinSize))
	}
	if err := l.Append(make([]byte, MaxRecord+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a record over the bound: %v, want ErrTooLarge", err)
	}
}

// After a failed write every append fails, those that wait in the next group
// too: nobody is told that a record is durable when it may not be.
func TestFailureIsFinal(t *testing.T) {
	l, path := open(t)
	if err := l.Append([]byte("kept")); err != nil {
		t.Fatal(err)
	}
	good := l.f
	bad, err := os.Open(path) // opened for reading: every write fails
	if err != nil {
		t.Fatal(err)
	}
	l.f = bad
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := l.Append([]byte("lost")); err == nil {
				t.Error("an append was answered although its write failed")
			}
		})
	}
	wg.Wait()
	l.f = good
	_ = bad.Close()
	if err := l.Append([]byte("late")); err == nil {
		t.Error("an append after a failed write was answered")
	}
	if got := records(t, path); len(got) != 1 || got["kept"] != 1 {
		t.Errorf("the file holds %v, want the one record before the failure", got)
	}
}

// Prepare keeps a file that is long enough, extends one that is not, and a
// ring under the minimum is refused before a file is made.
func TestPrepare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, size := range []int64{3 << 20, 1 << 20, 5<<20 + 17} {
		f, err := Prepare(path, size)
		if err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil || st.Size() < size {
			t.Errorf("prepared %d bytes, the file has %d (%v)", size, st.Size(), err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	small := filepath.Join(t.TempDir(), "small")
	if _, err := Open(small, MinSize-1); err == nil {
		t.Error("a ring under MinSize was accepted")
	}
	if _, err := os.Stat(small); !os.IsNotExist(err) {
		t.Errorf("a refused ring left a file: %v", err)
	}
}
