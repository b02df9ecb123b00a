// Package client talks to a Tidemark node over HTTP.
//
// # A tour
//
// A [Client] has a method for each thing that a node does: [Client.CreateTopic],
// [Client.Produce], [Client.Consume], [Client.Ack] and so on. One call is one
// request, tried again where that is safe. On top of it stand three things for
// programs that run for long:
//
//   - a [Producer] collects records into batches and delivers them in order;
//   - a [Consumer] hands leased records to handlers, renews their leases and
//     settles them;
//   - [Client.Replay] reads a partition's log, however often its stream breaks.
//
// The examples show each of them.
//
// # What is tried again
//
// Every error is an [Error] with a [Code], and each code has a [RetryClass]. A
// call that was refused (RetryAfter, RetryRedirect), or whose request did not
// reach the node as a whole, has had no effect and is repeated. A call whose
// answer was lost (RetryUnknown) may have had one: reads, consumes, acks, nacks
// and extensions are repeated, for repeating them does no harm; a produce only
// with AtLeastOnce, which is off unless said otherwise, since its records may
// then stand in the log twice. Everything else is returned.
//
// Pauses double from try to try up to a bound, half of each is random, and a
// Retry-After is kept. [Retry] has the bounds, and a context ends everything: a
// call that cannot be repeated before its deadline returns its own error at once.
//
// Whether a request was sent is known as far as net/http says it: no connection,
// or one that did not take all bytes, means that it was not. A connection that
// breaks later counts as a lost answer.
//
// # Delivery
//
// A record whose Delivery has no error is stored at the level that was asked for.
// A consumed record is delivered at least once: a handler whose lease is lost, or
// whose ack does not arrive in time, sees it again, here or elsewhere.
//
// # Bytes
//
// Values, keys and headers are exact bytes. With a node that does not answer in
// frames, and behind a proxy that takes trailers off, lists and streams are JSON:
// there a value that is JSON comes without the white space around it, and one
// that is a JSON string comes as its text. A consume of one record is always exact.
//
// # Bounds
//
// An answer that is not a stream has at most 128 MiB. A Producer holds at most
// BufferRecords and BufferBytes, a Consumer at most InFlight records, a Replay
// one record and its buffers. Answers that stop arriving end their call: after
// two minutes, in streams that do not follow after one.
//
// # Goroutines
//
// A Client has none of its own but those of net/http for idle connections, which
// [Client.CloseIdleConnections] ends. A Producer has one, from NewProducer to
// Close. A Consumer's run from Run until it returns. All are waited for.
//
// Client and Producer are safe for concurrent use, and so are a Consumer's
// methods. A [LogReader] is not, and must be closed.
package client
