package node

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/cold"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

const (
	// keptScans bounds the scans that wait for their reader's next call.
	keptScans = 128
	// keptFor is how long one waits: its reader has left, and the read-ahead
	// that it holds is others' to have.
	keptFor = 30 * time.Second
)

type scanKey struct {
	id   broker.PartitionID
	next int64
}

// scan is one reader's place in the archive.
type scan struct {
	key     scanKey
	seg     manifest.Segment
	batches *cold.Batches // nil: seg could not be opened
	then    string        // key of the segment that batches follow, "" = none
	err     error         // of the last attempt to go on
	used    time.Time
}

// onward goes on in the segment that the scan follows, behind what it has passed:
// a merged one also holds records of the segment that the scan comes from.
func (s *scan) onward(ctx context.Context) (*cold.Batches, error) {
	next, err := s.batches.Continue(ctx, s.key.next)
	if err != nil {
		return s.batches, err
	}
	return next, nil
}

func (s *scan) close() {
	if s.batches != nil {
		s.batches.Close()
	}
}

// scans keeps the scans of readers between two of their calls.
type scans struct {
	now func() time.Time

	mu     sync.Mutex
	byKey  map[scanKey][]*list.Element // -> *scan; several readers may stand at one place
	order  *list.List                  // front: most recent
	closed bool
	expiry *time.Timer // runs while there are scans
}

func newScans(now func() time.Time) *scans {
	return &scans{now: now, byKey: make(map[scanKey][]*list.Element), order: list.New()}
}

// take returns a scan that stands at key, nil when there is none.
func (x *scans) take(key scanKey) *scan {
	x.mu.Lock()
	defer x.mu.Unlock()
	els := x.byKey[key]
	if len(els) == 0 {
		return nil
	}
	return x.remove(els[len(els)-1])
}

// keep keeps s for whoever goes on at its place.
func (x *scans) keep(s *scan) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		s.close()
		return
	}
	s.used = x.now()
	x.byKey[s.key] = append(x.byKey[s.key], x.order.PushFront(s))
	for x.order.Len() > keptScans {
		x.remove(x.order.Back()).close()
	}
	if x.expiry == nil {
		x.expiry = time.AfterFunc(keptFor, x.expire)
	}
}

// expire closes what nobody came back for.
func (x *scans) expire() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.expiry = nil
	if x.closed {
		return
	}
	for el := x.order.Back(); el != nil && x.now().Sub(el.Value.(*scan).used) >= keptFor; el = x.order.Back() {
		x.remove(el).close()
	}
	if el := x.order.Back(); el != nil {
		x.expiry = time.AfterFunc(keptFor, x.expire)
	}
}

// remove takes a scan out. Locked.
func (x *scans) remove(el *list.Element) *scan {
	s := x.order.Remove(el).(*scan)
	els := x.byKey[s.key]
	for i := range els {
		if els[i] == el {
			els = append(els[:i], els[i+1:]...)
			break
		}
	}
	if len(els) == 0 {
		delete(x.byKey, s.key)
	} else {
		x.byKey[s.key] = els
	}
	return s
}

// shed closes the scan that waits longest.
func (x *scans) shed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if el := x.order.Back(); el != nil {
		x.remove(el).close()
	}
}

// forget drops the scans of a topic.
func (x *scans) forget(topic broker.TopicID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for el := x.order.Front(); el != nil; {
		next := el.Next()
		if el.Value.(*scan).key.id.Topic == topic {
			x.remove(el).close()
		}
		el = next
	}
}

// close drops all, and whatever is kept later.
func (x *scans) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for x.order.Len() > 0 {
		x.remove(x.order.Back()).close()
	}
	if x.expiry != nil {
		x.expiry.Stop() // one that runs already finds nothing
	}
}

func (x *scans) len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.order.Len()
}
