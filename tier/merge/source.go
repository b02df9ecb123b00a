package merge

import (
	"context"
	"crypto/sha256"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/segment"
	"github.com/tidemark-mq/tidemark/tier/manifest"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// readBytes is how much one request reads.
const readBytes = 4 << 20

// rateStep is the most that is taken from the rate limiter at once.
const rateStep = 64 << 10

// source is the data of one input, in a local file or in the archive.
type source struct {
	name  string
	r     io.ReaderAt
	local bool
	close func()
}

// open finds the data of an input, in a local file of the same range if allowed.
func (m *Merger) open(ctx context.Context, x *manifest.Segment, local bool) source {
	if local {
		if c := m.opts.Copy(x.Partition, x.Base, x.Next); c.Path != "" {
			// One that cannot be opened was evicted a moment ago.
			if f, err := m.opts.FS.Open(c.Path, vfs.SequentialReadsOption); err == nil {
				return source{c.Path, m.limited(ctx, f), true, func() { _ = f.Close() }}
			}
		}
	}
	key := x.Key()
	return source{key, m.limited(ctx, object{ctx, m.opts.Store, key}), false, func() {}}
}

func (m *Merger) limited(ctx context.Context, r io.ReaderAt) io.ReaderAt {
	return limited{ctx, r, m.limit}
}

// object reads ranges of an object.
type object struct {
	ctx   context.Context
	store objstore.Store
	key   string
}

// ReadAt implements io.ReaderAt.
func (o object) ReadAt(p []byte, off int64) (int, error) {
	n, err := o.store.GetRange(o.ctx, o.key, p, off)
	if err == nil && n < len(p) {
		// What is read is within what the chain says about the object.
		err = errcode.New(errcode.Corrupt, "object %s ends at position %d", o.key, off+int64(n))
	}
	return n, err
}

// compare reads an object back and holds all of it against the file that was sent.
// It may have been damaged in the store or on its way here: nobody can tell, and
// another try has another key.
func (m *Merger) compare(ctx context.Context, key string, want *segment.Info) error {
	sum := sha256.New()
	r := m.limited(ctx, object{ctx, m.opts.Store, key})
	n, err := io.CopyBuffer(struct{ io.Writer }{sum}, io.NewSectionReader(r, 0, want.Bytes), make([]byte, min(readBytes, want.Bytes)))
	if err != nil {
		return errcode.New(errcode.Transient, "read %s back: %w", key, err)
	}
	if got := [sha256.Size]byte(sum.Sum(nil)); got != want.FileSHA256 {
		return errcode.New(errcode.Transient, "object %s was sent with SHA-256 %x, and its %d bytes read back have %x: it is left alone", key, want.FileSHA256, n, got)
	}
	return nil
}

// limited reads no faster than the limiter says.
type limited struct {
	ctx   context.Context
	r     io.ReaderAt
	limit *rate.Limiter
}

// ReadAt implements io.ReaderAt.
func (l limited) ReadAt(p []byte, off int64) (int, error) {
	for left := len(p); left > 0; left -= rateStep {
		if err := l.limit.WaitN(l.ctx, min(left, rateStep)); err != nil {
			return 0, errcode.Wrap(errcode.Canceled, err, "wait for the rate of merges")
		}
	}
	return l.r.ReadAt(p, off)
}
