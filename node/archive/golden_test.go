package archive

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/wal"
)

var writeGolden = flag.Bool("write-golden", false, "write testdata files that do not exist yet")

// golden returns the file's bytes; with -write-golden it makes a missing one.
func golden(t *testing.T, name string, make func() []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && *writeGolden {
		b = make()
		err = os.WriteFile(path, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Objects of format version 1, written once, decode for ever to the same.
func TestGoldenVersion1(t *testing.T) {
	t.Run("wal", func(t *testing.T) {
		b := golden(t, "v1.ship", func() []byte {
			b, err := EncodeWAL(mixed(t).run())
			if err != nil {
				t.Fatal(err)
			}
			return b
		})
		w, err := DecodeWAL(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Each(func(wal.Frame) error { return nil }); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(lines(t, w.Groups, w.Salt), "\n") + "\n"
		want := golden(t, "v1.ship.txt", func() []byte { return []byte(got) })
		ranges := []Range{{pid(0), 100, 154}, {pid(1), 0, 100}, {pid(2), 7, 71}}
		if got != string(want) || w.First != 1 || w.Next != 9 || w.Incarnation != testIncarnation || !reflect.DeepEqual(w.Ranges, ranges) {
			t.Fatalf("it decodes to something else: %d to %d, %v\n%s", w.First, w.Next, w.Ranges, got)
		}
	})
	t.Run("state", func(t *testing.T) {
		b := golden(t, "v1.state.zst", func() []byte {
			b, err := EncodeState(testState())
			if err != nil {
				t.Fatal(err)
			}
			return b
		})
		if s, err := DecodeState(b); err != nil || !reflect.DeepEqual(s, testState()) {
			t.Fatalf("%+v %v", s, err)
		}
		// The JSON inside is the format; what this build writes is the same.
		plain, err := Unpack(b)
		if err != nil {
			t.Fatal(err)
		}
		now, err := EncodeState(testState())
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Unpack(now); err != nil || !bytes.Equal(plain, again) {
			t.Fatalf("the encoder has changed: a new version needs a new number and a new file\n%s\n%s", plain, again)
		}
	})
	t.Run("export", func(t *testing.T) {
		const text = "{\"format\":\"tidemark-meta\"}\n"
		b := golden(t, "v1.export.zst", func() []byte { return packed(t, text) })
		if plain, err := Unpack(b); err != nil || string(plain) != text {
			t.Fatalf("%q %v", plain, err)
		}
	})
	claim := Claim{ClusterID: "00000000000000c1", Generation: 2, Node: "n1", Restore: "0123456789abcdef", TimeMS: 1_700_000_000_000}
	opened := Open{Node: "n1", Incarnation: testIncarnation, ClusterGeneration: 2, FirstLSN: 1, TimeMS: 1_700_000_000_001}
	fence := Fence{ClusterGeneration: 3, TimeMS: 1_700_000_000_002}
	tomb := Tombstone{Topic: 0xabc, Name: "orders", ClusterGeneration: 2, DeletedMS: 1_700_000_000_003}
	for name, b := range map[string][]byte{"v1.cluster.json": claim.Encode(), "v1.open.json": opened.Encode(), "v1.fence.json": fence.Encode(), "v1.tombstone.json": tomb.Encode()} {
		if stored := golden(t, name, func() []byte { return b }); !bytes.Equal(stored, b) {
			t.Fatalf("%s: the encoder has changed: %s, was %s", name, b, stored)
		}
	}
}
