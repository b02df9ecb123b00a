package objstore

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// RetryPolicy says how calls are repeated. The zero value means the defaults.
type RetryPolicy struct {
	Attempts int           // of one call, the first included; default 6
	Base     time.Duration // upper bound of the first pause, doubled each time; default 100 ms
	Most     time.Duration // upper bound of every pause; default 10 s
}

func (p RetryPolicy) withDefaults() RetryPolicy {
	if p.Attempts == 0 {
		p.Attempts = 6
	}
	if p.Base == 0 {
		p.Base = 100 * time.Millisecond
	}
	if p.Most == 0 {
		p.Most = 10 * time.Second
	}
	return p
}

// RetryBudget bounds the retries of a whole node: a burst of them is free, then
// they come at a steady rate however many calls fail. An outage is met with few
// requests, and a store that fails each first try once is not given up on.
type RetryBudget struct{ tokens *rate.Limiter }

// NewRetryBudget allows burst retries at once and perSecond after that; zero
// values mean 100 and 10.
func NewRetryBudget(perSecond float64, burst int) *RetryBudget {
	if perSecond <= 0 {
		perSecond = 10
	}
	if burst <= 0 {
		burst = 100
	}
	return &RetryBudget{rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// WithRetries repeats calls on s that ended with Transient or Throttled, after a
// pause drawn evenly from zero to a bound that doubles, or as long as the store
// asked for. Other codes are answers and come back at once. When attempts, budget
// or the caller's time are used up, the last error comes back.
//
// A create-only put whose answer was lost may meet its own object: Exists after
// such an attempt is resolved by reading the object, and the same bytes mean
// success. A Get whose body breaks is asked for again and goes on where it was.
//
// rnd returns numbers in [0, 1), nil for the system's.
func WithRetries(s Store, p RetryPolicy, budget *RetryBudget, rnd func() float64) Store {
	if budget == nil {
		budget = NewRetryBudget(0, 0)
	}
	if rnd == nil {
		rnd = rand.Float64
	}
	return &retrying{s, p.withDefaults(), budget, rnd}
}

type retrying struct {
	store  Store
	policy RetryPolicy
	budget *RetryBudget
	rnd    func() float64
}

// mayPass reports whether the same call can succeed later.
func mayPass(err error) bool {
	c := errcode.Of(err)
	return err != nil && (c == errcode.Transient || c == errcode.Throttled)
}

// do calls until it succeeds, gets an answer, or may not go on.
func (r *retrying) do(ctx context.Context, call func(attempt int) error) error {
	for attempt := 1; ; attempt++ {
		err := call(attempt)
		if !mayPass(err) || !r.pause(ctx, attempt, err) {
			return err
		}
	}
}

// pause waits before the next attempt; false means that there is none.
func (r *retrying) pause(ctx context.Context, attempt int, err error) bool {
	if attempt >= r.policy.Attempts || ctx.Err() != nil {
		return false
	}
	bound := min(r.policy.Most, r.policy.Base<<min(attempt-1, 20))
	wait := max(time.Duration(r.rnd()*float64(bound)), waitOf(err))
	token := r.budget.tokens.Reserve()
	// An empty budget makes the call wait for its token, but not for ever: a
	// caller that is told late backs off by that alone.
	if queue := token.Delay(); queue > r.policy.Most {
		token.Cancel()
		sleep(ctx, wait)
		return false
	} else {
		wait = max(wait, queue)
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < wait {
		token.Cancel()
		return false
	}
	return sleep(ctx, wait)
}

// waitOf returns how long the store asked to wait.
func waitOf(err error) time.Duration {
	var e *errcode.Error
	if errors.As(err, &e) {
		return e.Wait
	}
	return 0
}

// sleep waits and reports whether ctx lasted.
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

func (r *retrying) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts PutOptions) error {
	return r.do(ctx, func(attempt int) error {
		err := r.store.Put(ctx, key, body, size, opts)
		if attempt == 1 || !errcode.Is(err, errcode.Exists) {
			return err
		}
		same, rerr := r.same(ctx, key, body, size)
		switch {
		case rerr == nil && same:
			return nil // an earlier attempt had created it
		case rerr == nil:
			return err
		case errcode.Is(rerr, errcode.NotFound):
			return errcode.New(errcode.Transient, "put %s: the object that was in the way has gone", key)
		default:
			return errcode.Wrap(errcode.Transient, rerr, "put %s: find out whose object is there", key)
		}
	})
}

// same reports whether the object is what body holds, by comparing all bytes.
func (r *retrying) same(ctx context.Context, key string, body io.ReadSeeker, size int64) (bool, error) {
	theirs, info, err := r.store.Get(ctx, key)
	if err != nil {
		return false, err
	}
	defer theirs.Close()
	if info.Size != size {
		return false, nil
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return false, errcode.Wrap(errcode.Internal, err, "rewind the body")
	}
	const step = 64 << 10
	buf := make([]byte, 2*step)
	for left := size; left > 0; {
		n := min(left, step)
		if _, err := io.ReadFull(theirs, buf[:n]); err != nil {
			return false, asRead(key, err)
		}
		if _, err := io.ReadFull(body, buf[step:step+n]); err != nil {
			return false, errcode.Wrap(errcode.Internal, err, "read the body")
		}
		if string(buf[:n]) != string(buf[step:step+n]) {
			return false, nil
		}
		left -= n
	}
	return true, nil
}

// GetRange asks again for what has not arrived: bytes that were announced stay as
// they are.
func (r *retrying) GetRange(ctx context.Context, key string, p []byte, off int64) (n int, err error) {
	done, told := 0, Arrival(ctx)
	err = r.do(ctx, func(int) error {
		begin, sub := done, ctx
		if told != nil {
			sub = WithArrival(ctx, func(n int) {
				done = begin + n
				told(done)
			})
		}
		n, err = r.store.GetRange(sub, key, p[begin:], off+int64(begin))
		n += begin
		return err
	})
	return n, err
}

func (r *retrying) Head(ctx context.Context, key string) (info Info, err error) {
	err = r.do(ctx, func(int) error {
		info, err = r.store.Head(ctx, key)
		return err
	})
	return info, err
}

func (r *retrying) List(ctx context.Context, prefix, startAfter string, limit int) (page Page, err error) {
	err = r.do(ctx, func(int) error {
		page, err = r.store.List(ctx, prefix, startAfter, limit)
		return err
	})
	return page, err
}

func (r *retrying) Delete(ctx context.Context, keys []string) error {
	return r.do(ctx, func(int) error { return r.store.Delete(ctx, keys) })
}

func (r *retrying) Capabilities() Capabilities { return r.store.Capabilities() }
func (r *retrying) Close() error               { return r.store.Close() }

// Unwrap returns the store below.
func (r *retrying) Unwrap() Store { return r.store }

func (r *retrying) Get(ctx context.Context, key string) (body io.ReadCloser, info Info, err error) {
	err = r.do(ctx, func(int) error {
		body, info, err = r.store.Get(ctx, key)
		return err
	})
	if err != nil {
		return nil, Info{}, err
	}
	return &resuming{r: r, ctx: ctx, key: key, info: info, body: body}, info, nil
}

// resuming is a body that, when it breaks, opens the object again and skips what
// was read already. That costs the bytes twice, and happens rarely; who reads
// large objects reads them by ranges.
type resuming struct {
	r        *retrying
	ctx      context.Context
	key      string
	info     Info
	body     io.ReadCloser
	read     int64
	attempts int   // used up by this body
	err      error // sticky
}

func (b *resuming) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	for {
		n, err := b.body.Read(p)
		b.read += int64(n)
		if n > 0 {
			if mayPass(err) {
				err = nil // the next call meets it again
			}
			b.err = err
			return n, err
		}
		if err == nil && len(p) > 0 {
			continue
		}
		if !mayPass(err) {
			b.err = err
			return 0, err
		}
		if b.err = b.reopen(err); b.err != nil {
			return 0, b.err
		}
	}
}

// reopen replaces a body that broke with err.
func (b *resuming) reopen(err error) error {
	for {
		b.attempts++
		if !b.r.pause(b.ctx, b.attempts, err) {
			return err
		}
		body, info, gerr := b.r.store.Get(b.ctx, b.key)
		if gerr == nil && (info.Size != b.info.Size || !info.Modified.Equal(b.info.Modified)) {
			body.Close()
			return errcode.New(errcode.Internal, "read %s: the object was replaced while it was read", b.key)
		}
		if gerr == nil {
			if _, gerr = io.CopyN(io.Discard, body, b.read); gerr == nil {
				b.body.Close()
				b.body = body
				return nil
			}
			body.Close()
			gerr = asRead(b.key, gerr)
		}
		if !mayPass(gerr) {
			return gerr
		}
		err = gerr
	}
}

func (b *resuming) Close() error { return b.body.Close() }
