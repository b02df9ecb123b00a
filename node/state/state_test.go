package state

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
)

func id(topic uint64, partition uint32) broker.PartitionID {
	return broker.PartitionID{Topic: broker.TopicID(topic), Partition: partition}
}

func mustOpen(t testing.TB, fs vfs.FS) *DB {
	t.Helper()
	db, err := Open(fs, "state", nil)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func mustClose(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustCommit(t testing.TB, b *Batch) {
	t.Helper()
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, db *DB) []Entry {
	t.Helper()
	list, err := db.Load()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func sealed(base int64) Sealed {
	return Sealed{Info: segment.Info{Base: base, Next: base + 10}, FirstLSN: uint64(base) + 1, Confirmed: base%2 == 0}
}

// filled is a partition entry with every field set.
func filled(n int64) Partition {
	return Partition{
		Generation: uint32(n), PreviousEnd: n, Start: n + 1, Oldest: n - 1, Flushed: n + 5, Gaps: [][2]int64{{n, n + 1}, {n + 7, n + 9}},
		GroupLSN: uint64(n) * 3, Active: &Active{Base: n, MinAppend: 1, MaxAppend: 2, FirstLSN: 3}, ChainSeq: uint64(n), ArchivedEnd: n,
	}
}

// A fresh database is empty; what was committed is there after a restart, in
// order; a segment that was deleted is not.
func TestRoundTrip(t *testing.T) {
	fs := vfs.NewMem()
	db := mustOpen(t, fs)
	if m, err := db.Marks(); err != nil || m != (Marks{}) || len(load(t, db)) != 0 {
		t.Fatalf("fresh: %+v %v", m, err)
	}
	marks := Marks{Incarnation: 1<<64 - 1, Durable: 2, Needed: 3, Shipped: 1 << 63}
	b := db.NewBatch()
	b.PutMarks(marks)
	b.PutPartition(id(2, 0), filled(20))
	b.PutPartition(id(1, 7), filled(10))
	for _, base := range []int64{300, 20, 1 << 40} {
		b.PutSegment(id(1, 7), sealed(base))
	}
	b.PutGroup(id(1, 7), "b", []byte("state b"))
	b.PutGroup(id(1, 7), "a", []byte{})
	mustCommit(t, b)
	b = db.NewBatch()
	b.DeleteSegment(id(1, 7), 300)
	mustCommit(t, b)
	want := []Entry{
		{ID: id(1, 7), Partition: filled(10), Sealed: []Sealed{sealed(20), sealed(1 << 40)}, Groups: [][]byte{nil, []byte("state b")}},
		{ID: id(2, 0), Partition: filled(20)},
	}
	for range 2 {
		if got := load(t, db); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v\nwant %+v", got, want)
		}
		if m, err := db.Marks(); err != nil || m != marks {
			t.Fatalf("%+v %v", m, err)
		}
		mustClose(t, db)
		db = mustOpen(t, fs)
	}
	mustClose(t, db)
}

// A batch that is not committed leaves nothing.
func TestUncommittedBatch(t *testing.T) {
	fs := vfs.NewMem()
	db := mustOpen(t, fs)
	db.NewBatch().PutPartition(id(1, 1), filled(1))
	mustClose(t, db)
	db = mustOpen(t, fs)
	defer mustClose(t, db)
	if got := load(t, db); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
}

// Power is lost before any file system call, with none, some or all of what was
// not synced on disk: every batch is there whole or not at all, in order, and
// all that Commit returned nil for is there. A database that was being created
// opens.
func TestCrash(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		fs := vfs.NewCrashableMem()
		acked := 0
		type image struct {
			fs    *vfs.MemFS
			acked int
		}
		var images []image
		percents := []int{0, 100} // Pebble's creation relies on names appearing in their order
		clone := func() {
			cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: percents[rng.IntN(len(percents))], RNG: rng}
			images = append(images, image{fs.CrashClone(cfg), acked})
		}
		hooked := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if acked >= 0 && rng.IntN(12) == 0 && len(images) < 12 {
				clone()
			}
			return nil
		}))
		db := mustOpen(t, hooked)
		percents = []int{0, 30, 70, 100}
		for n := 1; n <= 12; n++ {
			commit(t, db, n, rng.IntN(3000))
			acked = n
		}
		clone()
		acked = -1 // no clones of the close
		mustClose(t, db)
		for i, im := range images {
			db, err := Open(im.fs, "state", nil)
			if err != nil {
				t.Fatalf("seed %d, crash %d of %d: %v", seed, i, len(images), err)
			}
			n := whole(t, db)
			if n < im.acked || n > im.acked+1 {
				t.Fatalf("seed %d, crash %d: batch %d is there, %d was acknowledged", seed, i, n, im.acked)
			}
			mustClose(t, db)
		}
	}
}

// commit writes batch n: it changes every kind of entry, and moves the one
// segment.
func commit(t testing.TB, db *DB, n, size int) {
	t.Helper()
	b := db.NewBatch()
	b.PutMarks(Marks{Durable: uint64(n)})
	for p := range uint32(3) {
		b.PutPartition(id(9, p), Partition{Flushed: int64(n), GroupLSN: uint64(n)})
		b.PutGroup(id(9, p), "g", fmt.Appendf(nil, "%d %s", n, strings.Repeat("x", size)))
		b.DeleteSegment(id(9, p), int64(n-1))
		b.PutSegment(id(9, p), sealed(int64(n)))
	}
	mustCommit(t, b)
}

// whole returns the number of the last batch, and fails if a part of another
// one is there.
func whole(t testing.TB, db *DB) int {
	t.Helper()
	m, err := db.Marks()
	if err != nil {
		t.Fatal(err)
	}
	n := int(m.Durable)
	entries := load(t, db)
	if n == 0 {
		if len(entries) != 0 {
			t.Fatalf("no marks, but %+v", entries)
		}
		return 0
	}
	if len(entries) != 3 {
		t.Fatalf("batch %d has %d partitions", n, len(entries))
	}
	for _, e := range entries {
		if e.Flushed != int64(n) || e.GroupLSN != uint64(n) || len(e.Sealed) != 1 || e.Sealed[0].Base != int64(n) ||
			len(e.Groups) != 1 || !strings.HasPrefix(string(e.Groups[0]), fmt.Sprint(n, " ")) {
			t.Fatalf("batch %d is torn: %+v", n, e)
		}
	}
	return n
}

// Another version is named, and not changed.
func TestUnknownVersion(t *testing.T) {
	for _, v := range []string{"\x02", "\x01\x01", ""} {
		fs := vfs.NewMem()
		mustClose(t, mustOpen(t, fs))
		raw(t, fs, func(db *pebble.DB) error { return db.Set([]byte("V"), []byte(v), pebble.Sync) })
		_, err := Open(fs, "state", nil)
		if !errcode.Is(err, errcode.UnsupportedVersion) || !strings.Contains(err.Error(), fmt.Sprintf("format %x", v)) {
			t.Fatalf("%q: %v", v, err)
		}
		raw(t, fs, func(db *pebble.DB) error {
			got, closer, err := db.Get([]byte("V"))
			if err != nil {
				return err
			}
			defer func() { _ = closer.Close() }()
			if string(got) != v {
				t.Errorf("version became %x", got)
			}
			return nil
		})
	}
}

// raw opens the database below the package.
func raw(t testing.TB, fs vfs.FS, fn func(*pebble.DB) error) {
	t.Helper()
	db, err := pebble.Open("state", &pebble.Options{FS: fs, Logger: pebbleLogger{slog.New(slog.DiscardHandler), newGuard()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fn(db), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// Values that do not read, keys that are none, and parts of a partition without
// its entry are damage, not an empty partition.
func TestDamage(t *testing.T) {
	for name, set := range map[string][2]string{
		"partition":              {string(key('P', id(1, 1))), "{"},
		"segment":                {string(segmentKey(id(1, 1), 5)), "x"},
		"short key":              {"P123", "{}"},
		"segment without entry":  {string(segmentKey(id(1, 2), 5)), "{}"},
		"group without entry":    {string(key('G', id(0, 1))) + "g", "x"},
		"marks":                  {"N", "["},
		"marks of another shape": {"N", `{"durable":"x"}`},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			db := mustOpen(t, fs)
			b := db.NewBatch()
			b.PutPartition(id(1, 1), filled(1))
			mustCommit(t, b)
			mustClose(t, db)
			raw(t, fs, func(db *pebble.DB) error { return db.Set([]byte(set[0]), []byte(set[1]), pebble.Sync) })
			db = mustOpen(t, fs)
			defer mustClose(t, db)
			_, err := db.Load()
			if _, merr := db.Marks(); set[0] == "N" {
				err = merr
			}
			if !errcode.Is(err, errcode.Corrupt) {
				t.Fatalf("%v", err)
			}
		})
	}
}

// A database that is open already is refused.
func TestSecondOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	db, err := Open(vfs.Default, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, db)
	if _, err := Open(vfs.Default, dir, nil); !errcode.Is(err, errcode.Storage) {
		t.Fatalf("%v", err)
	}
}

// DeletePartition removes all of a partition and nothing of its neighbours, at
// every place where an id has a byte of ones or zeros.
func TestDeletePartition(t *testing.T) {
	topics := []uint64{0, 1, 0xfe, 0xff, 0x100, 0xffff, 0x10000, 0x00ff_ffff_ffff_ffff, 1<<63 - 1, 1 << 63, 1<<64 - 2, 1<<64 - 1}
	partitions := []uint32{0, 1, 0xfe, 0xff, 0x100, 0xffff, 0x10000, 1<<32 - 2, 1<<32 - 1}
	var ids []broker.PartitionID
	for _, topic := range topics {
		for _, p := range partitions {
			ids = append(ids, id(topic, p))
		}
	}
	fs := vfs.NewMem()
	db := mustOpen(t, fs)
	defer mustClose(t, db)
	fill := func(b *Batch, p broker.PartitionID) {
		b.PutPartition(p, filled(5))
		for _, base := range []int64{0, 0xff, 1<<63 - 1} {
			b.PutSegment(p, sealed(base))
		}
		for _, g := range []string{"a", "zzzz", "\xff\xff"} {
			b.PutGroup(p, g, []byte(g))
		}
	}
	b := db.NewBatch()
	b.PutMarks(Marks{Durable: 9})
	for _, p := range ids {
		fill(b, p)
	}
	mustCommit(t, b)
	all := load(t, db)
	if len(all) != len(ids) {
		t.Fatalf("%d of %d partitions", len(all), len(ids))
	}
	for _, p := range ids {
		b := db.NewBatch()
		b.DeletePartition(p)
		mustCommit(t, b)
		left := load(t, db)
		if len(left) != len(ids)-1 {
			t.Fatalf("%s: %d partitions left of %d", p, len(left), len(ids))
		}
		k := 0
		for _, e := range all {
			if e.ID == p {
				continue
			}
			if !reflect.DeepEqual(left[k], e) {
				t.Fatalf("%s was deleted, and %s changed", p, e.ID)
			}
			k++
		}
		b = db.NewBatch()
		fill(b, p) // the same keys can be used again
		mustCommit(t, b)
	}
	b = db.NewBatch()
	for _, p := range ids {
		b.DeletePartition(p)
	}
	mustCommit(t, b)
	if m, err := db.Marks(); err != nil || m.Durable != 9 || len(load(t, db)) != 0 {
		t.Fatalf("%+v %v", m, err)
	}
}

// The keys and values that this build writes. Fields were added to version 1
// since its first layout, which TestFirstLayout reads.
func TestGoldenLayout(t *testing.T) {
	fs := vfs.NewMem()
	db := mustOpen(t, fs)
	b := db.NewBatch()
	b.PutMarks(Marks{Incarnation: 0x0123456789abcdef, Durable: 100, Needed: 50, Shipped: 75})
	skipped := filled(10)
	skipped.SkippedLSN, skipped.SkippedEnd = 7, 8
	b.PutPartition(id(0xabc, 3), skipped)
	b.PutPartition(id(1<<64-1, 1<<32-1), Partition{})
	b.PutSegment(id(0xabc, 3), sealed(256))
	b.PutGroup(id(0xabc, 3), "workers", []byte{1, 2, 3})
	mustCommit(t, b)
	mustClose(t, db)
	var out strings.Builder
	raw(t, fs, func(db *pebble.DB) error {
		it, err := db.NewIter(nil)
		if err != nil {
			return err
		}
		for it.First(); it.Valid(); it.Next() {
			value := string(it.Value())
			if !strings.HasPrefix(value, "{") {
				value = hex.EncodeToString(it.Value())
			}
			fmt.Fprintf(&out, "%c %x %s\n", it.Key()[0], it.Key()[1:], value)
		}
		return errors.Join(it.Error(), it.Close())
	})
	want, err := os.ReadFile(filepath.Join("testdata", "v1.confirmed.layout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Fatalf("what older builds read, and newer ones wrote, has changed\n%s", out.String())
	}
}

// A database that the first build wrote is read by all later ones. Its word that
// a segment is archived meant that the chain covers it, so the copy there counts
// as not confirmed: it is compared again before the local one may go (I6).
func TestFirstLayout(t *testing.T) {
	layout, err := os.ReadFile(filepath.Join("testdata", "v1.layout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	fs := vfs.NewMem()
	mustClose(t, mustOpen(t, fs))
	raw(t, fs, func(db *pebble.DB) error {
		for _, line := range strings.Split(strings.TrimSpace(string(layout)), "\n") {
			kind, rest, _ := strings.Cut(line, " ")
			key, text, _ := strings.Cut(rest, " ")
			k, err := hex.DecodeString(key)
			value := []byte(text)
			if !strings.HasPrefix(text, "{") && err == nil {
				value, err = hex.DecodeString(text)
			}
			if err == nil {
				err = db.Set(append([]byte(kind), k...), value, pebble.Sync)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	db := mustOpen(t, fs)
	defer mustClose(t, db)
	entries := load(t, db)
	if len(entries) != 2 || len(entries[0].Sealed) != 1 || len(entries[0].Groups) != 1 {
		t.Fatalf("%+v", entries)
	}
	e := entries[0]
	if want := filled(10); !reflect.DeepEqual(e.Partition, want) {
		t.Errorf("partition %+v, want %+v", e.Partition, want)
	}
	if s := e.Sealed[0]; s.Base != 256 || s.Next != 266 || s.FirstLSN != 257 || s.Confirmed {
		t.Errorf("segment %+v", s)
	}
}
