// Package manifest is the archive's list of the segments of one partition: an
// append-only chain of small objects, each created under a condition that only
// one writer can meet, and the keys of everything else that the archive holds.
//
// # Guarantees
//
// A [Chain] is one partition's chain as this process last saw it. What it says
// was read from the store or written by it; a failed read is an error and never
// looks like an empty chain. Only the generation that fenced the chain last can
// append; entries of an older one are void wherever they stand, so nothing
// that a former owner writes is ever read. The chain's end never falls, an
// offset range is named once, and what is not covered by a segment is named as
// a gap.
//
// An error from a method that appends says nothing about the store unless its
// code is Fenced, Conflict, Exists, PreconditionFailed, InvalidArgument or
// Denied: with any other code the entry may or may not exist. Calling the
// method again is always safe and finds out.
//
// # Ownership and goroutines
//
// All methods are safe for concurrent use. Readers work on an immutable state
// and never wait for a writer; writers of one Chain run one after the other and
// leave when their context ends. Load reads entries with a bounded number of
// goroutines and waits for them; nothing runs in the background. Slices that
// are returned belong to the caller.
//
// # Format
//
// docs/formats/archive.md has the keys, docs/formats/manifest.md the entries,
// checkpoints and pages byte by byte, and the rules by which a chain is read.
package manifest
