// Package cold reads archived segments through a cache of chunks on local disk.
//
// # Guarantees
//
// Every batch that is handed out has been verified: its checksum, its place in
// the index, and the index against the footer and the chain's entry. A body that
// is short or has a flipped byte is fetched once more and never served. A chunk
// on disk verifies itself; a bad one is a miss. What cannot be read is an error
// with a meaning: Gone for an object that the store does not have, with the
// range of offsets that is lost; ArchiveUnavailable for a store that does not
// answer, which may pass; Corrupt for bytes that are wrong twice.
//
// A chunk is downloaded once however many readers want it. A reader that leaves
// stops waiting and not the download.
//
// # Bounds
//
// Files on disk are bounded by Config.MaxBytes (the one that was used longest
// ago goes first, one that is being read stays), indexes in memory by
// Config.IndexBytes, read-ahead of all readers by Config.AheadBytes and of one by
// 8 MiB, requests in flight by Config.Concurrency, chunks on their way to disk by
// 32: when the disk does not keep up they are served and not kept.
//
// # Ownership and goroutines
//
// A [Cache] owns its directory: what is in it may be deleted at any time while
// no Cache is open. It runs one goroutine that writes chunks and one for each
// request in flight; Close waits for all. Batches alias chunks that several
// readers share: whoever gets one only reads it.
//
// # Chunk file
//
//	header 64 B: magic "TMCHK\0\0\1" | id 16 B | object position u64 | length u32 | crc32c of the data u32 | zero | crc32c of the header u32
//	data         up to 1 MiB of the object, from a position that is a multiple of 1 MiB
//
// The file's name is the id in hexadecimal and ".chunk"; the id is the first half
// of SHA-256 over the object's key, a zero byte, and the number of the chunk as
// u32. Chunk files are not synced: after a crash a torn one is a miss.
package cold
