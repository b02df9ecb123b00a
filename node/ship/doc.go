// Package ship sends the write-ahead log to the archive, so that the bucket
// trails the node by about Options.Interval whatever the number of partitions,
// and says when a record is archived.
//
// # Guarantees
//
// Objects are created in LSN order and never overwritten. The shipped mark and
// the answers of [Shipper.WaitArchived] move contiguously: an object counts
// only after it was put and the incarnation's FENCE was asked for and is
// absent. Whoever takes the node over creates FENCE before it lists: either
// the fence was there for that GET, and nothing was answered, or the list
// holds the object. That needs no clock. The same holds for exports of the
// metadata: one counts for an answer after a fence check that began when the
// export stood.
//
// Nothing but the claim of a first cluster generation is written before the
// archive is known to be this cluster's.
//
// A FENCE, a claim of a later cluster generation, or an archive that knows
// more of this incarnation than its own log does ends shipping for good and
// is reported once by Options.OnFenced. Every other failure is tried again
// with backoff, and shows in [Shipper.Status].
//
// # Goroutines
//
// Run starts two: one ships and checks the fence, one writes exports of the
// metadata. Both end with its context.
package ship
