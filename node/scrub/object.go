package scrub

import (
	"context"
	"io"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// rangeBytes is the size of one GET: large, because requests cost money, and
// bounded, because two are in memory.
const rangeBytes = 8 << 20

// object reads an object in ranges. The one in which it ends, where footer and
// index stand, is kept beside the one that is read now.
type object struct {
	ctx   context.Context
	store objstore.Store
	key   string
	size  int64 // as the chain says
	spend func(n int) error

	last, now chunk
	// failed is why the store could not be read; nil when what is wrong is the
	// object's own.
	failed error
	// wrong says what the object itself has wrong: "" nothing so far.
	wrong string
}

type chunk struct {
	n    int64 // its number, -1: none
	data []byte
}

func newObject(ctx context.Context, store objstore.Store, key string, size int64, spend func(n int) error) *object {
	return &object{ctx: ctx, store: store, key: key, size: size, spend: spend, last: chunk{n: -1}, now: chunk{n: -1}}
}

// ReadAt implements io.ReaderAt.
func (o *object) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		if at >= o.size {
			return done, io.EOF
		}
		c, err := o.chunk(at / rangeBytes)
		if err != nil {
			return done, err
		}
		done += copy(p[done:], c.data[at-c.n*rangeBytes:])
	}
	return done, nil
}

func (o *object) chunk(n int64) (*chunk, error) {
	final := (o.size - 1) / rangeBytes
	c := &o.now
	if n == final {
		c = &o.last
	}
	if c.n == n {
		return c, nil
	}
	c.n = -1
	start := n * rangeBytes
	want := int(min(rangeBytes, o.size-start))
	ask := want
	if n == final {
		ask++ // an object that goes on is another one
	}
	if cap(c.data) < ask {
		c.data = make([]byte, ask)
	}
	if err := o.spend(want); err != nil {
		o.failed = err
		return nil, err
	}
	got, err := o.store.GetRange(o.ctx, o.key, c.data[:ask], start)
	switch {
	case errcode.Is(err, errcode.NotFound):
		o.wrong = missing
		return nil, err
	case err != nil:
		o.failed = err
		return nil, err
	case got < want:
		o.wrong = "it is shorter than the chain says"
	case got > want:
		o.wrong = "it is longer than the chain says"
	}
	if o.wrong != "" {
		return nil, errcode.New(errcode.Corrupt, "object %s: %s", o.key, o.wrong)
	}
	c.n, c.data = n, c.data[:want]
	return c, nil
}

// missing is what is wrong with a copy that is not there.
const missing = "it is missing"
