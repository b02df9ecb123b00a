package partition

import (
	"context"
	"errors"
	"time"

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

// Admit waits until tails and log have room for the parts, which are then
// appended. Producers are slowed down here to what the disk takes:
//
//   - While the tails hold twice the memory budget, every append waits for the
//     flush, first come, first served.
//   - A large one waits for its turn in the log's buffers, too. Append would wait
//     for one with the partitions' locks held, and readers, the flusher and other
//     appends of these partitions would wait for the disk with it.
//
// free gives back what was taken; it is called once, when the append is durable
// or given up.
//
// Errors: Overloaded when ctx's deadline passes, and at once when too much waits
// already or nothing can be flushed now; Canceled when ctx ends otherwise; why a
// partition refuses; what Refuse was told. Nothing was appended then.
func (e *Engine) Admit(ctx context.Context, parts []Part) (free func(), err error) {
	size := 0
	for i := range parts {
		for _, b := range parts[i].Batches {
			size += len(b.Data)
		}
	}
	crowded := e.memory.Load() > e.opts.MemoryBudget
	if size < largeFrom && !crowded {
		return admitted, nil
	}
	var room, turn int64
	if crowded {
		if room, err = e.takeRoom(ctx, parts, size); err != nil {
			return nil, err
		}
	}
	if size >= largeFrom {
		turn = turnOf(size)
		if err := e.takeTurn(ctx, turn, size); err != nil {
			e.room.freed(room)
			return nil, err
		}
	}
	return e.giveBack(room, turn), nil
}

func admitted() {}

// giveBack returns what gives room and turn back.
func (e *Engine) giveBack(room, turn int64) func() {
	if room == 0 && turn == 0 {
		return admitted
	}
	return func() {
		e.room.freed(room)
		e.large.Release(turn)
	}
}

// Refuse ends the waits for room with why, now and from now on. The first
// reason stays.
func (e *Engine) Refuse(why error) { e.room.end(why) }

// takeRoom waits until the tails have room, and returns what it took of it.
func (e *Engine) takeRoom(ctx context.Context, parts []Part, size int) (taken int64, err error) {
	e.crowd()
	if err := e.opts.DiskOK(); err != nil && e.room.full() {
		return 0, e.room.stuck(err)
	}
	began := time.Now()
	taken, err = e.room.wait(ctx, parts, int64(size))
	if taken > 0 || err != nil {
		e.waited(began)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return 0, errcode.New(errcode.Overloaded, "tails hold %d bytes, twice the memory budget, and no flush made room for %d more in time: the disk is slower than the producers; nothing was stored", e.memory.Load(), size).After(retryAfter)
	case errors.Is(err, context.Canceled):
		return 0, errcode.Wrap(errcode.Canceled, err, "wait for the flush to make room for %d bytes", size)
	}
	return taken, err
}

// takeTurn waits for a turn in the log.
func (e *Engine) takeTurn(ctx context.Context, turn int64, size int) error {
	if e.large.TryAcquire(turn) {
		return nil
	}
	defer e.waited(time.Now())
	switch err := e.large.Acquire(ctx, turn); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return errcode.New(errcode.Overloaded, "%d bytes waited for their turn in the log and did not get it in time: the disk is slower than the producers; nothing was stored", size).After(retryAfter)
	default:
		return errcode.Wrap(errcode.Canceled, err, "wait for the turn of %d bytes in the log", size)
	}
}

// waited counts an append that was slowed down.
func (e *Engine) waited(began time.Time) {
	e.metrics.waits.Inc()
	e.metrics.waitSeconds.Add(time.Since(began).Seconds())
}

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
