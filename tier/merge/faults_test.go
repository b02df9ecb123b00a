package merge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/count"
	"github.com/tidemark-mq/tidemark/tier/objstore/fault"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// onPut does something before an object of a segment is put.
type onPut struct {
	objstore.Store
	before func(key string)
}

func (s *onPut) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	if s.before != nil && strings.HasSuffix(key, ".seg") {
		s.before(key)
	}
	return s.Store.Put(ctx, key, body, size, o)
}

// Each call of the store fails once, without effect, or with its effect and no
// answer, or lying, for one call or for good; then the process goes on, or starts
// again. At every moment the bucket alone gives every record once, and in the end
// the segments are merged (T3, T8, T26, I16).
func TestEveryStoreCallFails(t *testing.T) {
	for _, do := range []fault.Action{fault.Fail, fault.LoseAnswer, fault.Pretend, fault.Tear, fault.Flip, fault.Cut} {
		for _, times := range []int{1, 2, 50} {
			for _, restart := range []bool{false, true} {
				for k := 0; ; k++ {
					inner := mem.New("test", nil)
					bad := fault.New(inner, fault.Options{Seed: uint64(k)})
					w := newWorld(t, bad, inner)
					for i := range 6 {
						w.add(10, 30, i%2 == 0)
					}
					m := w.merger(nil)
					r := fault.Rule{Skip: k, Times: times, Do: do}
					if do == fault.Tear || do == fault.Flip {
						r.Key = "*.seg" // a torn entry ends its chain, whoever appends
					}
					rule := bad.Add(r)
					_ = m.Turn(context.Background()) // whatever it says, the archive decides
					bad.Clear()
					w.complete(0)
					what := fmt.Sprintf("action %d for %d calls from call %d on, restart %v", do, times, k, restart)
					if restart {
						w.load()
						m = w.merger(nil)
					}
					for range 3 {
						turn(t, m)
					}
					if segs := w.complete(0); len(segs) != 1 {
						t.Fatalf("%s: %d segments are left", what, len(segs))
					}
					for key := range m.mu.busy {
						t.Fatalf("%s: %s is in use for ever", what, key)
					}
					if rule.Hits() == 0 {
						break // every call had its turn
					}
				}
			}
		}
	}
}

// Each call of the file system fails once, or from then on: nothing is merged then
// or all of it, the bucket is whole, and it goes on when the disk is well. What a
// stop leaves on the disk goes at the next start.
func TestEveryFileCallFails(t *testing.T) {
	for _, forGood := range []bool{false, true} {
		for k := int64(0); ; k++ {
			store := mem.New("test", nil)
			w := newWorld(t, store, store)
			for i := range 6 {
				w.add(10, 30, i%2 == 0)
			}
			var calls, hits atomic.Int64
			well := atomic.Bool{}
			w.fs = errorfs.Wrap(w.disk, errorfs.InjectorFunc(func(errorfs.Op) error {
				if n := calls.Add(1) - 1; well.Load() || n < k || n > k && !forGood {
					return nil
				}
				hits.Add(1)
				return syscall.EIO
			}))
			well.Store(true)
			m := w.merger(nil)
			calls.Store(0)
			well.Store(false)
			_ = m.Turn(context.Background())
			well.Store(true)
			w.complete(0)
			turn(t, m)
			if segs := w.complete(0); len(segs) != 1 {
				t.Fatalf("call %d, for good %v: %d segments are left", k, forGood, len(segs))
			}
			if hits.Load() == 0 {
				break
			}
		}
	}
	store := mem.New("test", nil)
	w := newWorld(t, store, store)
	if err := w.disk.MkdirAll("merge/deep", 0o755); err != nil {
		t.Fatal(err)
	}
	w.merger(nil)
	if names, err := w.disk.List("merge"); err == nil {
		t.Fatalf("%q are left after a start", names)
	}
}

// A replace whose entry comes to stand in the archive long after its answer was
// lost is found, its inputs go then and not before, and meanwhile its output is no
// orphan and nothing else is merged (T26, I7).
func TestReplaceComesLate(t *testing.T) {
	inner := mem.New("test", nil)
	late := &latePut{Store: inner}
	w := newWorld(t, late, inner)
	for range 6 {
		w.add(10, 30, false)
	}
	m := w.merger(nil)
	late.hold.Store(true)
	if err := m.Turn(context.Background()); err == nil {
		t.Fatal("a replace without an answer succeeded")
	}
	r, ok := m.pending[pid]
	if !ok || !m.InUse(r.output.Key()) || len(w.discarded) != 0 || len(w.complete(0)) != 6 {
		t.Fatalf("pending %v, discarded %d", ok, len(w.discarded))
	}
	late.deliver()
	if len(w.complete(0)) != 1 {
		t.Fatal("the entry did not come to stand")
	}
	late.hold.Store(false)
	turn(t, m)
	if len(w.complete(0)) != 1 || len(w.discarded) != 6 || m.InUse(r.output.Key()) || len(m.pending) != 0 {
		t.Fatalf("discarded %d, pending %d", len(w.discarded), len(m.pending))
	}
	if n := len(keys(t, inner, ".seg")); n != 7 {
		t.Errorf("%d objects, want the inputs and one output", n)
	}
}

// latePut keeps chain entries back and says nothing about them.
type latePut struct {
	objstore.Store
	hold atomic.Bool
	late []func()
}

func (s *latePut) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	if !s.hold.Load() || strings.HasSuffix(key, ".seg") {
		return s.Store.Put(ctx, key, body, size, o)
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	s.late = append(s.late, func() { _ = s.Store.Put(context.Background(), key, strings.NewReader(string(b)), size, o) })
	return errors.New("no answer")
}

func (s *latePut) deliver() {
	for _, f := range s.late {
		f()
	}
	s.late = nil
}

func keys(t testing.TB, store objstore.Store, suffix string) (out []string) {
	t.Helper()
	page, err := store.List(context.Background(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range page.Objects {
		if strings.HasSuffix(o.Key, suffix) {
			out = append(out, o.Key)
		}
	}
	return out
}

// The exact store calls of merges, from local files and from objects, and of
// their failures.
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata/transcript", func(t *testing.T, path string) {
		inner := mem.New("test", nil)
		bad := fault.New(inner, fault.Options{})
		calls := count.New(bad)
		w := newWorld(t, calls, inner)
		m := w.merger(nil)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "archive": // n=N of 10 records each, local or not
				var n int
				d.ScanArgs(t, "n", &n)
				for range n {
					w.add(10, 30, d.HasArg("local"))
				}
				return fmt.Sprintf("%d segments\n", len(w.listed()))
			case "restart":
				w.load()
				m = w.merger(nil)
				return ""
			case "turn": // lose=PATTERN of a put whose answer is lost, fail=PATTERN
				bad.Clear()
				for arg, do := range map[string]fault.Action{"lose": fault.LoseAnswer, "fail": fault.Fail} {
					var key string
					if d.MaybeScanArgs(t, arg, &key); key != "" {
						bad.Add(fault.Rule{Ops: []string{fault.Put}, Key: key, Times: 3, Do: do})
					}
				}
				before := len(calls.Transcript())
				err := m.Turn(context.Background())
				bad.Clear()
				out := strings.ReplaceAll(calls.Transcript()[before:], manifest.PartitionPrefix(pid), "")
				if err != nil {
					out += "error " + fmt.Sprint(strings.SplitN(err.Error(), ":", 2)[0]) + "\n"
				}
				return out + fmt.Sprintf("%d segments, %d discarded\n", len(w.complete(0)), len(w.discarded))
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

// damaging is a store that keeps other bytes than it compared with the sums.
type damaging struct {
	objstore.Store
	t  testing.TB
	on bool
}

func (s *damaging) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	err := s.Store.Put(ctx, key, body, size, o)
	if err == nil && s.on && strings.HasSuffix(key, ".seg") {
		spoil(s.t, s.Store, key, func(b []byte) []byte { b[len(b)/3] ^= 1; return b })
	}
	return err
}

// An output that the archive damages, in its middle, is not named by the chain: it
// would soon be the only copy. It is left alone, and the next try has another key.
func TestOutputIsReadBack(t *testing.T) {
	inner := mem.New("test", nil)
	store := &damaging{Store: inner, t: t, on: true}
	w := newWorld(t, store, inner)
	for range 20 {
		w.add(10, 900, false)
	}
	m := w.merger(nil)
	if err := m.Turn(context.Background()); err == nil || len(w.complete(0)) != 20 || len(w.discarded) != 0 {
		t.Fatalf("%d segments are discarded: %v", len(w.discarded), err)
	}
	for _, key := range keys(t, inner, ".seg") {
		if m.InUse(key) {
			t.Errorf("%s is in use for ever", key)
		}
	}
	store.on = false
	turn(t, m)
	if len(w.complete(0)) != 1 || len(w.discarded) != 20 || len(keys(t, inner, ".seg")) != 22 {
		t.Fatalf("%d segments, %d objects", len(w.listed()), len(keys(t, inner, ".seg")))
	}
}
