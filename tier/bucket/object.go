package bucket

import (
	"context"
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// object reads an object at any position.
type object struct {
	ctx   context.Context
	store objstore.Store
	key   string
	fails *error // of the first read that the store refused; nil: nobody asks
}

// OpenObject returns a reader of an object, which asks the store for each
// range until ctx ends, and the object's size. Errors: NotFound, and the
// store's.
func OpenObject(ctx context.Context, store objstore.Store, key string) (io.ReaderAt, int64, error) {
	info, err := store.Head(ctx, key)
	if err != nil {
		return nil, 0, errcode.Wrap(errcode.Internal, err, "open %s", key)
	}
	return &object{ctx: ctx, store: store, key: key}, info.Size, nil
}

// ReadAt implements io.ReaderAt.
func (o *object) ReadAt(p []byte, off int64) (int, error) {
	n, err := o.store.GetRange(o.ctx, o.key, p, off)
	if err != nil && o.fails != nil && *o.fails == nil {
		*o.fails = err
	}
	if err == nil && n < len(p) {
		err = errcode.New(errcode.Transient, "%s has %d bytes at position %d, want %d", o.key, n, off, len(p))
	}
	return n, err
}
