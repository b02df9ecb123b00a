package objstore

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Deadlines bound one attempt. The zero value means the defaults.
type Deadlines struct {
	Attempt time.Duration // for the answer to begin; default 30 s
	MinRate int64         // bytes per second below which a body counts as hanging; default 256 KiB/s
	Idle    time.Duration // between two reads of a Get's body; default 30 s
}

func (d Deadlines) withDefaults() Deadlines {
	if d.Attempt == 0 {
		d.Attempt = 30 * time.Second
	}
	if d.MinRate == 0 {
		d.MinRate = 256 << 10
	}
	if d.Idle == 0 {
		d.Idle = 30 * time.Second
	}
	return d
}

// for a call that moves n bytes.
func (d Deadlines) moving(n int64) time.Duration {
	return d.Attempt + time.Duration(n/d.MinRate)*time.Second
}

// WithDeadlines ends attempts that hang or crawl with Transient, so that they can
// be repeated while the caller's own context still has time.
func WithDeadlines(s Store, d Deadlines) Store { return &deadline{s, d.withDefaults()} }

type deadline struct {
	store Store
	d     Deadlines
}

// errTooSlow is the cause of a context that an attempt's deadline ended.
var errTooSlow = errcode.New(errcode.Transient, "the store did not answer in time")

// within runs call under a deadline of its own.
func within(ctx context.Context, limit time.Duration, op, key string, call func(context.Context) error) error {
	sub, cancel := context.WithTimeoutCause(ctx, limit, errTooSlow)
	defer cancel()
	return tooSlow(ctx, sub, limit, op, key, call(sub))
}

// tooSlow tells an attempt's end from the caller's.
func tooSlow(ctx, sub context.Context, limit time.Duration, op, key string, err error) error {
	if err == nil || ctx.Err() != nil || !errors.Is(context.Cause(sub), errTooSlow) {
		return err
	}
	return errcode.New(errcode.Transient, "%s %s: no answer from the store within %v", op, key, limit)
}

func (t *deadline) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts PutOptions) error {
	return within(ctx, t.d.moving(size), "put", key, func(ctx context.Context) error {
		return t.store.Put(ctx, key, body, size, opts)
	})
}

func (t *deadline) GetRange(ctx context.Context, key string, p []byte, off int64) (n int, err error) {
	err = within(ctx, t.d.moving(int64(len(p))), "get range of", key, func(ctx context.Context) error {
		n, err = t.store.GetRange(ctx, key, p, off)
		return err
	})
	return n, err
}

func (t *deadline) Head(ctx context.Context, key string) (info Info, err error) {
	err = within(ctx, t.d.Attempt, "head", key, func(ctx context.Context) error {
		info, err = t.store.Head(ctx, key)
		return err
	})
	return info, err
}

func (t *deadline) List(ctx context.Context, prefix, startAfter string, limit int) (page Page, err error) {
	err = within(ctx, t.d.Attempt, "list", prefix, func(ctx context.Context) error {
		page, err = t.store.List(ctx, prefix, startAfter, limit)
		return err
	})
	return page, err
}

func (t *deadline) Delete(ctx context.Context, keys []string) error {
	batches := time.Duration(len(keys)/PageSize + 1)
	return within(ctx, batches*t.d.Attempt, "delete", "objects", func(ctx context.Context) error {
		return t.store.Delete(ctx, keys)
	})
}

// Get's deadline is for the answer to begin; after that each read has Idle, so a
// large body may take its time as long as it moves.
func (t *deadline) Get(ctx context.Context, key string) (io.ReadCloser, Info, error) {
	sub, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(t.d.Attempt, func() { cancel(errTooSlow) })
	body, info, err := t.store.Get(sub, key)
	if err != nil {
		timer.Stop()
		err = tooSlow(ctx, sub, t.d.Attempt, "get", key, err)
		cancel(nil)
		return nil, Info{}, err
	}
	timer.Stop()
	return &watched{ctx: ctx, sub: sub, cancel: cancel, timer: timer, idle: t.d.Idle, body: body, key: key}, info, nil
}

func (t *deadline) Capabilities() Capabilities { return t.store.Capabilities() }
func (t *deadline) Close() error               { return t.store.Close() }

// Unwrap returns the store below.
func (t *deadline) Unwrap() Store { return t.store }

// watched is a body whose reads have a deadline. The time that the caller takes
// between two reads does not count.
type watched struct {
	ctx, sub context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	idle     time.Duration
	body     io.ReadCloser
	key      string
	once     sync.Once
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.idle)
	n, err := w.body.Read(p)
	w.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = tooSlow(w.ctx, w.sub, w.idle, "read", w.key, err)
	}
	return n, err
}

func (w *watched) Close() error {
	w.once.Do(func() {
		w.timer.Stop()
		w.cancel(nil)
	})
	return w.body.Close()
}
