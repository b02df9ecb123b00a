// Package fault wraps an objstore.Store and makes it misbehave as a test says:
// slow, down, throttling, denying, lying, losing answers or objects, serving old
// lists. The store below stays honest, so a test can look at what is really
// there through Unwrap.
//
//	store := fault.New(mem.New("", nil), fault.Options{Seed: 1})
//	lost := store.Add(fault.Rule{Ops: []string{fault.Put}, Key: "*/m/*", Times: 1, Do: fault.LoseAnswer})
//	...
//	if lost.Hits() != 1 { ... }
//
// Rules are asked in the order they were added; the first that matches a call
// acts, and the call goes by the others. With the same seed and the same order of
// calls the same calls fail.
//
// It is safe for concurrent use and has no goroutines. What it keeps for stale
// lists is bounded.
package fault
