// Package objstore is Tidemark's view of an object store: one bucket or
// directory under one root, reached through the small interface [Store].
//
// # What is here
//
// The interface and its rules ([Store], [CheckKey], [ReadAll]), and the
// decorators that every backend is wrapped in. Backends live in folders of
// their own so that no SDK is linked by importing this package:
//
//	tier/objstore/s3        S3 and what speaks its protocol
//	tier/objstore/file      a directory
//	tier/objstore/mem       memory, for tests
//	tier/objstore/fault     wraps any store and makes it misbehave, for tests
//	tier/objstore/count     counts and lists the calls, for tests
//	tier/objstore/storeurl  opens a store by its URL
//	tier/objstore/storetest the suite that every backend passes
//
// A backend for Google Cloud Storage is not here yet, and with it what is known
// to go wrong there (B186, B189).
//
// # The stack
//
// [Stack] puts the decorators in the only order that works:
//
//	caller
//	  retry     full jitter, a budget for the node, lost answers resolved by reading
//	    limit     a pool of its own for uploads, reads and background work; AIMD
//	      deadline  ends one attempt that hangs or crawls
//	        metrics   counts what really reaches the store, per attempt
//	          backend
//
// Retry is outside limit so that a call that waits for its next attempt holds
// no slot; limit is outside deadline so that waiting for a slot does not use up
// the attempt's time; metrics is innermost because the store bills attempts.
//
// # Causes and classes
//
// The context carries why a call is made ([WithCause], [For]). The cause decides
// the [Class], the class decides the pool. Metrics count by cause, so that a
// bill can be explained.
//
// # Guarantees
//
// Errors carry a code of package errcode. Throttled and Transient may pass and
// are retried here; NotFound, Exists, Denied, InvalidArgument, Corrupt and
// Internal are answers and go to the caller at once; Canceled means that the
// caller's context ended. NotFound is said only when the store said that this
// key is not there: callers decide on absence (a fence, an end of a list).
//
// # Goroutines
//
// None outlives a call. Bodies returned by Get own a timer until they are
// closed.
package objstore
