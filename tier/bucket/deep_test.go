package bucket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// toyWAL is a stand-in for shipped WAL: per frame its LSN and a byte. A state
// object is the LSNs that it needs. Both end with "!", so that cuts are
// noticed.
var toy = Decoders{
	WAL: func(k manifest.Key, b []byte) (any, error) { return nil, toyFrames(k, b, func(uint64, byte) {}) },
	Frames: func(k manifest.Key, b []byte, fn func(uint64, [32]byte)) error {
		return toyFrames(k, b, func(lsn uint64, x byte) { fn(lsn, [32]byte{x}) })
	},
	State: func(k manifest.Key, b []byte) (any, error) { _, _, err := toyNeeds(k, b); return nil, err },
	Needs: toyNeeds,
	Small: func(_ manifest.Key, b []byte) error {
		if string(b) != "small!" {
			return errcode.New(errcode.Corrupt, "not small")
		}
		return nil
	},
	Export: func(_ manifest.Key, b []byte) error {
		if string(b) != "export!" {
			return errcode.New(errcode.Corrupt, "no export")
		}
		return nil
	},
}

func toyFrames(k manifest.Key, b []byte, fn func(lsn uint64, x byte)) error {
	if len(b) != 9*int(k.End-k.First)+1 || b[len(b)-1] != '!' {
		return errcode.New(errcode.Corrupt, "%d bytes", len(b))
	}
	for i := range k.End - k.First {
		fn(binary.BigEndian.Uint64(b[9*i:]), b[9*i+8])
	}
	return nil
}

func toyObject(first, next uint64, x byte) (b []byte) {
	for lsn := first; lsn < next; lsn++ {
		b = append(binary.BigEndian.AppendUint64(b, lsn), x)
	}
	return append(b, '!')
}

func toyNeeds(_ manifest.Key, b []byte) (from, upTo uint64, err error) {
	if len(b) != 17 || b[16] != '!' {
		return 0, 0, errcode.New(errcode.Corrupt, "%d bytes", len(b))
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), nil
}

func toyState(from, upTo uint64) []byte {
	return append(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, from), upTo), '!')
}

// deepArchive is an archive whose objects the toy decoders read.
func deepArchive(t *testing.T) *mem.Store {
	t.Helper()
	st, _ := archive(t)
	put(t, st, manifest.ClusterKey(1), []byte("small!"))
	put(t, st, manifest.WALOpenKey("n1", 5), []byte("small!"))
	for i := range uint64(5) {
		put(t, st, manifest.WALKey("n1", 5, 100+10*i, 110+10*i), toyObject(100+10*i, 110+10*i, 'a'))
	}
	put(t, st, manifest.StateKey("n1", 5, 140), toyState(100, 140))
	put(t, st, manifest.MetaKey(1, 3), []byte("export!"))
	put(t, st, manifest.MetaKey(1, 9), []byte("export!"))
	return st
}

// Each kind of damage outside segments and chains is planted, found and named,
// by the look that is meant to find it (B210, B226, B227).
func TestVerifyFindsDamagedMetadataAndWAL(t *testing.T) {
	for _, deep := range []bool{false, true} {
		if got, sum := verify(t, deepArchive(t), Options{Deep: deep, Decoders: toy}); len(got) != 0 || sum.Exports != 2 {
			t.Fatalf("a whole archive, deep %v: %v %+v", deep, got, sum)
		}
	}
	wal := func(i uint64) string { return manifest.WALKey("n1", 5, 100+10*i, 110+10*i) }
	for _, x := range []struct {
		name string
		key  string // that is changed
		body []byte // nil: deleted
		want What
		at   string // key of the finding
		deep bool
		from int64
		next int64
	}{
		{"claim", manifest.ClusterKey(1), []byte("x"), ClaimCorrupt, manifest.ClusterKey(1), false, 0, 0},
		{"OPEN", manifest.WALOpenKey("n1", 5), nil, NotOpened, manifest.WALOpenKey("n1", 5), false, 0, 0},
		{"OPEN changed", manifest.WALOpenKey("n1", 5), []byte("x"), ClaimCorrupt, manifest.WALOpenKey("n1", 5), false, 0, 0},
		{"FENCE", manifest.WALFenceKey("n1", 5), []byte("x"), ClaimCorrupt, manifest.WALFenceKey("n1", 5), false, 0, 0},
		{"newest export", manifest.MetaKey(1, 9), []byte("expo"), ExportCorrupt, manifest.MetaKey(1, 9), false, 0, 0},
		{"newest export, empty", manifest.MetaKey(1, 9), []byte{}, ExportCorrupt, manifest.MetaKey(1, 9), false, 0, 0},
		{"older export", manifest.MetaKey(1, 3), []byte("x"), ExportCorrupt, manifest.MetaKey(1, 3), true, 0, 0},
		{"WAL cut", wal(2), toyObject(120, 129, 'a'), WALCorrupt, wal(2), true, 0, 0},
		{"WAL flipped", wal(2), append(toyObject(120, 130, 'a')[:90], '?'), WALCorrupt, wal(2), true, 0, 0},
		{"WAL hole", wal(2), nil, WALHole, wal(3), false, 120, 130},
		{"state cut", manifest.StateKey("n1", 5, 140), []byte("x"), StateCorrupt, manifest.StateKey("n1", 5, 140), true, 0, 0},
		{"state needs older WAL", manifest.StateKey("n1", 5, 140), toyState(90, 140), WALHole, manifest.StateKey("n1", 5, 140), true, 90, 100},
		{"state needs newer WAL", manifest.StateKey("n1", 5, 140), toyState(120, 170), WALHole, manifest.StateKey("n1", 5, 140), true, 150, 171},
		{"overlap with other frames", manifest.WALKey("n1", 5, 118, 125), toyObject(118, 125, 'b'), WALConflict, manifest.WALKey("n1", 5, 118, 125), true, 118, 120},
	} {
		t.Run(x.name, func(t *testing.T) {
			st := deepArchive(t)
			if x.body == nil {
				if err := st.Delete(ctx, []string{x.key}); err != nil {
					t.Fatal(err)
				}
			} else {
				put(t, st, x.key, x.body)
			}
			for _, deep := range []bool{false, true} {
				got, _ := verify(t, st, Options{Deep: deep, Decoders: toy})
				i := slices.IndexFunc(got, func(f Finding) bool { return f.What == x.want && f.Key == x.at })
				if x.deep && !deep {
					if len(got) != 0 {
						t.Errorf("without deep: %v", got)
					}
					continue
				}
				if i < 0 || got[i].From != x.from || got[i].Next != x.next {
					t.Errorf("deep %v: found %v, want %q of %s [%d, %d)", deep, got, x.want, x.at, x.from, x.next)
				}
			}
		})
	}
	// Objects that overlap with the same frames are what a lost answer leaves.
	st := deepArchive(t)
	put(t, st, manifest.WALKey("n1", 5, 105, 125), toyObject(105, 125, 'a'))
	if got, _ := verify(t, st, Options{Deep: true, Decoders: toy}); len(got) != 0 {
		t.Errorf("an equal overlap: %v", got)
	}
	// A long object over short ones is compared with all of them.
	put(t, st, manifest.WALKey("n1", 5, 105, 145), toyObject(105, 145, 'c'))
	got, _ := verify(t, st, Options{Deep: true, Decoders: toy})
	if len(got) < 2 || slices.ContainsFunc(got, func(f Finding) bool { return f.What != WALConflict }) {
		t.Errorf("a long overlap: %v", got)
	}
	// Topics without metadata.
	st = deepArchive(t)
	if err := st.Delete(ctx, []string{manifest.MetaKey(1, 3), manifest.MetaKey(1, 9)}); err != nil {
		t.Fatal(err)
	}
	if got, _ := verify(t, st, Options{Decoders: toy}); len(got) != 1 || got[0].What != NoExport {
		t.Errorf("no export: %v", got)
	}
}

// Progress of a deep look rises to its total.
func TestVerifyProgress(t *testing.T) {
	var last, total int64
	o := Options{Deep: true, Decoders: toy, Progress: func(d, of int64) {
		if d < last || total != 0 && of != total || d > of {
			t.Errorf("progress %d of %d after %d of %d", d, of, last, total)
		}
		last, total = d, of
	}}
	verify(t, deepArchive(t), o)
	if last == 0 || last != total {
		t.Errorf("ended at %d of %d", last, total)
	}
}

// catOffsets reads a partition and returns the offsets of its records.
func catOffsets(t *testing.T, st objstore.Store, o CatOptions) ([]int64, CatReport, error) {
	t.Helper()
	var got []int64
	rep, err := Cat(ctx, st, o, func(b []byte, h *segment.BatchHeader) error {
		recs, err := segment.DecodeBatch(nil, b, nil)
		for _, r := range recs {
			got = append(got, r.Offset)
		}
		return err
	})
	return got, rep, err
}

func offsets(from, next int64) (out []int64) {
	for o := from; o < next; o++ {
		out = append(out, o)
	}
	return out
}

// Records come out of segments and then out of shipped WAL, each once and in
// order, whatever the order of the log is; those of an owner that had lost the
// partition do not come (I8, I16).
func TestCat(t *testing.T) {
	st, all := archive(t)
	pid := broker.PartitionID{Topic: 2, Partition: 1}
	one := func(offset int64, generation uint32) []byte {
		b, err := segment.AppendBatch(nil, []broker.Record{{Offset: offset, Value: fmt.Appendf(nil, "v%d", offset)}}, segment.BatchOptions{Generation: generation})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	shipped := map[string][]byte{
		manifest.WALKey("n1", 5, 100, 110): slices.Concat(one(38, 1), one(39, 1), one(40, 1)),
		manifest.WALKey("n1", 5, 110, 120): slices.Concat(one(42, 1), one(41, 1), one(41, 1), one(43, 7)),
		manifest.WALKey("n1", 5, 120, 130): one(43, 1),
	}
	d := Decoders{Batches: func(k manifest.Key, _ []byte, p broker.PartitionID, fn func(uint32, []byte) error) error {
		for rest := shipped[k.String()]; len(rest) > 0 && p == pid; {
			b, after, err := segment.NextBatch(rest)
			if err != nil {
				return err
			}
			h, _ := segment.ParseHeader(b)
			if err := fn(h.Generation, b); err != nil {
				return err
			}
			rest = after
		}
		return nil
	}}
	for _, x := range []struct {
		from, to   int64
		first, end int64
	}{{0, -1, 0, 44}, {15, 22, 15, 22}, {39, 41, 39, 41}, {41, -1, 41, 44}, {44, -1, 0, 0}, {7, 7, 0, 0}} {
		got, rep, err := catOffsets(t, st, CatOptions{Partition: pid, From: x.from, To: x.to, Decoders: d})
		if err != nil || !slices.Equal(got, offsets(x.first, x.end)) || rep.ChainEnd != 40 {
			t.Errorf("%d to %d: %v %+v %v", x.from, x.to, got, rep, err)
		}
	}
	if got, _, err := catOffsets(t, st, CatOptions{Partition: pid, To: -1}); err != nil || len(got) != 40 {
		t.Errorf("without shipped WAL: %v %v", got, err)
	}
	if _, _, err := catOffsets(t, st, CatOptions{Partition: broker.PartitionID{Topic: 99}, To: -1}); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("no such partition: %v", err)
	}
	// A hole in the log is an error with its bounds, and nothing behind it is
	// printed.
	shipped[manifest.WALKey("n1", 5, 110, 120)] = one(42, 1)
	if got, _, err := catOffsets(t, st, CatOptions{Partition: pid, To: -1, Decoders: d}); !errcode.Is(err, errcode.Corrupt) || !slices.Equal(got, offsets(0, 41)) {
		t.Errorf("a hole: %v %v", got, err)
	}
	// A damaged and a missing segment are named; what is before them was given.
	key := all[pid][2].Key()
	whole := read(t, st, key)
	bad := bytes.Clone(whole)
	bad[70] ^= 1
	put(t, st, key, bad)
	if got, _, err := catOffsets(t, st, CatOptions{Partition: pid, To: -1, Decoders: d}); !errcode.Is(err, errcode.Corrupt) || !slices.Equal(got, offsets(0, 20)) {
		t.Errorf("damaged: %v %v", got, err)
	}
	if err := st.Delete(ctx, []string{key}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := catOffsets(t, st, CatOptions{Partition: pid, To: -1, Decoders: d}); !errcode.Is(err, errcode.Gone) {
		t.Errorf("missing: %v", err)
	}
	stop := errors.New("stop")
	if _, err := Cat(ctx, st, CatOptions{Partition: pid, To: -1}, func([]byte, *segment.BatchHeader) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a reader that stops: %v", err)
	}
}
