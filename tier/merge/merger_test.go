package merge

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// A run becomes one segment with the same bytes of batches, generations and
// times; its inputs are handed on once; nothing is left on the disk; a second turn
// asks the archive nothing, and no object is put under a key twice (T7, T9).
func TestRunBecomesOneSegment(t *testing.T) {
	for name, keep := range map[string]bool{"local files": true, "objects": false} {
		t.Run(name, func(t *testing.T) {
			store := mem.New("test", nil)
			calls := count.New(store)
			w := newWorld(t, calls, store)
			var in []manifest.Segment
			want := ""
			for range 12 {
				x := w.add(10, 30, keep)
				in, want = append(in, x), want+w.data(x)
			}
			m := w.merger(nil)
			before := calls.Count("get_range")
			turn(t, m)
			segs := w.complete(0)
			if len(segs) != 1 || w.data(segs[0]) != want || segs[0].Base != 0 || segs[0].Next != 120 || segs[0].FirstGeneration != 1 || segs[0].LastGeneration != 3 || segs[0].Generation != 3 {
				t.Fatalf("%+v", segs)
			}
			if !slices.Equal(w.discarded, in) {
				t.Fatalf("%d segments are discarded, want the 12 that were merged", len(w.discarded))
			}
			// The archive is read only for what is not here, once for each input; two
			// reads more are the output, its end and all of it.
			reads := 2 + 12
			if keep {
				reads = 2
			}
			if n := calls.Count("get_range") - before; n != reads {
				t.Errorf("%d reads of the archive, want %d", n, reads)
			}
			if n := calls.Calls()[count.Call{Op: "put", Cause: objstore.CauseMerge}]; n != 1 {
				t.Errorf("%d objects were put for merges, want 1", n)
			}
			if names, err := w.disk.List("merge"); err == nil {
				t.Errorf("%q are left on the disk", names)
			}
			all := len(calls.Transcript())
			turn(t, m)
			if len(calls.Transcript()) != all || w.count("outputs_total", "") != 1 || w.count("inputs_total", "") != 12 || w.count("bytes_total", "") != float64(segs[0].Bytes) {
				t.Error("a second turn did something")
			}
			if w.count("skipped_total", noRun) == 0 {
				t.Error("a look that merged nothing has no reason")
			}
			for _, key := range []string{segs[0].Key(), in[0].Key()} {
				if m.InUse(key) {
					t.Errorf("%s is still in use", key)
				}
			}
		})
	}
}

// A local file that differs from its object is not believed, the object is read;
// an object that is damaged, or gone, bars its segment and nothing else, and the
// merge of the others goes on: no damaged byte gets into an output (T9).
func TestDamagedInputs(t *testing.T) {
	store := mem.New("test", nil)
	w := newWorld(t, store, store)
	for range 5 {
		w.add(10, 30, true)
	}
	f, err := w.disk.OpenReadWrite(w.local[20].Path, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("X"), 90); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	m := w.merger(nil)
	turn(t, m)
	if segs := w.complete(0); len(segs) != 1 {
		t.Fatalf("%d segments", len(segs))
	}

	for name, change := range map[string]func(*world, manifest.Segment){
		"gone": func(w *world, x manifest.Segment) {
			if err := w.real.Delete(context.Background(), []string{x.Key()}); err != nil {
				t.Fatal(err)
			}
		},
		"one byte": func(w *world, x manifest.Segment) {
			spoil(t, w.real, x.Key(), func(b []byte) []byte { b[100]++; return b })
		},
		"short": func(w *world, x manifest.Segment) {
			spoil(t, w.real, x.Key(), func(b []byte) []byte { return b[:x.DataLength/2] })
		},
		// Whole batches, and others than the chain names.
		"another's": func(w *world, x manifest.Segment) {
			spoil(t, w.real, x.Key(), func(b []byte) []byte { return append([]byte(w.data(x)[:x.DataLength/5*4]), b[x.DataLength/5*4:]...) })
			other := []byte(w.data(x))
			other[15]++ // the generation, which the batch's own checksum does not cover
			spoil(t, w.real, x.Key(), func(b []byte) []byte { return append(other, b[x.DataLength:]...) })
		},
		// Batches that verify, in an order that is right: the sum alone tells.
		"another generation": func(w *world, x manifest.Segment) {
			last, data := int64(0), w.data(x)
			for scan := segment.NewScanner("x", strings.NewReader(data), 0, x.DataLength, nil); scan.Pos() < x.DataLength; {
				last = scan.Pos()
				if _, _, err := scan.Next(); err != nil {
					t.Fatal(err)
				}
			}
			spoil(t, w.real, x.Key(), func(b []byte) []byte { b[last+15]++; return b })
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := mem.New("test", nil)
			w := newWorld(t, store, store)
			var in []manifest.Segment
			for range 10 {
				in = append(in, w.add(10, 30, false))
			}
			at, left := 5, 3 // a run before it, and one behind
			if name == "another generation" {
				at, left = 3, 5 // the next one has the higher generation; before it are too few
			}
			change(w, in[at])
			m := w.merger(nil)
			turn(t, m)
			if len(w.listed()) != 10 {
				t.Fatal("merged after one answer that was wrong")
			}
			turn(t, m)
			turn(t, m)
			segs := w.listed()
			if len(segs) != left || !slices.Contains(segs, in[at]) {
				t.Fatalf("%+v", segs)
			}
			if n := w.count("skipped_total", damaged); n != barredAt {
				t.Errorf("the damaged segment was read %v times", n)
			}
		})
	}
}

// Nothing is merged while the node is hindered, or while a local copy waits to be
// compared with the object that the chain names (I6); both end by themselves.
func TestWaitsForItsTime(t *testing.T) {
	store := mem.New("test", nil)
	calls := count.New(store)
	w := newWorld(t, calls, store)
	for range 5 {
		w.add(10, 30, true)
	}
	m := w.merger(nil)
	w.hindrance = "the disk is short"
	before := len(calls.Transcript())
	turn(t, m)
	w.hindrance = ""
	w.local[20] = Copy{Path: w.local[20].Path}
	turn(t, m)
	if len(w.listed()) != 5 || len(calls.Transcript()) != before {
		t.Fatal("merged all the same")
	}
	if w.count("skipped_total", hindered) != 1 || w.count("skipped_total", unsettled) != 1 {
		t.Error("the reasons are not counted")
	}
	w.local[20] = Copy{Path: w.local[20].Path, Settled: true}
	turn(t, m)
	if len(w.complete(0)) != 1 {
		t.Fatal("not merged")
	}
}

// A chain that changes between the choice and the replace keeps what it says: the
// trim stands, the output is named by nothing, and the next turn begins anew from
// the new list (T8, T11). Another owner's fence ends merging.
func TestChainChangesMeanwhile(t *testing.T) {
	store := mem.New("test", nil)
	hook := &onPut{Store: store}
	w := newWorld(t, hook, store)
	for range 10 {
		w.add(10, 30, false)
	}
	m := w.merger(nil)
	var output string
	hook.before = func(key string) {
		hook.before = nil
		output = key
		if !m.InUse(key) {
			t.Error("the output is nobody's while it is sent")
		}
		if _, err := w.chain.Trim(context.Background(), owner, 15); err != nil {
			t.Error(err)
		}
	}
	turn(t, m)
	if segs := w.complete(15); len(segs) != 2 && len(segs) != 9 || segs[0].Next != 20 {
		t.Fatalf("%+v", segs)
	}
	if m.InUse(output) || slices.ContainsFunc(w.listed(), func(x manifest.Segment) bool { return x.Key() == output }) {
		t.Error("the output of the old list is named, or kept")
	}
	turn(t, m)
	if segs := w.complete(15); len(segs) != 2 || segs[0].Next != 20 || segs[1].Next != 100 {
		t.Fatalf("%+v", segs)
	}

	for range 10 {
		w.add(10, 30, false)
	}
	n := len(w.listed())
	hook.before = func(string) {
		hook.before = nil
		c, err := manifest.Load(context.Background(), store, pid, 0)
		if err == nil {
			_, err = c.Fence(context.Background(), manifest.Owner{ClusterGeneration: 1, Generation: 4, Incarnation: 0x88, Node: "n2"}, manifest.FenceParams{})
		}
		if err != nil {
			t.Error(err)
		}
	}
	turn(t, m)
	if len(w.complete(15)) != n || w.count("skipped_total", fenced) != 1 {
		t.Fatal("a fenced owner merged")
	}
}

// Options that make no sense are refused, all at once.
func TestOptions(t *testing.T) {
	_, err := New(Options{Interval: -1, MinSegments: 1, TargetBytes: -1, BytesPerSecond: -1})
	if !errcode.Is(err, errcode.InvalidArgument) {
		t.Fatal(err)
	}
	for _, part := range []string{"FS, Dir and Store", "Partitions, Chain", "interval", "run of 1", "output", "per second"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in %v", part, err)
		}
	}
}
