// Package client talks to a Tidemark node over HTTP. It is small on purpose:
// one call is one request, nothing is retried, and every error carries a code
// of package errcode with its retry class, so that callers decide.
//
// A Client is safe for concurrent use and starts no goroutines of its own. A
// [LogReader] is not safe for concurrent use and must be closed.
//
// Values are exact bytes where one record is asked for. In lists and streams,
// which are JSON, a value that is JSON comes without the white space around
// it, and one that is a JSON string comes as its text.
package client
