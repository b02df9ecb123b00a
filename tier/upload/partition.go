package upload

import (
	"time"

	"github.com/tidemark-mq/tidemark/internal/broker"
	"github.com/tidemark-mq/tidemark/tier/manifest"
)

// phase is how far a segment is.
type phase uint8

const (
	waiting   phase = iota // for a slot
	uploading              // its object is on the way
	uploaded               // its object is there, its entry is not
	publishing
)

// item is one segment in a queue.
type item struct {
	sealed  Sealed
	phase   phase
	attempt Attempt
	fresh   bool             // attempt may be used: it is of this process, or recorded
	sent    bool             // the store took that attempt's object, which was not read back yet
	doubts  int              // times that attempt's object was read as something else
	found   manifest.Segment // the entry that names it already
	same    bool             // found holds exactly these bytes
	done    bool             // the chain has passed it
}

// partition is the queue of one partition, in offset order. The Uploader's lock
// guards it.
type partition struct {
	pid      broker.PartitionID
	items    []*item
	bytes    int64
	ready    bool      // it stands in the ready list
	busy     int       // items in flight
	failures int       // in a row
	since    time.Time // when err was nil last; zero while it is
	retryAt  time.Time
	err      error // last failure
	stopped  bool
	commits  bool // a goroutine publishes
}

// Status is what is known of one partition's uploads.
type Status struct {
	Partition broker.PartitionID
	Queued    int       // segments that are not archived yet
	Bytes     int64     // of those
	Oldest    int64     // first offset of the oldest of them
	Failures  int       // in a row
	RetryAt   time.Time // when the next try comes; zero = now
	Stopped   bool      // waits for Drop or Resume
	Err       error     // why; nil when the last try worked
}

func (p *partition) status() Status {
	s := Status{Partition: p.pid, Queued: len(p.items), Bytes: p.bytes, Failures: p.failures, RetryAt: p.retryAt, Stopped: p.stopped, Err: p.err}
	if len(p.items) > 0 {
		s.Oldest = p.items[0].sealed.Info.Base
	}
	return s
}

// work says what may start now: the oldest segment without a slot, or the
// publication of what stands uploaded at the queue's head.
func (p *partition) work(window int) (it *item, publish bool) {
	if p.stopped || len(p.items) == 0 {
		return nil, false
	}
	if !p.commits && p.items[0].phase == uploaded {
		return nil, true
	}
	for i, it := range p.items {
		if i == window {
			break
		}
		if it.phase == waiting {
			return it, false
		}
	}
	return nil, false
}

// heads returns the uploaded items at the queue's head, at most n.
func (p *partition) heads(n int) []*item {
	i := 0
	for i < len(p.items) && i < n && p.items[i].phase == uploaded {
		i++
	}
	return p.items[:i:i]
}

// pop takes the first n items out of the queue.
func (p *partition) pop(n int) {
	for _, it := range p.items[:n] {
		p.bytes -= it.sealed.Info.Bytes
	}
	p.items = append([]*item(nil), p.items[n:]...)
	p.failures, p.err, p.retryAt, p.since = 0, nil, time.Time{}, time.Time{}
}
