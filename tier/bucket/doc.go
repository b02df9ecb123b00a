// Package bucket looks at an archive from outside, without a cluster: what is
// in it, what one object says, and whether everything that the chains name is
// there and whole. It is the logic of `tidemark bucket ls|inspect|verify`.
//
// It only reads: no function of this package puts or deletes an object, and it
// is safe beside a running cluster, whose newest changes it may miss. Lists are
// read page by page to their end; what a partition holds is in memory while
// that partition is looked at, everything else streams.
//
// Shipped WAL and state objects are decoded by functions that the caller gives
// in [Decoders]; this package knows their keys alone. It runs a bounded number of
// goroutines inside a call and none afterwards.
package bucket
