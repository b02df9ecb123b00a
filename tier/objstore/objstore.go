package objstore

import (
	"context"
	"io"
	"time"
)

// Store is one bucket (or directory) under one root. Keys are relative to the
// root and are what [CheckKey] accepts; no key may continue another one with a
// slash ("a" and "a/b"), nor differ from it in case only: directories cannot
// hold both.
//
// Every method is safe for concurrent use and ends no later than ctx. Errors
// carry one of the codes NotFound, Exists, Throttled, Denied, Transient,
// Corrupt, InvalidArgument, Internal (permanent), or Canceled when ctx ended, of
// package errcode; no SDK type ever leaves a backend.
type Store interface {
	// Put creates the object key with the size bytes that body holds. With
	// opts.CreateOnly an existing object is left as it is and the error is
	// Exists. When Put returns nil the object is durable and visible to every
	// later Get and List. After any other error than Exists, InvalidArgument
	// or Denied the object may or may not be there: the caller reads before
	// it decides. Put reads body from its start, may read it again, and does
	// not keep it. A body that is not size bytes long is InvalidArgument, one
	// whose sum differs from opts is Corrupt, and neither leaves an object.
	Put(ctx context.Context, key string, body io.ReadSeeker, size int64, opts PutOptions) error

	// Get returns the whole object. Reading the body to its end returns io.EOF
	// only after exactly Info.Size bytes, else an error of code Transient: a
	// reply that was cut never looks complete. The caller closes the body.
	// NotFound means that the store said this key does not exist, and nothing
	// else.
	Get(ctx context.Context, key string) (io.ReadCloser, Info, error)

	// GetRange reads len(p) bytes at offset off into p and returns how many
	// the object had there: fewer than len(p) only at the object's end, 0 at
	// or past it, both with a nil error. A negative off is InvalidArgument; an
	// empty p asks the store nothing.
	GetRange(ctx context.Context, key string, p []byte, off int64) (int, error)

	// Head returns what the store knows of the object without its bytes. Its
	// NotFound is as sure as Get's: a HEAD answer has no body and cannot tell a
	// missing key from a missing bucket, so a backend asks again with a GET
	// before it says so.
	Head(ctx context.Context, key string) (Info, error)

	// List returns up to limit objects (0: the store's page size, at most
	// 1000) whose key begins with prefix and is greater than startAfter, in
	// byte order. More says whether another page follows; then Objects is not
	// empty. Every object that was there when List was called and still is when
	// it returns is in it, if its key is in the range. Foreign objects, whose
	// keys CheckKey refuses, are left out.
	List(ctx context.Context, prefix, startAfter string, limit int) (Page, error)

	// Delete removes the objects. Keys that do not exist are no error. When it
	// fails, any subset may be gone.
	Delete(ctx context.Context, keys []string) error

	// Capabilities says what this store can do and where it lives.
	Capabilities() Capabilities

	// Close releases connections. No call may be in flight.
	Close() error
}

// PutOptions are the conditions and checks of one Put.
type PutOptions struct {
	CreateOnly bool      // refuse with Exists when the key is taken
	SHA256     *[32]byte // of the whole body, when known: sent as payload hash, so a body that differs is refused
	CRC32C     *uint32   // of the whole body, when known: given to stores that verify it
}

// Info describes one object.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time // the store's clock
}

// Page is one answer of List.
type Page struct {
	Objects []Info
	More    bool
}

// Capabilities are the differences between stores, as data.
type Capabilities struct {
	Kind       string // "s3", "file", "mem"
	URL        string // without credentials
	CreateOnly bool   // a conditional create is honoured; stores without are refused
	MaxPut     int64  // largest single Put in bytes, 0 = no limit
}
