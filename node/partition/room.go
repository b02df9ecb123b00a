package partition

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// waiterCost is the least that an append which waits counts for: about what its
// connection and its request hold.
const waiterCost = 16 << 10

// leastWaiting is what may wait where half of the memory budget is less.
const leastWaiting = 1 << 20

// room is where appends wait while the tails hold as much as they may. Each is
// woken by itself, in the order in which they came, when memory falls below the
// limit; what it is about to append counts as held from then on, so that no more
// go on than there is room for. Whoever takes memory off says so with freed.
//
// What waits is bounded, and a wait ends early when it is of no use: a partition
// of the append went out of service, nothing can be flushed, the engine closes.
type room struct {
	memory *atomic.Int64 // what is held
	limit  int64         // above it appends wait
	most   int64         // bytes that may wait

	mu struct {
		sync.Mutex
		queue list.List // of *waitingAppend
		bytes int64     // that wait
		freed int64     // in all
		none  error     // why no flush makes room for now
		ended error     // why none will ever
	}
}

// waitingAppend is an append in the queue.
type waitingAppend struct {
	parts  []Part
	size   int64
	cost   int64
	answer chan error // capacity 1: nil when it is its turn
}

func (r *room) full() bool { return r.memory.Load() > r.limit }

// wait returns when there is room for size bytes of parts. promised is what it
// counts as held for them from now on, which is nothing when it did not wait; the
// caller takes it off with freed once the append is done or given up.
//
// Errors: Overloaded when too much waits already or nothing can be flushed, those
// of ctx as they are, why a partition of parts refuses, what end was told.
func (r *room) wait(ctx context.Context, parts []Part, size int64) (promised int64, err error) {
	w, at, err := r.join(parts, size)
	if w == nil {
		return 0, err
	}
	select {
	case err = <-w.answer:
		if err != nil {
			return 0, err
		}
		return w.size, nil
	case <-ctx.Done():
	}
	if !r.leave(at) && <-w.answer == nil { // it came at the same moment
		r.freed(w.size)
	}
	return 0, ctx.Err()
}

// join puts an append behind those that wait; nil when it need not wait or may not.
func (r *room) join(parts []Part, size int64) (*waitingAppend, *list.Element, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.full() && r.mu.queue.Len() == 0:
		return nil, nil, nil
	case r.mu.ended != nil:
		return nil, nil, r.mu.ended
	case outOfService(parts) != nil:
		return nil, nil, outOfService(parts)
	case r.mu.none != nil:
		return nil, nil, r.stuck(r.mu.none)
	case r.mu.bytes >= r.most:
		return nil, nil, errcode.New(errcode.Overloaded, "tails hold %d bytes, twice the memory budget, and %d appends wait for the flush already: the disk is slower than the producers; nothing was stored", r.memory.Load(), r.mu.queue.Len()).After(retryAfter)
	}
	w := &waitingAppend{parts: parts, size: size, cost: max(size, waiterCost), answer: make(chan error, 1)}
	r.mu.bytes += w.cost
	// Only who finds memory below the limit with the lock goes on, and who frees
	// some takes the lock afterwards: one of the two sees the other.
	return w, r.mu.queue.PushBack(w), nil
}

// stuck is the refusal of an append for which no flush makes room.
func (r *room) stuck(cause error) error {
	return errcode.New(errcode.Overloaded, "tails hold %d bytes, twice the memory budget, and cannot be flushed; nothing was stored: %w", r.memory.Load(), cause).After(retryAfter)
}

// leave takes a waiter out; false when it has its answer already.
func (r *room) leave(at *list.Element) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(at.Value.(*waitingAppend).answer) > 0 {
		return false
	}
	r.take(at)
	return true
}

// take removes a waiter. The lock is held.
func (r *room) take(at *list.Element) *waitingAppend {
	w := r.mu.queue.Remove(at).(*waitingAppend)
	r.mu.bytes -= w.cost
	return w
}

// freed takes n bytes off what is held and lets go on who has room now. The caller
// holds no partition's lock.
func (r *room) freed(n int64) {
	if n == 0 {
		return
	}
	r.memory.Add(-n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.freed += n
	for at := r.mu.queue.Front(); at != nil && !r.full(); at = r.mu.queue.Front() {
		w := r.take(at)
		r.memory.Add(w.size)
		w.answer <- nil
	}
}

// refuse answers those who wait and for whom why has a reason. The lock is held.
func (r *room) refuse(why func(w *waitingAppend) error) {
	for at := r.mu.queue.Front(); at != nil; {
		next := at.Next()
		if err := why(at.Value.(*waitingAppend)); err != nil {
			r.take(at).answer <- err
		}
		at = next
	}
}

// recheck ends the waits of appends to partitions that are out of service. The
// caller holds no partition's lock.
func (r *room) recheck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse(func(w *waitingAppend) error { return outOfService(w.parts) })
}

// outOfService is why a partition of parts refuses, nil when none does.
func outOfService(parts []Part) error {
	for i := range parts {
		if err := parts[i].Partition.Refused(); err != nil {
			return err
		}
	}
	return nil
}

// tried says how an attempt to make room ended that began when before bytes had
// been freed in all. One that was hopeless and freed nothing ends the waits, and
// until one does better nobody waits. again: some wait still, and it was worth it.
func (r *room) tried(before int64, hopeless error) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gained := r.mu.freed > before
	r.mu.none = nil
	if hopeless != nil && !gained && r.full() {
		r.mu.none = hopeless
		err := r.stuck(hopeless)
		r.refuse(func(*waitingAppend) error { return err })
	}
	return r.mu.queue.Len() > 0 && gained
}

// end ends all waits, now and from now on. The first reason stays.
func (r *room) end(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.ended == nil {
		r.mu.ended = why
	}
	r.refuse(func(*waitingAppend) error { return r.mu.ended })
}

// total is how many bytes were freed in all.
func (r *room) total() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.freed
}

// waiting is how many appends wait and what they count for.
func (r *room) waiting() (appends int, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.queue.Len(), r.mu.bytes
}
