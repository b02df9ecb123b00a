package api

import (
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// waiting counts the consumes of each identity: one for a request that waits,
// and the records it leases while its answer is written. Identities without a
// consume take no memory.
type waiting struct {
	most int
	mu   struct {
		sync.Mutex
		by map[string]int
	}
}

func newWaiting(most int) *waiting {
	w := &waiting{most: most}
	w.mu.by = make(map[string]int)
	return w
}

// enter counts one consume in, or refuses it.
func (w *waiting) enter(identity string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.by[identity] >= w.most {
		return errcode.New(errcode.TooMany, "this identity has %d consumes in flight, which is the most; wait for one to end", w.most).After(time.Second)
	}
	w.mu.by[identity]++
	return nil
}

// add counts what a consume leased. It never refuses: the leases exist.
func (w *waiting) add(identity string, n int) {
	w.mu.Lock()
	w.mu.by[identity] += n
	w.mu.Unlock()
}

// leave takes back n.
func (w *waiting) leave(identity string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.by[identity] -= n; w.mu.by[identity] <= 0 {
		delete(w.mu.by, identity)
	}
}
