package queue

import (
	"container/heap"
	"sync"
	"time"
)

// alarm is the engine's one goroutine: it sleeps until the first group's wheel
// needs attention, or for good when none does. It is told of a group only when
// the group's next moment comes nearer, which with leases of one length is
// about once per length, not once per lease.
type alarm struct {
	clock func() int64 // microseconds since the Unix epoch
	kick  chan struct{}
	stop  chan struct{}
	done  chan struct{}

	mu struct {
		sync.Mutex
		due alarmHeap
	}
}

// alarmEntry is a group's place in the alarm's heap, guarded by alarm.mu.
type alarmEntry struct {
	g     *group
	at    int64 // microseconds since the Unix epoch
	place int   // -1 = not in the heap
}

func newAlarm(clock func() int64) *alarm {
	return &alarm{
		clock: clock,
		kick:  make(chan struct{}, 1), // one pending kick says all there is to say
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
}

// set makes the alarm call g.tick at the given time, or at the earlier time
// that was set before.
func (a *alarm) set(en *alarmEntry, at int64) {
	a.mu.Lock()
	switch {
	case en.place < 0:
		en.at = at
		heap.Push(&a.mu.due, en)
	case at < en.at:
		en.at = at
		heap.Fix(&a.mu.due, en.place)
	}
	first := a.mu.due[0] == en
	a.mu.Unlock()
	if first {
		a.poke()
	}
}

// drop forgets a group that is gone.
func (a *alarm) drop(en *alarmEntry) {
	a.mu.Lock()
	if en.place >= 0 {
		heap.Remove(&a.mu.due, en.place)
	}
	a.mu.Unlock()
}

func (a *alarm) poke() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// pop takes the first group if it is due; else it says when that will be.
func (a *alarm) pop(now int64) (g *group, next int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.mu.due) == 0 {
		return nil, never
	}
	if at := a.mu.due[0].at; at > now {
		return nil, at
	}
	return heap.Pop(&a.mu.due).(*alarmEntry).g, 0
}

func (a *alarm) run() {
	defer close(a.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := a.clock()
		g, next := a.pop(now)
		if g != nil {
			g.tick()
			continue
		}
		var wake <-chan time.Time // nil, so never, when no group waits for anything
		if next != never {
			timer.Reset(time.Duration(next-now) * time.Microsecond)
			wake = timer.C
		}
		select {
		case <-wake:
		case <-a.kick:
		case <-a.stop:
			return
		}
	}
}

func (a *alarm) close() {
	close(a.stop)
	<-a.done
}

// alarmHeap orders groups by when they need attention.
type alarmHeap []*alarmEntry

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *alarmHeap) Push(x any) {
	en := x.(*alarmEntry)
	en.place = len(*h)
	*h = append(*h, en)
}

func (h *alarmHeap) Pop() any {
	old := *h
	en := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	en.place = -1
	return en
}
