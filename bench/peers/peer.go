package main

import "context"

// system is what is measured, with what its answers promise.
type system struct {
	Name     string            `json:"name"`
	Version  string            `json:"version"`
	Settings string            `json:"settings"` // that decide what is durable
	Promises map[string]string `json:"promises"` // by row
	open     func(ctx context.Context, work string) (peer, error)
}

// peer is a running server with an empty stream and one group that consumes it.
type peer interface {
	// dial opens a connection; nobody else uses it.
	dial(ctx context.Context) (worker, error)
	// stored counts the records of the stream.
	stored(ctx context.Context) (int64, error)
	// stop ends the server and removes its data.
	stop() error
}

// worker is one connection. It keeps no slice that it is given.
type worker interface {
	// send produces a record and waits for the answer.
	send(ctx context.Context, value []byte) error
	// sendAll produces records together and waits for all answers.
	sendAll(ctx context.Context, values [][]byte) error
	// take consumes up to n records and acks them; 0 when none came for a moment.
	take(ctx context.Context, n int, got func(value []byte)) (int, error)
	// follow hands out records as they come, and acks each, until got says false.
	follow(ctx context.Context, got func(value []byte) bool) error
	close()
}
