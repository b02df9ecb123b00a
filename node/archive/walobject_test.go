package archive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/wal"
)

// mixed fills a log with everything that a node writes: bases, raw and
// compressed batches over several partitions, carried records, group entries
// and the log's mark.
func mixed(t testing.TB) *logged {
	t.Helper()
	l := newLog(t)
	l.put(
		base(frame.Base{Partition: pid(0), Generation: 3, ChainEnd: 10, PreviousEnd: 10, Start: 100, End: 100, Gaps: [][2]int64{{10, 100}}}),
		base(frame.Base{Partition: pid(1), Generation: 3, Groups: [][]byte{[]byte("state")}}),
	)
	l.put(commit(wal.KindCommit, part{pid(0), batch(t, segment.CodecNone, 100, 3, 40, false)}, part{pid(1), batch(t, segment.CodecZstd, 0, 100, 400, true)}))
	l.put(group("workers", "ops"), group("others", ""))
	two := append(batch(t, segment.CodecZstd, 103, 50, 300, true), batch(t, segment.CodecNone, 153, 1, 1, false)...)
	l.put(commit(wal.KindCommit, part{pid(0), two}))
	l.put(commit(wal.KindCarry, part{pid(2), batch(t, segment.CodecZstd, 7, 64, 200, true)}))
	l.put(wal.Frame{Kind: wal.KindCommit, Body: make([]byte, frame.CommitHeaderSize)})
	return l
}

// Runs of a real log come back frame by frame, byte by byte, with the ranges of
// offsets that they hold, carried records included.
func TestWALRoundTrip(t *testing.T) {
	run := mixed(t).run()
	b, err := EncodeWAL(run)
	if err != nil {
		t.Fatal(err)
	}
	w, err := DecodeWAL(b)
	if err != nil {
		t.Fatal(err)
	}
	// It has blocks of both kinds.
	_, rest, _ := decodeWALHeader(b[:len(b)-checksumSize])
	kinds := map[byte]int{}
	for ; len(rest) > 0; rest = rest[blockHeader+binary.BigEndian.Uint32(rest[5:]):] {
		kinds[rest[0]]++
	}
	if kinds[codecStored] < 3 || kinds[codecS2] < 3 {
		t.Fatalf("blocks by codec: %v", kinds)
	}
	if w.Incarnation != testIncarnation || w.Salt != run.Salt || w.First != 1 || w.Next != run.Next {
		t.Fatalf("header %+v", w)
	}
	if !bytes.Equal(w.Groups, bytes.Join(run.Groups, nil)) {
		t.Fatal("the groups differ")
	}
	want := []Range{{pid(0), 100, 154}, {pid(1), 0, 100}, {pid(2), 7, 71}}
	if !slices.Equal(w.Ranges, want) {
		t.Fatalf("ranges %v, want %v", w.Ranges, want)
	}
	var got []string
	err = w.Each(func(f wal.Frame) error {
		got = append(got, fmt.Sprintf("%d %s %x", f.LSN, f.Kind, f.Body))
		return nil
	})
	if err != nil || !slices.Equal(got, lines(t, bytes.Join(run.Groups, nil), run.Salt)) {
		t.Fatalf("frames differ, %v", err)
	}
	stop := errors.New("stop")
	if err := w.Each(func(wal.Frame) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("Each swallowed its caller's error: %v", err)
	}
}

// Compressed batches are stored as they are, of commits and carries alike: the
// object has a stored block of exactly their bytes, and the rest is small.
func TestCompressedBatchesAreStored(t *testing.T) {
	for _, kind := range []wal.Kind{wal.KindCommit, wal.KindCarry} {
		l := newLog(t)
		zipped := batch(t, segment.CodecZstd, 0, 1000, 400, true)
		if h, err := segment.ParseHeader(zipped); err != nil || h.Codec() != segment.CodecZstd {
			t.Fatalf("the batch is not compressed: %v", err)
		}
		small := batch(t, segment.CodecZstd, 2000, 100, 40, false)
		if len(small) >= storedBatchMin || len(zipped) < 20*storedBatchMin {
			t.Fatal("sizes", len(small), len(zipped))
		}
		l.put(commit(kind, part{pid(0), slices.Concat(zipped, small)}))
		b, err := EncodeWAL(l.run())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(b, zipped) {
			t.Fatalf("%s: the compressed batch is not there as it was", kind)
		}
		if limit := len(zipped) + len(small) + 400; len(b) > limit {
			t.Fatalf("%s: %d bytes, want at most %d", kind, len(b), limit)
		}
		if w, err := DecodeWAL(b); err != nil || !bytes.Contains(w.Groups, zipped) {
			t.Fatal(err)
		}
	}
}

// Raw batches shrink on their way.
func TestRawBatchesAreCompressed(t *testing.T) {
	l := newLog(t)
	raw := 0
	for i := range int64(300) {
		b := batch(t, segment.CodecNone, i*10, 10, 1000, false)
		raw += len(b)
		l.put(commit(wal.KindCommit, part{pid(0), b}))
	}
	b, err := EncodeWAL(l.run())
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > raw/10 {
		t.Fatalf("%d bytes of %d", len(b), raw)
	}
	if w, err := DecodeWAL(b); err != nil || len(w.Groups) < raw {
		t.Fatal(err)
	}
}

// Blocks are told from another by what they hold: text is compressed, in blocks of
// 256 KiB at most, and what does not shrink is stored as it is and costs its
// header alone.
func TestBlocksThatDoNotShrinkAreStored(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		random bool
		codec  byte
	}{{true, codecStored}, {false, codecS2}} {
		l := newLog(t)
		for i := range int64(20) { // one large batch among small ones, across the ends of blocks
			b := batch(t, segment.CodecNone, i*1000, 1+int(i%2)*800, 1000, c.random)
			for k := segment.HeaderSize; c.random && k < len(b); k++ {
				b[k] = byte(rng.Uint32()) // the records are not looked into
			}
			l.put(commit(wal.KindCommit, part{pid(0), b}))
		}
		run := l.run()
		b, err := EncodeWAL(run)
		if err != nil {
			t.Fatal(err)
		}
		w, rest, err := decodeWALHeader(b[:len(b)-checksumSize])
		blocks, stored := 0, 0
		for len(rest) > 0 && err == nil {
			if rest[0] != c.codec || binary.BigEndian.Uint32(rest[1:]) > blockTarget {
				t.Fatalf("random %v: a block of codec %d and %d bytes", c.random, rest[0], binary.BigEndian.Uint32(rest[1:]))
			}
			blocks, stored = blocks+1, stored+int(binary.BigEndian.Uint32(rest[5:]))
			rest, err = w.block(rest)
		}
		if want := bytes.Join(run.Groups, nil); err != nil || !bytes.Equal(w.Groups, want) || blocks != (len(want)+blockTarget-1)/blockTarget {
			t.Fatalf("random %v: %d blocks of %d bytes, %v", c.random, blocks, len(want), err)
		} else if c.random && stored != len(want) || !c.random && stored > len(want)/10 {
			t.Fatalf("random %v: %d bytes of %d", c.random, stored, len(want))
		}
	}
}

// An encoder that made other objects, or gave up within one, makes the same
// bytes as a new one, out of memory that it had.
func TestEncoderGoesOn(t *testing.T) {
	run, other := mixed(t).run(), newLog(t)
	for i := range int64(50) {
		other.put(commit(wal.KindCommit, part{pid(9), batch(t, segment.CodecNone, i*40, 40, 400, i%2 == 0)}))
	}
	want, err := EncodeWAL(run)
	if err != nil {
		t.Fatal(err)
	}
	var e WALEncoder
	add := func(run wal.GroupRun) {
		t.Helper()
		for _, b := range run.Groups {
			g, n, err := wal.ParseGroup(b, run.Salt)
			if err == nil {
				err = e.Group(g, b[:n])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	first := other.run()
	add(first)
	if _, err := DecodeWAL(e.Object(first)); err != nil {
		t.Fatal(err)
	}
	e.Reset()
	add(run)
	if got := e.Object(run); !bytes.Equal(got, want) {
		t.Fatal("the second object differs from one of a new encoder")
	}
	e.Reset()
	add(first) // and is not finished
	bad := newLog(t)
	bad.put(wal.Frame{Kind: wal.KindCommit, Body: []byte("no commit")})
	broken := bad.run()
	g, n, err := wal.ParseGroup(broken.Groups[0], broken.Salt)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Group(g, broken.Groups[0][:n]); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("a commit that does not decode: %v", err)
	}
	if allocs := testing.AllocsPerRun(10, func() {
		e.Reset()
		add(run)
		if got := e.Object(run); !bytes.Equal(got, want) {
			t.Fatal("the object behind a failure differs from one of a new encoder")
		}
	}); allocs > float64(len(run.Groups)+2) { // a closure for each group, the header
		t.Fatalf("%v allocations for %d groups", allocs, len(run.Groups))
	}
}

// read is what a restore does with an object: every frame, or an error.
func read(b []byte) (frames int, err error) {
	w, err := DecodeWAL(b)
	if err == nil {
		err = w.Each(func(wal.Frame) error { frames++; return nil })
	}
	return frames, err
}

// An object that was cut anywhere is an error, never fewer frames.
func TestWALCutAnywhere(t *testing.T) {
	b, err := EncodeWAL(mixed(t).run())
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(b) {
		if frames, err := read(b[:n]); !errcode.Is(err, errcode.Corrupt) {
			t.Fatalf("%d of %d bytes: %d frames, %v", n, len(b), frames, err)
		}
	}
	if _, err := read(append(b[:len(b):len(b)], 0)); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("a byte more: %v", err)
	}
}

// Every flipped bit is an error, also one behind which the same frames come out: a
// length can be written in several ways, and a text that repeats itself can
// be copied from several places. Damage that nobody sees today is damage.
func TestWALFlippedBits(t *testing.T) {
	l := newLog(t)
	l.put(base(frame.Base{Partition: pid(0), Generation: 3}), group("g", "ops"))
	l.put(commit(wal.KindCommit, part{pid(0), batch(t, segment.CodecNone, 0, 20, 30, true)}))
	b, err := EncodeWAL(l.run())
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		frames, err := read(b)
		b[bit/8] ^= 1 << (bit % 8)
		if !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.UnsupportedVersion) {
			t.Fatalf("bit %d of byte %d: %d frames, %v", bit%8, bit/8, frames, err)
		}
	}
	if n, err := read(b); n != 3 || err != nil {
		t.Fatal(n, err)
	}
}

// header returns a valid header with the fields changed, and a checksum that fits.
func header(version byte, first, next uint64, ranges int) []byte {
	b := append([]byte(walMagic[:7]), version)
	for _, v := range [...]uint64{1, 2, first, next} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(ranges))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Sizes are checked before they are believed, versions and codecs that are not
// known are named, and none of it allocates what it declares.
func TestWALRefusals(t *testing.T) {
	bomb := s2.Encode(nil, make([]byte, 64<<20))
	if len(bomb) > 1<<10 {
		t.Fatalf("64 MiB of zeros are %d bytes", len(bomb))
	}
	small := s2.Encode(nil, make([]byte, 100))
	huge := append(binary.AppendUvarint(nil, 1<<32-1), bomb[4:]...)
	full := s2.Encode(nil, make([]byte, maxBlock))
	long := s2.Encode(nil, make([]byte, maxBlock+1))
	block := func(codec byte, raw, stored uint32, body []byte) []byte {
		b := append([]byte{codec}, binary.BigEndian.AppendUint32(nil, raw)...)
		return append(binary.BigEndian.AppendUint32(b, stored), body...)
	}
	good := header(1, 1, 2, 0)
	sealed := func(blocks ...[]byte) []byte {
		b := slices.Concat(blocks...)
		return appendChecksum(slices.Concat(good, b), b)
	}
	for _, c := range []struct {
		name string
		b    []byte
		code errcode.Code
		says string
	}{
		{"empty", nil, errcode.Corrupt, "shorter than a header"},
		{"magic", append([]byte("TMWAL\x00\x00"), good[7:]...), errcode.Corrupt, "magic"},
		{"version", header(2, 1, 2, 0), errcode.UnsupportedVersion, "format 2"},
		{"no frames", header(1, 5, 5, 0), errcode.Corrupt, "LSNs from 5 to 5"},
		{"LSN 0", header(1, 0, 5, 0), errcode.Corrupt, "LSNs from 0"},
		{"ranges", header(1, 1, 2, 1<<32-1), errcode.Corrupt, "4294967295 ranges"},
		{"codec", sealed(block(7, 1, 1, []byte{1})), errcode.UnsupportedVersion, "codec 7"},
		{"stored size", sealed(block(0, 1, 1<<31, []byte{1})), errcode.Corrupt, "declares 2147483648"},
		{"raw size", sealed(block(0, 1<<31, 1, []byte{1})), errcode.Corrupt, "more than"},
		{"sizes differ", sealed(block(0, 2, 1, []byte{1})), errcode.Corrupt, "has 1 bytes, declares 2"},
		{"bomb", sealed(block(1, 64<<20, uint32(len(bomb)), bomb)), errcode.Corrupt, "declares 67108864"},
		{"lying bomb", sealed(block(1, 100, uint32(len(bomb)), bomb)), errcode.Corrupt, "its content 67108864"},
		{"content declares 4 GiB", sealed(block(1, 100, uint32(len(huge)), huge)), errcode.Corrupt, "its content 4294967295"},
		{"block too long by one", sealed(block(1, maxBlock+1, uint32(len(long)), long)), errcode.Corrupt, "declares 1048577"},
		{"content shorter", sealed(block(1, 101, uint32(len(small)), small)), errcode.Corrupt, "its content 100"},
		{"content cut", sealed(block(1, 100, uint32(len(small)-1), small[:len(small)-1])), errcode.Corrupt, "compressed block: s2"},
		{"content with more behind", sealed(block(1, 100, uint32(len(small)+1), append(small[:len(small):len(small)], 0))), errcode.Corrupt, "compressed block: s2"},
		{"content without a length", sealed(block(1, 100, 0, nil)), errcode.Corrupt, "its content 0"},
		{"many bombs", sealed(bytes.Repeat(block(1, maxBlock, uint32(len(full)), full), 129)), errcode.Corrupt, "more than 134217728 bytes"},
		{"no checksum", slices.Concat(good, []byte{0, 0, 0}), errcode.Corrupt, "3 bytes are left"},
		{"checksum", slices.Concat(good, block(0, 1, 1, []byte{1})), errcode.Corrupt, "changed or cut"},
		{"half a block header", sealed([]byte{0, 0, 0}), errcode.Corrupt, "3 bytes left"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			n := allocated(func() { _, err = DecodeWAL(c.b) })
			if !errcode.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v, want %s and %q", err, c.code, c.says)
			}
			limit := uint64(16 << 20)
			if c.name == "many bombs" { // they decode, up to what an object may have, into memory that grows
				limit = 6 * maxWALObject
			}
			if n > limit {
				t.Fatalf("allocated %d bytes", n)
			}
		})
	}
}

// Groups that are not those of the header: another salt, other LSNs, fewer.
func TestEachHoldsTheHeaderAgainstTheGroups(t *testing.T) {
	good, err := EncodeWAL(mixed(t).run())
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*WAL){
		"salt":  func(w *WAL) { w.Salt++ },
		"first": func(w *WAL) { w.First++ },
		"next":  func(w *WAL) { w.Next++ },
		"fewer": func(w *WAL) { w.Next-- },
		"empty": func(w *WAL) { w.Groups = nil },
	} {
		w, err := DecodeWAL(good)
		if err != nil {
			t.Fatal(err)
		}
		change(w)
		if err := w.Each(func(wal.Frame) error { return nil }); !errcode.Is(err, errcode.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecodeWAL: no panic, no allocation beyond what blocks justify, and what
// decodes encodes to an object with the same groups.
func FuzzDecodeWAL(f *testing.F) {
	b, err := EncodeWAL(mixed(f).run())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:len(b)-checksumSize])
	f.Add(b[:len(b)/2])
	f.Add(header(1, 1, 2, 0))
	// Small ones, which a fuzzer changes faster: with groups that verify, and blocks
	// that are short, repeat, or lie about their length.
	l := newLog(f)
	l.put(group("g", "ops"), group("workers", strings.Repeat("ops", 40)))
	small, err := EncodeWAL(l.run())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small[:len(small)-checksumSize])
	for _, text := range []string{"", "a", strings.Repeat("tide", 30), strings.Repeat("tidemark, a log ", 8)} {
		packed := s2.Encode(nil, []byte(text))
		for _, raw := range []int{len(text), len(text) + 1, maxBlock} {
			f.Add(append(blockHead(header(1, 1, 2, 0), codecS2, raw, len(packed)), packed...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var w *WAL
		var err error
		if _, blocks, err := decodeWALHeader(b); err == nil {
			b = appendChecksum(bytes.Clone(b), blocks) // nothing behind a wrong one would be reached
		}
		n := allocated(func() { w, err = DecodeWAL(b) })
		if limit := uint64(32<<20) + 4*maxBlock*uint64(len(b)/blockHeader); n > limit {
			t.Fatalf("%d bytes of input allocated %d", len(b), n)
		}
		if err != nil {
			if !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.UnsupportedVersion) {
				t.Fatalf("code of %v", err)
			}
			return
		}
		frames := 0
		if w.Each(func(wal.Frame) error { frames++; return nil }) == nil && uint64(frames) != w.Next-w.First {
			t.Fatalf("%d frames of %d", frames, w.Next-w.First)
		}
	})
}

// Encoding, in bytes of groups: raw batches are compressed, compressed ones copied.
func BenchmarkEncodeWAL(b *testing.B) {
	for _, codec := range []segment.Codec{segment.CodecNone, segment.CodecZstd} {
		b.Run(codec.String(), func(b *testing.B) {
			l := newLog(b)
			for i := range int64(60) {
				l.put(commit(wal.KindCommit, part{pid(uint32(i % 3)), batch(b, codec, i*250, 250, 1000, i%2 == 0)}))
			}
			run := l.run()
			size := 0
			for _, g := range run.Groups {
				size += len(g)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := EncodeWAL(run); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Decoding and verifying, as a restore does it.
func BenchmarkDecodeWAL(b *testing.B) {
	for _, codec := range []segment.Codec{segment.CodecNone, segment.CodecZstd} {
		b.Run(codec.String(), func(b *testing.B) {
			l := newLog(b)
			for i := range int64(60) {
				l.put(commit(wal.KindCommit, part{pid(0), batch(b, codec, i*250, 250, 1000, false)}))
			}
			object, err := EncodeWAL(l.run())
			if err != nil {
				b.Fatal(err)
			}
			w, _ := DecodeWAL(object)
			b.SetBytes(int64(len(w.Groups)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := read(object); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Memory that is used again changes nothing: an object decodes into what another
// one left as into new memory, whether there is enough of it or not, and takes it if
// there is.
func TestWALIntoUsedMemory(t *testing.T) {
	b, err := EncodeWAL(mixed(t).run())
	if err != nil {
		t.Fatal(err)
	}
	want, err := DecodeWAL(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, len(want.Groups) - 1, len(want.Groups), 2 * len(want.Groups), 1 << 20} {
		used := bytes.Repeat([]byte{0xaa}, size)
		got, err := DecodeWALInto(b, used)
		if err != nil || !bytes.Equal(got.Groups, want.Groups) || !slices.Equal(got.Ranges, want.Ranges) {
			t.Fatalf("into %d bytes: %v", size, err)
		}
		if size >= len(want.Groups) && &got.Groups[0] != &used[0] {
			t.Fatalf("%d bytes were there, and new ones were taken", size)
		}
	}
}
