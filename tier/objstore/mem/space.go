package mem

import (
	"sync"
	"time"
)

// Space is a set of stores by name, so that tests which restart a node find its
// bucket again.
type Space struct {
	now func() time.Time
	mu  struct {
		sync.Mutex
		stores map[string]*Store
	}
}

// NewSpace returns an empty space; now is the clock of its stores, nil for the
// system's.
func NewSpace(now func() time.Time) *Space {
	s := &Space{now: now}
	s.mu.stores = map[string]*Store{}
	return s
}

// Store returns the store called name, made on first use.
func (s *Space) Store(name string) *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.mu.stores[name]
	if !ok {
		st = New(name, s.now)
		s.mu.stores[name] = st
	}
	return st
}
