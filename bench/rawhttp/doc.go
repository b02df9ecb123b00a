// Package rawhttp is HTTP/1.1 as a load generator needs it: one connection, one
// request at a time, written with one system call and read without goroutines, so
// that the generator leaves the processors to the server it measures.
//
// A [Conn] belongs to one goroutine. The body of an [Answer] is valid until the
// connection's next request. Nothing is retried: a request that gets no answer is
// an error, because it may have been applied. A connection that has been idle for
// longer than servers keep one is opened again before a request. No goroutines
// run but the one that watches the context of Dial.
package rawhttp
