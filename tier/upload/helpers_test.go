package upload

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/internal/testkit/sealed"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

var pid = broker.PartitionID{Topic: 0xfeed, Partition: 1}

func owner(gen uint32) manifest.Owner {
	return manifest.Owner{ClusterGeneration: 1, Generation: gen, Incarnation: 0x77, Node: "n1"}
}

// seal writes a sealed segment of [base, base+n), one record a batch.
func seal(t testing.TB, fs vfs.FS, p broker.PartitionID, base, n int64, value int) Sealed {
	t.Helper()
	var batches []sealed.Batch
	for o := base; o < base+n; o++ {
		batches = append(batches, sealed.Batch{
			Records: []broker.Record{{Offset: o, Timestamp: 1000 + o, Value: []byte(strings.Repeat(fmt.Sprint(o%10), value))}},
			Options: segment.BatchOptions{Generation: 1}, First: 1000 + o, Last: 1000 + o,
		})
	}
	path, info := sealed.File(t, fs, "data/"+strings.ReplaceAll(p.String(), "/", "-"), p, base, batches...)
	return Sealed{Path: path, Info: info}
}

// store is a memory store with a list of its calls, and a hook that may fail a
// call before or after it takes effect.
type store struct {
	objstore.Store
	mu    sync.Mutex
	calls []string
	// hook may be nil. It returns an error for the caller and whether the call
	// takes effect all the same.
	hook func(op, key string) (effect bool, err error)
}

func newStore() *store { return &store{Store: mem.New("test", nil)} }

func (s *store) call(op, key string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, op+" "+key)
	if s.hook == nil {
		return true, nil
	}
	return s.hook(op, key)
}

func (s *store) setHook(h func(op, key string) (bool, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = h
}

func (s *store) count(op, part string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if strings.HasPrefix(c, op+" ") && strings.Contains(c, part) {
			n++
		}
	}
	return n
}

func (s *store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	effect, err := s.call("PUT", key)
	if effect {
		if perr := s.Store.Put(ctx, key, body, size, o); perr != nil {
			return perr
		}
	}
	return err
}

func (s *store) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	if _, err := s.call("GET", key); err != nil {
		return nil, objstore.Info{}, err
	}
	return s.Store.Get(ctx, key)
}

func (s *store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if _, err := s.call("HEAD", key); err != nil {
		return objstore.Info{}, err
	}
	return s.Store.Head(ctx, key)
}

func (s *store) List(ctx context.Context, prefix, after string, n int) (objstore.Page, error) {
	if _, err := s.call("LIST", prefix); err != nil {
		return objstore.Page{}, err
	}
	return s.Store.List(ctx, prefix, after, n)
}

// node is what owns the chains in these tests, and what the hooks report to.
type node struct {
	store  *store
	mu     sync.Mutex
	gen    uint32
	chains map[broker.PartitionID]*Bound
	events []string
	segs   []manifest.Segment
	notify chan struct{} // capacity 1
}

func newNode(s *store) *node {
	return &node{store: s, gen: 1, chains: map[broker.PartitionID]*Bound{}, notify: make(chan struct{}, 1)}
}

func (n *node) Chain(ctx context.Context, p broker.PartitionID) (Chain, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b := n.chains[p]; b != nil {
		return b, nil
	}
	c, err := manifest.Load(ctx, n.store, p, 0, manifest.WithRetry(2, time.Millisecond))
	if err != nil {
		return nil, err
	}
	if _, err := c.Fence(ctx, owner(n.gen), manifest.FenceParams{}); err != nil {
		return nil, err
	}
	n.chains[p] = &Bound{Chain: c, Owner: owner(n.gen)}
	return n.chains[p], nil
}

func (n *node) event(format string, args ...any) {
	n.mu.Lock()
	n.events = append(n.events, fmt.Sprintf(format, args...))
	n.mu.Unlock()
	select {
	case n.notify <- struct{}{}:
	default:
	}
}

func (n *node) hooks() Hooks {
	return Hooks{
		Archived: func(p broker.PartitionID, s Sealed, x manifest.Segment, seq uint64) {
			n.mu.Lock()
			n.segs = append(n.segs, x)
			n.mu.Unlock()
			n.event("archived %d/%d-%d", p.Partition, s.Info.Base, s.Info.Next)
		},
		Covered: func(p broker.PartitionID, s Sealed, end int64) {
			n.event("covered %d/%d-%d", p.Partition, s.Info.Base, s.Info.Next)
		},
		Fenced: func(p broker.PartitionID, err error) { n.event("fenced %d", p.Partition) },
		Missed: func(p broker.PartitionID) { n.event("missed %d", p.Partition) },
		Stopped: func(p broker.PartitionID, s Sealed, err error) {
			n.event("stopped %d/%d %s %s", p.Partition, s.Info.Base, errcode.Of(err), s.Path)
		},
	}
}

// wait returns the events once there are n of them.
func (n *node) wait(t testing.TB, want int) []string {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		n.mu.Lock()
		got := append([]string(nil), n.events...)
		n.mu.Unlock()
		if len(got) >= want {
			return got
		}
		select {
		case <-n.notify:
		case <-deadline:
			t.Fatalf("events %q, want %d of them", got, want)
		}
	}
}

func start(t testing.TB, fs vfs.FS, n *node, change func(*Config)) *Uploader {
	t.Helper()
	cfg := Config{FS: fs, Store: n.store, Chains: n, Hooks: n.hooks(), Backoff: 2 * time.Millisecond, MaxBackoff: 10 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	u, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // whatever is left in the queue stays there
		_ = u.Close(ctx)
	})
	return u
}

func enqueue(t testing.TB, u *Uploader, p broker.PartitionID, segs ...Sealed) {
	t.Helper()
	for _, s := range segs {
		if err := u.Enqueue(p, s); err != nil {
			t.Fatal(err)
		}
	}
}

var createOnly = objstore.PutOptions{CreateOnly: true}

func readFile(t *testing.T, fs vfs.FS, path string) string {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
