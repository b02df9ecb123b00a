// Package api is the HTTP plane of a node: routes, limits, status codes and
// bodies over the [Broker] that the node provides.
//
// # Guarantees
//
// Every request ends with an answer, a typed error or an aborted connection.
// Errors are JSON for every path and method, also for what net/http refuses by
// itself. Nothing of a body is read before the credentials, the cross-site
// guard, the query and the topic have been checked, and no buffer grows faster
// than the bytes that arrive. Bounds are the fields of [Limits].
//
// A record's value goes to the broker byte for byte. Answers show a value that
// is JSON as it is, other UTF-8 as a string, and everything else in base64.
// Numbers are never parsed.
//
// Leased records whose answer cannot be written go back to the broker at once.
//
// # Who reads
//
// net/http reads the first request of a connection and every one that is not common:
// no POST below /v1/topics/, with headers that say something about the connection, in
// several pieces, or with the next one behind it. Common ones its connection answers by
// itself, between two requests of net/http, through the same handlers. A request is
// taken to its last byte or not touched, and taken only where net/http, which is
// lenient in more, reads the same.
//
// # Who owns what
//
// A request lives in an exchange, which is pooled with its buffers: records
// handed to the broker point into them and are valid until the call returns.
// [Server.Serve] owns its listener. The goroutines are those of net/http, one
// per connection, one for each request that waits or streams, which watches its
// connection for its end and ends with it, and one for each connection that is
// turned away beyond the bound (Limits.RefusalsAtATime at the most);
// [Server.Shutdown] waits for all.
//
// # Order of checks
//
//	connection bound -> header bound -> route -> credentials -> cross-site guard
//	-> query -> names -> topic -> body -> broker
//
// The routes, their parameters and answers are described in docs/http-api.md.
package api
