// Package count wraps an objstore.Store and counts and lists the calls on it, so
// that tests can assert what an operation costs and print the exact sequence of
// store calls. Under retries it sees attempts, above them calls.
//
// It is safe for concurrent use and has no goroutines.
package count

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"

	"github.com/tidemark-mq/tidemark/internal/errcode"
	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxLines bounds the list of calls; counting goes on.
const maxLines = 100_000

// Call is what calls are counted by.
type Call struct {
	Op    string // put, get, get_range, head, list, delete
	Cause objstore.Cause
}

// Store counts the calls on the store it wraps.
type Store struct {
	inner objstore.Store
	mu    struct {
		sync.Mutex
		calls    map[Call]int
		sent     int64
		received int64
		lines    []string
	}
}

var _ objstore.Store = (*Store)(nil)

// New wraps inner.
func New(inner objstore.Store) *Store {
	s := &Store{inner: inner}
	s.mu.calls = map[Call]int{}
	return s
}

// Count returns how many calls of op were made, for all causes.
func (s *Store) Count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for c, k := range s.mu.calls {
		if c.Op == op {
			n += k
		}
	}
	return n
}

// Calls returns the number of calls by operation and cause.
func (s *Store) Calls() map[Call]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.calls)
}

// Bytes returns the bytes of objects that were put and read.
func (s *Store) Bytes() (sent, received int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.sent, s.mu.received
}

// Transcript returns the calls so far, one a line, in the order they ended:
//
//	put m/1 120 create-only: ok
//	get FENCE: not_found
func (s *Store) Transcript() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.lines) == 0 {
		return ""
	}
	return strings.Join(s.mu.lines, "\n") + "\n"
}

// Reset forgets everything.
func (s *Store) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.calls, s.mu.lines, s.mu.sent, s.mu.received = map[Call]int{}, nil, 0, 0
}

func (s *Store) note(ctx context.Context, op, what string, err error, sent, received int64) {
	result := "ok"
	if err != nil {
		result = errcode.Of(err).String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.calls[Call{op, objstore.CauseOf(ctx)}]++
	s.mu.sent += sent
	s.mu.received += received
	if len(s.mu.lines) < maxLines {
		s.mu.lines = append(s.mu.lines, op+" "+what+": "+result)
	}
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts objstore.PutOptions) error {
	err := s.inner.Put(ctx, key, body, size, opts)
	what := fmt.Sprintf("%s %d", key, size)
	if opts.CreateOnly {
		what += " create-only"
	}
	s.note(ctx, "put", what, err, size, 0)
	return err
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, objstore.Info, error) {
	body, info, err := s.inner.Get(ctx, key)
	s.note(ctx, "get", key, err, 0, 0)
	if err != nil {
		return nil, info, err
	}
	return &counted{body, s}, info, nil
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, p []byte, off int64) (int, error) {
	n, err := s.inner.GetRange(ctx, key, p, off)
	s.note(ctx, "get_range", fmt.Sprintf("%s [%d,%d)", key, off, off+int64(len(p))), err, 0, int64(n))
	return n, err
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	info, err := s.inner.Head(ctx, key)
	s.note(ctx, "head", key, err, 0, 0)
	return info, err
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	page, err := s.inner.List(ctx, prefix, startAfter, limit)
	s.note(ctx, "list", fmt.Sprintf("%q after %q limit %d", prefix, startAfter, limit), err, 0, 0)
	return page, err
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	err := s.inner.Delete(ctx, keys)
	s.note(ctx, "delete", strings.Join(keys, " "), err, 0, 0)
	return err
}

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities { return s.inner.Capabilities() }

// Close implements objstore.Store.
func (s *Store) Close() error { return s.inner.Close() }

// Unwrap returns the store below.
func (s *Store) Unwrap() objstore.Store { return s.inner }

// counted adds a body's bytes as they are read.
type counted struct {
	io.ReadCloser
	s *Store
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.s.mu.Lock()
	c.s.mu.received += int64(n)
	c.s.mu.Unlock()
	return n, err
}
