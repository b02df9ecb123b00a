package raftmeta

import (
	"runtime"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// fatal is the one-way switch of the plane: after the first error that cannot
// be survived, nothing more is written or applied until a restart (I5).
//
// Raft panics when its stores fail, and Pebble goes on as if nothing had
// happened when its fatal hook returns. Both would be worse than standing
// still: whoever hits the error parks, the plane reports it, reads go on.
type fatal struct {
	tripped chan struct{} // closed by the first trip
	release chan struct{} // closed when the plane closes: parked goroutines end

	mu struct {
		sync.Mutex
		err      error
		report   func(error) // nil until Open has succeeded: before, Open returns the error
		released bool
	}
}

func newFatal() *fatal {
	return &fatal{tripped: make(chan struct{}), release: make(chan struct{})}
}

// arm makes report hear of the first error from now on. It returns an error
// that came earlier.
func (f *fatal) arm(report func(error)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.report = report
	return f.mu.err
}

// trip records err, once, and reports it.
func (f *fatal) trip(err error) {
	f.mu.Lock()
	first, report := f.mu.err == nil, f.mu.report
	if first {
		f.mu.err = err
		close(f.tripped)
	}
	f.mu.Unlock()
	if first && report != nil {
		report(err)
	}
}

// err returns what tripped the plane, nil while it runs.
func (f *fatal) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.err
}

// refusal is what a caller gets after the trip: nothing was applied.
func (f *fatal) refusal() error {
	err := f.err()
	if err == nil {
		return nil
	}
	return &errcode.Error{Code: errcode.Poisoned, Msg: "metadata takes no changes until a restart: " + err.Error(), Err: err}
}

// park never returns: it ends the calling goroutine when the plane closes.
func (f *fatal) park() {
	<-f.release
	runtime.Goexit()
}

// unpark ends all parked goroutines, now and later.
func (f *fatal) unpark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.released {
		f.mu.released = true
		close(f.release)
	}
}

// unwindTimeout bounds the wait for code that was inside Pebble when Pebble
// failed: it may be waiting for a goroutine of Pebble that exists no more.
const unwindTimeout = 5 * time.Second

// guard runs fn on a goroutine of its own, because code that parks must not
// take the caller along, and returns fn's error or what tripped the plane.
// ended is false when fn hangs inside a failed Pebble: what it works on is
// still its own.
func (f *fatal) guard(fn func() error) (ended bool, err error) {
	done := make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = fn()
	}()
	select {
	case <-done:
	case <-f.tripped:
		f.unpark()
		select {
		case <-done:
		case <-time.After(unwindTimeout):
			return false, f.err()
		}
	}
	if cause := f.err(); cause != nil {
		return true, cause
	}
	return true, result
}
