// Package scenario holds what `tidemark bench` measures: each scenario makes its
// load, measures it over several runs, and verifies that every record that a
// broker accepted came back once and unchanged.
//
// A scenario sees a broker through HTTP alone, and an archive through
// [objstore.Store]. It uses topics of its own, named bench-..., and deletes them.
// What cannot be verified fails the run: a loss, a duplicate, a changed record, a
// request that was refused. A failed scenario still returns its report, with
// Failure set, beside the error.
//
// # Goroutines
//
// Those of package load, and some that consume. All have ended when a scenario
// returns.
package scenario
