package fault

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// Options of New.
type Options struct {
	Seed uint64 // of chances, jitter and flipped bits
}

// Store misbehaves by its rules.
type Store struct {
	inner objstore.Store
	mu    struct {
		sync.Mutex
		rules   []*Handle
		rng     *rand.Rand
		history history
	}
}

var _ objstore.Store = (*Store)(nil)

// New wraps inner; without rules it behaves.
func New(inner objstore.Store, o Options) *Store {
	s := &Store{inner: inner}
	s.mu.rng = rand.New(rand.NewPCG(o.Seed, 0x7469646d))
	s.mu.history.known = map[string]objstore.Info{}
	return s
}

// Add adds a rule for calls to come.
func (s *Store) Add(r Rule) *Handle {
	h := &Handle{rule: r, s: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rules = append(s.mu.rules, h)
	return h
}

// Clear removes all rules: the store is well again.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rules = nil
}

// Down makes every call fail with an error of the code, until the handle is
// removed.
func (s *Store) Down(c errcode.Code) *Handle {
	return s.Add(Rule{Do: Fail, Err: errcode.New(c, "the fault store is down")})
}

// pick returns the rule that acts on a call, nil for none, after its waiting.
func (s *Store) pick(ctx context.Context, op string, keys ...string) (*Rule, error) {
	key := ""
	if len(keys) > 0 {
		key = keys[0]
	}
	if err := objstore.Ended(ctx, op, key); err != nil {
		return nil, err
	}
	h, delay := s.choose(op, keys)
	if h == nil {
		return &Rule{}, nil
	}
	h.hits.Add(1)
	wait := h.rule.Wait
	if wait == nil {
		open := make(chan struct{})
		close(open)
		wait = open
	}
	select {
	case <-wait:
	case <-ctx.Done():
		return nil, objstore.Ended(ctx, op, key)
	}
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, objstore.Ended(ctx, op, key)
		}
	}
	switch h.rule.Do {
	case Hang:
		<-ctx.Done()
		return nil, objstore.Ended(ctx, op, key)
	case Fail:
		return nil, h.rule.failure(op, key)
	}
	return &h.rule, nil
}

func (s *Store) choose(op string, keys []string) (*Handle, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.mu.rules {
		if !h.rule.matches(op, keys) {
			continue
		}
		h.seen++
		n := h.seen - h.rule.Skip
		if n <= 0 || h.rule.Times > 0 && n > h.rule.Times || h.rule.Chance > 0 && s.mu.rng.Float64() >= h.rule.Chance {
			continue
		}
		delay := h.rule.Delay
		if h.rule.Jitter > 0 {
			delay += time.Duration(s.mu.rng.Int64N(int64(h.rule.Jitter)))
		}
		h.keys = append(h.keys, keys[:min(len(keys), maxKeys-len(h.keys))]...)
		return h, delay
	}
	return nil, 0
}

// bit returns the position of a bit to flip among n bytes.
func (s *Store) bit(n int64) (byteAt int64, mask byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.rng.Int64N(n), 1 << s.mu.rng.IntN(8)
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	rule, err := s.pick(ctx, Put, key)
	if err != nil {
		return err
	}
	switch rule.Do {
	case Pretend:
		return nil
	case Cut:
		return rule.failure(Put, key)
	case Tear, Flip:
		return s.putDamaged(ctx, rule.Do, key, body, size, opts)
	}
	err = s.inner.Put(ctx, key, body, size, opts)
	if err == nil {
		s.putDone(key, size)
	}
	if rule.Do == LoseAnswer {
		return rule.failure(Put, key)
	}
	return err
}

// putDamaged stores something else than it was given and says that all is well.
func (s *Store) putDamaged(ctx context.Context, do Action, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	if err := objstore.CheckBody(key, body, size); err != nil {
		return err
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return errcode.Wrap(errcode.Internal, err, "put %s: read the body", key)
	}
	if do == Tear {
		data = data[:len(data)/2]
	} else if len(data) > 0 {
		at, mask := s.bit(int64(len(data)))
		data[at] ^= mask
	}
	opts.SHA256, opts.CRC32C = nil, nil
	err = s.inner.Put(ctx, key, bytes.NewReader(data), int64(len(data)), opts)
	if err == nil {
		s.putDone(key, int64(len(data)))
	}
	return err
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	rule, err := s.pick(ctx, Get, key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	if rule.Do == Pretend {
		return nil, objstore.Info{}, notThere(Get, key)
	}
	body, info, err := s.inner.Get(ctx, key)
	if err != nil {
		if rule.Do == LoseAnswer {
			err = rule.failure(Get, key)
		}
		return nil, objstore.Info{}, err
	}
	switch rule.Do {
	case LoseAnswer:
		body.Close()
		return nil, objstore.Info{}, rule.failure(Get, key)
	case Cut:
		body = &damaged{ReadCloser: body, end: info.Size / 2, err: rule.failure(Get, key), flip: -1}
	case Tear:
		body = &damaged{ReadCloser: body, end: info.Size / 2, err: io.EOF, flip: -1}
	case Flip:
		if info.Size > 0 {
			at, mask := s.bit(info.Size)
			body = &damaged{ReadCloser: body, end: info.Size + 1, flip: at, mask: mask}
		}
	}
	return body, info, nil
}

// damaged is a body that ends with err at end, or has one bit flipped.
type damaged struct {
	io.ReadCloser
	off, end int64
	err      error
	flip     int64 // position, -1 for none
	mask     byte
}

func (d *damaged) Read(p []byte) (int, error) {
	if d.off >= d.end {
		return 0, d.err
	}
	n, err := d.ReadCloser.Read(p[:min(int64(len(p)), d.end-d.off)])
	if at := d.flip - d.off; d.flip >= 0 && at >= 0 && at < int64(n) {
		p[at] ^= d.mask
	}
	d.off += int64(n)
	return n, err
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	rule, err := s.pick(ctx, GetRange, key)
	if err != nil {
		return 0, err
	}
	if rule.Do == Pretend {
		return 0, notThere(GetRange, key)
	}
	if rule.Do != 0 {
		ctx = objstore.WithArrival(ctx, nil) // not the bytes that the caller gets
	}
	n, err := s.inner.GetRange(ctx, key, p, off)
	switch {
	case rule.Do == LoseAnswer:
		return 0, rule.failure(GetRange, key)
	case err != nil:
		return n, err
	case rule.Do == Cut:
		return n / 2, rule.failure(GetRange, key)
	case rule.Do == Tear:
		return n / 2, nil
	case rule.Do == Flip && n > 0:
		at, mask := s.bit(int64(n))
		p[at] ^= mask
	}
	return n, nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	rule, err := s.pick(ctx, Head, key)
	if err != nil {
		return objstore.Info{}, err
	}
	if rule.Do == Pretend {
		return objstore.Info{}, notThere(Head, key)
	}
	info, err := s.inner.Head(ctx, key)
	switch {
	case rule.Do == LoseAnswer:
		return objstore.Info{}, rule.failure(Head, key)
	case err != nil:
		return objstore.Info{}, err
	case rule.Do == Tear:
		info.Size /= 2
	case rule.Do == Flip:
		info.Size += 1 + info.Size/3
	}
	return info, nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	rule, err := s.pick(ctx, List, prefix)
	if err != nil {
		return objstore.Page{}, err
	}
	switch rule.Do {
	case Pretend:
		return objstore.Page{}, nil
	case Stale:
		return s.listStale(ctx, prefix, startAfter, limit, rule.Age)
	}
	page, err := s.inner.List(ctx, prefix, startAfter, limit)
	switch {
	case rule.Do == LoseAnswer:
		return objstore.Page{}, rule.failure(List, prefix)
	case rule.Do == Tear && len(page.Objects) > 0: // a page that hides its second half and the rest
		return objstore.Page{Objects: page.Objects[:len(page.Objects)/2]}, err
	}
	return page, err
}

// Delete implements objstore.Store. Cut deletes the first half and fails.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	rule, err := s.pick(ctx, Delete, keys...)
	if err != nil {
		return err
	}
	switch rule.Do {
	case Pretend:
		return nil
	case Cut, Tear:
		keys = keys[:len(keys)/2]
	}
	s.deleting(ctx, keys)
	err = s.inner.Delete(ctx, keys)
	if rule.Do == LoseAnswer || rule.Do == Cut {
		return rule.failure(Delete, "objects")
	}
	return err
}

// Lose deletes an object behind everybody's back, as a bucket's rule or an
// operator does.
func (s *Store) Lose(ctx context.Context, key string) error {
	return s.inner.Delete(ctx, []string{key})
}

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities { return s.inner.Capabilities() }

// Close implements objstore.Store.
func (s *Store) Close() error { return s.inner.Close() }

// Unwrap returns the honest store.
func (s *Store) Unwrap() objstore.Store { return s.inner }

func notThere(op, key string) error {
	return errcode.New(errcode.NotFound, "%s %s: no such object", op, key)
}
