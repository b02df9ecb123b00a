package fault

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidemark-mq/tidemark/internal/errcode"
)

// Operations, as rules name them.
const (
	Put      = "put"
	Get      = "get"
	GetRange = "get_range"
	Head     = "head"
	List     = "list"
	Delete   = "delete"
)

// Action is what a rule does to a call.
type Action int

// The actions. Where one makes no sense for an operation the call passes.
const (
	Pass       Action = iota // only Wait and Delay
	Fail                     // the error, without asking the store: nothing happened
	LoseAnswer               // ask the store, drop its answer, return the error: effect without answer
	Pretend                  // do not ask; say that all is well: puts and deletes succeed, objects do not exist, lists are empty
	Cut                      // the bytes stop in the middle with the error; a put stores nothing
	Tear                     // the bytes stop in the middle without an error; a put stores the first half and succeeds; a head says half the size
	Flip                     // one bit differs in what is read, or in what a put stores; a head says a larger size
	Stale                    // a list shows the bucket as it was Age changes ago
	Hang                     // no answer until the caller's context ends
)

// Rule says which calls misbehave, and how.
type Rule struct {
	Ops    []string // empty: all
	Key    string   // pattern, '*' stands for any run of bytes; empty: all. For a list the prefix, for a delete each key.
	Skip   int      // so many matching calls pass first
	Times  int      // then so many misbehave; 0: all
	Chance float64  // of a call to misbehave, by the seed; 0: always

	Wait   <-chan struct{} // hold the call until this is closed or its context ends
	Delay  time.Duration   // then wait as long
	Jitter time.Duration   // and up to as much more, by the seed

	Do  Action
	Err error // what failing actions return; nil: Transient
	Age int   // of Stale, in changes (objects put or deleted)
}

// Handle is a rule that was added.
type Handle struct {
	rule Rule
	s    *Store
	seen int // matching calls so far; under the store's lock
	keys []string
	hits atomic.Int64
}

// Hits returns how many calls the rule acted on.
func (h *Handle) Hits() int { return int(h.hits.Load()) }

// maxKeys bounds what Keys returns.
const maxKeys = 1000

// Keys returns the keys of the calls that the rule acted on, the first 1,000.
func (h *Handle) Keys() []string {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return slices.Clone(h.keys)
}

// Remove ends the rule for calls to come.
func (h *Handle) Remove() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.mu.rules = slices.DeleteFunc(h.s.mu.rules, func(o *Handle) bool { return o == h })
}

// matches reports whether the rule is about the call.
func (r *Rule) matches(op string, keys []string) bool {
	if len(r.Ops) > 0 && !slices.Contains(r.Ops, op) {
		return false
	}
	return r.Key == "" || slices.ContainsFunc(keys, func(k string) bool { return glob(r.Key, k) })
}

// glob reports whether pattern, in which '*' stands for any run, matches all of s.
func glob(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, parts[0])
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, p := range parts[1:last] {
		if _, s, ok = strings.Cut(s, p); !ok {
			return false
		}
	}
	return strings.HasSuffix(s, parts[last])
}

// failure returns the rule's error.
func (r *Rule) failure(op, key string) error {
	if r.Err != nil {
		return errcode.Wrap(errcode.Of(r.Err), r.Err, "%s %s", op, key)
	}
	return errcode.New(errcode.Transient, "%s %s: the fault store was told to fail", op, key)
}
