// Package authority makes certificates for tests: an authority of the test's
// own, and server certificates for loopback that it signs. Everything is in
// files below the test's temporary directory, as a node gets it.
package authority
