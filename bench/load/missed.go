package load

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// RefusedError is the error of an operation that was answered, and not done. The
// open loop counts it and goes on; the closed loop ends with it.
type RefusedError struct {
	Status int
	After  time.Duration // the answer asks to wait so long; 0: not said
	Err    error
}

// Error is the cause.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// UnansweredError is the error of an operation of which nobody says whether it was
// done. The open loop counts it and goes on; the closed loop ends with it.
type UnansweredError struct {
	Timeout bool // the time for an answer was over; else the connection broke
	Err     error
}

// Error is the cause.
func (e *UnansweredError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UnansweredError) Unwrap() error { return e.Err }

// Missed is what was due in the measured time of an open loop and was not done, or
// not in time.
type Missed struct {
	Refused   map[int]int64 // by status
	After     time.Duration // the longest that an answer asked to wait
	Timeouts  int64         // no answer in time; the wait is in the latencies
	Broken    int64         // the connection broke, or there was none
	Late      int64         // begun more than LateAfter after they were due
	Latest    time.Duration // the latest begin
	LastError string        // of the last one that was refused or unanswered
}

// LateAfter is how long after it was due an operation may begin and not be late.
const LateAfter = time.Millisecond

// AllRefused is the sum over all statuses.
func (m *Missed) AllRefused() (n int64) {
	for _, k := range m.Refused {
		n += k
	}
	return n
}

// misses counts.
type misses struct {
	mu sync.Mutex
	Missed
}

// begun notes how late an operation begins.
func (m *misses) begun(late time.Duration) {
	if late <= LateAfter {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Late++
	m.Latest = max(m.Latest, late)
}

// note counts an operation that failed, and says whether the run goes on.
func (m *misses) note(err error, measured bool) bool {
	var refused *RefusedError
	var unanswered *UnansweredError
	isRefused := errors.As(err, &refused)
	if !isRefused && !errors.As(err, &unanswered) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.LastError = err.Error()
	switch {
	case !measured:
	case isRefused:
		if m.Refused == nil {
			m.Refused = map[int]int64{}
		}
		m.Refused[refused.Status]++
		m.After = max(m.After, refused.After)
	case unanswered.Timeout:
		m.Timeouts++
	default:
		m.Broken++
	}
	return true
}

// begins says that an operation begins, when none has begun since the last answer.
func (r *run) begins(now time.Time) { r.waiting.CompareAndSwap(0, int64(now.Sub(r.start))+1) }

// silent returns an error when nothing was answered for too long.
func (r *run) silent(now time.Time) error {
	since := time.Duration(r.waiting.Load())
	if r.Silence <= 0 || since == 0 || now.Sub(r.start)-since < r.Silence {
		return nil
	}
	r.missed.mu.Lock()
	defer r.missed.mu.Unlock()
	if r.missed.LastError != "" {
		return fmt.Errorf("nothing was answered for %v: %s", r.Silence, r.missed.LastError)
	}
	return fmt.Errorf("nothing was answered for %v", r.Silence)
}
