package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// badDisk says how calls fail from the n-th on.
type badDisk struct {
	name  string
	err   error
	calls int                  // so many fail; then the disk is well again. many = until the script is over
	hits  func(op string) bool // the calls that count and fail
	heals bool                 // nothing but a refused call remains of it, apart from failed syncs
}

const many = 1 << 30

func changes(op string) bool { return op != "open" && op != "opendir" && op != "sync" }
func descriptors(op string) bool {
	return op == "open" || op == "create" || op == "opendir"
}
func anything(string) bool { return true }

var badDisks = []badDisk{
	{"full once", syscall.ENOSPC, 1, changes, true},
	{"full", syscall.ENOSPC, many, changes, true},
	{"half writes", errHalf, many, func(op string) bool { return op == "write" }, true},
	{"read-only", syscall.EROFS, many, changes, true},
	{"out of descriptors", syscall.EMFILE, many, descriptors, true},
	{"error once", syscall.EIO, 1, anything, false},
	{"error", syscall.EIO, 40, anything, false},
}

// life is a scripted life of a node on a bad disk, and what it was told.
type life struct {
	*memNode
	values   []string // acknowledged, in order
	unsure   map[string]bool
	tried    int
	leftover sync.WaitGroup // steps that wait for the disk
}

// step runs what may wait for the disk without waiting for it for long.
func (l *life) step(fn func() error) {
	done := make(chan struct{})
	l.leftover.Go(func() {
		defer close(done)
		_ = fn() // what it means is seen at the end
	})
	select {
	case <-done:
	case <-time.After(50 * time.Millisecond):
	}
}

func (l *life) put(n int) {
	l.t.Helper()
	for range n {
		l.tried++
		value := fmt.Sprintf("%d %s", l.tried, strings.Repeat("x", 900))
		began := time.Now()
		switch err := l.tryProduce("t", broker.NewRecord{Partition: 0, Value: []byte(value)}); errcode.Of(err) {
		case errcode.NotConfirmed:
			l.unsure[value] = true
		case errcode.Storage, errcode.Poisoned, errcode.Overloaded, errcode.Closed:
		default:
			if err != nil {
				l.t.Fatalf("produce %d: %v", l.tried, err)
			}
			l.values = append(l.values, value)
		}
		if took := time.Since(began); took > defaultWait+time.Second {
			l.t.Fatalf("produce %d took %s", l.tried, took)
		}
	}
}

// run goes through everything that a node does with its files.
func (l *life) run() {
	ctx := context.Background()
	p := l.engine.All()[0]
	l.put(20)
	l.step(func() error { return l.engine.Checkpoint(ctx) })
	l.put(20)
	l.step(func() error { return l.engine.Seal(p) })
	l.put(10)
	if msgs, err := l.Consume(ctx, broker.ConsumeRequest{Topic: "t", Partition: -1, Max: 5}); err == nil {
		_ = l.trySettle("t", broker.SettleAck, msgs...)
	}
	l.step(func() error { return l.engine.Release(ctx, l.log.NextLSN()) })
	l.put(100)
	l.step(func() error { return l.engine.Seal(p) })
	l.step(func() error { return l.engine.Checkpoint(ctx) })
	l.put(10)
}

// check compares the log with what was acknowledged: each record there, in its
// order; in between only what nobody was told about.
func (l *life) check(when string) {
	l.t.Helper()
	next := 0
	for _, got := range readAll(l.t, l.Node, "t", 0) {
		_, value, _ := strings.Cut(got, "=")
		switch {
		case next < len(l.values) && value == l.values[next]:
			next++
		case l.unsure[value]:
		default:
			l.t.Fatalf("%s: %.30q is there, the next acknowledged one is %d of %d", when, value, next, len(l.values))
		}
	}
	if next != len(l.values) {
		l.t.Fatalf("%s: %d acknowledged records of %d", when, next, len(l.values))
	}
}

// files fails when the data directory holds anything that it should not: a file
// under another name, more than one stray of a kind.
func (l *life) files(when string, strays int) {
	l.t.Helper()
	var odd []string
	var walk func(dir string)
	walk = func(dir string) {
		names, err := l.mem.List(dir)
		if err != nil {
			return // a file
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			if st, err := l.mem.Stat(path); err == nil && st.IsDir() {
				if filepath.Base(path) != "state" { // Pebble's
					walk(path)
				}
				continue
			}
			if rel := strings.TrimPrefix(path, l.dir+"/"); !knownFile.MatchString(rel) {
				odd = append(odd, rel)
			}
		}
	}
	// Somebody may just be writing one, under a name for the time being.
	for deadline := time.After(5 * time.Second); ; {
		odd = odd[:0]
		if walk(l.dir); len(odd) <= strays {
			return
		}
		select {
		case <-deadline:
			l.t.Fatalf("%s: %d files that nobody knows: %q", when, len(odd), odd)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

var knownFile = regexp.MustCompile(`^(LOCK|identity\.json|scrub\.json|wal/(\d+\.wal|spare-\d+)|topics/[0-9a-f]{16}/\d+/\d+\.(log|seg))$`)

func newLife(t *testing.T) *life {
	t.Helper()
	m := newMemNode(t, func(o *Options) { o.WALFileSize = 64 << 10 })
	createTopic(t, m.Node, "t", 1)
	return &life{memNode: m, unsure: map[string]bool{}}
}

// Every call of a node's life fails in every way that disks fail, once or for as
// long as it lasts: an answer is an acknowledgement or a clear refusal; while
// the disk is bad readiness or the partition says so, or nothing is wrong; when
// it is well again the node goes on by itself, unless a sync failed (I5); and
// after a crash every acknowledged record is there, in order, under names that
// are right, with nothing left over (I1, I4, B54, B60, B61, B63, B65, B66).
func TestLifeOnABadDisk(t *testing.T) {
	calls := map[string]int{}
	l := newLife(t)
	var mu sync.Mutex
	l.fs.set(func(op, _ string) error { mu.Lock(); calls[op]++; mu.Unlock(); return nil }, nil)
	l.run()
	l.leftover.Wait()
	l.fs.set(nil, nil)
	l.check("without a fault")
	l.files("without a fault", 0)
	l.close()
	points := 40
	if testing.Short() {
		points = 6
	}
	for _, kind := range badDisks {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			total, hit := 0, 0
			for op, n := range calls {
				if kind.hits(op) {
					total += n
				}
			}
			for i := range points {
				if !t.Run(fmt.Sprint(total*i/points), func(t *testing.T) { hit += badLife(t, kind, total*i/points, uint64(i)) }) {
					t.FailNow()
				}
			}
			if hit == 0 {
				t.Fatal("nothing failed")
			}
		})
	}
}

func badLife(t *testing.T, kind badDisk, at int, seed uint64) int {
	t.Helper()
	l := newLife(t)
	var n, hit atomic.Int64
	var syncFailed atomic.Bool
	l.fs.set(func(op, _ string) error {
		if !kind.hits(op) {
			return nil
		}
		if i := n.Add(1) - 1 - int64(at); i < 0 || i >= int64(kind.calls) {
			return nil
		}
		hit.Add(1)
		if op == "sync" {
			syncFailed.Store(true)
		}
		return kind.err
	}, nil)
	l.run()
	l.fs.set(nil, nil)
	l.leftover.Wait()
	p := l.engine.All()[0]
	final := l.log.Err() != nil && errcode.Is(l.log.Err(), errcode.Poisoned) || errcode.Is(l.db.Err(), errcode.Poisoned) || p.Refused() != nil
	switch {
	case final && kind.heals && !syncFailed.Load():
		t.Fatalf("a restart is needed: log %v, local state %v, partition %v", l.log.Err(), l.db.Err(), p.Refused())
	case final:
		if r := l.Readiness(); r.Ready && len(r.Degraded) == 0 {
			t.Fatalf("readiness hides it: %+v", r)
		}
	default:
		within(t, "the node goes on", func() bool {
			before := len(l.values)
			l.put(1)
			return len(l.values) > before
		})
		within(t, "the node is ready", func() bool { return l.Readiness().Ready })
		within(t, "files are written again", func() bool { return l.engine.Release(context.Background(), l.log.NextLSN()) == nil })
		l.check("when the disk is well")
		l.files("when the disk is well", 4) // at most one for each target
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	l.crash(rng.IntN(101), seed)
	l.check("after a crash")
	l.put(5)
	l.check("after the restart")
	l.files("after the restart", 0)
	l.close()
	return int(hit.Load())
}

// Every call of a start fails: the start says so or serves everything; it
// changes nothing that the next start needs, which serves everything (B56, B58,
// B66, I4).
func TestStartOnABadDisk(t *testing.T) {
	points := 60
	if testing.Short() {
		points = 10
	}
	for _, kind := range badDisks {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			l.run()
			l.leftover.Wait()
			image := l.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(5, 5))})
			if err := l.Node.Close(); err != nil {
				t.Fatal(err)
			}
			copied := func() *vfs.MemFS { return image.CrashClone(everything()) }
			var count atomic.Int64
			l.mem = copied()
			err := l.tryOpenWith(func(op, _ string) error {
				if kind.hits(op) {
					count.Add(1)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			total := int(count.Load())
			l.fs.set(nil, nil)
			_ = l.Node.Close() // its goroutines count too: the number is about right
			failed := 0
			for i := range points {
				at := total * i / points
				var n atomic.Int64
				l.mem = copied()
				err := l.tryOpenWith(func(op, _ string) error {
					if !kind.hits(op) {
						return nil
					}
					if k := n.Add(1) - 1 - int64(at); k < 0 || k >= int64(kind.calls) {
						return nil
					}
					return kind.err
				})
				if err == nil {
					l.fs.set(nil, nil)
					if err := l.Node.Close(); err != nil && !kind.heals {
						t.Log("close:", err)
					}
				} else if failed++; !errors.Is(err, kind.err) && !strings.Contains(err.Error(), kind.err.Error()) {
					t.Fatalf("start with call %d failing does not name its cause: %v", at, err)
				}
				// All, nothing, or any part of what was not synced, names in any
				// order.
				l.mem = l.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (i % 3), RNG: rand.New(rand.NewPCG(uint64(i), 5))})
				if err := l.tryOpen(); err != nil {
					t.Fatalf("the start after call %d failed: %v", at, err)
				}
				l.check(fmt.Sprintf("after the start with call %d failing", at))
				l.files(fmt.Sprintf("after the start with call %d failing", at), 0)
				l.close()
			}
			if failed == 0 {
				t.Fatal("no start failed")
			}
		})
	}
}

// A slow disk, each write and sync of which takes a fifth of a second, makes
// produce slow and nothing else: no refusal, no error, ready all the time.
func TestSlowDisk(t *testing.T) {
	const slow = 200 * time.Millisecond
	l := newLife(t)
	l.put(5)
	l.fs.set(func(op, _ string) error {
		if op == "write" || op == "sync" {
			time.Sleep(slow) // it is the disk that sleeps
		}
		return nil
	}, nil)
	began := time.Now()
	for i := range 8 {
		before := len(l.values)
		l.put(1)
		if len(l.values) != before+1 {
			t.Fatalf("produce %d was not acknowledged", i)
		}
		if r := l.Readiness(); !r.Ready || len(r.Degraded) != 0 {
			t.Fatalf("readiness %+v", r)
		}
	}
	if took := time.Since(began); took < 8*slow {
		t.Fatalf("8 records took %s: the disk was not slow", took)
	}
	l.fs.set(nil, nil)
	l.crash(0, 1)
	l.check("after a power loss")
	l.close()
}
