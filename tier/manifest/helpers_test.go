package manifest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testPID = broker.PartitionID{Topic: 0xabc, Partition: 3}

func testOwner(gen uint32) Owner {
	return Owner{ClusterGeneration: 1, Generation: gen, Incarnation: 0x1000 + uint64(gen), Node: "n1"}
}

// testSegment is a plausible segment of [base, next) by that generation.
func testSegment(base, next int64, gen, nonce uint32) Segment {
	size := 100*(next-base) + 16*(next-base) + 160
	return Segment{Partition: testPID, Base: base, Next: next, Records: next - base, Bytes: size,
		MinTimestamp: 1000 * base, MaxTimestamp: 1000 * next, MinAppend: 1000 * base, MaxAppend: 1000 * next,
		FirstGeneration: 1, LastGeneration: gen, Generation: gen, Nonce: nonce,
		DataSHA256: Hash{byte(base), byte(base >> 8), byte(nonce)}, DataLength: 100 * (next - base),
		FooterPosition: size - 160, FooterLength: 160, OriginTopic: testPID.Topic}
}

// outcome is what a call of the faulty store does.
type outcome uint8

const (
	good     outcome = iota
	failed           // no effect, and an answer that says nothing
	lost             // effect, and an answer that says nothing
	late             // as failed, but the effect comes when deliver is called
	conflict         // a store's 409: no effect, try again
	stale            // a read that does not see the object yet
)

// faulty is a memory store whose calls go as decide says. It lists its calls.
type faulty struct {
	objstore.Store
	mu     sync.Mutex
	decide func(op, key string) outcome // nil: all good
	calls  []string
	later  []func()
}

func newFaulty() *faulty { return &faulty{Store: mem.New("test", nil)} }

func (f *faulty) next(op, key string) outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := good
	if f.decide != nil {
		o = f.decide(op, key)
	}
	f.calls = append(f.calls, op+" "+key)
	return o
}

// deliver lets the puts arrive that were late.
func (f *faulty) deliver() {
	f.mu.Lock()
	todo := f.later
	f.later = nil
	f.mu.Unlock()
	for _, fn := range todo {
		fn()
	}
}

// take returns the calls since the last take.
func (f *faulty) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.calls
	f.calls = nil
	return out
}

var errNoAnswer = errcode.New(errcode.Transient, "connection reset")

func (f *faulty) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	if !o.CreateOnly {
		return fmt.Errorf("put of %s without the condition", key)
	}
	switch f.next("PUT", key) {
	case failed, conflict, stale:
		return errNoAnswer
	case lost:
		if err := f.Store.Put(ctx, key, body, size, o); errcode.Is(err, errcode.Exists) {
			return err
		}
		return errNoAnswer
	case late:
		b, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.later = append(f.later, func() {
			_ = f.Store.Put(context.Background(), key, strings.NewReader(string(b)), size, o) // Exists when it comes too late
		})
		f.mu.Unlock()
		return errNoAnswer
	}
	return f.Store.Put(ctx, key, body, size, o)
}

func (f *faulty) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	switch f.next("GET", key) {
	case failed, lost, late, conflict:
		return nil, objstore.Info{}, errNoAnswer
	case stale:
		return nil, objstore.Info{}, errcode.New(errcode.NotFound, "get %s: no such object", key)
	}
	return f.Store.Get(ctx, key)
}

func (f *faulty) List(context.Context, string, string, int) (objstore.Page, error) {
	return objstore.Page{}, fmt.Errorf("a chain never lists")
}

func (f *faulty) Head(context.Context, string) (objstore.Info, error) {
	return objstore.Info{}, fmt.Errorf("a chain never asks with HEAD")
}

func (f *faulty) Delete(context.Context, []string) error {
	return fmt.Errorf("a chain never deletes")
}

// quick makes appends give up soon and without a pause.
var quick = WithRetry(3, 0)

func mustLoad(t testing.TB, s objstore.Store, hint uint64, opts ...Option) *Chain {
	t.Helper()
	c, err := Load(context.Background(), s, testPID, hint, append([]Option{quick}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustFence(t testing.TB, c *Chain, gen uint32, p FenceParams) Fence {
	t.Helper()
	f, err := c.Fence(context.Background(), testOwner(gen), p)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustAdd(t testing.TB, c *Chain, gen uint32, segs ...Segment) {
	t.Helper()
	if err := c.Add(context.Background(), testOwner(gen), segs...); err != nil {
		t.Fatal(err)
	}
}
