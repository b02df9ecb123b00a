package restore

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/node/archive"
)

const (
	// aheadObjects and aheadBytes, as stored, bound what is read ahead of the
	// replay. Several at once, because a store that is far away takes tens of
	// milliseconds to answer and objects may be small.
	aheadObjects = 8
	aheadBytes   = 64 << 20
)

// ahead reads and decodes an incarnation's shipped WAL beside the replay of what
// came before, in order.
type ahead struct {
	ctx    context.Context
	queue  chan chan readObject
	room   *semaphore.Weighted
	used   int64 // of room, by the object that next gave last
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

type readObject struct {
	wal  *archive.WAL
	err  error
	used int64
}

// readAhead begins to read i's objects from the k-th on. The caller stops it.
func (r *replay) readAhead(ctx context.Context, i *incarnation, k int) *ahead {
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{ctx: ctx, queue: make(chan chan readObject, aheadObjects), room: semaphore.NewWeighted(aheadBytes), cancel: cancel}
	a.wg.Go(func() {
		defer close(a.queue)
		for ; k < len(i.wal); k++ {
			used := min(i.bytes[k], aheadBytes) // one larger than the room has it alone
			if a.room.Acquire(ctx, used) != nil {
				return
			}
			place := make(chan readObject, 1)
			select {
			case a.queue <- place:
			case <-ctx.Done():
				return
			}
			key := i.wal[k]
			a.wg.Go(func() {
				w, err := r.readWAL(ctx, i, key)
				place <- readObject{w, err, used}
			})
		}
	})
	return a
}

// next returns the next object. The one before is not used any more. Errors:
// those of the read, errcode.Canceled.
func (a *ahead) next() (*archive.WAL, error) {
	a.room.Release(a.used)
	a.used = 0
	place, ok := <-a.queue
	if !ok {
		return nil, errcode.Wrap(errcode.Canceled, context.Cause(a.ctx), "read ahead")
	}
	o := <-place
	a.used = o.used
	return o.wal, o.err
}

// buffers are memory that is used again, which spares the making and the
// clearing of some hundred MB a second. The zero value is ready.
type buffers struct{ pool sync.Pool }

// get returns an empty buffer with some capacity, perhaps none.
func (b *buffers) get() []byte {
	if buf, ok := b.pool.Get().(*[]byte); ok {
		return (*buf)[:0]
	}
	return nil
}

// put takes a buffer that nobody uses any more.
func (b *buffers) put(buf []byte) { b.pool.Put(&buf) }

// stop ends the reading and waits for it.
func (a *ahead) stop() {
	a.cancel()
	a.wg.Wait()
}
