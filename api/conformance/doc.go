// Package conformance is the suite that the HTTP API of a node passes: what
// docs/http-api.md promises, as tables of a rule, the requests that show it and
// the answers that they must have. It knows a node by its URL alone, so it runs
// against any:
//
//	go test ./api/conformance -url http://127.0.0.1:7942
//
// Without -url the tests of the package build the binary and run the suite
// against it, without and with a password, and once more against a server whose
// bounds are small enough to be reached.
//
// A [Case] has a topic of its own, which it deletes at its end; nothing else on
// the node is looked at or changed, apart from POST /v1/archive/garbage and POST
// /v1/archive/scrub, which do what a node does by itself. Requests whose form
// matters are written byte by byte on connections of their own ([Talk]), all
// others go through net/http ([Request]).
//
// Some rules hold for every answer and stand in no table: an error is the JSON
// object with its code, its retry class and, where waiting helps, Retry-After;
// nothing is redirected, and no answer approves another origin.
//
// A case that shows a deliberate difference from the older API that N routes
// keep to names the difference by its id in docs/compatibility.md.
//
// Cases of a family run beside each other, in goroutines of the testing
// package; those that exhaust a bound of the whole node run alone, after them.
package conformance
