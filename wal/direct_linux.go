package wal

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// bypassCache makes writes through f go to the disk directly, and says whether
// that is possible. The file system may still refuse the first write.
func bypassCache(f vfs.File) bool {
	fd := f.Fd()
	if fd == vfs.InvalidFd {
		return false // not a file of the operating system
	}
	flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
	if err != nil {
		return false
	}
	_, err = unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_DIRECT)
	return err == nil
}

// dropCache frees the memory that the page cache spends on f. Nobody reads a
// spare, and a direct write over cached blocks is slower than one without: it
// has to evict them.
func dropCache(f vfs.File) {
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED) // advice: nothing depends on it
	}
}
