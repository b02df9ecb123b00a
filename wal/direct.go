package wal

import (
	"errors"
	"syscall"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// directBytes is the size from which on a group goes around the page cache.
// Copying it into the cache and writing it back from there costs the
// processor more than the write itself; for a group of a few KiB it makes no
// difference, and one that nobody waits to see synced, as acks come, is
// cheaper left in the cache. A block by itself that somebody does wait for, a
// lone producer's, is faster around it: the sync need not look for its page.
const directBytes = 32 << 10

// directWriter is a second descriptor of the current file whose writes go
// around the page cache. Only blocks that were written before go through it,
// so that no write changes what the file system notes about the file. It is
// never synced: the sync of the ordinary descriptor flushes the disk for both,
// and a direct write reports its own failure.
type directWriter struct {
	file vfs.File
	end  int64 // of the blocks that were written before
}

// openDirect opens the newborn's direct writer; none where files or file
// systems have no such thing, or would have to grow.
func (l *Log) openDirect(nb newborn) *directWriter {
	if !nb.pooled || nb.file.Fd() == vfs.InvalidFd {
		return nil
	}
	f, err := l.o.FS.OpenReadWrite(l.path(fileName(nb.header.First)), writeCategory)
	if err != nil {
		return nil // out of descriptors, perhaps; the next file tries again
	}
	if !bypassCache(f) {
		_ = f.Close() // nothing was written
		return nil
	}
	return &directWriter{file: f, end: nb.size}
}

func (d *directWriter) close() error {
	if d == nil {
		return nil
	}
	return d.file.Close()
}

// writeAt writes whole blocks of the current file; synced = a sync is to follow
// at once. The caller has the write role. A file system that takes the
// descriptor and refuses the write gets the bytes in the ordinary way, once and
// for this file.
func (l *Log) writeAt(b []byte, pos int64, synced bool) error {
	direct := len(b) >= directBytes || synced && len(b) == blockSize
	if d := l.mu.direct; direct && d != nil && pos+int64(len(b)) <= d.end {
		err := writeAll(d.file, b, pos)
		if !errors.Is(err, syscall.EINVAL) {
			return err
		}
		l.mu.direct = nil
		_ = d.close() // what it wrote is written again
	}
	return writeAll(l.mu.file, b, pos)
}

// alignedBytes returns size bytes that begin at a block boundary in memory, as
// direct writes want.
func alignedBytes(size int) []byte {
	b := make([]byte, size+blockSize)
	skip := -int(addressOf(b)) & (blockSize - 1)
	return b[skip : skip+size : skip+size]
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
