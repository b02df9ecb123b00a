package load

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// coarse is how much earlier than asked for a timer of the runtime is set: it may
// be a millisecond late, which at low rates would be most of a latency.
const coarse = 1500 * time.Microsecond

// sleepUntil waits for a time, within some 60 us, and reports whether ctx still
// runs. A timer waits for most of it and a sleep in the kernel for the rest.
func sleepUntil(ctx context.Context, t time.Time) bool {
	if left := time.Until(t) - coarse; left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	for left := time.Until(t); left > 0; left = time.Until(t) {
		rest := unix.NsecToTimespec(int64(left))
		_ = unix.Nanosleep(&rest, nil) // a signal ends it early: then for the rest
	}
	return ctx.Err() == nil
}
