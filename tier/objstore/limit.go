package objstore

import (
	"container/list"
	"context"
	"io"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Limits are the most calls under way at once, by class. The zero value means
// the defaults.
type Limits struct {
	Upload     int           // default 16
	Read       int           // default 16
	Background int           // default 4
	Recover    time.Duration // between two steps up after a throttling; default 1 s
}

func (l Limits) withDefaults() Limits {
	for n, d := range map[*int]int{&l.Upload: 16, &l.Read: 16, &l.Background: 4} {
		if *n <= 0 {
			*n = d
		}
	}
	if l.Recover == 0 {
		l.Recover = time.Second
	}
	return l
}

// Limiter holds the pools of one node. Stores that share one share its slots.
//
// A call that the store throttles halves the pool of its class and of every class
// with less right, at most once for the calls that were under way together; a
// pool grows again by one slot for each Recover that passes while calls succeed.
// Waiting callers queue in order, as long as their contexts last: their number is
// the number of the node's own tasks.
type Limiter struct {
	recover time.Duration
	now     func() time.Time
	mu      struct {
		sync.Mutex
		pools [numClasses]pool
	}
}

type pool struct {
	most, limit, busy int
	waiting           list.List // of chan struct{}, each closed when its slot is given
	changed           time.Time // when limit went down or up last
}

// NewLimiter returns a limiter; now is the clock, nil for the system's.
func NewLimiter(l Limits, now func() time.Time) *Limiter {
	l = l.withDefaults()
	if now == nil {
		now = time.Now
	}
	m := &Limiter{recover: l.Recover, now: now}
	for c, n := range map[Class]int{Upload: l.Upload, Read: l.Read, Background: l.Background} {
		m.mu.pools[c].most, m.mu.pools[c].limit = n, n
	}
	return m
}

// Limit returns how many calls of the class may be under way now.
func (m *Limiter) Limit(c Class) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.pools[c].limit
}

// acquire waits for a slot and returns when it was given.
func (m *Limiter) acquire(ctx context.Context, c Class) (time.Time, error) {
	m.mu.Lock()
	p := &m.mu.pools[c]
	if p.busy < p.limit && p.waiting.Len() == 0 {
		p.busy++
		m.mu.Unlock()
		return m.now(), nil
	}
	turn := make(chan struct{})
	place := p.waiting.PushBack(turn)
	m.mu.Unlock()
	select {
	case <-turn:
		return m.now(), nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-turn: // given at the same moment: pass it on
		p.busy--
		p.hand()
	default:
		p.waiting.Remove(place)
	}
	return time.Time{}, errcode.Wrap(errcode.Canceled, context.Cause(ctx), "wait for one of %d %s slots", p.limit, c)
}

// release returns a slot that was given at began, with what the store said.
func (m *Limiter) release(c Class, began time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	switch {
	case errcode.Is(err, errcode.Throttled):
		for lower := range c + 1 {
			m.mu.pools[lower].halve(began, now)
		}
	case err == nil:
		m.mu.pools[c].grow(now, m.recover)
	}
	m.mu.pools[c].busy--
	m.mu.pools[c].hand()
}

// halve steps down unless the call began before the last step: calls that were
// under way together are throttled together, and count once.
func (p *pool) halve(began, now time.Time) {
	if began.Before(p.changed) && p.limit < p.most {
		return
	}
	p.limit, p.changed = max(1, p.limit/2), now
}

func (p *pool) grow(now time.Time, every time.Duration) {
	if p.limit < p.most && now.Sub(p.changed) >= every {
		p.limit++
		p.changed = now
	}
}

// hand gives free slots to those who wait longest.
func (p *pool) hand() {
	for p.busy < p.limit && p.waiting.Len() > 0 {
		close(p.waiting.Remove(p.waiting.Front()).(chan struct{}))
		p.busy++
	}
}

// WithLimits makes every call on s take a slot of its class in m. A Get holds its
// slot until its body has ended or is closed; who holds a body must not wait for
// another call of the same class to end.
func WithLimits(s Store, m *Limiter) Store { return &limited{s, m} }

type limited struct {
	store Store
	m     *Limiter
}

// slot runs call with a slot of the context's class.
func (l *limited) slot(ctx context.Context, call func() error) error {
	class := CauseOf(ctx).Class()
	began, err := l.m.acquire(ctx, class)
	if err != nil {
		return err
	}
	err = call()
	l.m.release(class, began, err)
	return err
}

func (l *limited) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts PutOptions) error {
	return l.slot(ctx, func() error { return l.store.Put(ctx, key, body, size, opts) })
}

func (l *limited) GetRange(ctx context.Context, key string, p []byte, off int64) (n int, err error) {
	err = l.slot(ctx, func() error {
		n, err = l.store.GetRange(ctx, key, p, off)
		return err
	})
	return n, err
}

func (l *limited) Head(ctx context.Context, key string) (info Info, err error) {
	err = l.slot(ctx, func() error {
		info, err = l.store.Head(ctx, key)
		return err
	})
	return info, err
}

func (l *limited) List(ctx context.Context, prefix, startAfter string, limit int) (page Page, err error) {
	err = l.slot(ctx, func() error {
		page, err = l.store.List(ctx, prefix, startAfter, limit)
		return err
	})
	return page, err
}

func (l *limited) Delete(ctx context.Context, keys []string) error {
	return l.slot(ctx, func() error { return l.store.Delete(ctx, keys) })
}

func (l *limited) Get(ctx context.Context, key string) (io.ReadCloser, Info, error) {
	class := CauseOf(ctx).Class()
	began, err := l.m.acquire(ctx, class)
	if err != nil {
		return nil, Info{}, err
	}
	body, info, err := l.store.Get(ctx, key)
	if err != nil {
		l.m.release(class, began, err)
		return nil, Info{}, err
	}
	return &held{body: body, release: sync.OnceFunc(func() { l.m.release(class, began, nil) })}, info, nil
}

func (l *limited) Capabilities() Capabilities { return l.store.Capabilities() }
func (l *limited) Close() error               { return l.store.Close() }

// Unwrap returns the store below.
func (l *limited) Unwrap() Store { return l.store }

// held is a body that holds a slot.
type held struct {
	body    io.ReadCloser
	release func()
}

func (h *held) Read(p []byte) (int, error) {
	n, err := h.body.Read(p)
	if err != nil {
		h.release()
	}
	return n, err
}

func (h *held) Close() error {
	defer h.release()
	return h.body.Close()
}
