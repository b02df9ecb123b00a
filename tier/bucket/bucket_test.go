package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/sealed"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

func owner(gen uint32) manifest.Owner {
	return manifest.Owner{ClusterGeneration: 1, Generation: gen, Incarnation: 0x10 + uint64(gen), Node: "n1"}
}

func put(t testing.TB, st objstore.Store, key string, body []byte) {
	t.Helper()
	if err := st.Put(ctx, key, bytes.NewReader(body), int64(len(body)), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, st objstore.Store, key string) []byte {
	t.Helper()
	b, _, err := objstore.ReadAll(ctx, st, key, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// segmentOf builds a segment of [base, base+n) for one partition.
func segmentOf(t testing.TB, pid broker.PartitionID, base, n int64) (manifest.Segment, []byte) {
	t.Helper()
	var batches []sealed.Batch
	for o := base; o < base+n; o++ {
		batches = append(batches, sealed.Batch{
			Records: []broker.Record{{Offset: o, Timestamp: o, Value: []byte("value")}},
			Options: segment.BatchOptions{Generation: 1}, First: 1, Last: 1,
		})
	}
	return sealed.Object(t, pid, base, 1, uint32(base)+1, batches...)
}

// archive builds a bucket with two topics, one partition and three, four
// segments each, and one incarnation's shipped WAL.
func archive(t testing.TB) (*mem.Store, map[broker.PartitionID][]manifest.Segment) {
	t.Helper()
	st := mem.New("test", nil)
	all := make(map[broker.PartitionID][]manifest.Segment)
	for _, pid := range []broker.PartitionID{{Topic: 1, Partition: 0}, {Topic: 2, Partition: 0}, {Topic: 2, Partition: 1}, {Topic: 2, Partition: 2}} {
		c, err := manifest.Load(ctx, st, pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Fence(ctx, owner(1), manifest.FenceParams{}); err != nil {
			t.Fatal(err)
		}
		for i := range int64(4) {
			s, data := segmentOf(t, pid, 10*i, 10)
			put(t, st, s.Key(), data)
			if err := c.Add(ctx, owner(1), s); err != nil {
				t.Fatal(err)
			}
			all[pid] = append(all[pid], s)
		}
	}
	put(t, st, manifest.ClusterKey(1), []byte(`{"cluster":"a"}`))
	put(t, st, manifest.SnapshotKey(time.Unix(1_700_000_000, 0), 7), []byte(`{}`))
	put(t, st, manifest.WALOpenKey("n1", 5), []byte(`{}`))
	for i := range uint64(5) {
		put(t, st, manifest.WALKey("n1", 5, 100+10*i, 110+10*i), []byte("wal"))
	}
	put(t, st, manifest.StateKey("n1", 5, 140), []byte("state"))
	return st, all
}

func verify(t testing.TB, st objstore.Store, o Options) ([]Finding, Summary) {
	t.Helper()
	var out []Finding
	sum, err := Verify(ctx, st, o, func(f Finding) { out = append(out, f) })
	if err != nil {
		t.Fatal(err)
	}
	return out, sum
}

// A whole archive has nothing to report, and is counted right.
func TestVerifyWhole(t *testing.T) {
	st, _ := archive(t)
	for _, deep := range []bool{false, true} {
		decoded := 0
		d := Decoders{WAL: func(k manifest.Key, b []byte) (any, error) { decoded++; return nil, nil }}
		got, sum := verify(t, st, Options{Deep: deep, Decoders: d})
		if len(got) != 0 {
			t.Errorf("deep %v: %v", deep, got)
		}
		if sum.Topics != 2 || sum.Partitions != 4 || sum.Segments.Segments != 16 || sum.Segments.Records != 160 || sum.WALObjects != 5 || sum.States != 1 || (decoded == 5) != deep {
			t.Errorf("deep %v: %+v, %d decoded", deep, sum, decoded)
		}
	}
}

// Each kind of damage is found, named, and hides nothing else (B210, B218).
func TestVerifyFindsDamage(t *testing.T) {
	pid := broker.PartitionID{Topic: 2, Partition: 1}
	type env struct {
		st   *mem.Store
		segs []manifest.Segment
	}
	del := func(e env, key string) { _ = e.st.Delete(ctx, []string{key}) }
	change := func(t *testing.T, e env, key string, fn func([]byte) []byte) {
		put(t, e.st, key, fn(bytes.Clone(read(t, e.st, key))))
	}
	for name, x := range map[string]struct {
		damage func(t *testing.T, e env)
		want   What
		key    func(e env) string
		deep   bool
	}{
		"object missing": {func(t *testing.T, e env) { del(e, e.segs[0].Key()) }, ObjectMissing, func(e env) string { return e.segs[0].Key() }, false},
		"object short": {func(t *testing.T, e env) {
			change(t, e, e.segs[1].Key(), func(b []byte) []byte { return b[:len(b)-1] })
		}, ObjectSize, func(e env) string { return e.segs[1].Key() }, false},
		"object flipped": {func(t *testing.T, e env) {
			change(t, e, e.segs[2].Key(), func(b []byte) []byte { b[70] ^= 1; return b })
		}, ObjectCorrupt, func(e env) string { return e.segs[2].Key() }, true},
		"other object": {func(t *testing.T, e env) {
			_, other := segmentOf(t, pid, 30, 10)
			change(t, e, e.segs[2].Key(), func([]byte) []byte { return other })
		}, ObjectCorrupt, func(e env) string { return e.segs[2].Key() }, true},
		"entry missing":       {func(t *testing.T, e env) { del(e, manifest.EntryKey(pid, 3)) }, ChainBroken, func(env) string { return manifest.EntryKey(pid, 3) }, false},
		"first entry missing": {func(t *testing.T, e env) { del(e, manifest.EntryKey(pid, 1)) }, ChainBroken, func(env) string { return manifest.EntryKey(pid, 1) }, false},
		"entry flipped": {func(t *testing.T, e env) {
			change(t, e, manifest.EntryKey(pid, 2), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}, ChainBroken, func(env) string { return manifest.EntryKey(pid, 2) }, false},
		"entry of another partition": {func(t *testing.T, e env) {
			other := read(t, e.st, manifest.EntryKey(broker.PartitionID{Topic: 2, Partition: 2}, 2))
			change(t, e, manifest.EntryKey(pid, 2), func([]byte) []byte { return other })
		}, ChainBroken, func(env) string { return manifest.EntryKey(pid, 2) }, false},
		"entry rewritten": {func(t *testing.T, e env) {
			change(t, e, manifest.EntryKey(pid, 2), func(b []byte) []byte {
				entry, _, err := manifest.DecodeEntry(b)
				if err != nil {
					t.Fatal(err)
				}
				entry.TimeMS++
				out, _, err := manifest.EncodeEntry(entry)
				if err != nil {
					t.Fatal(err)
				}
				return out
			})
		}, ChainBroken, func(env) string { return manifest.EntryKey(pid, 3) }, false},
		"WAL hole":    {func(t *testing.T, e env) { del(e, manifest.WALKey("n1", 5, 120, 130)) }, WALHole, func(env) string { return manifest.WALKey("n1", 5, 130, 140) }, false},
		"not opened":  {func(t *testing.T, e env) { del(e, manifest.WALOpenKey("n1", 5)) }, NotOpened, func(env) string { return manifest.WALOpenKey("n1", 5) }, false},
		"unknown key": {func(t *testing.T, e env) { put(t, e.st, "t/readme.txt", nil) }, UnknownKey, func(env) string { return "t/readme.txt" }, false},
		"orphan": {func(t *testing.T, e env) { put(t, e.st, manifest.SegmentKey(pid, 40, 50, 1, 9), nil) }, Orphan,
			func(env) string { return manifest.SegmentKey(pid, 40, 50, 1, 9) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			st, all := archive(t)
			e := env{st, all[pid]}
			x.damage(t, e)
			got, _ := verify(t, st, Options{Deep: x.deep})
			if len(got) != 1 || got[0].What != x.want || got[0].Key != x.key(e) {
				t.Errorf("found %v, want one %q of %s", got, x.want, x.key(e))
			}
		})
	}
}

// down is a store whose reads fail.
type down struct{ objstore.Store }

func (down) Get(context.Context, string) (io.ReadCloser, objstore.Info, error) {
	return nil, objstore.Info{}, errcode.New(errcode.Transient, "no answer")
}

// A store that does not answer is not reported as damage (B214).
func TestVerifyUnreadable(t *testing.T) {
	st, _ := archive(t)
	got, sum := verify(t, down{st}, Options{})
	if sum.Problems != 4 || slices.ContainsFunc(got, func(f Finding) bool { return f.What != Unreadable }) {
		t.Errorf("%v", got)
	}
}

// looping ignores start-after, as a broken store may.
type looping struct{ objstore.Store }

func (l looping) List(ctx context.Context, prefix, after string, n int) (objstore.Page, error) {
	p, err := l.Store.List(ctx, prefix, "", 2)
	return p, err
}

// Lists are read to their end, whatever the page size (B220), and a list that
// does not move on is an error instead of a loop.
func TestWalkPages(t *testing.T) {
	st := mem.New("test", nil)
	for i := range uint64(2501) {
		put(t, st, manifest.MetaKey(1, i), nil)
	}
	for _, size := range []int{0, 7, 1000} {
		n := 0
		err := Walk(ctx, paged{st, size}, manifest.PrefixMeta, func(objstore.Info) error { n++; return nil })
		if err != nil || n != 2501 {
			t.Errorf("page size %d: %d of 2501 objects: %v", size, n, err)
		}
	}
	if err := Walk(ctx, looping{st}, manifest.PrefixMeta, func(objstore.Info) error { return nil }); !errcode.Is(err, errcode.Corrupt) {
		t.Errorf("a list that repeats itself: %v", err)
	}
}

type paged struct {
	objstore.Store
	size int
}

func (p paged) List(ctx context.Context, prefix, after string, n int) (objstore.Page, error) {
	if n == 0 {
		n = p.size
	}
	return p.Store.List(ctx, prefix, after, n)
}

// The listing names what there is, one broken chain included.
func TestList(t *testing.T) {
	st, _ := archive(t)
	put(t, st, manifest.EntryKey(broker.PartitionID{Topic: 2, Partition: 1}, 6), []byte("garbage"))
	put(t, st, manifest.TombstoneKey(1), nil)
	l, err := List(ctx, st)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, topic := range l.Topics {
		for _, p := range topic.Partitions {
			got = append(got, fmt.Sprintf("%d/%d deleted=%v seq=%d end=%d segments=%d err=%v", topic.ID, p.ID.Partition, topic.Deleted, p.Seq, p.End, p.Totals.Segments, errcode.Is(p.Err, errcode.Corrupt)))
		}
	}
	want := []string{
		"1/0 deleted=true seq=5 end=40 segments=4 err=false",
		"2/0 deleted=false seq=5 end=40 segments=4 err=false",
		"2/1 deleted=false seq=0 end=0 segments=0 err=true",
		"2/2 deleted=false seq=5 end=40 segments=4 err=false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("topics:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(l.Nodes) != 1 || l.Nodes[0].First != 100 || l.Nodes[0].Next != 150 || !l.Nodes[0].Open || l.Nodes[0].Fenced || l.Nodes[0].Objects != 5 || l.Nodes[0].State != 140 {
		t.Errorf("nodes %+v", l.Nodes)
	}
	if len(l.Clusters) != 1 || len(l.Snapshots) != 1 {
		t.Errorf("%d clusters, %d snapshots", len(l.Clusters), len(l.Snapshots))
	}
}

// Every kind of object can be inspected and printed.
func TestInspect(t *testing.T) {
	st, all := archive(t)
	pid := broker.PartitionID{Topic: 2, Partition: 1}
	d := Decoders{WAL: func(k manifest.Key, b []byte) (any, error) { return map[string]string{"wal": string(b)}, nil }}
	for key, part := range map[string]string{
		manifest.EntryKey(pid, 2):                            `"seq":2`,
		all[pid][0].Key():                                    `"DataLength"`,
		manifest.ClusterKey(1):                               `"cluster":"a"`,
		manifest.WALKey("n1", 5, 100, 110):                   `"wal":"wal"`,
		manifest.StateKey("n1", 5, 140):                      `"kind":"state"`,
		manifest.WALOpenKey("n1", 5):                         `"kind":"wal-open"`,
		manifest.SnapshotKey(time.Unix(1_700_000_000, 0), 7): `"kind":"snapshot"`,
	} {
		v, err := Inspect(ctx, st, key, d)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		b, err := json.Marshal(v)
		if err != nil || !strings.Contains(string(b), part) {
			t.Errorf("%s: %s: %v", key, b, err)
		}
	}
	if _, err := Inspect(ctx, st, "../etc/passwd", d); !errcode.Is(err, errcode.InvalidArgument) {
		t.Errorf("foreign key: %v", err)
	}
	if _, err := Inspect(ctx, st, manifest.EntryKey(pid, 99), d); !errcode.Is(err, errcode.NotFound) {
		t.Errorf("absent key: %v", err)
	}
}
