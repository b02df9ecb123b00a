package archive

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

func testState() *State {
	return &State{
		Node: "n1", Incarnation: testIncarnation, LSN: 1000, ReplayFrom: 17, TimeMS: 1_700_000_000_000,
		Partitions: []PartitionState{
			{Topic: 0xabc, Partition: 0, Generation: 3, PreviousEnd: 10, Start: 100, Next: 150, Gaps: [][2]int64{{10, 100}}, GroupLSN: 990, Groups: [][]byte{{1, 2, 3}, {}}},
			{Topic: 1<<64 - 1, Partition: 1<<32 - 1, Generation: 1<<32 - 1, PreviousEnd: 1<<63 - 1, Start: 1<<63 - 1, Next: 1<<63 - 1, GroupLSN: 1<<64 - 1},
		},
	}
}

// A state comes back as it was, the largest numbers too.
func TestStateRoundTrip(t *testing.T) {
	b, err := EncodeState(testState())
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeState(b)
	if err != nil || !reflect.DeepEqual(got, testState()) {
		t.Fatalf("%+v %v", got, err)
	}
	// Cut anywhere, longer, or with any bit changed, it is refused (B226, B227).
	for n := range len(b) {
		if _, err := DecodeState(b[:n]); !errcode.Is(err, errcode.Corrupt) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
		for bit := range 8 {
			b[n] ^= 1 << bit
			if got, err := DecodeState(b); !errcode.Is(err, errcode.Corrupt) {
				t.Fatalf("bit %d of byte %d changed: %+v, %v", bit, n, got, err)
			}
			b[n] ^= 1 << bit
		}
	}
	if _, err := DecodeState(append(b[:len(b):len(b)], 0)); !errcode.Is(err, errcode.Corrupt) {
		t.Fatalf("a byte more: %v", err)
	}
	// What other programs decode is the JSON alone.
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if plain, err := z.DecodeAll(b, nil); err != nil || !json.Valid(plain) {
		t.Fatalf("as zstd: %q, %v", plain, err)
	}
}

func packed(t testing.TB, json string) []byte {
	t.Helper()
	b, err := Pack([]byte(json))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Versions and formats that are not known are named; numbers that cannot be are
// refused.
func TestStateRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		code errcode.Code
		says string
	}{
		{"empty", nil, errcode.Corrupt, "state object"},
		{"no checksum", []byte("{}"), errcode.Corrupt, "checksum"},
		{"no zstd", sealZstd([]byte("{}")), errcode.Corrupt, "zstd"},
		{"no json", packed(t, "x"), errcode.Corrupt, "tidemark-state"},
		{"null", packed(t, "null"), errcode.Corrupt, "tidemark-state"},
		{"format", packed(t, `{"format":"tidemark-open","version":1}`), errcode.Corrupt, `"tidemark-open"`},
		{"version", packed(t, `{"format":"tidemark-state","version":2,"lsn":"new type"}`), errcode.UnsupportedVersion, "version 2"},
		{"replay from 0", packed(t, `{"format":"tidemark-state","version":1,"lsn":5,"replay_from":0}`), errcode.Corrupt, "replay from 0"},
		{"replay from beyond", packed(t, `{"format":"tidemark-state","version":1,"lsn":5,"replay_from":7}`), errcode.Corrupt, "replay from 7"},
		{"type", packed(t, `{"format":"tidemark-state","version":1,"lsn":"5"}`), errcode.Corrupt, "state object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := DecodeState(c.b); !errcode.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v, want %s and %q", err, c.code, c.says)
			}
		})
	}
}

// A frame that says it is large allocates only what it brings.
func TestUnpackIsBounded(t *testing.T) {
	// A zstd frame header that declares 256 MiB in a single segment, and nothing behind it.
	lie := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x10}
	var err error
	if n := allocated(func() { _, err = Unpack(sealZstd(lie)) }); err == nil || n > 16<<20 {
		t.Fatalf("allocated %d bytes, %v", n, err)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = z.Close() }()
	if _, err := unpack(sealZstd(z.EncodeAll(make([]byte, 2<<20), nil)), 1<<20); !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), "more than") {
		t.Fatalf("over the limit: %v", err)
	}
	want := bytes.Repeat([]byte("metadata "), 3<<20)
	b, err := Pack(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Unpack(b); err != nil || !bytes.Equal(got, want) {
		t.Fatal(err)
	}
	// An export that was cut is refused with a reason, the empty one too (B227).
	for _, n := range []int{0, 1, len(b) / 2, len(b) - 1} {
		if _, err := Unpack(b[:n]); !errcode.Is(err, errcode.Corrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// FuzzDecodeState: no panic, allocation bounded by the window and the input. The
// checksum always fits, or nothing behind it would be reached.
func FuzzDecodeState(f *testing.F) {
	b, err := EncodeState(testState())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:len(b)-len(skippable)-checksumSize])
	newer := packed(f, `{"format":"tidemark-state","version":2}`)
	f.Add(newer[:len(newer)-len(skippable)-checksumSize])
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x10})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s *State
		var err error
		b = sealZstd(bytes.Clone(b))
		n := allocated(func() { s, err = DecodeState(b) })
		if limit := uint64(4*maxWindow) + 1<<20*uint64(len(b)); n > limit {
			t.Fatalf("%d bytes of input allocated %d", len(b), n)
		}
		if err != nil {
			if !errcode.Is(err, errcode.Corrupt) && !errcode.Is(err, errcode.UnsupportedVersion) {
				t.Fatalf("code of %v", err)
			}
			return
		}
		again, err := EncodeState(s)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeState(again)
		x, _ := json.Marshal(s)
		y, _ := json.Marshal(back)
		if err != nil || !bytes.Equal(x, y) {
			t.Fatalf("%s became %s, %v", x, y, err)
		}
	})
}
