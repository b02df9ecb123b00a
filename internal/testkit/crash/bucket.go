package crash

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
	"github.com/tidemark-mq/tidemark/tier/objstore/mem"
)

// Call is one request to a bucket.
type Call struct {
	Op  string // "put", "get", "head", "list", "delete"
	Key string // or prefix
}

// Answer is what becomes of a call.
type Answer int

// Answers. A call that changes nothing knows only the first two.
const (
	Answered Answer = iota
	Failed          // no effect, and an error that says nothing
	Lost            // the effect, and an error that says nothing
	Late            // as Failed, but the effect comes at the next Deliver
)

// Bucket is an object store in memory whose answers get lost. It is safe for
// concurrent use.
type Bucket struct {
	*mem.Store

	mu   sync.Mutex
	hook func(Call) Answer
	late []func()
}

// NewBucket returns an empty one.
func NewBucket() *Bucket { return &Bucket{Store: mem.New("histories", nil)} }

// Hook makes f hear of every call before it has an effect and decide about it;
// nil ends that.
func (b *Bucket) Hook(f func(Call) Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = f
}

// Fork returns a bucket with the same objects, without hook and late puts.
func (b *Bucket) Fork() *Bucket { return &Bucket{Store: b.Store.Clone()} }

// Deliver lets the late changes take effect.
func (b *Bucket) Deliver() {
	b.mu.Lock()
	todo := b.late
	b.late = nil
	b.mu.Unlock()
	for _, do := range todo {
		do()
	}
}

func (b *Bucket) ask(op, key string) Answer {
	b.mu.Lock()
	hook := b.hook
	b.mu.Unlock()
	if hook == nil {
		return Answered
	}
	return hook(Call{op, key})
}

func noAnswer(op, key string) error {
	return errcode.New(errcode.Transient, "%s %s: connection reset", op, key)
}

// Put implements objstore.Store.
func (b *Bucket) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, o objstore.PutOptions) error {
	switch b.ask("put", key) {
	case Failed:
		return noAnswer("put", key)
	case Lost:
		if err := b.Store.Put(ctx, key, body, size, o); errcode.Is(err, errcode.Exists) {
			return err
		}
		return noAnswer("put", key)
	case Late:
		data, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.late = append(b.late, func() {
			// Exists when it comes too late: nobody waits for that answer.
			_ = b.Store.Put(context.Background(), key, bytes.NewReader(data), size, o)
		})
		b.mu.Unlock()
		return noAnswer("put", key)
	}
	return b.Store.Put(ctx, key, body, size, o)
}

// Get implements objstore.Store.
func (b *Bucket) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	if b.ask("get", key) != Answered {
		return nil, objstore.Info{}, noAnswer("get", key)
	}
	return b.Store.Get(ctx, key)
}

// GetRange implements objstore.Store.
func (b *Bucket) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	if b.ask("get", key) != Answered {
		return 0, noAnswer("get", key)
	}
	return b.Store.GetRange(ctx, key, p, off)
}

// Head implements objstore.Store.
func (b *Bucket) Head(ctx context.Context, key string) (objstore.Info, error) {
	if b.ask("head", key) != Answered {
		return objstore.Info{}, noAnswer("head", key)
	}
	return b.Store.Head(ctx, key)
}

// List implements objstore.Store.
func (b *Bucket) List(ctx context.Context, prefix, after string, limit int) (objstore.Page, error) {
	if b.ask("list", prefix) != Answered {
		return objstore.Page{}, noAnswer("list", prefix)
	}
	return b.Store.List(ctx, prefix, after, limit)
}

// Delete implements objstore.Store.
func (b *Bucket) Delete(ctx context.Context, keys []string) error {
	key := ""
	if len(keys) > 0 {
		key = keys[0]
	}
	switch b.ask("delete", key) {
	case Failed:
		return noAnswer("delete", key)
	case Lost:
		_ = b.Store.Delete(ctx, keys) // the answer is lost anyway
		return noAnswer("delete", key)
	case Late:
		b.mu.Lock()
		b.late = append(b.late, func() { _ = b.Store.Delete(context.Background(), keys) })
		b.mu.Unlock()
		return noAnswer("delete", key)
	}
	return b.Store.Delete(ctx, keys)
}
