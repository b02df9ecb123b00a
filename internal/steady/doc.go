// Package steady keeps a database alive on a disk that fails for a while.
//
// Pebble ends its process when a write fails, though nothing is lost: the bytes
// are still in memory, and the same write can be done again. An [FS] between
// Pebble and the disk does that. A change of a file that fails for a reason
// that may pass (no space, no descriptors, an I/O error, a read-only mount)
// waits and is tried again, from the byte where it stopped; to Pebble the disk
// is slow. [FS.Err] says meanwhile what waits and why, so that the node can
// refuse what would need it.
//
// # Guarantees
//
//   - A failed sync is never tried again, and the owner of the database hears of
//     it even where Pebble would go on with another file: after it the kernel may
//     have dropped what was written (I5).
//   - A marker, which says which manifest counts, is made and goes only when what
//     was done to names before is durable: the database opens also where a file
//     system keeps later names and loses earlier ones.
//   - Reads never wait, nor do removals but for that of a marker; neither does anything before [FS.Patient]
//     or after [FS.Hasten], so that opening and closing end.
//   - What waits is bounded by the goroutines of the caller: each waits for one
//     change. No goroutine belongs to this package.
package steady
