// Package file is an objstore.Store in a directory: the archive for one machine
// or for a shared file system, and the copy that a bucket can be mirrored to. An
// object is a file whose path under the root is its key, so any tool can read it.
//
// # Guarantees
//
// An object appears whole or not at all: its bytes go to a temporary file, which
// is synced, and only then gets its name. A create-only put names it with
// link(2), which the kernel refuses when the name is taken; of many writers, in
// whatever process, one wins. Put returns when the name is durable too: the
// directory of the object has been synced, and each directory above it whose
// entry on the way there is not known to be durable. That is known of directories
// whose way up this store has synced and which are the same ones still; the 128
// used last are kept open for it. One that was there before, or that anybody
// removed and made again, is synced again. The loser of a race does these syncs
// as well before it says Exists, and a delete does its own when the object is
// gone already, so that what they report cannot turn.
//
// A directory whose sync failed once is not believed again: the kernel may have
// dropped what it could not write and say yes the next time. The store then
// refuses puts and deletes until it is opened anew.
//
// # Layout
//
//	<root>/~tmp/<random>   bytes on their way; '~' cannot be in a key
//	<root>/<key>           objects
//
// Temporary files that were left by a crash are invisible and removed at Open
// when they have not been written to for an hour. ~tmp also marks the directory
// as an archive: when it is gone, a missing file no longer means a missing
// object, and reads fail instead of saying NotFound (a volume that was unmounted
// must not look like an empty bucket).
//
// The file system needs hard links; Open tries one and says so if it cannot.
// All access goes through one os.Root, so no link inside leads out.
//
// There are no goroutines.
package file
