package restore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// before sees every put before it is made.
type before struct {
	objstore.Store
	see func(op, key string)
}

func (s before) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	s.see("put", key)
	return s.Store.Put(ctx, key, body, size, o)
}

// full is an archive with one object of everything, and three of WAL.
type full struct {
	*world
	meta, state, entry, first, middle, last string
}

func newFull(t testing.TB) *full {
	t.Helper()
	w := newWorld(t, 1)
	f := &full{world: w}
	w.segments(0, 10, 10)
	wr := w.writer(firstI, 1, 1)
	wr.base(frame.Base{Partition: w.id(0), Generation: 1})
	from := wr.records(w.id(0), 1, 100, 2)
	f.first = wr.ship()
	f.state = wr.state(archive.State{LSN: from, ReplayFrom: from, Partitions: []archive.PartitionState{{Topic: w.topic.ID, Generation: 1}}})
	wr.records(w.id(0), 1, 102, 1)
	f.middle = wr.ship()
	wr.records(w.id(0), 1, 103, 1)
	f.last = wr.ship()
	f.meta = w.keys("meta/")[0]
	f.entry = manifest.EntryKey(w.id(0), 2)
	return f
}

// The archive does not answer: the restore fails and nothing in the bucket
// changes, whatever is not readable: everything, or the chains alone (B214). An
// answer that did not come is not an absence.
func TestUnreadableArchive(t *testing.T) {
	w := newFull(t)
	for _, pattern := range []string{"*", "cluster/*", "meta/*", "t/*", "wal/*/OPEN", "state/*"} {
		for _, code := range []errcode.Code{errcode.Transient, errcode.Internal, errcode.Denied} {
			fails := w.fault.Add(fault.Rule{Ops: []string{fault.Get, fault.GetRange, fault.Head}, Key: pattern, Do: fault.Fail, Err: errcode.New(code, "status 500")})
			w.untouched(func() { w.refused(code, "status 500") })
			if fails.Hits() == 0 {
				t.Fatalf("%s was not read", pattern)
			}
			fails.Remove()
		}
	}
	for _, prefix := range []string{"cluster/", "meta/", "wal/", "state/"} {
		fails := w.fault.Add(fault.Rule{Ops: []string{fault.List}, Key: prefix, Do: fault.Fail})
		w.untouched(func() { w.refused(errcode.Transient, prefix) })
		fails.Remove()
	}
	dir, report := w.restore()
	if report.Segments != 10 || report.TailRecords != 4 {
		t.Fatalf("%+v", report)
	}
	if got := w.records(dir, 0, 100); !slices.Equal(got, values(firstI, 1, 100, 104)) {
		t.Fatalf("%q", got)
	}
}

// An object that is damaged, cut (also to nothing, B227), lost, or another
// object's bytes is refused with its key, and nothing changed. A damaged export
// offers the one before it (B226).
func TestDamageBeforeTheClaim(t *testing.T) {
	w := newFull(t)
	topic := w.topic
	topic.Name = "other"
	topic.ID = 0
	if _, err := w.world.meta.CreateTopic(context.Background(), topic); err != nil {
		t.Fatal(err)
	}
	older := w.meta
	newer := w.export()
	for _, c := range []struct {
		key  string
		says []string
	}{
		{manifest.ClusterKey(1), nil}, {newer, []string{older}}, {w.state, nil}, {w.entry, nil}, {manifest.WALOpenKey(nodeID, firstI), nil},
		{w.last, nil}, {w.middle, nil},
	} {
		good := w.get(c.key)
		damaged := [][]byte{good[:len(good)/2], {}, good[:len(good)-2]}
		if strings.HasSuffix(c.key, ".zst") || strings.HasSuffix(c.key, ".ship") { // the others are plain text without a checksum
			flipped := bytes.Clone(good)
			flipped[len(flipped)/2] ^= 0x20
			damaged = append(damaged, flipped)
		}
		for _, bad := range damaged {
			w.replace(c.key, bad)
			w.untouched(func() { w.refused(errcode.Corrupt, append(c.says, c.key)...) })
			w.replace(c.key, good)
		}
	}
	// Valid bytes of something else under the key.
	other := newFull(t)
	for key, bad := range map[string][]byte{
		manifest.ClusterKey(1):              archive.Claim{ClusterID: w.world.meta.State().Cluster().ID, Generation: 7}.Encode(),
		w.state:                             encodeState(t, archive.State{Node: nodeID, Incarnation: firstI + 1, LSN: 2, ReplayFrom: 2}),
		newer:                               w.get(older),
		manifest.WALOpenKey(nodeID, firstI): archive.Open{Node: nodeID, Incarnation: 5, ClusterGeneration: 1}.Encode(),
	} {
		good := w.get(key)
		w.replace(key, bad)
		w.untouched(func() { w.refused(errcode.Corrupt, key) })
		w.replace(key, good)
	}
	// The newest export is another cluster's.
	good := w.get(newer)
	w.replace(newer, nil)
	w.replace(older, other.get(other.meta))
	w.untouched(func() { w.refused(errcode.Corrupt, older, "of cluster") })
	w.put(newer, good)
	w.restore()
}

func encodeState(t testing.TB, s archive.State) []byte {
	t.Helper()
	b, err := archive.EncodeState(&s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A format of a later build is named, not taken for damage, and nothing changed.
func TestVersionsOfALaterBuild(t *testing.T) {
	w := newFull(t)
	bump := func(b []byte) []byte { return bytes.Replace(b, []byte(`"version":1`), []byte(`"version":99`), 1) }
	packed := func(b []byte) []byte {
		plain, err := archive.Unpack(b)
		if err != nil {
			t.Fatal(err)
		}
		out, err := archive.Pack(bump(plain))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	entry := func(b []byte) []byte { // of a chain, which is zstd alone
		z, err := zstd.NewReader(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		plain, err := z.DecodeAll(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return out.EncodeAll(bump(plain), nil)
	}
	for key, change := range map[string]func([]byte) []byte{
		manifest.ClusterKey(1):              bump,
		manifest.WALOpenKey(nodeID, firstI): bump,
		w.meta:                              packed,
		w.state:                             packed,
		w.entry:                             entry,
	} {
		good := w.get(key)
		bad := change(good)
		if bytes.Equal(good, bad) {
			t.Fatalf("%s has no version: %s", key, good)
		}
		w.replace(key, bad)
		w.untouched(func() { w.refused(errcode.UnsupportedVersion, "99") })
		w.replace(key, good)
	}
	for _, key := range []string{w.last, w.middle} {
		good := w.get(key)
		bad := bytes.Clone(good)
		bad[7] = 9
		w.replace(key, bad)
		w.untouched(func() { w.refused(errcode.UnsupportedVersion, key, "format 9") })
		w.replace(key, good)
	}
	w.restore()
}

// A lost object of shipped WAL is a hole, named with its frames, before
// anything is claimed: in the middle, and at the end when a state object proves
// that there was one.
func TestHoleInShippedWAL(t *testing.T) {
	w := newFull(t)
	wal := slices.DeleteFunc(w.keys("wal/"), func(k string) bool { return !strings.HasSuffix(k, ".ship") })
	middle := wal[1]
	k, err := manifest.ParseKey(middle)
	if err != nil {
		t.Fatal(err)
	}
	good := w.get(middle)
	w.replace(middle, nil)
	w.untouched(func() {
		w.refused(errcode.Corrupt, fmt.Sprintf("frames %d to %d are missing", k.First, k.End-1), w.last)
		if _, err := restore.Look(context.Background(), w.options()); !errcode.Is(err, errcode.Corrupt) {
			t.Fatalf("a dry run finds nothing: %v", err)
		}
	})
	w.put(middle, good)
	all := map[string][]byte{}
	for _, key := range wal {
		all[key] = w.get(key)
		w.replace(key, nil)
	}
	w.untouched(func() { w.refused(errcode.Corrupt, "frames 2 to 2 are missing", w.state) })
	for key, b := range all {
		w.put(key, b)
	}
	w.restore()
}

// Damage inside shipped WAL, in whichever object, is found by a dry run and
// before the claim: the key is named, and neither the bucket nor the disk is
// changed. Records that are there and miss the ones in front of them are damage
// too. Once the object is back the restore works (I4, I8, I10).
func TestDamageInShippedWALBeforeTheClaim(t *testing.T) {
	w := newFull(t)
	good := w.get(w.middle)
	flipped := bytes.Clone(good)
	flipped[len(flipped)-3] ^= 1
	for _, bad := range [][]byte{good[:len(good)-1], {}, flipped, w.get(w.first)} {
		w.replace(w.middle, bad)
		w.untouched(func() {
			w.refused(errcode.Corrupt, w.middle)
			if _, err := restore.Look(context.Background(), w.options()); !errcode.Is(err, errcode.Corrupt) || !strings.Contains(err.Error(), w.middle) {
				t.Fatalf("a dry run says: %v", err)
			}
		})
		w.replace(w.middle, good)
	}
	fails := w.fault.Add(fault.Rule{Ops: []string{fault.Get}, Key: w.middle, Do: fault.Fail})
	w.untouched(func() { w.refused(errcode.Transient, w.middle) })
	fails.Remove()
	reads := w.fault.Add(fault.Rule{Ops: []string{fault.Get}, Key: "*.ship", Do: fault.Pass})
	dir, report := w.restore()
	if report.TailRecords != 4 {
		t.Fatalf("%+v", report)
	}
	if got := w.records(dir, 0, 100); !slices.Equal(got, values(firstI, 1, 100, 104)) {
		t.Fatalf("%q", got)
	}
	if reads.Hits() != 3 {
		t.Fatalf("three objects of shipped log were read %d times", reads.Hits())
	}
}

// What breaks behind the claim leaves nothing behind and overwrites nothing, and
// the restore is run again (B224).
func TestDamageAfterTheClaim(t *testing.T) {
	w := newFull(t)
	fails := w.fault.Add(fault.Rule{Ops: []string{fault.Put}, Key: "t/*/m/*", Do: fault.Fail})
	before := w.content()
	w.refused(errcode.Transient)
	fails.Remove()
	after := w.content()
	for k, v := range before {
		if after[k] != v {
			t.Fatalf("%s was changed", k)
		}
	}
	if _, claimed := after[manifest.ClusterKey(2)]; !claimed {
		t.Fatal("it failed before the claim")
	}
	if _, report := w.restore(); report.TailRecords != 4 {
		t.Fatalf("%+v", report)
	}
}

// Foreign objects are passed over.
func TestForeignObjectsAreIgnored(t *testing.T) {
	w := newFull(t)
	for _, key := range []string{"cluster/zz", "meta/zz.json", "wal/zz", "wal/n1/zz/FENCE", "state/zz", "zz"} {
		w.put(key, []byte("x"))
	}
	if _, report := w.restore(); report.TailRecords != 4 {
		t.Fatalf("%+v", report)
	}
}

// The store fails at the k-th call, before or after its effect; the restore is
// run again, into another directory or the same, and ends with the same records
// and positions as one without trouble (B224).
func TestInterruptedAnywhere(t *testing.T) {
	calls := 0
	for k := 0; ; k++ {
		for _, action := range []fault.Action{fault.Fail, fault.LoseAnswer} {
			w := newFull(t)
			o := w.options()
			rule := w.fault.Add(fault.Rule{Skip: k, Times: 1, Do: action})
			_, err := restore.Run(context.Background(), o)
			if rule.Hits() == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if k < 20 {
					t.Fatalf("only %d calls were tried", k)
				}
				t.Logf("%d calls", k)
				return
			}
			calls++
			if err != nil {
				again, err := restore.Run(context.Background(), o)
				if err != nil {
					t.Fatalf("call %d: the second run: %v", k, err)
				}
				if again.TailRecords != 4 || again.Segments != 10 {
					t.Fatalf("call %d: %+v", k, again)
				}
			}
			e := w.entries(o.Dir)[w.id(0)]
			if e.PreviousEnd < 104 || e.Oldest != 0 || e.ArchivedEnd != 100 || !slices.Equal(e.Gaps, [][2]int64{{104, e.Start}}) {
				t.Fatalf("call %d: %+v", k, e.Partition)
			}
			if k%5 == 0 {
				if got := w.records(o.Dir, 0, 100); !slices.Equal(got, values(firstI, 1, 100, 104)) {
					t.Fatalf("call %d: %q", k, got)
				}
			}
		}
	}
}

// Without an archive's content there is nothing to restore, and it says what is
// missing.
func TestNothingToRestore(t *testing.T) {
	w := newWorld(t, 1)
	all := w.content()
	for _, prefix := range []string{"cluster/", "meta/"} {
		w.replace(w.keys(prefix)[0], nil)
		w.untouched(func() { w.refused(errcode.NotFound) })
		for k, v := range all {
			w.replace(k, []byte(v))
		}
	}
	o := w.options()
	o.TakeOver = false
	if _, err := restore.Run(context.Background(), o); !errcode.Is(err, errcode.InvalidArgument) {
		t.Fatal(err)
	}
	if !maps.Equal(all, w.content()) {
		t.Fatal("the archive was changed")
	}
}
