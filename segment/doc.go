// Package segment is the storage format of a partition: batches of records
// (Kafka RecordBatch v2, own codec) and the segment files they stand in, which
// have the same bytes on local disk and in the archive. The formats are
// described byte by byte in docs/formats/batch.md and docs/formats/segment.md.
//
//	batch     61 bytes of header | records, compressed as a whole or not
//	.log      batch | batch | batch ...                      active, one writer
//	.seg      batch | batch | batch ... | index | footer     sealed, immutable
//
// # Batches
//
// [AppendBatch] and [Builder] encode, [Records] and [DecodeBatch] decode; none
// of them allocates beyond growing the memory that the caller hands in. What
// decoding gives aliases the batch or the [Scratch]. [Builder.AddBatch] merges
// small batches without looking into their records' keys, values and headers.
// [Stamp] sets offset and generation of an encoded batch, which its checksum
// does not cover. Every field that arrives is checked before it sizes anything.
//
// # Segments
//
// [Create] begins an active segment, [Recover] opens one after a stop or crash,
// [Writer.Seal] completes it, [Adopt] takes over one that was sealed just
// before a crash. What [Writer.Sync] returned for is on stable storage and
// survives; a torn end is cut, damage below it is reported and nothing is
// changed. A writer that failed takes nothing more. [Reader] finds records by
// offset and time in any io.ReaderAt, [Verify] checks a sealed segment whole.
//
// All file access goes through a vfs.FS. The package starts no goroutine and
// keeps no timer. A [Writer] owns one open file, which it gives back in
// [Writer.Park]; its caller serialises appends and syncs, reads run beside them.
package segment
