package upload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Segments of several partitions are archived, each partition in offset order,
// and archiving one costs a PUT for the object and one for the entry, without
// a LIST or HEAD.
func TestArchivesInOrder(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	n := newNode(s)
	u := start(t, fs, n, nil)
	for p := range uint32(3) {
		id := broker.PartitionID{Topic: pid.Topic, Partition: p}
		for i := range int64(5) {
			enqueue(t, u, id, seal(t, fs, id, 10*i, 10, 100))
		}
	}
	got := n.wait(t, 15)
	for p := range 3 {
		var mine []string
		for _, e := range got {
			if strings.HasPrefix(e, fmt.Sprintf("archived %d/", p)) {
				mine = append(mine, e)
			}
		}
		if !slices.IsSortedFunc(mine, strings.Compare) || len(mine) != 5 {
			t.Errorf("partition %d: %q", p, mine)
		}
	}
	if err := u.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if objects := s.count("PUT", "/s/"); objects != 15 {
		t.Errorf("%d PUTs of objects, want 15", objects)
	}
	// 3 fences, and at most one entry a segment: one may add several.
	if entries := s.count("PUT", "/m/"); entries > 18 {
		t.Errorf("%d PUTs of entries, want at most 18", entries)
	}
	if list, head, gets := s.count("LIST", ""), s.count("HEAD", ""), s.count("GET", ""); list+head > 0 || gets != 3+s.count("PUT", "/m/") {
		t.Errorf("%d LIST, %d HEAD, %d GET, want 0, 0 and one GET for each Load and each entry", list, head, gets)
	}
}

// A put without an answer, whether it took effect or not, ends in one object
// and one entry (B191, B192).
func TestLostAnswers(t *testing.T) {
	for _, effect := range []bool{false, true} {
		for _, part := range []string{"/s/", "/m/"} {
			t.Run(fmt.Sprintf("effect=%v%s", effect, part), func(t *testing.T) {
				fs, s := vfs.NewMem(), newStore()
				n := newNode(s)
				if _, err := n.Chain(context.Background(), pid); err != nil {
					t.Fatal(err)
				}
				left := 3
				s.setHook(func(op, key string) (bool, error) {
					if op == "PUT" && strings.Contains(key, part) && left > 0 {
						left--
						return effect, errcode.New(errcode.Transient, "connection reset")
					}
					return true, nil
				})
				u := start(t, fs, n, nil)
				enqueue(t, u, pid, seal(t, fs, pid, 0, 10, 10), seal(t, fs, pid, 10, 10, 10))
				if got := n.wait(t, 2); !slices.Equal(got, []string{"archived 1/0-10", "archived 1/10-20"}) {
					t.Fatalf("events %q", got)
				}
				page, err := s.Store.List(context.Background(), manifest.PartitionPrefix(pid)+"s/", "", 0)
				if err != nil || len(page.Objects) != 2 {
					t.Fatalf("%d objects, want 2: %v", len(page.Objects), err)
				}
				c, err := manifest.Load(context.Background(), s.Store, pid, 0)
				if err != nil || c.End() != 20 || c.Len() != 2 {
					t.Fatalf("chain ends at %d with %d segments: %v", c.End(), c.Len(), err)
				}
			})
		}
	}
}

// A flipped byte in a sealed file is not uploaded as good, whatever the store
// checks; its partition stops with an error that names the file, another one
// goes on (B199).
func TestFlippedByteStopsPartition(t *testing.T) {
	for _, where := range []string{"first", "last"} {
		t.Run(where, func(t *testing.T) {
			fs, s := vfs.NewMem(), newStore()
			n := newNode(s)
			bad := seal(t, fs, pid, 0, 10, 100)
			flip(t, fs, bad.Path, map[string]int64{"first": 0, "last": bad.Info.Bytes - 1}[where])
			u := start(t, fs, n, nil)
			enqueue(t, u, pid, bad, seal(t, fs, pid, 10, 10, 100))
			if got := n.wait(t, 1); got[0] != "stopped 1/0 corrupt "+bad.Path {
				t.Fatalf("events %q", got)
			}
			other := broker.PartitionID{Topic: pid.Topic, Partition: 2}
			enqueue(t, u, other, seal(t, fs, other, 0, 10, 10))
			if got := n.wait(t, 2); got[1] != "archived 2/0-10" {
				t.Fatalf("events %q", got)
			}
			st, ok := u.Status(pid)
			if !ok || !st.Stopped || st.Queued != 2 || !errcode.Is(st.Err, errcode.Corrupt) || !strings.Contains(st.Err.Error(), bad.Path) {
				t.Errorf("status %+v", st)
			}
			seg := manifest.SegmentKey(pid, 0, 10, 1, 0)[:60]
			page, _ := s.Store.List(context.Background(), manifest.PartitionPrefix(pid)+"s/", "", 0)
			for _, o := range page.Objects {
				if strings.HasPrefix(o.Key, seg) && strings.Contains(o.Key, "/00000000000000000000-") {
					t.Errorf("the damaged segment is in the store as %s", o.Key)
				}
			}
			if c := n.chains[pid]; c.End() != 0 {
				t.Errorf("chain ends at %d, want 0", c.End())
			}
		})
	}
}

func flip(t *testing.T, fs vfs.FS, path string, at int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// A missing file stops its partition with the name; Resume goes on once it is
// back.
func TestMissingFile(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	n := newNode(s)
	seg := seal(t, fs, pid, 0, 10, 10)
	if err := fs.Rename(seg.Path, seg.Path+".away"); err != nil {
		t.Fatal(err)
	}
	u := start(t, fs, n, nil)
	enqueue(t, u, pid, seg)
	if got := n.wait(t, 1); got[0] != "stopped 1/0 not_found "+seg.Path {
		t.Fatalf("events %q", got)
	}
	if err := fs.Rename(seg.Path+".away", seg.Path); err != nil {
		t.Fatal(err)
	}
	u.Resume(pid)
	if got := n.wait(t, 2); got[1] != "archived 1/0-10" {
		t.Fatalf("events %q", got)
	}
}

// What is done before a put fails once: opening the file, or loading the chain.
// The segment is tried again, what stands behind it follows in order, and the
// failure counts once (B200).
func TestFailedPreparation(t *testing.T) {
	for _, what := range []string{"open", "chain"} {
		t.Run(what, func(t *testing.T) {
			mem, s := vfs.NewMem(), newStore()
			var failed atomic.Bool
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if what == "open" && op.Kind == errorfs.OpOpen && failed.CompareAndSwap(false, true) {
					return syscall.EMFILE
				}
				return nil
			}))
			n := newNode(s)
			if what == "chain" {
				s.setHook(func(op, key string) (bool, error) {
					if failed.CompareAndSwap(false, true) {
						return false, errcode.New(errcode.Transient, "no answer")
					}
					return true, nil
				})
			}
			reg := prometheus.NewPedanticRegistry()
			u := start(t, fs, n, func(c *Config) { c.Registry = reg })
			enqueue(t, u, pid, seal(t, mem, pid, 0, 10, 10), seal(t, mem, pid, 10, 10, 10), seal(t, mem, pid, 20, 10, 10))
			if got := n.wait(t, 3); !slices.Equal(got, []string{"archived 1/0-10", "archived 1/10-20", "archived 1/20-30"}) {
				t.Fatalf("events %q", got)
			}
			if !failed.Load() {
				t.Fatal("nothing failed")
			}
			page, err := s.Store.List(context.Background(), manifest.PartitionPrefix(pid)+"s/", "", 0)
			if err != nil || len(page.Objects) != 3 {
				t.Errorf("%d objects, want 3: %v", len(page.Objects), err)
			}
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			failures := 0.0
			for _, f := range families {
				if f.GetName() == "tidemark_archive_upload_failures_total" {
					for _, m := range f.GetMetric() {
						failures += m.GetCounter().GetValue()
					}
				}
			}
			if failures != 1 {
				t.Errorf("%v failures counted, want 1", failures)
			}
			if st, ok := u.Status(pid); ok && (st.Err != nil || st.Queued != 0) {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// While the store refuses, nothing spins: tries grow apart, the error is shown,
// and the queue is archived once the store is back.
func TestOutage(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	n := newNode(s)
	if _, err := n.Chain(context.Background(), pid); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	tries := 0
	enough := make(chan struct{})
	s.setHook(func(op, key string) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries == 12 {
			close(enough)
		}
		return false, errcode.New(errcode.Throttled, "slow down")
	})
	reg := prometheus.NewRegistry()
	begin := time.Now()
	u := start(t, fs, n, func(c *Config) {
		c.Registry = reg
		c.Backoff = 4 * time.Millisecond
		c.MaxBackoff = 8 * time.Millisecond
	})
	enqueue(t, u, pid, seal(t, fs, pid, 0, 10, 10))
	<-enough
	if d := time.Since(begin); d < 11*time.Millisecond {
		t.Errorf("12 tries in %s: every wait is at least a millisecond", d)
	}
	st, _ := u.Status(pid)
	if st.Failures == 0 || !errcode.Is(st.Err, errcode.Throttled) || st.Oldest != 0 || st.Bytes == 0 {
		t.Errorf("status %+v", st)
	}
	s.setHook(nil)
	n.wait(t, 1)
	if err := u.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Losing the partition ends its uploads with one callback, and the object that
// was on its way is named by nothing (I8).
func TestFenced(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	n := newNode(s)
	ctx := context.Background()
	if _, err := n.Chain(ctx, pid); err != nil {
		t.Fatal(err)
	}
	other, err := manifest.Load(ctx, s.Store, pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	next := manifest.Owner{ClusterGeneration: 1, Generation: 2, Incarnation: 0x88, Node: "n2"}
	if _, err := other.Fence(ctx, next, manifest.FenceParams{}); err != nil {
		t.Fatal(err)
	}
	// Nothing is put before both segments wait: one that comes after the fence
	// was seen would open a new queue, with a callback of its own.
	queued := make(chan struct{})
	s.setHook(func(op, _ string) (bool, error) {
		if op == "PUT" {
			<-queued
		}
		return true, nil
	})
	u := start(t, fs, n, nil)
	enqueue(t, u, pid, seal(t, fs, pid, 0, 10, 10), seal(t, fs, pid, 10, 10, 10))
	close(queued)
	if got := n.wait(t, 1); got[0] != "fenced 1" {
		t.Fatalf("events %q", got)
	}
	if _, ok := u.Status(pid); ok {
		t.Error("the queue is still there")
	}
	if _, err := other.Refresh(ctx); err != nil || other.Len() != 0 {
		t.Errorf("chain has %d segments: %v", other.Len(), err)
	}
}

// After a restart the object of a recorded attempt is adopted when it holds the
// sealed bytes, and left alone when it does not.
func TestRecordedAttempt(t *testing.T) {
	for _, good := range []bool{true, false} {
		t.Run(fmt.Sprintf("good=%v", good), func(t *testing.T) {
			fs, s := vfs.NewMem(), newStore()
			ctx := context.Background()
			seg := seal(t, fs, pid, 0, 10, 10)
			seg.Attempt = &Attempt{Generation: 1, Nonce: 0xabc}
			key := segmentOf(pid, &seg, *seg.Attempt).Key()
			data := readFile(t, fs, seg.Path)
			if !good {
				data += "x"
			}
			if err := s.Store.Put(ctx, key, strings.NewReader(data), int64(len(data)), createOnly); err != nil {
				t.Fatal(err)
			}
			n := newNode(s)
			u := start(t, fs, n, nil)
			enqueue(t, u, pid, seg)
			n.wait(t, 1)
			if adopted := n.segs[0].Key() == key; adopted != good {
				t.Errorf("archived as %s, adopted=%v, want %v", n.segs[0].Key(), adopted, good)
			}
			if err := u.Close(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A segment that an entry names already is archived without an upload; one
// that straddles the chain's end stops the partition, one that lies below it
// in another shape is reported as not confirmed (B196).
func TestCoveredByChain(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	ctx := context.Background()
	n := newNode(s)
	first := seal(t, fs, pid, 0, 10, 10)
	u := start(t, fs, n, nil)
	enqueue(t, u, pid, first)
	n.wait(t, 1)
	if err := u.Close(ctx); err != nil {
		t.Fatal(err)
	}
	objects := s.count("PUT", "/s/")

	u = start(t, fs, n, nil)
	enqueue(t, u, pid, first)
	if got := n.wait(t, 2); got[1] != "archived 1/0-10" {
		t.Fatalf("events %q", got)
	}
	part := first
	part.Info.Next, part.Info.Records = 5, 5
	enqueue(t, u, pid, part)
	if got := n.wait(t, 3); got[2] != "covered 1/0-5" {
		t.Fatalf("events %q", got)
	}
	wide := seal(t, vfs.NewMem(), pid, 5, 10, 10)
	enqueue(t, u, pid, wide)
	if got := n.wait(t, 4); got[3] != "stopped 1/5 conflict "+wide.Path {
		t.Fatalf("events %q", got)
	}
	if got := s.count("PUT", "/s/"); got != objects {
		t.Errorf("%d more objects were put", got-objects)
	}
}

// Close drains what it can and says what is left when the time is over.
func TestCloseDrainsOrTells(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	n := newNode(s)
	u := start(t, fs, n, nil)
	for i := range int64(8) {
		enqueue(t, u, pid, seal(t, fs, pid, 10*i, 10, 10))
	}
	if err := u.Close(context.Background()); err != nil || len(n.segs) != 8 {
		t.Fatalf("%d archived: %v", len(n.segs), err)
	}
	if err := u.Enqueue(pid, seal(t, fs, pid, 80, 10, 10)); !errcode.Is(err, errcode.Closed) {
		t.Errorf("enqueue after close: %v", err)
	}
	s.setHook(func(op, key string) (bool, error) { return false, errcode.New(errcode.Transient, "down") })
	u = start(t, fs, n, nil)
	enqueue(t, u, pid, seal(t, fs, pid, 90, 10, 10))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := u.Close(ctx); !errcode.Is(err, errcode.NotConfirmed) {
		t.Errorf("close while the store is down: %v", err)
	}
}

// The queue has a bound and an order.
func TestEnqueueRefuses(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	s.setHook(func(op, key string) (bool, error) { return false, errcode.New(errcode.Transient, "down") })
	u := start(t, fs, newNode(s), func(c *Config) { c.MaxQueued = 2 })
	a := seal(t, fs, pid, 0, 10, 1)
	enqueue(t, u, pid, a)
	if err := u.Enqueue(pid, a); !errcode.Is(err, errcode.Conflict) {
		t.Errorf("same segment twice: %v", err)
	}
	enqueue(t, u, pid, seal(t, fs, pid, 10, 10, 1))
	if err := u.Enqueue(pid, seal(t, fs, pid, 20, 10, 1)); !errcode.Is(err, errcode.Overloaded) {
		t.Errorf("above the bound: %v", err)
	}
}

// What a full queue refused is asked for when there is room, and nothing of its
// partition goes in before that: the chain would wait at the gap. A partition
// that has nothing any more, or was dropped, holds up nobody.
func TestFullQueueAsksAgain(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	var down atomic.Bool
	down.Store(true)
	s.setHook(func(op, key string) (bool, error) {
		if down.Load() {
			return false, errcode.New(errcode.Transient, "down")
		}
		return true, nil
	})
	n := newNode(s)
	other, gone := broker.PartitionID{Topic: pid.Topic, Partition: 7}, broker.PartitionID{Topic: pid.Topic, Partition: 8}
	sealed := make([]Sealed, 6)
	for i := range sealed {
		sealed[i] = seal(t, fs, pid, int64(10*i), 10, 1)
	}
	var u *Uploader
	ready := make(chan struct{})
	u = start(t, fs, n, func(c *Config) {
		c.MaxQueued = 4
		c.Hooks.Missed = func(p broker.PartitionID) {
			<-ready
			n.event("missed %d", p.Partition)
			switch p {
			case gone:
				u.Drop(p)
			case other:
				u.Readmit(p)
			case pid:
				// Newer ones stay out until Readmit.
				if err := u.Enqueue(pid, sealed[5]); !errcode.Is(err, errcode.Overloaded) {
					t.Errorf("a newer segment goes in first: %v", err)
				}
				u.Readmit(p)
				for _, x := range sealed {
					if err := u.Enqueue(pid, x); err != nil && !errcode.Is(err, errcode.Conflict) && !errcode.Is(err, errcode.Overloaded) {
						t.Error(err)
					}
				}
			}
		}
	})
	enqueue(t, u, pid, sealed[:3]...)
	enqueue(t, u, other, seal(t, fs, other, 0, 10, 1))
	for p, x := range map[broker.PartitionID]Sealed{gone: seal(t, fs, gone, 0, 10, 1), other: seal(t, fs, other, 10, 10, 1), pid: sealed[3]} {
		if err := u.Enqueue(p, x); !errcode.Is(err, errcode.Overloaded) {
			t.Errorf("above the bound: %v", err)
		}
	}
	close(ready)
	down.Store(false)
	want := map[string]int{}
	for i := range 6 {
		want[fmt.Sprintf("archived %d/%d-%d", pid.Partition, 10*i, 10*i+10)] = 1
	}
	want["archived 7/0-10"] = 1
	deadline := time.Now().Add(20 * time.Second)
	for got := map[string]int{}; ; {
		clear(got)
		left := len(want)
		for _, e := range n.wait(t, 1) {
			if got[e]++; want[e] == 1 && got[e] == 1 {
				left--
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %v", got)
		}
		time.Sleep(time.Millisecond)
	}
	if _, known := u.Status(gone); known {
		t.Error("a dropped partition is known")
	}
}

// The byte rate holds for all uploads together.
func TestByteRate(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	n := newNode(s)
	seg := seal(t, fs, pid, 0, 10, 30_000)
	begin := time.Now()
	u := start(t, fs, n, func(c *Config) { c.BytesPerSecond = 1 << 20 })
	enqueue(t, u, pid, seg, seal(t, fs, pid, 10, 50, 30_000))
	n.wait(t, 2)
	// 1.8 MB at 1 MiB/s with a burst of 1 MiB: at least 0.7 s.
	if d := time.Since(begin); d < 600*time.Millisecond {
		t.Errorf("1.8 MB took %s at 1 MiB/s", d)
	}
}
