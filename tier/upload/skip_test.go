package upload

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// slowStore holds its first put until it is let go.
type slowStore struct {
	*store
	once        sync.Once
	begun, goOn chan struct{}
}

func (s *slowStore) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	s.once.Do(func() {
		close(s.begun)
		<-s.goOn
	})
	return s.store.Put(ctx, key, body, size, o)
}

// Retention passes segments that wait for upload: one that is on its way stays,
// with what stands behind it, and is published whole; the others are forgotten,
// and once the chain has a gap there what follows is archived (T2, B104).
func TestSkip(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	n := newNode(s)
	slow := &slowStore{store: s, begun: make(chan struct{}), goOn: make(chan struct{})}
	u := start(t, fs, n, func(c *Config) {
		c.Store, c.Concurrency, c.Backoff, c.MaxBackoff = slow, 1, time.Millisecond, 4*time.Millisecond
	})
	for base := int64(0); base < 50; base += 10 {
		enqueue(t, u, pid, seal(t, fs, pid, base, 10, 10))
	}
	<-slow.begun
	if at := u.Skip(pid, 35); at != 0 {
		t.Errorf("skipped up to %d, the segment on its way begins at 0", at)
	}
	s.setHook(func(string, string) (bool, error) { return false, errcode.New(errcode.Throttled, "slow down") })
	close(slow.goOn)
	for deadline := time.Now().Add(20 * time.Second); u.Skip(pid, 35) == 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a segment whose upload fails is never skipped")
		}
	}
	if at := u.Skip(pid, 35); at != 30 {
		t.Errorf("skipped up to %d, the first segment that is needed begins at 30", at)
	}
	if st, _ := u.Status(pid); st.Queued != 2 || st.Oldest != 30 {
		t.Errorf("left: %+v", st)
	}
	s.setHook(nil)
	c, err := n.Chain(context.Background(), pid)
	if err != nil {
		t.Fatal(err)
	}
	b := c.(*Bound)
	if end := b.End(); end < 30 {
		if err := b.Gap(context.Background(), b.Owner, manifest.Gap{From: end, Next: 30, Reason: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	u.Resume(pid)
	if err := u.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if b.End() != 50 {
		t.Errorf("the chain ends at %d", b.End())
	}
}

// A partition that stopped at a segment whose file is gone goes on when retention
// passes it.
func TestSkipResumes(t *testing.T) {
	fs, s := vfs.NewMem(), newStore()
	n := newNode(s)
	lost := seal(t, fs, pid, 0, 10, 10)
	if err := fs.Remove(lost.Path); err != nil {
		t.Fatal(err)
	}
	u := start(t, fs, n, nil)
	enqueue(t, u, pid, lost)
	n.wait(t, 1)
	if st, _ := u.Status(pid); !st.Stopped {
		t.Fatalf("%+v", st)
	}
	for deadline := time.Now().Add(20 * time.Second); u.Skip(pid, 10) != 10; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not skipped")
		}
	}
	if at := u.Skip(pid, 10); at != 10 {
		t.Errorf("an empty queue holds back %d", at)
	}
	if st, ok := u.Status(pid); ok && st.Stopped {
		t.Errorf("still stopped: %+v", st)
	}
	if err := u.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}
