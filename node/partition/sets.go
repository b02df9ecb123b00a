package partition

import "sync"

// set is a set of partitions. Its lock is innermost.
type set struct {
	mu sync.Mutex
	m  map[*Partition]struct{}
}

func (s *set) add(p *Partition) {
	s.mu.Lock()
	if s.m == nil {
		s.m = make(map[*Partition]struct{})
	}
	s.m[p] = struct{}{}
	s.mu.Unlock()
}

func (s *set) remove(p *Partition) {
	s.mu.Lock()
	delete(s.m, p)
	s.mu.Unlock()
}

// list returns the members.
func (s *set) list() []*Partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Partition, 0, len(s.m))
	for p := range s.m {
		out = append(out, p)
	}
	return out
}

// take returns the members and empties the set.
func (s *set) take() []*Partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Partition, 0, len(s.m))
	for p := range s.m {
		out = append(out, p)
	}
	clear(s.m)
	return out
}

func (s *set) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m) == 0
}

// queue hands partitions to the flush workers in order. A partition is in it
// at most once (Partition.mu.queued), so its length is bounded by their number.
type queue struct {
	mu     sync.Mutex
	ready  sync.Cond
	items  []*Partition
	closed bool
}

func newQueue() *queue {
	q := &queue{}
	q.ready.L = &q.mu
	return q
}

func (q *queue) push(p *Partition) {
	q.mu.Lock()
	q.items = append(q.items, p)
	q.mu.Unlock()
	q.ready.Signal()
}

// pop waits for the next partition; ok is false once the queue is closed.
func (q *queue) pop() (p *Partition, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.closed {
		q.ready.Wait()
	}
	if q.closed {
		return nil, false
	}
	p = q.items[0]
	q.items[0] = nil
	q.items = q.items[1:]
	return p, true
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.ready.Broadcast()
}
