package wal

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// Whatever is written and read in whatever order: a file reads through the tail as it
// does without it, up to the end of what was written, and of another file the tail
// gives nothing.
func TestTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := tail{ring: make([]byte, rapid.SampledFrom([]int{1, 1000, 40 << 10, 300 << 10}).Draw(t, "ring"))}
		var file []byte
		first := uint64(1)
		begin := func(at int) {
			file = bytes.Repeat([]byte{0xEE}, at)
			tl.begin(first, int64(at))
		}
		begin(rapid.IntRange(0, 9000).Draw(t, "at"))
		for i := range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				first++
				begin(rapid.IntRange(0, 9000).Draw(t, "at"))
			case 1, 2, 3, 4:
				b := bytes.Repeat([]byte{byte(i)}, rapid.SampledFrom([]int{1, 999, 8 << 10, 33 << 10, 200 << 10}).Draw(t, "size"))
				tl.add(b, int64(len(file)))
				file = append(file, b...)
			default:
				// The file is longer than what was written, as one that was written before is.
				whole := append(bytes.Clone(file), bytes.Repeat([]byte{0xDD}, 4096)...)
				off := len(file) - min(len(file), rapid.SampledFrom([]int{0, 1, 10, 1000, 40 << 10, 250 << 10, 1 << 20}).Draw(t, "back"))
				p := make([]byte, rapid.IntRange(1, 200<<10).Draw(t, "length"))
				n, err := tailed{first, &tl, bytes.NewReader(whole)}.ReadAt(p, int64(off))
				if want := whole[off:min(len(whole), off+n)]; !bytes.Equal(p[:n], want) {
					t.Fatalf("%d bytes at %d of %d differ", n, off, len(file))
				}
				if n < len(p) && (!errors.Is(err, io.EOF) || off+n < len(file)) || n == len(p) && err != nil && !errors.Is(err, io.EOF) {
					t.Fatalf("%d of %d bytes at %d of %d: %v", n, len(p), off, len(file), err)
				}
				if k, _ := tl.read(first+1, p, int64(off)); k != 0 {
					t.Fatalf("%d bytes of another file", k)
				}
			}
		}
	})
}

// readFS counts what is read of log files.
type readFS struct {
	vfs.FS
	read atomic.Int64
}

func (f *readFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.Open(name, o...)
	if err != nil || !strings.Contains(name, "wal/") {
		return file, err
	}
	return &readFile{File: file, read: &f.read}, nil
}

type readFile struct {
	vfs.File
	read *atomic.Int64
}

func (f *readFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.read.Add(int64(n))
	return n, err
}

// Who follows a file of the log reads nothing of the disk; who comes late reads
// there what the tail has no more.
func TestFollowersReadTheTail(t *testing.T) {
	fs := &readFS{FS: newFS()}
	o := oneFile(fs)
	o.TailBytes = 128 << 10
	l := mustOpen(t, o)
	fs.read.Store(0)
	next, followed := uint64(1), int64(0)
	follow := func() {
		run, err := l.EachGroup(next, 1<<20, func(_ Group, raw []byte) error {
			followed += int64(len(raw))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		next = run.Next
	}
	for range 7 { // 210 KiB of a file of 256
		put(t, l.Log, 1, 30<<10)
		follow()
	}
	if followed < 7*30<<10 || fs.read.Load() != 0 {
		t.Fatalf("%d bytes of log were followed, %d read of the disk", followed, fs.read.Load())
	}
	next = 1
	follow()
	if got := fs.read.Load(); got < 80<<10 || followed < 2*7*30<<10 {
		t.Fatalf("a late reader of 210 KiB read %d bytes of the disk, the tail is 128 KiB", got)
	}
	mustClose(t, l)
}
