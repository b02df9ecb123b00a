// Package records makes the records that a benchmark sends, and checks that what
// comes back is exactly what was accepted.
//
// A record is a line of JSON of a fixed size: a stamp, then text.
//
//	{"run":"5f1c09aa","id":"000300000000001c","at":"00000000004c4b40","sum":"9e2d11f0","text":"..."}
//
// run tells the records of one run from all others. id is the stream (4 hex
// digits) and the sequence within it (12). at is when the record was due, in
// nanoseconds since the run began. sum is the CRC-32C of all other bytes. The
// text is words of a vocabulary, the frequent ones much more often than the rare
// ones; zstd makes it about four times smaller. A corpus of noise in place of
// text does not compress, and its records are no JSON.
//
// # Guarantees
//
// A [Ledger] knows in a few words of memory for each stream whether the records
// that were seen are the ones that were accepted, each of them once: it keeps
// counts and sums of sequences and of their hashes, and no sequence itself. A
// loss, a duplicate, and one for the other are seen with certainty for all
// practical purposes (64 bits). Records that were refused must not be seen; records
// whose request got no answer may be, once. Of the latter, up to [MaxUnsure], each
// sequence is kept.
//
// # Concurrency
//
// A Corpus is immutable. A Source belongs to one goroutine. A Ledger is safe for
// concurrent use. No goroutines run.
package records
