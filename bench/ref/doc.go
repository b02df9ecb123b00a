// Package ref holds the reference programs that Tidemark's speed is compared
// with: the least work that any broker of its kind has to do on this machine.
//
// A throughput number alone says more about the machine than about the
// program, and the machine drifts while one measures. Every speed target is
// therefore a ratio between Tidemark and one of these programs, measured
// alternately in the same run:
//
//   - httpref: a plain net/http server that reads a body and answers 200
//     ("bare HTTP"), and with -wal the same behind one shared log with group
//     commit ("bare HTTP+WAL").
//   - appendref: append + fdatasync on a file whose blocks are allocated and
//     written already ("bare append").
//
// They are yardsticks and not products: no routes, no recovery, no reader for
// the log. They must stay as fast as simple code can be; a slower yardstick
// flatters what it measures. bench/s1.sh runs them against a broker.
package ref
