package wal

import (
	"bytes"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Any bytes either decode to a header that encodes to the same bytes, or are
// refused with a code.
func FuzzParseFileHeader(f *testing.F) {
	b := make([]byte, fileHeaderSize)
	fileHeader{Incarnation: 1, First: 2, Salt: 3, CreatedMs: 4}.encode(b)
	f.Add(b)
	f.Add(b[:10])
	f.Add(make([]byte, fileHeaderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseFileHeader(b)
		if err != nil {
			if c := errcode.Of(err); c != errcode.Corrupt && c != errcode.UnsupportedVersion {
				t.Fatal(err)
			}
			return
		}
		out := make([]byte, fileHeaderSize)
		h.encode(out)
		// The reserved bytes are covered by the checksum but not decoded.
		if !bytes.Equal(out[:40], b[:40]) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, h, out)
		}
	})
}

// fuzzGroup returns a group of three frames.
func fuzzGroup(salt uint64) []byte {
	b := make([]byte, groupHeaderSize)
	for _, n := range []byte{0, 5, 200} {
		b = append(b, 0, 0, 0, n, byte(KindCommit))
		b = append(b, bytes.Repeat([]byte{n}, int(n))...)
	}
	sealGroup(b, salt, 9, 3, 4)
	return b
}

// Any bytes either are a group whose frames fill it exactly, or are refused.
// To get past the checksum, the input is sealed too.
func FuzzParseGroup(f *testing.F) {
	f.Add(fuzzGroup(7), uint64(7), false)
	f.Add(fuzzGroup(7), uint64(8), true)
	f.Add([]byte{}, uint64(0), true)
	f.Fuzz(func(t *testing.T, b []byte, salt uint64, seal bool) {
		if h, err := parseGroupHeader(b, int64(len(b))); seal && err == nil {
			sealGroup(b[:h.Bytes], salt, h.First, h.Frames, h.Durable)
		}
		g, n, err := ParseGroup(b, salt)
		if err != nil {
			if !errcode.Is(err, errcode.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		size, next := groupHeaderSize, g.First
		err = g.Each(func(fr Frame) error {
			if fr.LSN != next || fr.Kind == 0 {
				t.Fatalf("frame %+v, want LSN %d", fr, next)
			}
			next++
			size += frameHeaderSize + len(fr.Body)
			return nil
		})
		if err != nil || size != n || next != g.Next() {
			t.Fatalf("frames of %d bytes up to LSN %d in a group of %d up to %d: %v", size, next, n, g.Next(), err)
		}
		if err := ForEachFrame(b[:n], salt, func(Frame) error { return nil }); err != nil {
			t.Fatal(err)
		}
	})
}

// fuzzBase returns two files of a log, the first with an un-synced tail.
func fuzzBase(f *testing.F) (names [2]string, files [2][]byte) {
	mem := newFS()
	o := testOptions(mem)
	o.PoolFiles = -1
	l := mustOpen(f, o)
	put(f, l.Log, 1, 10)
	put(f, l.Log, 1, 4100)
	mustClose(f, l)
	second := mustOpen(f, o)
	put(f, second.Log, 1, 10)
	write(f, second.Log, 1, 10)
	after := killed(mem)
	mustClose(f, second)
	for i, name := range logFiles(f, after) {
		names[i], files[i] = name, read(f, after, name)
	}
	return names, files
}

// Whatever is changed in a directory, Open answers without a panic: either it
// refuses with a code, or the log works and the next start finds the same.
// Edits are 4 bytes each: file and block, position (2 bytes), value; raw is
// laid over the block that the first edit names; cuts shorten the files.
func FuzzRecoverDir(f *testing.F) {
	names, files := fuzzBase(f)
	f.Add([]byte{}, []byte{}, uint16(math.MaxUint16), uint16(math.MaxUint16), uint16(0), uint16(0))
	f.Add([]byte{0, 0, 3, 9}, []byte{}, uint16(9000), uint16(0), uint16(2), uint16(1))
	f.Add([]byte{0x83, 0, 0, 0}, []byte{1, 2, 3}, uint16(math.MaxUint16), uint16(5000), uint16(0), uint16(4))
	f.Fuzz(func(t *testing.T, edits, raw []byte, cutA, cutB, known, needed uint16) {
		if len(edits) > 256 || len(raw) > blockSize {
			return
		}
		now := [2][]byte{bytes.Clone(files[0]), bytes.Clone(files[1])}
		for i := 0; i+4 <= len(edits); i += 4 {
			b := now[edits[i]>>7]
			at := int(edits[i]&7)*blockSize + (int(edits[i+1])<<8|int(edits[i+2]))%blockSize
			if at < len(b) {
				b[at] = edits[i+3]
				if i == 0 {
					copy(b[at:], raw)
				}
			}
		}
		fs := vfs.NewMem()
		_ = fs.MkdirAll("wal", 0o755)
		for i, cut := range []uint16{cutA, cutB} {
			if cut != 1 {
				overwrite(t, fs, names[i], now[i][:min(len(now[i]), int(cut))])
			}
		}
		o := testOptions(fs)
		o.PoolFiles = -1
		o.KnownDurable, o.NextNeeded = uint64(known), uint64(needed)
		l, err := tryOpen(o)
		if err != nil {
			switch errcode.Of(err) {
			case errcode.Corrupt, errcode.Conflict, errcode.UnsupportedVersion:
				return
			}
			t.Fatalf("%v: %v", errcode.Of(err), err)
		}
		want := l.userFrames()
		want = append(want, put(t, l.Log, 1, 10))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.KnownDurable, o.NextNeeded = 0, 0
		again, err := tryOpen(o)
		if err != nil {
			t.Fatal(err)
		}
		wantFrames(t, again.userFrames(), want)
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
