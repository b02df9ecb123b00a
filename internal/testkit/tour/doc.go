// Command tour takes real text through a broker's whole life and checks every
// byte of it:
//
//	go run ./internal/testkit/tour -binary bin/tidemark
//
// It produces the package index of the distribution (one stanza a record, its
// name the key) over HTTP into six partitions, waits until segments and log are
// in the archive, kills the broker with SIGKILL, deletes its data directory,
// restores it from the archive alone, and reads everything again. The records
// of each partition must be the ones that went in, in their order: their count
// and the SHA-256 over keys and values decide.
//
// The tour is made twice: with an S3 server of its own and with a directory as
// the archive. It prints a table, PASS, and exits with 0; or FAIL, why, and 1.
// Its processes are ended by their ids and its files removed however it ends.
package main
