// Package cold reads archived segments through a cache of chunks on local disk.
//
// # Guarantees
//
// Every batch that is handed out has been verified: its checksum, its place in
// the index, and the index against the footer and the chain's entry. A body that
// is short or has a flipped byte is fetched once more and never served. A chunk
// on disk is as good as the batches in it: one that is not what was downloaded
// is a miss. What cannot be read is an error
// with a meaning: Gone for an object that the store does not have, with the
// range of offsets that is lost; ArchiveUnavailable for a store that does not
// answer, which may pass; Corrupt for bytes that are wrong twice.
//
// A chunk is downloaded once however many readers want it. A reader that leaves
// stops waiting and not the download. From a store that tells how far an answer has
// come, each chunk is handed out and written to disk as soon as it is there, and its
// batches are verified then, while the processor's cache has them (see download.go).
// What an answer that breaks off has brought by then is not asked for again.
//
// The first batch of a segment of which nothing is known takes one round trip: a
// small part of the data, in which it probably lies, is fetched beside the index
// (see opening.go) and belongs to that scan alone. Its bytes are fetched again with
// their chunk, which nobody waits for.
//
// # Memory
//
// Chunks stand in blocks that a pool lends, and every holder of a chunk is
// counted: the download, the writer, scans and runs. A block goes back when the
// last one has let go, so nobody reads memory that is used again; the block of a
// request that failed never goes back, though chunks that it brought are read. [Batches.Next] gives a batch that stays
// until the following call; [Batches.Run] gives several, uncopied, that stay
// until [Run.Release]; the first run of a scan may be short, because it
// ends with that part. Both are shared with other readers and only to be read.
// A scan or run that is forgotten costs the reuse of its memory and no more.
//
// A reader that goes on from segment to segment says so with [Batches.Follow],
// and its read-ahead runs across the border.
//
// # Bounds
//
// Files on disk are bounded by Config.MaxBytes. While there is room every download
// is kept. Once there is none, the file that was used longest ago goes first, unless
// its chunks are read more often than the new ones: then the search goes on, and
// ends with the new ones not being kept. So what is read once, however much it is,
// does not drive out what is read again and again. A file that is read or ahead of
// a reader stays, and one that could not be removed counts. Indexes in memory are
// bounded by Config.IndexBytes, read-ahead of all readers by Config.AheadBytes and of one by
// 64 MiB (32 MiB beside others), requests in flight by Config.Concurrency and 8 MiB each, downloads on
// their way to disk by 32, and 80 MiB of them that have arrived: when the disk does not keep up they
// are served and not kept. Runs are bounded by whoever holds them.
//
// # Yielding
//
// Cold work is never urgent beside an append that somebody waits for. When
// Config.Latency says that work runs late, by more than a millisecond, the rate at
// which all readers together get chunks is halved; it grows again by a step each
// tenth of a second. It never falls below 8 MiB a second. Readers that begin beside
// other work have 64 MiB a second, doubled each tenth of a second until work is
// late. Without other work there is no limit.
//
// # Ownership and goroutines
//
// A [Cache] owns its directory: what is in it may be deleted at any time while
// no Cache is open. It runs two goroutines for each download, one of which writes it
// to disk; Close waits for all.
//
// # Chunk file
//
//	data          up to eight adjacent chunks, each 1 MiB of the object but its last
//	trailer 32 B: magic "TMCHK\0\0\2" | object 12 B | first chunk u32 | length of the data u32 |
//	              crc32c of the trailer u32
//
// Object is the beginning of the SHA-256 of the object's key. The file's name is
// object and first chunk in hexadecimal and ".chunk". Chunk files are not synced
// and the trailer is written last: what a crash tears is a miss. The data have no
// sum of their own because every batch in them has one, which is checked whenever
// it is read.
package cold
