package bucket

import (
	"context"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Walk calls fn for every object whose key begins with prefix, in byte order.
// It ends with the first error of fn or the store.
func Walk(ctx context.Context, store objstore.Store, prefix string, fn func(objstore.Info) error) error {
	return walkFrom(ctx, store, prefix, "", fn)
}

func walkFrom(ctx context.Context, store objstore.Store, prefix, after string, fn func(objstore.Info) error) error {
	for {
		page, err := store.List(ctx, prefix, after, 0)
		if err != nil {
			return errcode.Wrap(errcode.Internal, err, "list %q", prefix)
		}
		for _, o := range page.Objects {
			// A store that repeats a page or ignores start-after would make
			// this loop for ever, or skip what lies between.
			if o.Key <= after {
				return errcode.New(errcode.Corrupt, "the store lists %q after %q: its lists are not in order", o.Key, after)
			}
			after = o.Key
			if err := fn(o); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		if len(page.Objects) == 0 {
			return errcode.New(errcode.Corrupt, "the store says that more follows %q and lists nothing", after)
		}
	}
}

// first returns the first key below prefix and after a key, "" when there is
// none.
func first(ctx context.Context, store objstore.Store, prefix, after string) (string, error) {
	page, err := store.List(ctx, prefix, after, 1)
	if err != nil {
		return "", errcode.Wrap(errcode.Internal, err, "list %q", prefix)
	}
	if len(page.Objects) == 0 {
		return "", nil
	}
	return page.Objects[0].Key, nil
}
