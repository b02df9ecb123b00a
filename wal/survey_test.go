package wal

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// surveyed is a directory with several log files: 60 durable frames of which
// many groups have one, and a torn frame at the end.
func surveyed(t *testing.T) (*vfs.MemFS, []entry) {
	t.Helper()
	mem := newFS()
	o := oneFile(mem)
	o.FileSize = 64 << 10
	l := mustOpen(t, o)
	var want []entry
	for i := range 60 {
		want = append(want, put(t, l.Log, 1, 100+300*(i%17)))
	}
	write(t, l.Log, 1, 3000)
	return killed(mem), want
}

// copyOf returns a copy of a log directory that may be damaged.
func copyOf(t *testing.T, fs vfs.FS) vfs.FS {
	t.Helper()
	dst := vfs.NewMem()
	if err := dst.MkdirAll("wal", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range logFiles(t, fs) {
		overwrite(t, dst, name, read(t, fs, name))
	}
	return dst
}

func examine(t *testing.T, fs vfs.FS, known, needed uint64) (*Survey, []entry) {
	t.Helper()
	s, err := Examine(SurveyOptions{FS: fs, Dir: "wal", KnownDurable: known, NextNeeded: needed})
	if err != nil {
		t.Fatal(err)
	}
	var got []entry
	err = s.Each(func(at Located) error {
		return at.Group.Each(func(f Frame) error {
			if f.Kind != KindMark {
				got = append(got, entry{f.LSN, f.Kind, bytes.Clone(f.Body)})
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, got
}

// A survey of an undamaged log holds just the frames that a start replays, and
// making it changes nothing (I4).
func TestSurveyOfAWholeLog(t *testing.T) {
	fs, want := surveyed(t)
	before := map[string][]byte{}
	for _, name := range logFiles(t, fs) {
		before[name] = read(t, fs, name)
	}
	s, got := examine(t, fs, 0, 1)
	if s.Damaged() || len(s.Files) < 3 || s.First != 1 {
		t.Fatalf("survey %+v", s)
	}
	wantFrames(t, got[:len(want)], want)
	for name, b := range before {
		if !bytes.Equal(read(t, fs, name), b) {
			t.Fatalf("%s was changed", name)
		}
	}
	// One file alone is looked at too.
	one, err := Examine(SurveyOptions{FS: fs, Dir: fs.PathJoin("wal", s.Files[1].Name)})
	if err != nil || one.Damaged() || one.First != s.Files[1].First || one.Next != s.Files[2].First {
		t.Fatalf("survey of a file: %+v, %v", one, err)
	}
}

// Whatever bytes are changed, the survey says damaged exactly when a start
// refuses; where a start accepts, both find the same frames; and where it
// refuses, the survey still finds every frame whose group was not hit, in
// particular those behind the damage (I4, I13).
func TestSurveyAgreesWithRecovery(t *testing.T) {
	fs, want := surveyed(t)
	refused := 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		dst := copyOf(t, fs)
		names := logFiles(t, dst)
		name := names[r.IntN(len(names))]
		b := read(t, dst, name)
		from := r.IntN(len(b))
		n := 1 + r.IntN(12000)
		if seed%5 == 0 {
			from, n = 0, 1+r.IntN(64) // the header
		}
		for i := from; i < min(from+n, len(b)); i++ {
			b[i] ^= byte(1 + r.IntN(255))
		}
		overwrite(t, dst, name, b)
		survives := func(e entry) bool { // the group that holds e was not hit
			for _, other := range names {
				clean := read(t, fs, other)
				for _, sp := range spansOf(t, clean) {
					if sp.first <= e.lsn && e.lsn < sp.next {
						return other != name || bytes.Equal(clean[sp.off:sp.off+sp.size], b[sp.off:sp.off+sp.size]) && bytes.Equal(clean[24:32], b[24:32])
					}
				}
			}
			return false
		}
		s, got := examine(t, dst, 0, 1)
		o := testOptions(dst)
		o.FileSize, o.NextNeeded = 64<<10, 1
		l, err := tryOpen(o)
		switch {
		case errcode.Is(err, errcode.UnsupportedVersion):
			continue // the version byte was hit: Examine refuses too, below
		case errcode.Is(err, errcode.Corrupt):
			refused++
			if !s.Damaged() {
				t.Fatalf("seed %d: a start refuses (%v), the survey does not: %+v", seed, err, s)
			}
			found := map[uint64]entry{}
			for _, e := range got {
				found[e.lsn] = e
			}
			for _, e := range want {
				if x, ok := found[e.lsn]; survives(e) && (!ok || !bytes.Equal(x.body, e.body)) {
					t.Fatalf("seed %d: frame %d survives in %s and is not found: %+v", seed, e.lsn, name, s)
				}
			}
		case err != nil:
			t.Fatal(err)
		default:
			if s.Damaged() {
				t.Fatalf("seed %d: a start accepts, the survey does not: %+v", seed, s)
			}
			wantFrames(t, got, l.userFrames())
			mustClose(t, l)
		}
	}
	if refused < 40 {
		t.Fatalf("only %d of the changes were damage", refused)
	}
}

// Files that are missing are holes with their LSNs, and groups behind them
// count; a log that ends below what is known durable ends in an open hole.
func TestSurveyOfMissingFiles(t *testing.T) {
	fs, want := surveyed(t)
	names := logFiles(t, fs)
	for i := range names {
		dst := copyOf(t, fs)
		if err := dst.Remove(dst.PathJoin("wal", names[i])); err != nil {
			t.Fatal(err)
		}
		s, got := examine(t, dst, want[len(want)-1].lsn, 1)
		if len(s.Holes) != 1 {
			t.Fatalf("without %s: holes %+v", names[i], s.Holes)
		}
		first, _ := parseFileName(names[i])
		h := s.Holes[0]
		if h.From != first || h.Open != (i == len(names)-1) || i+1 < len(names) && h.Next != s.Files[i].First {
			t.Fatalf("without %s: hole %+v", names[i], h)
		}
		for _, e := range got {
			if e.lsn >= h.From && e.lsn < h.Next {
				t.Fatalf("frame %d is in a hole and there", e.lsn)
			}
		}
		if missing := s.Missing(1, h.Next); len(missing) != 1 || missing[0] != [2]uint64{h.From, h.Next} {
			t.Fatalf("missing %v, hole %+v", missing, h)
		}
	}
	empty := vfs.NewMem()
	if err := empty.MkdirAll("wal", 0o755); err != nil {
		t.Fatal(err)
	}
	if s, _ := examine(t, empty, 0, 0); s.Damaged() {
		t.Fatalf("a new log: %+v", s)
	}
	if s, _ := examine(t, empty, 50, 20); len(s.Holes) != 1 || s.Holes[0].From != 20 || s.Holes[0].Next != 51 || !s.Holes[0].Open {
		t.Fatalf("a log without files: %+v", s.Holes)
	}
}

// A damaged header whose salt still stands costs no frame; one of a newer
// build is refused by name.
func TestSurveyOfHeaders(t *testing.T) {
	fs, want := surveyed(t)
	dst := copyOf(t, fs)
	name := logFiles(t, dst)[1]
	b := read(t, dst, name)
	b[40] ^= 1
	overwrite(t, dst, name, b)
	s, got := examine(t, dst, 0, 1)
	if !s.Damaged() || len(s.Holes) != 0 || !s.Files[1].SaltGuessed {
		t.Fatalf("survey %+v", s)
	}
	wantFrames(t, got[:len(want)], want)
	b = read(t, fs, name)
	b[7] = formatVersion + 1
	overwrite(t, dst, name, b)
	if _, err := Examine(SurveyOptions{FS: dst, Dir: "wal"}); !errcode.Is(err, errcode.UnsupportedVersion) {
		t.Fatalf("newer version: %v", err)
	}
	// A name that lies.
	b = read(t, fs, name)
	binary.BigEndian.PutUint64(b[16:], 77)
	overwrite(t, dst, name, b)
	if s, _ := examine(t, dst, 0, 1); !s.Damaged() {
		t.Fatal("a header that contradicts its name")
	}
}
