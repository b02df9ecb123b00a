// Package certs holds the certificate that a listener shows, and exchanges it
// while the listener serves.
//
// A [Pair] is a certificate with its key, read from files and checked: it is
// whole, the key fits, and both have bounds. A [Server] is what a listener's
// configuration is made of; Use puts another pair and another least version in
// place at once. Connections that are open keep what they began with; every
// handshake from then on sees the new pair. A pair that cannot be loaded never
// reaches a Server, so what was served before stays.
//
// [Client] is the other side: whom a client trusts.
//
// The package starts no goroutine and watches no file: who owns a Server says
// when to read again. Everything is safe for concurrent use.
package certs
