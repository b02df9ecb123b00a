package restore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
	"github.com/tidemark-mq/tidemark/node/frame"
	"github.com/tidemark-mq/tidemark/node/restore"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
)

// What was written before the claim is kept only if the archive is the same behind
// it. Whatever the old cluster still adds between the two looks, or somebody deletes,
// the restore has it as one that began afterwards would (I4, I7, I16). Where nothing
// changed, no object of the log is read a second time.
func TestArchiveThatChangesBeforeTheClaim(t *testing.T) {
	ctx := context.Background()
	owner := manifest.Owner{ClusterGeneration: 1, Generation: 1, Incarnation: firstI, Node: nodeID}
	for name, c := range map[string]struct {
		change func(t *testing.T, w *world, wr *writer)
		again  bool // the log is read again
	}{
		"nothing": {func(*testing.T, *world, *writer) {}, false},
		"an incarnation that opens and ships nothing": {func(_ *testing.T, w *world, _ *writer) {
			w.put(manifest.WALOpenKey(nodeID, 0x2222), archive.Open{Node: nodeID, Incarnation: 0x2222, ClusterGeneration: 1, FirstLSN: 1, TimeMS: 2}.Encode())
		}, false},
		"log": {func(_ *testing.T, w *world, wr *writer) {
			wr.records(w.id(1), 1, 5, 3)
			wr.ack(w.id(0), 1, 0, 4)
			wr.ship()
		}, true},
		"a state object": {func(_ *testing.T, w *world, wr *writer) {
			wr.state(archive.State{LSN: wr.shipped, ReplayFrom: 1, Partitions: []archive.PartitionState{
				{Topic: w.topic.ID, Generation: 1, GroupLSN: wr.shipped}, {Topic: w.topic.ID, Partition: 1, Generation: 1, GroupLSN: wr.shipped}}})
		}, true},
		"a segment": {func(t *testing.T, w *world, _ *writer) {
			chain, err := manifest.Load(ctx, w.mem, w.id(0), 0)
			if err == nil {
				err = chain.Add(ctx, owner, w.segment(0, 20, 23))
			}
			if err != nil {
				t.Error(err)
			}
		}, true},
		"a trim": {func(t *testing.T, w *world, _ *writer) {
			chain, err := manifest.Load(ctx, w.mem, w.id(0), 0)
			if err == nil {
				_, err = chain.Trim(ctx, owner, 10)
			}
			if err != nil {
				t.Error(err)
			}
		}, true},
		"metadata": {func(t *testing.T, w *world, _ *writer) {
			if err := w.meta.PutSetting(ctx, "k", "v"); err != nil {
				t.Error(err)
			}
			w.export()
		}, true},
		"a deleted topic": {func(_ *testing.T, w *world, _ *writer) {
			w.put(manifest.TombstoneKey(w.topic.ID), archive.Tombstone{Topic: w.topic.ID}.Encode())
		}, true},
		"an incarnation that ships": {func(_ *testing.T, w *world, _ *writer) {
			late := w.writer(0x2222, 1, 2)
			late.base(frame.Base{Partition: w.id(1), Generation: 1})
			late.records(w.id(1), 1, 5, 2)
			late.ship()
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.segments(0, 2, 10)
			wr := w.writer(firstI, 1, 1)
			for p, base := range []int64{20, 0} {
				wr.base(frame.Base{Partition: w.id(uint32(p)), Generation: 1})
				wr.records(w.id(uint32(p)), 1, base, 5)
			}
			wr.ship()
			wr.ack(w.id(1), 1, 0, 2)
			wr.records(w.id(0), 1, 25, 1)
			wr.ship()

			reads := w.fault.Add(fault.Rule{Ops: []string{fault.Get}, Key: "*.ship", Do: fault.Pass})
			objects := 2
			o := w.options()
			o.Store = before{w.fault, func(op, key string) {
				if op == "put" && key == manifest.ClusterKey(2) {
					c.change(t, w, wr)
				}
			}}
			report, err := restore.Run(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			if got := reads.Hits() > objects; got != c.again {
				t.Fatalf("%d objects were read %d times", objects, reads.Hits())
			}
			// One that begins behind the change finds the same.
			dir, want := w.restore()
			if report.Replayed.Damaged = nil; !reflect.DeepEqual(report.Replayed, want.Replayed) {
				t.Fatalf("%+v, a restore that began later has %+v", report.Replayed, want.Replayed)
			}
			if report.Topics != want.Topics || report.Segments != want.Segments {
				t.Fatalf("%+v, a restore that began later has %+v", report.Plan, want.Plan)
			}
			got, other := w.entries(o.Dir), w.entries(dir)
			if len(got) != len(other) {
				t.Fatalf("%d partitions, a restore that began later has %d", len(got), len(other))
			}
			for id, e := range got {
				// Of the later one they are a generation further, behind one more gap.
				l := other[id]
				if e.Oldest != l.Oldest || e.ArchivedEnd != l.ArchivedEnd || e.PreviousEnd != l.Gaps[0][0] || !reflect.DeepEqual(e.Active, l.Active) && e.Active.Base != l.Active.Base {
					t.Fatalf("partition %s: %+v, a restore that began later has %+v", id, e.Partition, l.Partition)
				}
				if id.Partition == 1 && len(e.Groups) > 0 && !slices.EqualFunc(e.Groups, l.Groups, func(a, b []byte) bool { return group(t, e).Committed == group(t, l).Committed }) {
					t.Fatalf("partition %s: groups %q, a restore that began later has %q", id, e.Groups, l.Groups)
				}
			}
			if report.Topics == 0 {
				return
			}
			for p := range uint32(2) {
				from := got[w.id(p)].ArchivedEnd // the segments' objects are not there
				if a, b := w.records(o.Dir, p, from), w.records(dir, p, from); !slices.Equal(a, b) || len(a) == 0 && name != "a segment" {
					t.Fatalf("partition %d: %q, a restore that began later has %q", p, a, b)
				}
			}
		})
	}
}

// A disk that is full or fails is found before the old cluster is ended: while one
// partition's records do not get into its files, those of others do, and the
// restore ends, changes nothing in the bucket, names the partition and leaves
// nothing on the disk (I1, I5).
func TestDiskThatFailsBeforeTheClaim(t *testing.T) {
	const partitions, objects = 19, 4
	w := newWorld(t, partitions)
	wr := w.writer(firstI, 1, 1)
	for o := range int64(objects) {
		for p := range uint32(partitions) {
			wr.records(w.id(p), 1, 3*o, 3)
		}
		wr.ship()
	}
	for _, c := range []struct {
		op   errorfs.OpKind
		err  error
		code errcode.Code
		at   string
	}{
		{errorfs.OpFileWriteAt, syscall.ENOSPC, errcode.Storage, "7"},
		{errorfs.OpFileWriteAt, syscall.EIO, errcode.Storage, "18"},
		{errorfs.OpFileSyncData, syscall.EIO, errcode.Poisoned, "7"},
		{errorfs.OpOpen, syscall.EMFILE, errcode.Storage, "0"},
		{errorfs.OpMkdirAll, syscall.ENOSPC, errcode.Storage, "3"},
	} {
		o := w.options()
		bad := filepath.Join("topics", w.topic.ID.String(), c.at)
		var hit atomic.Bool
		o.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == c.op && (strings.Contains(op.Path, bad+"/") || strings.HasSuffix(op.Path, bad)) {
				hit.Store(true)
				return c.err
			}
			return nil
		}))
		w.untouched(func() {
			if _, err := restore.Run(context.Background(), o); !errcode.Is(err, c.code) || !errors.Is(err, c.err) || !strings.Contains(fmt.Sprint(err), filepath.Join(w.topic.ID.String(), c.at)) {
				t.Fatalf("%v at %v: %v", c.err, c.op, err)
			}
		})
		if !hit.Load() {
			t.Fatalf("%v at %v did not come", c.err, c.op)
		}
		for _, dir := range []string{o.Dir, o.Dir + ".restoring"} {
			if names, err := vfs.Default.List(dir); err == nil {
				t.Fatalf("%v at %v: %s is there: %v", c.err, c.op, dir, names)
			}
		}
	}
	dir, report := w.restore()
	if report.TailRecords != 3*partitions*objects {
		t.Fatalf("%+v", report)
	}
	for p := range uint32(partitions) {
		if got, want := w.records(dir, p, 0), values(firstI, 1, 0, 3*objects); !slices.Equal(got, want) {
			t.Fatalf("partition %d: %q, want %q", p, got, want)
		}
	}
}

// Any one call on the file system fails, before the claim or behind it, while
// lanes write beside each other: the restore says so, or did not need that call; a
// bucket without a claim was not touched, a directory is there only complete, and
// the same restore run again has every record (I1, I5, I16).
func TestDiskThatFailsAnywhere(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 3
	}
	const partitions = 5
	failed, claimed := 0, 0
	for k := 0; ; k += step {
		w := newWorld(t, partitions)
		wr := w.writer(firstI, 1, 1)
		for o := range int64(3) {
			for p := range uint32(partitions) {
				wr.records(w.id(p), 1, 3*o, 3)
			}
			wr.ack(w.id(1), 1, o, 1)
			wr.ship()
		}
		o := w.options()
		calls, hit := 0, ""
		var mu sync.Mutex
		o.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			// The databases' own files, and the name of the local state's directory, which
			// its database syncs too, are package state's and raftmeta's business: a database
			// whose sync failed leaves its goroutine standing.
			if strings.HasSuffix(op.Path, ".restoring") || op.Kind.ReadOrWrite() == errorfs.OpIsRead || strings.Contains(op.Path, "/state") || op.Kind == errorfs.OpFileClose {
				return nil
			}
			if calls++; calls == k+1 {
				hit = fmt.Sprintf("%v %s", op.Kind, op.Path)
				return syscall.EIO
			}
			return nil
		}))
		content := w.content()
		report, err := restore.Run(context.Background(), o)
		if hit == "" {
			if err != nil {
				t.Fatal(err)
			}
			if failed < 5 || claimed == 0 || claimed == failed {
				t.Fatalf("%d of %d calls failed the restore, %d of them behind the claim", failed, calls, claimed)
			}
			return
		}
		dir := o.Dir
		if err != nil {
			failed++
			if len(w.keys("cluster/")) > 1 {
				claimed++
			} else if !reflect.DeepEqual(content, w.content()) {
				t.Fatalf("%s: the archive was changed before the claim", hit)
			}
			if names, lerr := vfs.Default.List(o.Dir); lerr == nil && len(names) > 0 && !strings.HasSuffix(hit, filepath.Dir(o.Dir)) { // the sync behind the rename
				t.Fatalf("%s: a restore that failed left %v", hit, names)
			}
			o.FS = nil
			if names, _ := vfs.Default.List(o.Dir); len(names) > 0 {
				o.Dir += "-again" // all but the name of the directory was durable
				dir = o.Dir
			}
			if report, err = restore.Run(context.Background(), o); err != nil {
				t.Fatalf("%s: the second run: %v", hit, err)
			}
		}
		if report.TailRecords != 9*partitions {
			t.Fatalf("%s: %+v", hit, report)
		}
		for p := range uint32(partitions) {
			if got, want := w.records(dir, p, 0), values(firstI, 1, 0, 9); !slices.Equal(got, want) {
				t.Fatalf("%s: partition %d: %q, want %q", hit, p, got, want)
			}
		}
		if g := group(t, w.entries(dir)[w.id(1)]); g.Committed != 3 {
			t.Fatalf("%s: %+v", hit, g)
		}
	}
}
