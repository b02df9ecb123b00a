package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Retry says how a call that failed is tried again. The zero value has the
// defaults; Tries 1 tries nothing again.
//
// What is tried again follows from the error's class. RetryAfter and
// RetryRedirect mean that nothing was applied: every call is repeated. So is one
// that found no connection, or whose bytes the connection did not all take.
// RetryUnknown, which a lost answer is too, means that it may have been applied:
// reads, consumes and settles are repeated, since doing them twice does no harm,
// and a produce only with AtLeastOnce. RetryNever is never repeated.
type Retry struct {
	Tries    int           // of one call, the first included; 0: 4
	Pause    time.Duration // before the second try; each further one doubles it; 0: 100 ms
	MaxPause time.Duration // longest pause; an error that asks for a longer one is returned at once; 0: 10 s

	patient bool // waits as long as an error asks for
}

func (r Retry) withDefaults() Retry {
	if r.Tries == 0 {
		r.Tries = 4
	}
	if r.Pause == 0 {
		r.Pause = 100 * time.Millisecond
	}
	if r.MaxPause == 0 {
		r.MaxPause = 10 * time.Second
	}
	return r
}

func (r Retry) validate() error {
	if r.Tries < 0 || r.Pause < 0 || r.MaxPause < 0 {
		return errcode.New(errcode.InvalidArgument, "retries: tries %d, pause %s and longest pause %s must not be negative", r.Tries, r.Pause, r.MaxPause)
	}
	return nil
}

// safety is what repeating a call can do.
type safety uint8

const (
	whenRefused safety = iota // repeated only when it was not applied for certain
	harmless                  // repeating it never does harm
	once                      // never repeated
)

// may reports whether a call that failed with err may be sent again.
func (s safety) may(err error) bool {
	switch errcode.Of(err).Retry() {
	case errcode.RetryAfter, errcode.RetryRedirect:
		return s != once
	case errcode.RetryUnknown:
		return s == harmless
	default:
		return false
	}
}

// pause is how long to wait after the given try (1 is the first) failed with
// err; ok is false when the node asks for more than is allowed. Half of it is
// random, so that clients that failed together do not come back together.
func (r Retry) pause(try int, err error) (d time.Duration, ok bool) {
	d = r.MaxPause
	if shift := try - 1; shift < 32 && r.Pause<<shift>>shift == r.Pause {
		d = min(r.Pause<<shift, r.MaxPause)
	}
	d -= rand.N(d/2 + 1)
	var e *errcode.Error
	if errors.As(err, &e) && e.Wait > 0 {
		if e.Wait > r.MaxPause && !r.patient {
			return 0, false
		}
		d = max(d, e.Wait+rand.N(d/2+1))
	}
	return d, true
}

// wait sleeps before the next try. It returns false, at once, when ctx would end
// before: the error at hand says more than "deadline exceeded".
func (r Retry) wait(ctx context.Context, try int, err error) bool {
	d, ok := r.pause(try, err)
	if !ok {
		return false
	}
	if end, bounded := ctx.Deadline(); bounded && time.Until(end) <= d {
		return false
	}
	return sleep(ctx, d)
}

// sleep returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// again runs try until it succeeds, its error may not be repeated, or the tries
// or ctx are used up.
func (r Retry) again(ctx context.Context, s safety, try func(context.Context) error) error {
	for n := 1; ; n++ {
		err := try(ctx)
		if err == nil || n >= r.Tries || ctx.Err() != nil || !s.may(err) || !r.wait(ctx, n, err) {
			return err
		}
	}
}
