package fault

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-mq/tidemark/tier/objstore"
)

// maxChanges bounds the history; a list cannot be older than it.
const maxChanges = 10_000

// history remembers the last changes made through the store, to tell what a list
// looked like before them.
type history struct {
	known   map[string]objstore.Info // objects put through the store
	changes []change                 // the newest last
}

// change is what a key was before one change.
type change struct {
	key    string
	before *objstore.Info // nil: not there
}

func (h *history) add(key string) {
	c := change{key: key}
	if info, ok := h.known[key]; ok {
		c.before = &info
	}
	if len(h.changes) == maxChanges {
		h.changes = append(h.changes[:0], h.changes[maxChanges/2:]...)
	}
	h.changes = append(h.changes, c)
}

// before returns what the keys that changed in the last age changes were.
func (h *history) before(age int) map[string]*objstore.Info {
	was := map[string]*objstore.Info{}
	for _, c := range slices.Backward(h.changes[max(0, len(h.changes)-age):]) {
		was[c.key] = c.before
	}
	return was
}

func (s *Store) putDone(key string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.history.add(key)
	s.mu.history.known[key] = objstore.Info{Key: key, Size: size, Modified: time.Now()}
}

// deleting remembers what keys are before they go.
func (s *Store) deleting(ctx context.Context, keys []string) {
	for _, key := range keys {
		info, err := s.inner.Head(ctx, key)
		s.mu.Lock()
		if err == nil {
			s.mu.history.known[key] = info
			s.mu.history.add(key)
		}
		delete(s.mu.history.known, key)
		s.mu.Unlock()
	}
}

// listStale lists the bucket as it was age changes ago.
func (s *Store) listStale(ctx context.Context, prefix, startAfter string, limit, age int) (objstore.Page, error) {
	limit, err := objstore.PageLimit(limit)
	if err != nil {
		return objstore.Page{}, err
	}
	s.mu.Lock()
	was := s.mu.history.before(age)
	s.mu.Unlock()
	old := map[string]objstore.Info{}
	for key, info := range was {
		if info != nil && strings.HasPrefix(key, prefix) && key > startAfter {
			old[key] = *info
		}
	}
	// The old objects of later pages are kept too; the cut below drops them.
	for after, more := startAfter, true; more && len(old) <= limit+len(was); {
		page, err := s.inner.List(ctx, prefix, after, limit)
		if err != nil {
			return objstore.Page{}, err
		}
		for _, o := range page.Objects {
			after = o.Key
			if _, changed := was[o.Key]; !changed {
				old[o.Key] = o
			}
		}
		more = page.More
	}
	keys := slices.Sorted(maps.Keys(old))
	page := objstore.Page{More: len(keys) > limit}
	for _, k := range keys[:min(limit, len(keys))] {
		page.Objects = append(page.Objects, old[k])
	}
	return page, nil
}
