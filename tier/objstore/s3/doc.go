// Package s3 is an objstore.Store on S3 and on what speaks its protocol. It is
// the only package that links the AWS SDK.
//
// # Guarantees
//
// One call is one attempt: the SDK's own retries are off, because the decorators
// of objstore own retries, their budget and their pace for the whole node.
//
// A body is streamed from the caller's reader and never held. It always travels
// with a sum that the store compares, because some keep the bytes they have got
// when a client goes away in the middle of a body without one:
//
//	SHA-256 known           sent as the signed payload hash; the body is read once
//	CRC-32C known, > 1 MiB  sent as x-amz-checksum-crc32c, payload unsigned; read once
//	else                    hashed here, then sent as the payload hash; read twice
//
// A known CRC-32C is compared here as well while the body passes. The checksum
// mode when_required sends no x-amz-checksum header at all, for stores that refuse
// them; uploads then need the SHA-256 to be read once. The
// transport may go on reading a body after its request has ended; the body is
// detached first, so a Put that returned never touches it again.
//
// Bodies above 64 MiB go up in parts, one after the other, each with its own
// SHA-256; the condition of a create-only put is checked when the parts are
// joined, and the sum of the whole body just before. Every path that does not end
// in an object aborts the upload with a context of its own. What a crash leaves
// is found by [Store.SweepUploads].
//
// An answer 200 whose body is an error document is an error. A list that is out
// of order or outside what was asked for is an error.
//
// # Errors
//
// NotFound comes from one place: a GET answered 404 with the code NoSuchKey. Some
// stores answer 404 for an unknown access key, all do for a missing bucket; read
// as absence, that would make a node whose key was withdrawn believe that nobody
// has fenced it. HEAD has no body to carry a code, so its 404 is asked again with
// a GET of one byte.
//
// # Goroutines
//
// Those of net/http for idle connections, until Close.
package s3
