package partition

import (
	"context"
	"errors"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/wal"
)

const (
	// largeFrom is the size from which on an append waits for its turn.
	largeFrom = 64 << 10
	// largeTurns is how many bytes of large appends have their turn at a time.
	// Two buffers of the log are left for the small ones.
	largeTurns = (wal.Groups - 2) * wal.GroupBytes
)

// Admit waits until the log has room for the parts, which Append then does not
// wait for: it would with the partitions' locks held, and readers, the flusher
// and other appends of these partitions would wait for the disk with it. Small
// appends are admitted at once. free gives the turn back; it is called once,
// when the append is durable or given up.
//
// Errors: Overloaded when ctx's deadline passes, Canceled when it ends
// otherwise. Nothing was appended then.
func (e *Engine) Admit(ctx context.Context, parts []Part) (free func(), err error) {
	size := 0
	for i := range parts {
		for _, b := range parts[i].Batches {
			size += len(b.Data)
		}
	}
	if size < largeFrom {
		return admitted, nil
	}
	turn := turnOf(size)
	switch err := e.large.Acquire(ctx, turn); {
	case err == nil:
		return func() { e.large.Release(turn) }, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, errcode.New(errcode.Overloaded, "%d bytes waited for their turn in the log and did not get it in time: the disk is slower than the producers; nothing was stored", size).After(retryAfter)
	default:
		return nil, errcode.Wrap(errcode.Canceled, err, "wait for the turn of %d bytes in the log", size)
	}
}

func admitted() {}

// turnOf is what an append takes of largeTurns: the part of the log's buffers
// that it may occupy.
func turnOf(size int) int64 {
	switch {
	case size <= wal.GroupBytes/2:
		return int64(size)
	case size <= wal.GroupBytes-4<<10: // with the headers of log and frame
		return wal.GroupBytes
	default:
		return largeTurns / 2 // the log has two at a time
	}
}
